"""Batches on a CPU whose candidates are not built: real processes that report what their traces say."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pitchpipe.wire._base import Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import (
    BASELINE_TRACE,
    Candidate,
    CheckVerdict,
    Failed,
    FailureKind,
    MeasureConfig,
    Measurement,
    Stop,
    Timed,
)
from tuner.measure.candidate import Bench
from workers.sandbox.builders import BuiltCandidate, Parts
from workers.sandbox.cpu import child, confirm, search
from workers.sandbox.cpu.child import GO, SAMPLE
from workers.sandbox.cpu.confirm import ConfirmRun
from workers.sandbox.cpu.search import SearchRun
from workers.sandbox.messages import Applied, Batch, Compiled, FromChild, Sample, Sampled, Waiting, Warmed, encode
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery

CHECK = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1.0, input_sets=3)
SAMPLED = Sampled(run_secs=(1e-5,) * 6, calls=7, stop=Stop.PRECISE, check=CHECK)
ANOTHER = Candidate.of("0" * 64, json.dumps("another")).model_dump(mode="json")
LIMITS = Limits(memory_bytes=1 << 30, cpu_secs=60, confined=False)
BENCH = cast(Bench, SimpleNamespace(cold_bytes=lambda: 0))

HOSTILE: dict[str, tuple[FailureKind, list[Wire | dict[str, Any]], list[Wire | dict[str, Any]]]] = {
    "names another candidate": (
        FailureKind.INVALID_SCHEDULE,
        [{"message": "applied", "candidate": ANOTHER, "stage": "built"}],
        [],
    ),
    "says that it is built at once": (FailureKind.INVALID_SCHEDULE, [Waiting(build_secs=0.1)], []),
    "names another candidate once it is built": (
        FailureKind.BUILD_ERROR,
        [Applied(), {"message": "waiting", "build_secs": 0.1, "candidate": ANOTHER}],
        [],
    ),
    "does not say how long it was built": (FailureKind.BUILD_ERROR, [Applied(), {"message": "waiting"}], []),
    "is what the coordinator calls lost": (
        FailureKind.BUILD_ERROR,
        [Applied(), {"message": "fault", "kind": "worker_lost", "detail": ""}],
        [],
    ),
    "has a time before it is asked": (FailureKind.RUN_ERROR, [Applied(), Waiting(build_secs=0.1), SAMPLED], []),
    "names another candidate with its time": (
        FailureKind.RUN_ERROR,
        [],
        [{**SAMPLED.model_dump(mode="json"), "candidate": ANOTHER, "reported": True}],
    ),
    "has no calls": (
        FailureKind.RUN_ERROR,
        [],
        [{name: value for name, value in SAMPLED.model_dump(mode="json").items() if name != "calls"}],
    ),
    "has a time that is no number": (FailureKind.RUN_ERROR, [], [{"message": "sample", "secs": "1e-9"}]),
    "has no seconds": (FailureKind.RUN_ERROR, [], [{"message": "sample"}]),
    "is built again": (FailureKind.RUN_ERROR, [], [Waiting(build_secs=0.1)]),
}
"""What each ends as; what it reports instead of being built; what it reports when it is told to go."""


def batch_of(traces: Sequence[str], purpose: Purpose = Purpose.SEARCH) -> Batch:
    candidates = tuple(Candidate.of("0" * 64, trace) for trace in traces)
    return Batch(candidates=candidates, config=MeasureConfig(), purpose=purpose, incumbent_secs=None, usual_secs=1e-4)


def tell(line: Line, *said: Wire | dict[str, Any]) -> None:
    """All at once, each as the child's own, whether or not it is a report."""
    texts = [json.dumps(each).encode() if isinstance(each, dict) else encode(each) for each in said]
    os.write(line._writer, b"".join(line._seal.encode() + b" " + text + b"\n" for text in texts))


def searched(bench: Bench, candidate: Candidate, config: MeasureConfig) -> Callable[[Line], None]:
    """The child of a candidate of a search: the trace says what it does."""
    _, building, running = HOSTILE.get(str(json.loads(candidate.trace)), (None, [], []))

    def body(line: Line) -> None:
        if building:
            tell(line, *building)
            line.wait()
        tell(line, Applied(), Waiting(build_secs=0.1, program=base64.b64encode(candidate.trace.encode())))
        while True:
            line.wait()
            tell(line, *(running or [SAMPLED]))

    return body


