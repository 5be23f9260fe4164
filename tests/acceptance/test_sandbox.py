"""Candidates that crash, hang, flood and fork, measured by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind, MeasureConfig, Measurement, Timed
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.hostile import MISDEEDS, Asleep, Misdeed, harmless, hostile, parallel, program, until_one_sleeps
from tests.patience import PATIENCE_SECS
from workers.sandbox import sandbox as sandbox_module
from workers.sandbox.sandbox import Sandbox

TARGET = Target.parse(
    {"kind": "llvm", "mcpu": "x86-64-v2" if os.uname().machine == "x86_64" else "generic", "num-cores": 2}
)
CONFIG = MeasureConfig(run_timeout_secs=60, memory_limit_bytes=1 << 30, max_secs=0.02, target_sample_secs=5e-4)
CPU = MISDEEDS["llvm"]
RUN_TIMEOUT = FailureKind.RUN_TIMEOUT


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(TARGET, parallel_builds=2) as opened:
        yield opened


def measure(
    sandbox: Sandbox, workload: Workload, candidates: list[Candidate], **options: object
) -> dict[str, Measurement]:
    config = options.pop("config", CONFIG)
    results = list(sandbox.measure(workload, candidates, config, **options))  # type: ignore[arg-type]
    assert len(results) == len(candidates), "exactly one result per candidate"
    return {result.candidate: result for result in results}


def processes_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def gone(processes: list[psutil.Process], patience_secs: float = 20.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=patience_secs)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", CPU)
def test_a_misdeed_ends_as_its_failure_kind_and_harms_no_other_candidate(sandbox: Sandbox, name: str) -> None:
    misdeed = CPU[name]
    workload = hostile(misdeed)
    bad, (first, second) = parallel(workload), harmless(workload)
    config = CONFIG.model_copy(update={"run_timeout_secs": 3.0}) if misdeed.ends_as is RUN_TIMEOUT else CONFIG
    results = measure(sandbox, workload, [first, bad, second], config=config)
    result = results.pop(bad.digest)
    if misdeed.ends_as is None:
        assert isinstance(result, Timed)
    else:
        assert isinstance(result, Failed)
        assert result.kind is misdeed.ends_as, result.detail
        assert misdeed.told in result.detail
    assert all(isinstance(other, Timed) for other in results.values())


def test_a_wrong_candidate_is_refused_in_a_confirming_run_too(sandbox: Sandbox) -> None:
    workload = hostile(CPU["wrong_output"])
    bad, good = parallel(workload), harmless(workload)
    results = measure(sandbox, workload, [*good, bad], purpose=Purpose.CONFIRM)
    assert getattr(results[bad.digest], "kind", None) is FailureKind.WRONG_OUTPUT
    assert all(isinstance(results[candidate.digest], Timed) for candidate in good)


def test_a_workload_whose_baseline_crashes_fails_every_candidate(sandbox: Sandbox) -> None:
    workload = program('T.call_extern("int32", "abort")')
    baseline = Candidate.of(workload.digest, BASELINE_TRACE)
    failure = measure(sandbox, workload, [baseline])[baseline.digest]
    assert isinstance(failure, Failed)
    assert failure.kind is FailureKind.RUN_ERROR
    assert "the reference program" in failure.detail


def test_a_build_over_its_limit_is_a_build_timeout(sandbox: Sandbox) -> None:
    workload = program("2")
    good = harmless(workload)
    measure(sandbox, workload, good[:1])
    hurried = CONFIG.model_copy(update={"build_timeout_secs": 1e-3})
    failure = measure(sandbox, workload, good[1:], config=hurried)[good[1].digest]
    assert isinstance(failure, Failed)
    assert failure.kind is FailureKind.BUILD_TIMEOUT


def test_text_that_is_no_workload_fails_its_candidates_only(sandbox: Sandbox) -> None:
    workload = Workload(digest="0" * 64, ir='{"root_index": 0, "nodes": []}')
    baseline = Candidate.of(workload.digest, BASELINE_TRACE)
    assert getattr(measure(sandbox, workload, [baseline])[baseline.digest], "kind", None) is FailureKind.BUILD_ERROR
    other = program("3")
    assert isinstance(next(iter(measure(sandbox, other, harmless(other)[:1]).values())), Timed)


def test_processes_that_an_unconfined_candidate_starts_die_with_it() -> None:
    block = """
if ELSEWHERE:
    for n in T.serial(6):
        T.evaluate(T.call_extern("int32", "fork"))
        T.evaluate(T.call_extern("int32", "setsid"))
    if T.call_extern("int32", "getpid") == T.call_extern("int32", "getpgrp"):
        T.evaluate(T.call_extern("int32", "abort"))
    T.evaluate(T.call_extern("int32", "pause"))
