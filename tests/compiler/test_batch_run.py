"""What a batch on a CPU tells its candidates, with children that do as the test says."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import (
    BASELINE_TRACE,
    Candidate,
    Failed,
    FailureKind,
    MeasureConfig,
    Measurement,
    Stop,
    Timed,
)
from tuner.measure.candidate import Bench
from tuner.tuning.testing import PASSED
from workers.sandbox.builders import Parts
from workers.sandbox.cpu.batch import Host
from workers.sandbox.cpu.search import SearchRun
from workers.sandbox.messages import Applied, Batch, Sample, Sampled, Waiting
from workers.sandbox.nursery import Ended
from workers.sandbox.report import failed, last_line


class ScriptedChild:
    """Answers at once: a candidate with the next of its times, the reference with the next beat."""

    def __init__(self, events: deque[tuple[Any, Any]], secs: deque[float], told: list[float] | None) -> None:
        self.ended = False
        self.deadline: float | None = None
        self._events, self._secs, self._told = events, secs, told

    def tell(self, byte: bytes, number: float) -> None:
        secs = self._secs.popleft()
        if self._told is None:
            self._events.append((self, Sample(secs=secs)))
        else:
            self._told.append(number)
            self._events.append((self, Sampled(run_secs=(secs,), stop=Stop.SPENT, calls=1, check=PASSED)))

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...


class ScriptedHost:
    """One candidate with these times, and a reference with these beats."""

    parallel_builds = 1

    def __init__(self, secs: list[float], beats: list[float]) -> None:
        self.told: list[float] = []
        self.sent: list[Measurement] = []
        self.repeats = 0
        self._secs, self._beats = deque(secs), deque(beats)
        self._events: deque[tuple[Any, Any]] = deque()
        self.nursery = SimpleNamespace(spawn=self._spawn, end_all=lambda children: None)

    def _spawn(self, body: object, limits: object, *, deadline_secs: float) -> ScriptedChild:
        if body == self.heartbeat_body:
            return ScriptedChild(self._events, self._beats, None)
        child = ScriptedChild(self._events, self._secs, self.told)
        self._events += [(child, Applied()), (child, Waiting(build_secs=0.1))]
        return child

    def heartbeat_body(self, line: object) -> None: ...

    def limits(self, config: MeasureConfig) -> None: ...

    def events(self) -> list[tuple[Any, Any]]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def abandoned(self) -> bool:
        return False

    def send(self, result: Measurement) -> None:
        self.sent.append(result)

    def report_beat(self, secs: float) -> None: ...

    def repeated(self) -> None:
        self.repeats += 1

    def phase(self, name: str) -> AbstractContextManager[Parts]:
        return nullcontext(Parts())


def test_a_candidate_timed_again_is_not_judged_by_its_own_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time is disturbed, the second one more so: with the first as incumbent it would look hopeless."""
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    host = ScriptedHost(secs=[3.0, 9.0], beats=[2.0, 2.0, 1.0])
    candidate = Candidate.of("0" * 64, BASELINE_TRACE)
    batch = Batch(
        candidates=(candidate,), config=MeasureConfig(), purpose=Purpose.SEARCH, incumbent_secs=5.0, usual_secs=1.0
    )
    bench = cast(Bench, SimpleNamespace(cold_bytes=lambda: 0))
    SearchRun(cast(Host, host), bench, batch).run()
    (result,) = host.sent
    assert isinstance(result, Timed)
    assert result.run_secs == (9.0,)
    assert host.repeats == 1
    assert host.told == [5.0, 5.0]


@pytest.mark.parametrize(
    ("noisy", "beats", "repeats"),
    [
        (False, [2.0, 2.0, 1.0], 1),
        (False, [2.0] * 6, 2),
        (True, [2.0, 2.0], 0),
        (True, [1.0], 0),
    ],
)
def test_what_is_timed_on_a_device_that_was_slow_before_is_not_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noisy: bool, beats: list[float], repeats: int
) -> None:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr("workers.sandbox.cpu.batch._PAUSES_SECS", (0.0, 0.0))
    host = ScriptedHost(secs=[3.0] * (repeats + 1), beats=beats)
    batch = Batch(
        candidates=(Candidate.of("0" * 64, BASELINE_TRACE),),
        config=MeasureConfig(),
        purpose=Purpose.SEARCH,
        incumbent_secs=None,
        usual_secs=1.0,
        noisy=noisy,
    )
    run = SearchRun(cast(Host, host), cast(Bench, SimpleNamespace(cold_bytes=lambda: 0)), batch)
    run.run()
    (result,) = host.sent
    assert isinstance(result, Timed)
    assert result.reference_ratio == beats[-1]
    assert host.repeats == repeats
    assert run._most_repeats == (0 if beats[-1] > 1 else 2), "for the next phase"