def compiled(candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
    """The builder of a candidate of a confirming run: the program is the trace."""
    _, building, _ = HOSTILE.get(str(json.loads(candidate.trace)), (None, [], []))
    program = candidate.trace.encode()

    def body(line: Line) -> None:
        if building and building[-1] is not SAMPLED:
            tell(line, *building)
            line.wait()
        slot[: len(program)] = program
        tell(line, Applied(), Compiled(size_bytes=len(program), build_secs=0.1))

    return body


def loaded(bench: Bench, built: BuiltCandidate, config: MeasureConfig, copy: int) -> Callable[[Line], None]:
    """A process of a candidate of a confirming run: the program says what it does."""
    _, building, running = HOSTILE.get(str(json.loads(built.program)), (None, [], []))

    def body(line: Line) -> None:
        tell(line, Waiting(build_secs=0.0))
        if building:
            tell(line, *building[2:])
        while True:
            told, _ = line.wait()
            if running:
                tell(line, *running)
            else:
                tell(line, Sample(secs=1e-5) if told == SAMPLE else Warmed(calls=7, secs=1e-5, check=CHECK))

    return body


class Host:
    """Stands for the task process."""

    parallel_builds = 2

    def __init__(self) -> None:
        self.nursery = Nursery()
        self.results: list[Measurement] = []
        self.phases: list[str] = []
        self.programs: dict[str, BuiltCandidate] = {}
        self.slots = [mmap(-1, 4096) for _ in range(2)]

    def limits(self, config: MeasureConfig) -> Limits:
        return LIMITS

    builder_limits = limits

    def before_building(self, candidate: Candidate) -> None:
        pass

    def builder_body(self, candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
        return compiled(candidate, slot)

    def events(self) -> list[tuple[Child, FromChild | Ended]]:
        return self.nursery.events(0.5)

    def abandoned(self) -> bool:
        return False

    def send(self, result: Measurement) -> None:
        self.results.append(result)

    def heartbeat_body(self, line: Line) -> None:
        while True:
            line.wait()
            line.send(Sample(secs=1e-4))

    def report_beat(self, secs: float) -> None:
        assert secs == 1e-4

    def repeated(self) -> None:
        raise AssertionError("the reference is as fast as ever")

    def phase(self, name: str) -> AbstractContextManager[Parts]:
        self.phases.append(name)
        return nullcontext(Parts())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(search, "candidate_body", searched)
    monkeypatch.setattr(search, "_BUILDING_SECS", math.inf)  # whatever else the machine does
    monkeypatch.setattr(search, "_TIMING_SECS", math.inf)
    monkeypatch.setattr(confirm, "process_body", loaded)
    made = Host()
    yield made
    made.nursery.close()


@pytest.mark.long
@pytest.mark.parametrize("purpose", [Purpose.SEARCH, Purpose.CONFIRM])
def test_a_report_that_makes_no_sense_ends_its_candidate_and_no_other(host: Host, purpose: Purpose) -> None:
    names = ["fine 0", *HOSTILE, "fine 1", "another"]
    batch = batch_of([json.dumps(name) for name in names], purpose)
    run = ConfirmRun if purpose is Purpose.CONFIRM else SearchRun
    run(host, BENCH, batch).run()
    results = {result.candidate: result for result in host.results}
    assert len(results) == len(host.results) == len(names), "exactly one result per candidate"
    for name, candidate in zip(names, batch.candidates, strict=True):
        result = results[candidate.digest]
        if name in HOSTILE:
            assert isinstance(result, Failed), name
            assert result.kind is HOSTILE[name][0], (name, result)
        else:
            assert isinstance(result, Timed), (name, result)
            assert result.build_secs == 0.1
            assert result.rule is not None
            assert (result.rule.calls, result.check) == (7, CHECK)


def test_a_candidate_that_compiles_far_longer_than_the_others_is_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_to_build(bench: Bench, candidate: Candidate, config: MeasureConfig) -> Callable[[Line], None]:
        def body(line: Line) -> None:
            tell(line, Applied())
            while True:
                pass

        return body if json.loads(candidate.trace) == "slow" else searched(bench, candidate, config)

    monkeypatch.setattr(search, "candidate_body", slow_to_build)
    monkeypatch.setattr("workers.sandbox.builders.STRAGGLER_SECS", 0.3)
    names = ["fine 0", "slow", "fine 1"]
    batch = batch_of([json.dumps(name) for name in names])
    SearchRun(host, BENCH, batch).run()
    ended = {result.candidate: getattr(result, "kind", None) for result in host.results}
    assert [ended[c.digest] for c in batch.candidates] == [None, FailureKind.BUILD_TIMEOUT, None]


def test_a_baseline_that_is_far_behind_in_its_first_process_is_not_asked_in_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = mmap(-1, 4096)

    def one_call(bench: Bench, built: BuiltCandidate, config: MeasureConfig, copy: int) -> Callable[[Line], None]:
        is_baseline = built.candidate.trace == BASELINE_TRACE

        def body(line: Line) -> None:
            tell(line, Waiting(build_secs=0.0))
            while True:
                asked, number = line.wait()
                if is_baseline:
                    told[copy] += 1
                    assert number == 1e-5, "the fastest candidate's seconds"
                    tell(line, Sampled(run_secs=(1.0,), calls=1, stop=Stop.HOPELESS, check=CHECK))
                else:
                    tell(line, Sample(secs=1e-5) if asked == SAMPLE else Warmed(calls=7, secs=1e-5, check=CHECK))

        return body

    monkeypatch.setattr(confirm, "process_body", one_call)
    traces = [BASELINE_TRACE, json.dumps("fine")]
    batch = batch_of(traces, Purpose.CONFIRM)
    ConfirmRun(host, BENCH, batch).run()
    baseline, fine = (next(r for r in host.results if r.candidate == c.digest) for c in batch.candidates)
    assert isinstance(baseline, Timed)
    assert isinstance(fine, Timed)
    assert (baseline.run_secs, baseline.rule and baseline.rule.processes) == ((1.0,), 1)
    assert len(fine.run_secs) == 18
    assert list(told[:3]) == [1, 0, 0]


def test_what_a_search_found_the_fastest_is_not_compiled_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_again: list[str] = []
    monkeypatch.setattr(
        host,
        "builder_body",
        lambda candidate, slot: compiled_again.append(candidate.trace) or compiled(candidate, slot),
    )
    names = [BASELINE_TRACE, *(json.dumps(f"fine {n}") for n in range(2))]
    batch = batch_of(names)
    SearchRun(host, BENCH, batch.model_copy(update={"candidates": batch.candidates[1:]})).run()
    assert {built.program for built in host.programs.values()} == {name.encode() for name in names[1:]}
    assert host.phases == ["build", "check and time"]
    ConfirmRun(host, BENCH, batch.model_copy(update={"purpose": Purpose.CONFIRM})).run()
    assert compiled_again == [BASELINE_TRACE]
    assert host.phases[2:] == ["build", "check", "time"]
    assert all(isinstance(result, Timed) for result in host.results)
    assert len(host.results) == 5


class Asked:
    """The parent's side of a child that runs in this process: what it is told, and what it said."""

    def __init__(self, *told: tuple[bytes, float]) -> None:
        self.told, self.said = list(told), []

    def wait(self) -> tuple[bytes, float]:
        if not self.told:
            raise SystemExit
        return self.told.pop(0)

    def send(self, report: Wire) -> None:
        self.said.append(report)


@pytest.mark.parametrize(
    ("call", "fastest_secs", "copy", "expected"),
    [
        pytest.param((0.5, 0.4), 1e-3, 0, Sampled(run_secs=(0.5,), calls=1, stop=Stop.HOPELESS, check=CHECK), id="far behind"),
        pytest.param((0.5, 2e-3), 1e-3, 0, Warmed(calls=3, secs=0.5, check=CHECK), id="its call was delayed"),
        pytest.param((0.015, 0.015), 1e-3, 1, Warmed(calls=3, secs=0.015, check=CHECK), id="fifteen times as slow"),
        pytest.param((0.5, 0.4), math.nan, 0, Warmed(calls=3, secs=0.5, check=CHECK), id="nothing to compare with"),
    ],
)  # fmt: skip
def test_a_process_tells_at_once_that_its_baseline_is_far_behind(
    call: tuple[float, float], fastest_secs: float, copy: int, expected: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = SimpleNamespace(
        check=lambda sets: call[0], warm=lambda config, secs: (3, secs), verdict=lambda: CHECK, warmed_sample=None
    )
    monkeypatch.setattr(child, "load_program", lambda data: None)
    monkeypatch.setattr(child, "Running", lambda *a: SimpleNamespace(touch=lambda: None, own_secs=call[1]))
    monkeypatch.setattr(child, "Measuring", lambda *a: measuring)
    monkeypatch.setattr(child, "spread_threads", lambda: None)
    built = BuiltCandidate(candidate=Candidate.of("0" * 64, BASELINE_TRACE), program=b"", build_secs=0.1)
    bench = cast(Bench, SimpleNamespace(reference_outputs=dict.fromkeys("abc")))
    line = Asked((GO, fastest_secs))
    with pytest.raises(SystemExit):
        child.process_body(bench, built, MeasureConfig(), copy)(cast(Line, line))
    assert line.said[1:] == [expected]


def test_what_was_timed_of_a_large_workload_is_told_before_the_rest_is(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its candidates take seconds each: with one phase for all, none had a result when the job's seconds were over."""
    monkeypatch.setattr(search, "_TIMING_SECS", 0.0)
    told: list[int] = []
    monkeypatch.setattr(host, "phase", lambda name: told.append(len(host.results)) or nullcontext(Parts()))
    batch = batch_of([json.dumps(f"fine {'x' * n}") for n in range(4)])
    SearchRun(host, BENCH, batch).run()
    assert told == [0, 0, 1, 2, 3], "built once, then timed one by one"
    assert {result.candidate for result in host.results} == {candidate.digest for candidate in batch.candidates}
    assert all(isinstance(result, Timed) for result in host.results)


def test_the_best_of_a_search_are_built_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[str] = []
    monkeypatch.setattr(
        search,
        "candidate_body",
        lambda _, candidate, config: spawned.append(candidate.digest) or searched(_, candidate, config),
    )
    batch = batch_of([json.dumps(f"fine {'x' * n}") for n in range(5)])
    SearchRun(host, BENCH, batch).run()
    first, second, *rest = [candidate.digest for candidate in batch.candidates]
    assert spawned == [first, second, *reversed(rest)]
