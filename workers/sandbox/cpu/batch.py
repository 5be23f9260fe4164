"""One batch on a CPU, from candidates to results.

A search goes in phases, because timing is exclusive on the host (tuner/measure/quiet.py):

    build   children build in parallel until enough of them wait for their turn; those still building are frozen
    time    one after another they are checked and timed, then the heartbeat (tuner/measure/heartbeat.py)
    report  if the reference drifted, the whole phase is timed again; then its results are sent, its children ended

A confirming run builds every candidate in CONFIRM_PROCESSES children (processes differ: where their memory lies), then
takes a sample of each in turn, forward and backward, between two heartbeats.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig, Measurement, Stop
from tuner.measure import quiet
from tuner.measure.candidate import Bench
from tuner.measure.drift import believed_ratio, drifted
from tuner.measure.heartbeat import clock_hz
from tuner.measure.timing import CONFIRM_PROCESSES, abba, confirmed
from workers.sandbox.cpu.child import GO, SAMPLE, candidate_body
from workers.sandbox.messages import Batch
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery
from workers.sandbox.report import failed, kind_of, measured

_T = TypeVar("_T")

_FEWEST_PER_PHASE = 16
"""Candidates built before they are timed; each waits in a process of its own, so a phase is not much larger."""
MAX_REPEATS = 2
"""Times a phase is timed again because the reference drifted. After that its results are sent with the drift."""
_BEAT_SECS = 20.0
_PAUSES_SECS = (0.2, 1.0)
"""Before each repetition: most disturbances are gone by then."""


class Host(Protocol):
    """The task process that a batch runs in."""

    @property
    def nursery(self) -> Nursery: ...

    @property
    def parallel_builds(self) -> int: ...

    def limits(self, config: MeasureConfig) -> Limits: ...

    def events(self) -> list[tuple[Child, dict[str, Any] | Ended]]:
        """What the children did; raises Cancelled."""

    def abandoned(self) -> bool:
        """Whether the batch is not wanted any more."""

    def send(self, result: Measurement) -> None: ...

    def reference_body(self, line: Line) -> None:
        """Of a child that times the reference each time it is told to."""

    def beaten(self, secs: float) -> None:
        """Tells the worker of a heartbeat."""

    def repeated(self) -> None:
        """Tells the worker that a phase is timed again."""


class BatchRun:
    """Runs once. Sends one result per candidate."""

    def __init__(self, host: Host, bench: Bench, batch: Batch) -> None:
        self._host, self._bench, self._batch = host, bench, batch
        self._waiting = deque(batch.candidates)
        self._building: list[Child] = []
        self._built: list[Child] = []
        self._incumbent_secs = batch.incumbent_secs
        self._usual_secs = batch.usual_secs
        self._reference: Child | None = None
        self._dismissed: list[Child] = []
        """Killed, and reaped while the next phase is built: taking a process down costs the kernel 5 ms."""
        self._spawned: Counter[str] = Counter()
        self._over: set[str] = set()
        """Digests of the candidates whose result has been sent."""

    def search(self) -> None:
        """Every candidate a time or a failure, as fast as that can be done."""
        enough = max(_FEWEST_PER_PHASE, 4 * self._host.parallel_builds)
        # Long traces make much code: begun last, one of them would keep the other cores waiting at the end.
        self._waiting = deque(sorted(self._waiting, key=lambda candidate: len(candidate.trace), reverse=True))
        while self._waiting or self._building or self._built:
            self._build(enough)
            if self._built:
                self._time_phase()

    def _time_phase(self) -> None:
        phase, self._built = self._built, []
        self._host.nursery.end_all(self._dismissed)  # Their ends would disturb a timing; most are over by now.
        with quiet.timing(self._host.abandoned):
            (timed, self._incumbent_secs), ratio = self._undisturbed(lambda: self._time(phase))
        for child, event in timed:
            self._timed(child, event, ratio)
        for child in phase:
            child.kill()
        self._dismissed = phase

    def confirm(self) -> None:
        """All of them interleaved, until every interval is narrow."""
        self._waiting = deque(candidate for _ in range(CONFIRM_PROCESSES) for candidate in self._batch.candidates)
        self._build(len(self._waiting) + 1)
        ready: list[Child] = []
        with quiet.timing(self._host.abandoned):
            for child in sorted(self._built, key=lambda child: int(child.note["copy"])):
                if not self._is_over(child) and (event := self._ask(child, GO)) is not None:
                    child.note |= event
                    ready.append(child)
            samples, ratio = self._undisturbed(lambda: self._interleave(ready))
        for child in ready:
            if (secs := samples.get(child.note["candidate"].digest)) and child.note["copy"] == 0:
                event = {"run_secs": secs, "stop": Stop.CONFIRMED, **child.note}
                self._timed(child, event, ratio, processes=CONFIRM_PROCESSES)

    def _is_over(self, child: Child) -> bool:
        return child.note["candidate"].digest in self._over

    # -- building

    def _build(self, enough: int) -> None:
        """Goes on until `enough` wait to be timed, or none is left to build; freezes those that still build."""
        with quiet.computing(self._host.abandoned):
            for child in self._building:
                child.thaw()
            while len(self._built) < enough and (self._waiting or self._building):
                while self._waiting and len(self._building) < self._host.parallel_builds:
                    if (candidate := self._waiting.popleft()).digest not in self._over:
                        self._building.append(self._spawn(candidate))
                for child, event in self._host.events():
                    self._absorb(child, event)
            for child in self._building:
                child.freeze()

    def _spawn(self, candidate: Candidate) -> Child:
        batch, copy = self._batch, self._spawned[candidate.digest]
        self._spawned[candidate.digest] += 1
        child = self._host.nursery.spawn(
            candidate_body(self._bench, candidate, batch.config, batch.purpose, copy),
            self._host.limits(batch.config),
            deadline_secs=batch.config.build_timeout_secs,
        )
        child.note = {"candidate": candidate, "copy": copy, "stage": "applying"}
        return child

    def _absorb(self, child: Child, event: dict[str, Any] | Ended) -> None:
        """What a child did while nobody waited for its answer: it goes on building, or it ends."""
        if isinstance(event, Ended):
            for group in (self._building, self._built):
                if child in group:
                    group.remove(child)
            self._ended(child, event)
        elif child in self._building:
            child.note |= event
            if "failed" in event or child.note["stage"] == "built":
                self._building.remove(child)
            if "failed" in event:
                self._failed(child, event)
            elif child.note["stage"] == "built":
                child.deadline = None
                self._built.append(child)

    # -- timing; the caller holds the quiet

    def _undisturbed(self, measure: Callable[[], _T]) -> tuple[_T, float | None]:
        """What `measure` gives while the reference is as fast as usual, and the ratio of its beat to the usual one."""
        usual = self._usual_secs = self._usual_secs or self._beat()
        repeats = 0
        while True:
            result, ratio = measure(), believed_ratio(self._beat, usual)
            if repeats == MAX_REPEATS or ratio is None or not drifted(ratio):
                return result, ratio
            self._host.repeated()
            self._pause(_PAUSES_SECS[repeats])
            repeats += 1

    def _pause(self, secs: float) -> None:
        end = time.monotonic() + secs
        while time.monotonic() < end:
            for child, event in self._host.events():
                self._absorb(child, event)

    def _beat(self) -> float | None:
        """Times the reference; None when that fails, which says nothing about the candidates."""
        if self._reference is None or self._reference.ended:
            limits = self._host.limits(self._batch.config)
            self._reference = self._host.nursery.spawn(self._host.reference_body, limits, deadline_secs=_BEAT_SECS)
        event = self._answer(self._reference, GO, _BEAT_SECS)
        if isinstance(event, Ended):
            self._reference = None
            return None
        secs = float(event["secs"])
        self._host.beaten(secs)
        return secs

    def _time(self, phase: Sequence[Child]) -> tuple[list[tuple[Child, dict[str, Any]]], float | None]:
        """The children that have a time (the others failed), and the incumbent after them.

        It starts from the incumbent of the phases before: a phase that is repeated in a slower moment must not be judged
        by its own times.
        """
        timed, incumbent = [], self._incumbent_secs
        for child in phase:
            event = self._ask(child, GO, incumbent)
            if event is None:
                continue
            timed.append((child, event))
            secs = self._median(event)
            if secs is not None and (incumbent is None or secs < incumbent):
                incumbent = secs
        return timed, incumbent

    @staticmethod
    def _median(event: dict[str, Any]) -> float | None:
        """None when the child's report makes no sense: nothing follows from it for the others."""
        try:
            samples = sorted(float(secs) for secs in event["run_secs"])
            return samples[len(samples) // 2] if samples[0] > 0 else None
        except (KeyError, TypeError, ValueError, IndexError):
            return None

    def _interleave(self, ready: Sequence[Child]) -> dict[str, list[float]]:
        """Samples of each candidate, round by round one of each of its processes; none of those that failed."""
        config = self._batch.config
        going: dict[str, list[Child]] = {}
        for child in ready:
            if not self._is_over(child):
                going.setdefault(child.note["candidate"].digest, []).append(child)
        samples: dict[str, list[float]] = {digest: [] for digest in going}
        for order in abba(len(ready)):
            if not going:
                break
            taken: dict[Child, float] = {}
            for child in (ready[i] for i in order):
                if (digest := child.note["candidate"].digest) not in going:
                    continue
                if (event := self._ask(child, SAMPLE)) is None:
                    del going[digest], samples[digest]
                else:
                    taken[child] = float(event["secs"])
            for digest, group in list(going.items()):
                samples[digest] += [taken[child] for child in group]
                if confirmed(samples[digest], int(group[0].note["calls"]), config, len(group)):
                    del going[digest]
        return samples

    def _ask(self, child: Child, byte: bytes, incumbent_secs: float | None = None) -> dict[str, Any] | None:
        """Tells a candidate that waits to go on; None after its failure has been reported."""
        if child.note.get("reported"):
            return None
        child.note["stage"] = "running"
        event = self._answer(child, byte, self._batch.config.run_timeout_secs, incumbent_secs)
        if isinstance(event, Ended):
            self._absorb(child, event)
            return None
        if "failed" in event:
            self._failed(child, event)
            return None
        child.note["stage"] = "built"  # It waits again.
        return event

    def _answer(
        self, child: Child, byte: bytes, limit_secs: float, number: float | None = None
    ) -> dict[str, Any] | Ended:
        """Tells a waiting child to go on, and waits for its answer or its end; then it is frozen."""
        child.deadline = time.monotonic() + limit_secs
        child.tell(byte, math.nan if number is None else number)
        while True:
            for other, event in self._host.events():
                if other is not child:
                    self._absorb(other, event)
                    continue
                if not isinstance(event, Ended):
                    child.deadline = None
                    child.freeze()
                return event

    # -- results

    def _timed(self, child: Child, event: dict[str, Any], ratio: float | None, processes: int = 1) -> None:
        if child.note.get("reported") or self._is_over(child):  # One was killed while it waited for the others.
            return
        candidate: Candidate = child.note["candidate"]
        child.note["reported"] = True
        cold_bytes, report = self._bench.cold_bytes(), {**child.note, **event}
        self._over.add(candidate.digest)
        self._host.send(measured(candidate, report, ratio, clock_hz(), processes=processes, cold_bytes=cold_bytes))

    def _failed(self, child: Child, event: dict[str, Any]) -> None:
        child.note["reported"] = True
        child.deadline = None
        self._fail(child.note["candidate"], kind_of(event), str(event.get("detail", "")))

    def _ended(self, child: Child, ended: Ended) -> None:
        """A child that ended without having reported a result."""
        if "candidate" not in child.note or child.note.get("reported"):
            return
        child.note["reported"] = True
        stage = child.note["stage"]
        if stage == "running":
            kind = FailureKind.RUN_TIMEOUT if ended.timed_out else FailureKind.RUN_ERROR
        elif stage == "built":
            kind = FailureKind.DEVICE_ERROR  # It only waited: whatever ended it came from outside.
        elif ended.timed_out:
            kind = FailureKind.BUILD_TIMEOUT
        else:
            kind = FailureKind.INVALID_SCHEDULE if stage == "applying" else FailureKind.BUILD_ERROR
        self._fail(child.note["candidate"], kind, f"while {stage}, the child {ended}")

    def _fail(self, candidate: Candidate, kind: FailureKind, detail: str) -> None:
        if candidate.digest in self._over:  # Another of its processes failed before.
            return
        self._over.add(candidate.digest)
        self._host.send(failed(candidate, kind, detail))