class _Scripted:
    """A child of a batch whose events come from a script."""

    def __init__(self) -> None:
        self.ended = False
        self.deadline: float | None = None
        self.told = 0

    def tell(self, byte: bytes, number: float) -> None:
        self.told += 1

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...


class RoundsHost(ScriptedHost):
    """Gives its events in rounds, several at once."""

    def __init__(self, rounds: list[list[tuple[int, Any]]]) -> None:
        super().__init__([], [])
        self.children: list[_Scripted] = []
        self.rounds = deque(rounds)

    def _spawn(self, body: object, limits: object, *, deadline_secs: float) -> Any:
        self.children.append(_Scripted())
        return self.children[-1]

    def events(self) -> list[tuple[Any, Any]]:
        return [(self.children[index], event) for index, event in self.rounds.popleft()]


def ended(**how: Any) -> Ended:
    return Ended(**{"exit_code": None, "signal": 9, "timed_out": False, "misreport": "", "output": ""} | how)


SAMPLED = Sampled(run_secs=(1e-3,), stop=Stop.SPENT, calls=1, check=PASSED)
BUILT = [[(0, Applied())], [(0, Waiting(build_secs=0.1)), (1, Applied()), (1, Waiting(build_secs=0.1))]]


def run_rounds(host: RoundsHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Measurement]:
    """Results of a batch of two, in the order of the candidates; the reference is never asked for."""
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(SearchRun, "_beat", lambda self: 1.0)
    host.parallel_builds = 2
    pair = tuple(Candidate.of(digit * 64, BASELINE_TRACE) for digit in "01")
    batch = Batch(candidates=pair, config=MeasureConfig(), purpose=Purpose.SEARCH, incumbent_secs=None, usual_secs=1.0)
    bench = cast(Bench, SimpleNamespace(cold_bytes=lambda: 0))
    SearchRun(cast(Host, host), bench, batch).run()
    assert not host.rounds
    found = {result.candidate: result for result in host.sent}
    assert len(found) == len(host.sent) == 2, "one result per candidate"
    return [found[candidate.digest] for candidate in pair]


def test_an_end_that_comes_together_with_another_childs_answer_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child whose end nobody took would be waited for without a limit: it is no child of the nursery any more."""
    host = RoundsHost([*BUILT, [(0, SAMPLED), (1, ended())]])
    first, second = run_rounds(host, monkeypatch, tmp_path)
    assert isinstance(first, Timed)
    assert isinstance(second, Failed)
    assert second.kind is FailureKind.DEVICE_ERROR, "it only waited"
    assert host.children[1].told == 0


def test_a_child_that_ends_right_behind_its_answer_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = RoundsHost([*BUILT, [(0, SAMPLED), (0, ended(signal=11))], [(1, SAMPLED)]])
    first, second = run_rounds(host, monkeypatch, tmp_path)
    assert isinstance(first, Failed)
    assert (first.kind, "SIGSEGV" in first.detail) == (FailureKind.RUN_ERROR, True)
    assert isinstance(second, Timed)


STAGES: list[tuple[list[Any], FailureKind]] = [
    ([], FailureKind.INVALID_SCHEDULE),
    ([Applied()], FailureKind.BUILD_ERROR),
    ([Applied(), Waiting(build_secs=0.1)], FailureKind.RUN_ERROR),
]
OUT_OF_TURN = [ended(misreport="a report that makes no sense"), SAMPLED, Applied(), Sample(secs=1)]


@pytest.mark.parametrize(
    ("before", "kind", "event"),
    [(*stage, event) for stage in STAGES for event in OUT_OF_TURN if stage[0] or event != Applied()],
)
def test_a_report_out_of_turn_ends_its_candidate_as_what_its_stage_says(
    before: list[Any], kind: FailureKind, event: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = [*before, event, Waiting(build_secs=9.0), SAMPLED]
    host = RoundsHost(
        [[(0, report) for report in hostile] + [(1, Applied()), (1, Waiting(build_secs=0.1))], [(1, SAMPLED)]]
    )
    first, second = run_rounds(host, monkeypatch, tmp_path)
    assert isinstance(first, Failed)
    assert first.kind is kind
    assert isinstance(second, Timed)
    assert second.build_secs == 0.1


def test_a_detail_that_no_text_can_hold_is_still_a_failure() -> None:
    """TVM quotes bytes that it was given, which may be half of a surrogate pair; as an error of ours it would end the whole batch."""
    result = failed(Candidate.of("0" * 64, BASELINE_TRACE), FailureKind.RUN_ERROR, "bad \ud800 words" + "x" * 5000)
    assert result.kind is FailureKind.RUN_ERROR
    assert result.detail.startswith("bad ? words")
    assert len(result.detail) == 4000
    assert last_line(ValueError("first\nbad \ud800 words\n")) == "ValueError: bad ? words"
