"""Batches on a GPU that is not there: real processes, but a runner and builders whose programs only say what they do.

The GPU itself is in tests/acceptance/test_cuda.py.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from mmap import mmap
from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.wire._base import Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import (
    Candidate,
    CheckVerdict,
    Failed,
    FailureKind,
    MeasureConfig,
    Measurement,
    Stop,
    Timed,
)
from pitchpipe.wire.target import Target
from tuner.measure import timing
from tuner.measure.candidate import WrongOutput
from tuner.measure.cuda_driver import CudaError
from workers.sandbox import builders
from workers.sandbox.builders import KEPT_PROGRAMS, BuiltCandidate, Parts
from workers.sandbox.cpu import process
from workers.sandbox.gpu import children as gpu_children
from workers.sandbox.gpu.children import BEAT, INBOX_BYTES, REQUEST, SAMPLE, TRIAL, WARM, WARM_BRIEFLY, request
from workers.sandbox.gpu.confirm import ConfirmRun
from workers.sandbox.gpu.runners import Runner
from workers.sandbox.gpu.search import SearchRun
from workers.sandbox.messages import (
    Applied,
    Batch,
    Broken,
    Compiled,
    Fault,
    FromChild,
    Sample,
    Sampled,
    Started,
    Warmed,
)
from workers.sandbox.messages import Open as OpenTask
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery

WORKLOAD = "0" * 64
CHECK = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1.0, input_sets=3)
CONFIG = MeasureConfig(run_timeout_secs=60, build_timeout_secs=60, min_samples=3)
HURRIED = CONFIG.model_copy(update={"run_timeout_secs": 3.0})
"""For programs that hang."""
LIMITS = Limits(memory_bytes=1 << 30, cpu_secs=60, confined=False)


def candidate(program: str) -> Candidate:
    return Candidate.of(WORKLOAD, json.dumps(program))


class MadeUpGpu:
    """A runner's state: what a program does to it."""

    def __init__(self, inbox: mmap, beats: mmap) -> None:
        self.inbox, self.beats, self.spoiled = inbox, beats, False
        self.programs: dict[int, str] = {}

    def answer(self, told: bytes, number: float) -> Wire | bytes:
        """A report, or bytes that are none."""
        if told == BEAT:
            beats = int.from_bytes(self.beats[:8], "little")
            slow = self.beats[8 + beats]
            self.beats[:8] = (beats + 1).to_bytes(8, "little")
            return Sample(secs=1e-4 * (2.0 if slow else 1.0))
        if told == SAMPLE:
            return Sample(secs=3e-5 if "slow" in self.programs[int(number)] else 1e-5)
        size, _ = REQUEST.unpack(self.inbox[: REQUEST.size])
        program = self.inbox[REQUEST.size : REQUEST.size + size].decode()
        what = program.split()[0]
        if what == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "hang":
            time.sleep(60)
        if what == "sticky":
            return Fault(kind=FailureKind.RUN_ERROR, detail="illegal address", spent=True)
        if what == "nonsense":
            return b'{"message": "sampled", "run_secs": [1e-5]}'
        if what == "out-of-turn":
            return Started(uuid="another")
        if what == "wrong" or self.spoiled:
            return Fault(kind=FailureKind.WRONG_OUTPUT, detail="wrong")
        self.spoiled = what == "spoil"
        if told in (WARM, WARM_BRIEFLY):
            self.programs[int(number)] = program
            return Warmed(calls=7, secs=1e-5, check=CHECK, clock_hz=1e9)
        return Sampled(run_secs=(1e-5,) * 6, calls=7, stop=Stop.PRECISE, check=CHECK, clock_hz=1e9)


