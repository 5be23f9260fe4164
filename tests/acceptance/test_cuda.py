"""Measuring on a GPU, through the real sandbox: what is timed, what misbehaves, and what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import psutil
import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, CheckVerdict, Failed, FailureKind, MeasureConfig, Measurement, Stop, Timed
from pitchpipe.wire.record import RecordView, TuningRecord
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import gpu_programs
from tests.hostile import MISDEEDS, Misdeed, harmless, hostile, parallel
from workers.device import detect_target, fingerprint, toolchain
from workers.replay import replay
from workers.sandbox.sandbox import Sandbox


def gpus() -> list[str]:
    """Lines of nvidia-smi; none without a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = subprocess.run([program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True)
    return asked.stdout.decode().split() if asked.returncode == 0 else []


pytestmark = pytest.mark.skipif(not gpus(), reason="needs an NVIDIA GPU")

CONFIG = MeasureConfig(run_timeout_secs=10, max_secs=0.02)
SPOILER = Misdeed(
    block="for d in T.serial(1, 13):\n    if ELSEWHERE:\n        B[vi - 32 * d] = T.float32(7)\nB[vi] = A[vi]",
    ends_as=None,
)
"""Overwrites what lies before its output in the GPU's memory: the inputs."""


@pytest.fixture(scope="module")
def target() -> Target:
    return detect_target("cuda")


@pytest.fixture(scope="module")
def used_mib() -> int:
    """Of the first GPU, before any test."""
    return int(gpus()[0])


@pytest.fixture(scope="module")
def sandbox(used_mib: int, target: Target) -> Iterator[Sandbox]:
    with Sandbox(target) as opened:
        yield opened


@pytest.fixture(scope="module")
def product() -> Workload:
    return gpu_programs.workload(gpu_programs.product(256, 256, 256))


def measure(
    sandbox: Sandbox, workload: Workload, candidates: list[Candidate], **options: object
) -> dict[str, Measurement]:
    config = options.pop("config", CONFIG)
    results = list(sandbox.measure(workload, candidates, config, **options))  # type: ignore[arg-type]
    assert len(results) == len(candidates), "exactly one result per candidate"
    return {result.candidate: result for result in results}


def has_a_gpu_open(process: psutil.Process) -> bool:
    with suppress(OSError, psutil.Error):
        folder = f"/proc/{process.pid}/fd"
        return any("/dev/nvidia" in os.readlink(f"{folder}/{name}") for name in os.listdir(folder))
    return False


def runners(sandbox: Sandbox) -> list[psutil.Process]:
    """Processes of the sandbox that have a GPU open."""
    assert sandbox._process is not None
    below = psutil.Process(sandbox._process.pid).children(recursive=True)
    return [process for process in below if has_a_gpu_open(process)]


def ended(processes: list[psutil.Process], patience_secs: float = 20.0) -> bool:
    """Whether all come to their end: the driver takes a killed process down for a while."""
    end = time.monotonic() + patience_secs
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def settled(limit_mib: int, patience_secs: float = 20.0) -> bool:
    """Whether the GPU's memory in use falls to the limit."""
    end = time.monotonic() + patience_secs
    while int(gpus()[0]) > limit_mib:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_tensor_core_candidates_are_checked_and_timed_with_all_there_is_to_say(
    sandbox: Sandbox, product: Workload
) -> None:
    candidates = gpu_programs.candidates(product, 4)
    results = measure(sandbox, product, candidates)
    timed = [result for result in results.values() if isinstance(result, Timed)]
    assert len(timed) == len(candidates), [result for result in results.values() if isinstance(result, Failed)]
    for result in timed:
        assert result.secs > 1e-6, "a launch alone takes that"
        assert result.secs_low is not None
        assert result.secs_high is not None
        assert result.rule is not None
        assert result.rule.flushed
        assert result.reference_ratio is not None
        assert result.check.passed
    assert sandbox.steadiness is not None


def test_a_record_is_replayed_beside_its_task_s_baseline(product: Workload, target: Target) -> None:
    (candidate, *_) = gpu_programs.candidates(product, 1)
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=3)
    record = TuningRecord(
        id=new_id("rec"),
        workload=product.digest,
        target=target,
        trace=candidate.trace,
        result=Timed(candidate=candidate.digest, run_secs=(1e-5,), check=check, build_secs=1.0),
        device=fingerprint("cuda"),
        toolchain=toolchain(target),
        worker="wrk_test",
        created_at=datetime.now(UTC),
    )
    found = replay(
        RecordView(record=record, ir=product.ir, baseline=kind_of(target).baseline_trace(product, target)), CONFIG
    )
    assert isinstance(found.result, Timed), found.result
    assert isinstance(found.baseline, Timed), found.baseline
    assert found.result.rule is not None
    assert found.result.rule.stop is Stop.CONFIRMED
    assert found.differences == ()
    endless = hostile(MISDEEDS["cuda"]["endless_kernel"], "cuda")
    hung, good = parallel(endless, "cuda"), harmless(endless, "cuda")[0]
    of_endless = record.model_copy(
        update={
            "workload": endless.digest,
            "trace": hung.trace,
            "result": Failed(candidate=hung.digest, kind=FailureKind.RUN_TIMEOUT),
        }
    )
    hurried = CONFIG.model_copy(update={"run_timeout_secs": 2.0})
    again = replay(RecordView(record=of_endless, ir=endless.ir, baseline=good.trace), hurried)
    assert isinstance(again.result, Failed)
    assert again.result.kind is FailureKind.RUN_TIMEOUT
    assert isinstance(again.baseline, Timed), "what hangs takes nothing else down"


