"""What a batch on a CPU tells its candidates, with children that do as the test says."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind, MeasureConfig, Measurement, Stop, Timed
from tuner.measure.candidate import Bench
from tuner.tuning.testing import PASSED
from workers.sandbox.cpu.batch import BatchRun, Host
from workers.sandbox.messages import Batch
from workers.sandbox.report import failed


class ScriptedChild:
    """Answers at once: a candidate with the next of its times, the reference with the next beat."""

    def __init__(self, events: deque[tuple[Any, dict[str, Any]]], secs: deque[float], told: list[float]) -> None:
        self.note: dict[str, Any] = {}
        self.ended = False
        self.deadline: float | None = None
        self._events, self._secs, self._told = events, secs, told

    def tell(self, byte: bytes, number: float) -> None:
        self._told.append(number)
        secs = self._secs.popleft()
        sampled = {"run_secs": [secs], "stop": Stop.SPENT, "calls": 1, "check": PASSED}
        self._events.append((self, {"secs": secs, **sampled}))

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
        self._events: deque[tuple[Any, dict[str, Any]]] = deque()
        self.nursery = SimpleNamespace(spawn=self._spawn, end_all=lambda children: None)

    def _spawn(self, body: object, limits: object, *, deadline_secs: float) -> ScriptedChild:
        if body == self.reference_body:
            return ScriptedChild(self._events, self._beats, [])
        child = ScriptedChild(self._events, self._secs, self.told)
        self._events.append((child, {"stage": "built", "build_secs": 0.1}))
        return child

    def reference_body(self, line: object) -> None: ...

    def limits(self, config: MeasureConfig) -> None: ...

    def events(self) -> list[tuple[Any, dict[str, Any]]]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def abandoned(self) -> bool:
        return False

    def send(self, result: Measurement) -> None:
        self.sent.append(result)

    def beaten(self, secs: float) -> None: ...

    def repeated(self) -> None:
        self.repeats += 1


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
    BatchRun(cast(Host, host), bench, batch).search()
    (result,) = host.sent
    assert isinstance(result, Timed)
    assert result.run_secs == (9.0,)
    assert host.repeats == 1
    assert host.told == [5.0, 5.0]


def test_a_detail_that_no_text_can_hold_is_still_a_failure() -> None:
    """A child writes JSON, which can name half of a surrogate pair; as an error of ours it would end the whole batch."""
    result = failed(Candidate.of("0" * 64, BASELINE_TRACE), FailureKind.RUN_ERROR, "bad \ud800 words" + "x" * 5000)
    assert result.kind is FailureKind.RUN_ERROR
    assert result.detail.startswith("bad ? words")
    assert len(result.detail) == 4000