class Host:
    """Stands for the task process."""

    def __init__(self) -> None:
        self.nursery = Nursery()
        self.runner: Runner | None = None
        self.slots, self.inbox = [mmap(-1, 4096) for _ in range(3)], mmap(-1, INBOX_BYTES)
        self.beats = mmap(-1, 4096)
        self.phases: list[str] = []
        self.results: list[Measurement] = []
        self.programs: dict[str, BuiltCandidate] = {}
        self.started = self.built = 0
        self.repeats = self.told_beats = 0
        self.broken = False
        self.config = CONFIG

    def builder_limits(self, config: MeasureConfig) -> Limits:
        return LIMITS

    runner_limits = builder_limits

    def before_building(self, candidate: Candidate) -> None:
        pass

    def builder_body(self, made: Candidate, slot: mmap) -> Callable[[Line], None]:
        self.built += 1
        return built_at_once(made, slot)

    def runner_body(self, config: MeasureConfig) -> Callable[[Line], None]:
        self.started += 1

        def body(line: Line) -> None:
            if self.broken:
                line.send(Broken(reason="no such device"))
                return
            gpu = MadeUpGpu(self.inbox, self.beats)
            line.send(Started(uuid="made-up"))
            while True:
                tell(line, gpu.answer(*line.wait()))

        return body

    def events(self, timeout_secs: float = 0.5) -> list[tuple[Child, FromChild | Ended]]:
        return self.nursery.events(timeout_secs)

    def abandoned(self) -> bool:
        return False

    def send(self, result: Measurement) -> None:
        self.results.append(result)

    def report_beat(self, secs: float) -> None:
        assert secs > 0
        self.told_beats += 1

    def repeated(self) -> None:
        self.repeats += 1

    def phase(self, name: str) -> AbstractContextManager[Parts]:
        self.phases.append(name)
        return nullcontext(Parts())

    def measure(self, programs: Sequence[str], purpose: Purpose = Purpose.SEARCH) -> dict[str, Measurement]:
        """One batch: what each program came to."""
        self.results.clear()
        batch = Batch(
            candidates=tuple(candidate(program) for program in programs),
            config=self.config,
            purpose=purpose,
            incumbent_secs=None,
            usual_secs=1e-4,
        )
        with (ConfirmRun if purpose is Purpose.CONFIRM else SearchRun)(self, batch) as run:
            run.run()
        assert len(self.results) == len(programs), "exactly one result per candidate"
        found = {result.candidate: result for result in self.results}
        return {program: found[candidate(program).digest] for program in programs}


def tell(line: Line, said: Wire | bytes) -> None:
    """Reports what is a report, and sends as the child's own what is none."""
    if isinstance(said, bytes):
        os.write(line._writer, line._seal.encode() + b" " + said + b"\n")
    else:
        line.send(said)


def built_at_once(made: Candidate, slot: mmap) -> Callable[[Line], None]:
    """A builder: the trace is the program."""

    def body(line: Line) -> None:
        if "invalid" in made.trace:
            line.send(Fault(kind=FailureKind.INVALID_SCHEDULE, detail="no such loop"))
            return
        if "nonsense before" in made.trace:
            tell(line, b'{"message": "applied", "candidate": "another"}')
        line.send(Applied())
        if "slow to build" in made.trace:
            time.sleep(60)
        if "crash in the compiler" in made.trace:
            os.kill(os.getpid(), signal.SIGABRT)
        data = json.loads(made.trace).encode()
        slot[: len(data)] = data
        if "nonsense then" in made.trace:
            tell(line, b'{"message": "compiled", "size_bytes": 7}')
        if "more than there is" in made.trace:
            line.send(Compiled(size_bytes=len(slot) + 1, build_secs=0.01))
        line.send(Compiled(size_bytes=len(data), build_secs=0.01))
        if "told twice" in made.trace:
            line.send(Compiled(size_bytes=1, build_secs=0.01))

    return body


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Host]:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    made = Host()
    yield made
    made.nursery.close()


def kinds(results: dict[str, Measurement]) -> dict[str, FailureKind | None]:
    return {program: result.kind if isinstance(result, Failed) else None for program, result in results.items()}