B[vi] = A[vi]
"""
    workload = hostile(Misdeed(block=block, ends_as=FailureKind.RUN_ERROR))
    with Sandbox(TARGET, parallel_builds=1, confined=False) as unconfined:
        bad = parallel(workload)
        results = measure(unconfined, workload, [bad, *harmless(workload)])
        assert getattr(results[bad.digest], "kind", None) is FailureKind.RUN_ERROR
        assert unconfined._process is not None
        zygote = psutil.Process(unconfined._process.pid)
        command, since = zygote.cmdline(), zygote.create_time()
        give_up = time.monotonic() + 60  # A fork of the task process that has done its work may still be ending.
        while len(forks(command, since)) > 2 and time.monotonic() < give_up:
            time.sleep(0.05)
        assert len(forks(command, since)) == 2, "the zygote and one task process"
    assert forks(command, since) == []


def forks(command: list[str], since: float) -> list[psutil.Process]:
    """Processes of the host with the command line of the fork server, which all forks share, that are as young."""
    found = psutil.process_iter(["cmdline", "create_time"])
    return [
        process
        for process in found
        if (process.info["cmdline"], process.info["create_time"] >= since) == (command, True)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "number"), [("zygote", signal.SIGKILL), ("task process", signal.SIGKILL), ("zygote", signal.SIGSTOP)]
)
def test_a_batch_survives_the_end_of_what_measures_it(
    monkeypatch: pytest.MonkeyPatch, victim: str, number: signal.Signals
) -> None:
    monkeypatch.setattr(sandbox_module, "_STOP_SECS", 1.0)
    workload = hostile(CPU["wrong_output"])
    with Sandbox(TARGET, parallel_builds=1) as mortal:
        measure(mortal, workload, harmless(workload))
        assert mortal._process is not None
        zygote = psutil.Process(mortal._process.pid)
        (zygote if victim == "zygote" else zygote.children()[0]).send_signal(number)
        # Another workload, so that the zygote is asked for a process.
        other = hostile(CPU["output_of_nan"])
        results = measure(mortal, other, [*harmless(other), parallel(other)])
        again = measure(mortal, workload, harmless(workload))
    assert all(isinstance(result, Timed) for result in again.values())
    assert sum(isinstance(result, Timed) for result in results.values()) == 2


@pytest.mark.long
def test_a_child_that_is_killed_while_it_waits_is_given_back_and_the_others_go_on() -> None:
    workload = hostile(CPU["sleep_for_ever"])
    bad, (baseline, split) = parallel(workload), harmless(workload)
    results: dict[str, Measurement] = {}
    config = CONFIG.model_copy(update={"run_timeout_secs": 3.0})
    with Sandbox(TARGET, parallel_builds=1) as sandbox:  # The shortest trace, the baseline's, is built last.
        measuring = threading.Thread(
            target=lambda: results.update(measure(sandbox, workload, [bad, baseline, split], config=config))
        )
        measuring.start()
        until_it_sleeps(sandbox).waiting.kill()
        measuring.join()
    kinds = [getattr(results[candidate.digest], "kind", None) for candidate in (bad, baseline, split)]
    assert kinds == [RUN_TIMEOUT, FailureKind.DEVICE_ERROR, None]


def until_it_sleeps(sandbox: Sandbox) -> Asleep:
    pid, deadline = zygote_pid(sandbox), time.monotonic() + PATIENCE_SECS
    found = until_one_sleeps(lambda: psutil.Process(pid), lambda: time.monotonic() > deadline)
    assert found is not None, "it never ran"
    return found


def zygote_pid(sandbox: Sandbox) -> int:
    assert sandbox._process is not None
    return sandbox._process.pid


def test_a_cancelled_batch_stops_and_the_next_one_runs(sandbox: Sandbox) -> None:
    workload = hostile(CPU["sleep_for_ever"])
    started = time.monotonic()
    patient = CONFIG.model_copy(update={"run_timeout_secs": 100.0})
    results = sandbox.measure(workload, [parallel(workload)], patient, cancelled=lambda: time.monotonic() > started + 1)
    assert list(results) == []
    assert len(measure(sandbox, workload, harmless(workload))) == 2


@pytest.mark.long
def test_nothing_is_left_when_the_daemon_is_killed(tmp_path: Path) -> None:
    script = """
        from pitchpipe.wire.measure import MeasureConfig
        from tests.acceptance.test_sandbox import TARGET
        from tests.hostile import MISDEEDS, hostile, parallel
        from workers.sandbox.sandbox import Sandbox
        workload = hostile(MISDEEDS["llvm"]["sleep_for_ever"])
        sandbox = Sandbox(TARGET)
        print("measuring", flush=True)
        list(sandbox.measure(workload, [parallel(workload)], MeasureConfig(run_timeout_secs=100)))
    """
    daemon = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PITCHPIPE_QUIET_LOCK": str(tmp_path / "lock")},
        stdout=subprocess.PIPE,
    )
    try:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        deadline = time.monotonic() + PATIENCE_SECS
        while len(below := processes_below(daemon.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(below) >= 3, "zygote, task process, child"
    finally:
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
        assert daemon.stdout is not None
        daemon.stdout.close()
    assert gone(below)