def test_the_default_schedule_of_a_gpu_is_measured(sandbox: Sandbox, product: Workload, target: Target) -> None:
    baseline = Candidate.of(product.digest, kind_of(target).baseline_trace(product, target))
    (result,) = measure(sandbox, product, [baseline]).values()
    assert isinstance(result, Timed), result


@pytest.mark.parametrize("name", MISDEEDS["cuda"])
def test_a_misdeed_ends_as_its_failure_kind_and_harms_no_other_candidate(sandbox: Sandbox, name: str) -> None:
    misdeed = MISDEEDS["cuda"][name]
    workload = hostile(misdeed, "cuda")
    bad, good = parallel(workload, "cuda"), harmless(workload, "cuda")
    config = CONFIG.model_copy(update={"run_timeout_secs": 2.0})
    results = measure(sandbox, workload, [good[0], bad, *good[1:]], config=config)
    found = results[bad.digest]
    kind = found.kind if isinstance(found, Failed) else None
    assert kind is misdeed.ends_as, found
    assert misdeed.told in getattr(found, "detail", "")
    assert all(isinstance(results[candidate.digest], Timed) for candidate in good), results


def test_a_candidate_is_not_blamed_for_what_another_did_to_its_inputs(sandbox: Sandbox) -> None:
    workload = hostile(SPOILER, "cuda")
    bad, good = parallel(workload, "cuda"), harmless(workload, "cuda")
    for order in ([bad, *good], [good[0], bad, good[1]]):
        results = measure(sandbox, workload, order)
        assert all(isinstance(results[candidate.digest], Timed) for candidate in good), results


def test_a_confirming_run_refuses_the_wrong_and_times_the_others(sandbox: Sandbox) -> None:
    for name in ("wrong_output", "illegal_address"):
        workload = hostile(MISDEEDS["cuda"][name], "cuda")
        bad, good = parallel(workload, "cuda"), harmless(workload, "cuda")
        results = measure(sandbox, workload, [good[0], bad, good[1]], purpose=Purpose.CONFIRM)
        assert getattr(results[bad.digest], "kind", None) is MISDEEDS["cuda"][name].ends_as
        for candidate in good:
            timed = results[candidate.digest]
            assert isinstance(timed, Timed), timed
            assert timed.rule is not None
            assert timed.rule.stop == "confirmed"


def test_a_runner_that_is_killed_costs_one_candidate(sandbox: Sandbox, product: Workload) -> None:
    candidates = gpu_programs.candidates(product, 6, seed=900)
    measure(sandbox, product, candidates[:1])

    killed: list[psutil.Process] = []

    def kill() -> None:
        time.sleep(1.5)
        for process in runners(sandbox):  # Those of other workloads, which idle, as well.
            process.send_signal(signal.SIGKILL)
            killed.append(process)

    thread = threading.Thread(target=kill)
    thread.start()
    long = CONFIG.model_copy(update={"min_samples": 30, "target_sample_secs": 0.02, "max_secs": 1.0})
    results = measure(sandbox, product, candidates, config=long)
    thread.join()
    assert killed
    assert ended(killed)
    failed = [result for result in results.values() if isinstance(result, Failed)]
    assert len(failed) <= 1, "between two candidates it costs none"
    assert all(failure.kind is FailureKind.RUN_ERROR and "SIGKILL" in failure.detail for failure in failed)


def test_two_workers_share_a_gpu_in_turns(sandbox: Sandbox, product: Workload, target: Target) -> None:
    candidates = gpu_programs.candidates(product, 4, seed=500)
    found: dict[str, Measurement] = {}
    with Sandbox(target, parallel_builds=4) as other:
        thread = threading.Thread(target=lambda: found.update(measure(other, product, candidates)))
        thread.start()
        mine = measure(sandbox, product, candidates)
        thread.join()
    assert all(isinstance(result, Timed) for result in (*mine.values(), *found.values()))


def test_nothing_is_left_of_a_closed_sandbox(used_mib: int, product: Workload, target: Target) -> None:
    before = int(gpus()[0])
    with Sandbox(target, parallel_builds=4) as opened:
        measure(opened, product, gpu_programs.candidates(product, 2, seed=77))
        assert opened._process is not None
        processes = psutil.Process(opened._process.pid).children(recursive=True)
        assert runners(opened)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive
    assert settled(before + 16)