def test_one_runner_times_a_batch_and_is_kept_for_the_next(host: Host) -> None:
    results = host.measure([f"fine {i}" for i in range(20)])
    assert set(kinds(results).values()) == {None}
    one = results["fine 0"]
    assert isinstance(one, Timed)
    assert one.rule is not None
    assert (one.rule.calls, one.rule.flushed, one.reference_ratio) == (7, True, 1.0)
    assert one.clock_hz == 1e9
    assert host.told_beats == 2, "after sixteen, and after the rest"
    host.measure(["fine"])
    assert host.started == 1


@pytest.mark.long
def test_each_candidate_fails_for_its_own_fault_only(host: Host) -> None:
    host.config = HURRIED
    results = host.measure(
        ["fine 0", "die", "fine 1", "hang", "fine 2", "sticky", "fine 3", "wrong", "fine 4", "invalid", "crash in the compiler"]
    )  # fmt: skip
    assert kinds(results) == {
        **{f"fine {i}": None for i in range(5)},
        "die": FailureKind.RUN_ERROR,
        "hang": FailureKind.RUN_TIMEOUT,
        "sticky": FailureKind.RUN_ERROR,
        "wrong": FailureKind.WRONG_OUTPUT,
        "invalid": FailureKind.INVALID_SCHEDULE,
        "crash in the compiler": FailureKind.BUILD_ERROR,
    }
    assert "SIGSEGV" in results["die"].detail  # type: ignore[union-attr]


def test_a_report_that_makes_no_sense_or_comes_out_of_turn_is_its_candidates_failure(host: Host) -> None:
    results = host.measure(
        ["fine 0", "nonsense", "fine 1", "out-of-turn", "fine 2", "nonsense before", "nonsense then", "more than there is", "told twice", "fine 3"]
    )  # fmt: skip
    assert kinds(results) == {
        **{f"fine {i}": None for i in range(4)},
        "nonsense": FailureKind.RUN_ERROR,
        "out-of-turn": FailureKind.RUN_ERROR,
        "nonsense before": FailureKind.INVALID_SCHEDULE,
        "nonsense then": FailureKind.BUILD_ERROR,
        "more than there is": FailureKind.BUILD_ERROR,
        "told twice": FailureKind.BUILD_ERROR,
    }
    assert "sampled.calls: Field required" in results["nonsense"].detail  # type: ignore[union-attr]
    assert "out of turn: started" in results["out-of-turn"].detail  # type: ignore[union-attr]
    confirmed = host.measure(["fine 0", "nonsense", "out-of-turn", "fine 1"], Purpose.CONFIRM)
    assert kinds(confirmed) == {
        "fine 0": None,
        "nonsense": FailureKind.RUN_ERROR,
        "out-of-turn": FailureKind.RUN_ERROR,
        "fine 1": None,
    }


def test_what_another_candidate_spoiled_is_judged_again_in_a_fresh_runner(host: Host) -> None:
    results = host.measure(["fine 0", "spoil", "fine 1", "fine 2"])
    assert set(kinds(results).values()) == {None}
    assert host.measure(["wrong"])["wrong"].kind is FailureKind.WRONG_OUTPUT  # type: ignore[union-attr]


def test_a_group_beside_a_slow_reference_is_timed_again(host: Host) -> None:
    host.beats[8:10] = b"\1\1"  # A slow beat is believed when the next one is slow, too.
    results = host.measure(["fine 0", "fine 1"])
    assert host.repeats == 1
    assert all(isinstance(result, Timed) and result.reference_ratio == 1.0 for result in results.values())
    host.beats[:8] = bytes(8)
    host.beats[8:72] = b"\1" * 64
    results = host.measure(["fine 0", "fine 1"])
    assert host.repeats == 3, "twice, then it is delivered with the drift"
    assert all(isinstance(result, Timed) and result.reference_ratio == 2.0 for result in results.values())


def test_a_gpu_that_cannot_be_used_is_the_devices_failure(host: Host) -> None:
    host.broken = True
    results = host.measure(["fine 0", "fine 1", "invalid"])
    assert kinds(results)["fine 0"] is kinds(results)["fine 1"] is FailureKind.DEVICE_ERROR
    assert "no such device" in results["fine 0"].detail  # type: ignore[union-attr]
    assert host.started == 2, "tried twice"
    host.broken = False
    assert set(kinds(host.measure(["fine 0"])).values()) == {None}


