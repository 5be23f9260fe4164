"""The local engine: its children may die, are replaced, wait while something is timed, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from pitchpipe.errors import InvalidInput, InvalidModel, Unreachable
from tuner import engine
from tuner.engine import LocalEngine, create_engine
from tuner.measure import quiet

PATIENCE_SECS = 60


def _die(number: int) -> None:
    os.kill(os.getpid(), number)


def _refuse() -> None:
    raise InvalidModel("the cause")


def _stay(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quiet.ENVIRONMENT, str(tmp_path / "lock"))


@pytest.fixture
def local() -> Iterator[LocalEngine]:
    made = LocalEngine(1)
    yield made
    made.shutdown()


def alive(process: int) -> bool:
    try:
        # A zombie waits only for whoever reaps it.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_costs_its_step_and_the_next_one_works(local: LocalEngine, number: int) -> None:
    with pytest.raises(BrokenExecutor):
        local.submit(_die, number).result(PATIENCE_SECS)
    assert local.submit(pow, 2, 3).result(PATIENCE_SECS) == 8


def test_a_killed_child_gives_back_the_lock_of_quiet(local: LocalEngine) -> None:
    with pytest.raises(BrokenExecutor):
        local.submit(_die, signal.SIGKILL).result(PATIENCE_SECS)
    deadline = time.monotonic() + PATIENCE_SECS  # The kernel may tell of the end before it has closed every file.
    with quiet.timing(lambda: time.monotonic() > deadline):
        pass


def test_steps_wait_while_something_is_timed(local: LocalEngine) -> None:
    assert local.submit(pow, 2, 2).result(PATIENCE_SECS) == 4  # the child is there
    with quiet.timing():
        waiting = local.submit(pow, 2, 3)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
    assert waiting.result(PATIENCE_SECS) == 8


def test_an_error_of_ours_arrives_as_what_it_is(local: LocalEngine) -> None:
    with pytest.raises(InvalidModel, match="the cause"):
        local.submit(_refuse).result(PATIENCE_SECS)


def test_children_are_replaced_without_losing_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STEPS_PER_CHILD", 2)
    made = LocalEngine(1)
    queued = [made.submit(os.getpid) for _ in range(7)]
    children = [future.result(PATIENCE_SECS) for future in queued]
    made.shutdown()
    assert [children.count(child) for child in dict.fromkeys(children)] == [2, 2, 2, 1]
    assert not any(alive(child) for child in children)


def test_a_shutdown_that_does_not_wait_ends_running_steps(tmp_path: Path) -> None:
    made = LocalEngine(1)
    made.submit(_stay, str(tmp_path))
    (child,) = _until_there(tmp_path, 1)
    made.shutdown(wait=False, cancel_futures=True)
    _until_gone([child])


def test_children_survive_the_thread_that_started_them_and_end_with_their_process(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
            import sys, threading, time
            from tests.acceptance.test_engine import _stay
            from tuner.engine import LocalEngine

            if __name__ == "__main__":
                engine = LocalEngine(2)
                def start():
                    for _ in range(2):
                        engine.submit(_stay, sys.argv[1])
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
