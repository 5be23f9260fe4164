"""The local engine: its children may hang, die and misbehave, each at its own cost; they are replaced, wait while something
is timed, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path

import pytest

from pitchpipe.errors import InvalidInput, InvalidModel, StepDied, StepFailed, StepTimeout, Unreachable
from pitchpipe.wire.limits import StepLimits
from tests import bad_steps
from tests.compiler import programs
from tests.patience import PATIENCE_SECS
from tuner.execution import engine, pool, step_child
from tuner.execution.engine import LocalEngine, create_engine, on_behalf
from tuner.execution.steps import propose, score, train
from tuner.measure import quiet
from tuner.search.requests import ProposeRequest, Sample

MIB = bad_steps.MIB
AMPLE = StepLimits(wall_secs=600.0, cpu_secs=600, memory_bytes=256 * MIB)
STAYING = {"stay": replace(AMPLE, confined=False)}
"""Limits of a step that tells by a file that it runs."""


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quiet.ENVIRONMENT, str(tmp_path / "lock"))


@pytest.fixture
def local() -> Iterator[LocalEngine]:
    made = LocalEngine(1, modules=())
    yield made
    made.shutdown()


@pytest.fixture
def two() -> Iterator[LocalEngine]:
    """Two processes, and limits that a test can wait for."""
    limits = {
        "hang": replace(AMPLE, wall_secs=1.0),
        "eat": AMPLE,
        "burn": replace(AMPLE, cpu_secs=1),
        "nap": replace(AMPLE, wall_secs=2.0),
        "leave_a_descendant": replace(AMPLE, confined=False),
    }
    made = LocalEngine(2, limits, modules=())
    yield made
    made.shutdown()


def alive(process: int) -> bool:
    try:
        # A zombie waits only for whoever reaps it.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_free() -> None:
    """Until the lock of timings can be had: the kernel may tell of an end before it has closed every file."""
    deadline = time.monotonic() + PATIENCE_SECS
    with quiet.timing(lambda: time.monotonic() > deadline):
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_child_that_dies_costs_its_step_and_the_next_one_works(local: LocalEngine, number: signal.Signals) -> None:
    with pytest.raises(StepDied, match=f"step die died: its child was ended by {number.name}"):
        local.submit(bad_steps.die, number).result(PATIENCE_SECS)
    assert local.submit(pow, 2, 3).result(PATIENCE_SECS) == 8
    until_free()


@pytest.mark.parametrize(
    ("step", "error", "cause"),
    [
        (bad_steps.hang, StepTimeout, "hang took longer than 1 s"),
        (bad_steps.burn, StepTimeout, "burn took more than 1 s of processor time"),
        (bad_steps.eat, StepDied, f"eat needed more than {256 * MIB} bytes of memory"),
        (bad_steps.leave, StepDied, "leave died: its child exited with code 3"),
        (bad_steps.fail, StepFailed, "fail raised ValueError: the reason"),
        (bad_steps.connect, StepFailed, "connect raised PermissionError"),
        (bad_steps.start_program, StepDied, "start_program died: its child was ended by SIGSYS"),
        (bad_steps.answer_with_code, StepDied, "nothing that a step may answer with"),
    ],
)
def test_what_a_step_does_costs_its_own_future_and_not_the_one_beside_it(
    two: LocalEngine, step: object, error: type[Exception], cause: str
) -> None:
    beside = two.on_behalf(("other", "job")).submit(time.sleep, 0.5)
    bad = two.on_behalf(("one", "job")).submit(step)  # type: ignore[arg-type]
    with pytest.raises(error, match=cause):
        bad.result(PATIENCE_SECS)
    assert beside.result(PATIENCE_SECS) is None
    assert two.on_behalf(("other", "job")).submit(pow, 2, 3).result(PATIENCE_SECS) == 8
    until_free()


def test_a_confined_step_writes_no_file(two: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="PermissionError"):
        two.submit(bad_steps.write, str(tmp_path / "file")).result(PATIENCE_SECS)
    assert not (tmp_path / "file").exists()


def test_a_descendant_of_a_step_ends_with_it(two: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(StepDied, match="exited with code 0"):
        two.submit(bad_steps.leave_a_descendant, str(tmp_path / "pid")).result(PATIENCE_SECS)
    _until_gone([int((tmp_path / "pid").read_text())])
    until_free()


def test_a_step_that_waits_for_a_timing_is_not_late(two: LocalEngine) -> None:
    assert two.submit(bad_steps.nap, 0.0).result(PATIENCE_SECS) == 0.0
    with quiet.timing():
        waiting = two.submit(bad_steps.nap, 0.01)
        with pytest.raises(TimeoutError):
            waiting.result(2.5)
    assert waiting.result(PATIENCE_SECS) == 0.01


def test_steps_that_hang_leave_room_for_another_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(step_child, "SLOW_SECS", 0.2)
    made = LocalEngine(1, modules=())
    hog, other = (on_behalf(made, project, "job") for project in ("hog", "other"))
    try:
        hanging = [hog.submit(bad_steps.hang) for _ in range(3)]
        assert [other.submit(pow, 2, n).result(PATIENCE_SECS) for n in range(3)] == [1, 2, 4]
        assert not any(future.done() for future in hanging)
        assert [future.running() for future in hanging] == [True, False, False]
    finally:
        made.shutdown(wait=False)
    for future in hanging:
        with pytest.raises((StepDied, CancelledError)):
            future.result(PATIENCE_SECS)


def test_projects_take_turns_whatever_each_has_queued(local: LocalEngine, tmp_path: Path) -> None:
    order: list[str] = []
    lock = threading.Lock()

    def tell(project: str) -> None:
        with lock:
            order.append(project)

    def submit(project: str) -> Future[int]:
        future = on_behalf(local, project, "job").submit(pow, 2, 2)
        future.add_done_callback(lambda _: tell(project))
        return future

    first = local.submit(bad_steps.wait_for, str(tmp_path / "all are queued"))
    queued = [submit("a") for _ in range(4)] + [submit("b") for _ in range(2)]
    (tmp_path / "all are queued").touch()
    for future in [first, *queued]:
        future.result(PATIENCE_SECS)
    # Whose turn is next after these depends on how long each step took; tests/unit/test_turns.py has a clock of its own.
    assert order[:2] == ["a", "b"]


def test_the_compilers_steps_run_within_the_walls() -> None:
    made = LocalEngine(1)
    try:
        request = ProposeRequest(
            workload=programs.dense(), target=programs.TARGET, measured=(), seen=frozenset(), model=None, n=8, seed=1
        )
        proposals = made.submit(propose, request).result(PATIENCE_SECS)
        assert proposals == propose(request)
        samples = [
            Sample(workload=request.workload.digest, features=proposal.features or b"", secs=1e-3 * (n + 1))
            for n, proposal in enumerate(proposals * 4)
        ]
        trained, here = made.submit(train, samples, 1).result(PATIENCE_SECS), train(samples, 1)
        assert trained is not None
        assert here is not None
        scored = made.submit(score, samples, trained.data, here.data).result(PATIENCE_SECS)
    finally:
        made.shutdown()
    assert scored == score(samples, trained.data, here.data)
    assert sum(task.candidates for task in scored) == len(samples)
    assert trained.samples == here.samples
    assert trained.metrics.keys() == here.metrics.keys()


def test_steps_wait_while_something_is_timed(local: LocalEngine) -> None:
    assert local.submit(pow, 2, 2).result(PATIENCE_SECS) == 4  # the child is there
    with quiet.timing():
        waiting = local.submit(pow, 2, 3)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
    assert waiting.result(PATIENCE_SECS) == 8


def test_an_error_of_ours_arrives_as_what_it_is(local: LocalEngine) -> None:
    with pytest.raises(InvalidModel, match="the cause"):
        local.submit(bad_steps.refuse).result(PATIENCE_SECS)


def test_children_are_replaced_without_losing_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STEPS_PER_CHILD", 2)
    made = LocalEngine(1, modules=())
    queued = [made.submit(os.getpid) for _ in range(7)]
    children = [future.result(PATIENCE_SECS) for future in queued]
    made.shutdown()
    assert [children.count(child) for child in dict.fromkeys(children)] == [2, 2, 2, 1]
    assert not any(alive(child) for child in children)


def test_a_shutdown_that_does_not_wait_ends_running_steps(tmp_path: Path) -> None:
    made = LocalEngine(1, STAYING)
    made.submit(bad_steps.stay, str(tmp_path))
    (child,) = _until_there(tmp_path, 1)
    made.shutdown(wait=False, cancel_futures=True)
    _until_gone([child])


def test_children_survive_the_thread_that_started_them_and_end_with_their_process(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
            import sys, threading, time
            from pitchpipe.wire.limits import StepLimits
            from tests.bad_steps import stay
            from tuner.execution.engine import LocalEngine

            engine = LocalEngine(2, {"stay": StepLimits(wall_secs=600, cpu_secs=600, confined=False)})
            def start():
                for _ in range(2):
                    engine.submit(stay, sys.argv[1])
            thread = threading.Thread(target=start)
            thread.start()
            thread.join()
            time.sleep(600)
        """)
    )
    steps = tmp_path / "steps"
    steps.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, str(script), str(steps)], env=environment)
    try:
        children = _until_there(steps, 2)
        time.sleep(0.2)
        assert all(alive(child) for child in children)
    finally:
        parent.kill()
        parent.wait()
    _until_gone(children)


@pytest.mark.parametrize(
    "url", ["dask://", "dask://host", "dask://host:port", "http://host:1", "slurm", "dask://:8786"]
)
def test_an_engine_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="engine"):
        create_engine(url)


def test_a_cluster_where_nobody_listens_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engine, "CONNECT_SECS", 1)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        create_engine("dask://127.0.0.1:9")


def _until_there(folder: Path, number: int) -> list[int]:
    deadline = time.monotonic() + PATIENCE_SECS
    while len(found := [int(path.name) for path in folder.iterdir() if path.name.isdigit()]) < number:
        assert time.monotonic() < deadline, "the steps did not start"
        time.sleep(0.05)
    return found


def _until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while any(alive(process) for process in processes):
        assert time.monotonic() < deadline, "a child outlived its engine"
        time.sleep(0.05)