def test_builders_that_take_far_longer_than_the_others_are_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builders, "STRAGGLER_SECS", 0.3)
    results = host.measure(["fine 0", "slow to build", "fine 1"])
    assert kinds(results) == {"fine 0": None, "fine 1": None, "slow to build": FailureKind.BUILD_TIMEOUT}


def test_a_confirming_run_starts_over_without_what_went_wrong(host: Host) -> None:
    programs = ["fine 0", "spoil 0", "fine 1", "wrong", "die", "fine 2"]
    results = host.measure(programs, Purpose.CONFIRM)
    assert kinds(results) == {
        "fine 0": None,
        "spoil 0": None,
        "fine 1": None,
        "wrong": FailureKind.WRONG_OUTPUT,
        "die": FailureKind.RUN_ERROR,
        "fine 2": None,
    }
    one = results["fine 0"]
    assert isinstance(one, Timed)
    assert one.rule is not None
    assert one.rule.stop == "confirmed"
    assert one.rule.processes == 3
    assert len(one.run_secs) == 18, "six of each process"
    assert host.runner is None, "it held every candidate"
    assert host.nursery._children == [], "and so did the others"


def test_a_confirming_run_times_each_candidate_in_three_fresh_processes(host: Host) -> None:
    host.measure(["fine 0"])
    assert host.started == 1
    results = host.measure(["fine 0", "fine 1"], Purpose.CONFIRM)
    assert host.started == 4, "the one that ran candidates is not one of them"
    assert {len(result.run_secs) for result in results.values() if isinstance(result, Timed)} == {18}
    assert host.told_beats == 2, "one after the search's group, one after the interleaved samples"
    assert host.phases == ["build, check and time", "build", "check and time"]


def test_a_program_that_a_search_compiled_is_not_compiled_again_to_confirm_it(host: Host) -> None:
    names = [f"fine {i}" for i in range(2 * KEPT_PROGRAMS)]
    host.measure(names)
    assert len(host.programs) == KEPT_PROGRAMS
    built = host.built
    kept = [json.loads(each.candidate.trace) for each in host.programs.values()]
    results = host.measure(["baseline", *kept[:3]], Purpose.CONFIRM)
    assert host.built == built + 1
    assert all(isinstance(result, Timed) and result.build_secs == 0.01 for result in results.values())


def test_what_is_outclassed_in_a_confirming_run_gets_fewer_samples(host: Host) -> None:
    results = host.measure(["slow baseline", "fine", "slow candidate"], Purpose.CONFIRM)
    counts = {name: len(result.run_secs) for name, result in results.items() if isinstance(result, Timed)}
    assert counts == {"slow baseline": 18, "fine": 18, "slow candidate": 6}


def test_a_gpu_on_which_no_process_starts_fails_a_confirming_run_as_the_device(host: Host) -> None:
    host.broken = True
    results = kinds(host.measure(["fine 0", "invalid", "fine 1"], Purpose.CONFIRM))
    assert results == {
        "fine 0": FailureKind.DEVICE_ERROR,
        "invalid": FailureKind.INVALID_SCHEDULE,
        "fine 1": FailureKind.DEVICE_ERROR,
    }


def test_two_that_spoil_each_other_do_not_go_on_for_ever(host: Host) -> None:
    results = kinds(host.measure(["spoil 0", "spoil 1", "fine 0"], Purpose.CONFIRM))
    assert sorted(results.values(), key=str) == [None, None, FailureKind.DEVICE_ERROR]
    assert results["fine 0"] is None


def test_the_inbox_carries_the_incumbent() -> None:
    program = request(b"code", None)
    size, incumbent = REQUEST.unpack(program[: REQUEST.size])
    assert size == 4
    assert math.isnan(incumbent)
    assert REQUEST.unpack(request(b"code", 2.0)[: REQUEST.size]) == (4, 2.0)


class MadeUpMeasuring:
    """Checks and times what its program says."""

    def __init__(self, bench: object, running: Any) -> None:
        self.program = running
        self.check_secs = 0.25

    def search(self, config: MeasureConfig, incumbent_secs: float | None, limit_secs: float) -> timing.Sampled:
        if isinstance(self.program.raises, Exception):
            raise self.program.raises
        return timing.Sampled(secs=self.program.secs, calls=3, stop=Stop.SLOW)

    def check(self, names: Sequence[str]) -> float:
        return self.search(CONFIG, None, 0.0).secs[0]

    def warm(self, config: MeasureConfig, first_secs: float) -> tuple[int, float]:
        return 5, 2 * first_secs

    def warmed_sample(self, calls: int) -> float:
        return calls * 1e-3

    def verdict(self) -> CheckVerdict:
        return CHECK


@pytest.mark.parametrize(
    ("raises", "kind", "spent"),
    [
        (WrongOutput(CHECK, "zeros"), FailureKind.WRONG_OUTPUT, False),
        (CudaError("cuLaunchKernel", 1, "INVALID_VALUE"), FailureKind.RUN_ERROR, False),
        (CudaError("cuMemAlloc", 2, "OUT_OF_MEMORY"), FailureKind.RUN_ERROR, True),
        (CudaError("cuCtxSynchronize", 700, "ILLEGAL_ADDRESS"), FailureKind.RUN_ERROR, True),
        (CudaError("cuCtxSynchronize", 214, "ECC_UNCORRECTABLE"), FailureKind.DEVICE_ERROR, True),
        (ValueError("no such kernel"), FailureKind.RUN_ERROR, True),
    ],
)
def test_what_a_program_does_on_the_gpu_becomes_a_report_of_its_kind(
    raises: Exception, kind: FailureKind, spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = (SimpleNamespace(close=lambda: None, secs=(1e-3,), raises=each) for each in (None, raises))
    monkeypatch.setattr(gpu_children, "decode", bytes)
    monkeypatch.setattr(gpu_children, "DeviceProgram", lambda device, data: {b"good": good, b"bad": bad}[data])
    monkeypatch.setattr(gpu_children, "Measuring", MadeUpMeasuring)
    device: Any = SimpleNamespace(
        bench=SimpleNamespace(reference_outputs={}), beat=lambda: 1e-4, clock=SimpleNamespace(hz=lambda: 1e9)
    )
    inbox = mmap(-1, INBOX_BYTES)
    runner = gpu_children._Runner(device, CONFIG, inbox)
    assert runner.answer(BEAT, math.nan) == Sample(secs=1e-4)
    inbox[: len(request(b"good", None))] = request(b"good", None)
    assert runner.answer(WARM, 0) == Warmed(calls=5, secs=2e-3, check=CHECK, clock_hz=1e9)
    assert runner.answer(SAMPLE, 0) == Sample(secs=5e-3)
    for program in (b"good", b"bad"):
        message = request(program, None)
        inbox[: len(message)] = message
        answer = runner.answer(TRIAL, math.nan)
        if program == b"good":
            told = {"calls": 3, "stop": Stop.SLOW, "check": CHECK, "check_secs": 0.25, "clock_hz": 1e9}
            assert answer == Sampled(run_secs=(1e-3,), **told)
    for again in (answer, runner.answer(WARM, 1)):
        assert isinstance(again, Fault)
        assert (again.kind, again.spent) == (kind, spent)
        assert str(raises).splitlines()[-1] in again.detail


def test_the_outputs_to_compare_with_may_use_all_cores_for_as_long_as_they_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one core's seconds a product of 34 GFLOP was ended on sixteen, after four seconds of twenty."""
    monkeypatch.setattr(process, "usable_cores", lambda: 16)
    target, config = Target.parse({"kind": "cuda", "arch": "sm_90a"}), MeasureConfig()
    opened = OpenTask(ir="", target=target, config=config, parallel_builds=1, confined=True)
    task: Any = SimpleNamespace(_opened=opened)
    assert process.TaskProcess.limits(task, config).cpu_secs >= 16 * config.run_timeout_secs
