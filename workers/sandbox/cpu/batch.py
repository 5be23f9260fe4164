"""What every batch on a CPU does with its candidates' children: starts them, asks them, hears them, and sends results.

A search and a confirming run (workers/sandbox/cpu/search.py, confirm.py) build on it. Children build on all cores while
others may compute (tuner/measure/quiet.py), then wait for their turn, frozen, and answer one at a time. What was timed is
timed again while the reference workload beside it is too slow (tuner/measure/heartbeat.py), unless it was so before.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, CheckVerdict, FailureKind, MeasureConfig, Measurement
from tuner.measure import quiet
from tuner.measure.candidate import Bench
from tuner.measure.drift import believed_ratio, drifted
from tuner.measure.heartbeat import clock_hz
from workers.sandbox.builders import BuildHost, BuiltCandidate, straggler_limit
from workers.sandbox.cpu.child import GO
from workers.sandbox.messages import Applied, Batch, Fault, FromChild, Sample, Waiting
from workers.sandbox.nursery import Child, Ended, Limits, Line
from workers.sandbox.report import failed, measured

_T = TypeVar("_T")
_Answer = TypeVar("_Answer", bound=FromChild)
Stage = Literal["applying", "building", "built", "running"]

MAX_REPEATS = 2
"""Times that a phase is timed again because its beat was too slow. After that its results are sent with the beat's ratio.
Further phases are then timed once, until a beat is as usual: what lasted for three phases will not end in a pause."""
_BEAT_SECS = 20.0
_PAUSES_SECS = (0.2, 1.0)
"""Pause before each repetition, in which most disturbances end."""


class Host(BuildHost, Protocol):
    """The task process that a batch runs in."""

    @property
    def parallel_builds(self) -> int: ...

    def limits(self, config: MeasureConfig) -> Limits: ...

    def events(self) -> list[tuple[Child, FromChild | Ended]]:
        """Reports and ends of children. Raises Cancelled."""

    def abandoned(self) -> bool:
        """Whether the batch is not wanted any more."""

    def send(self, result: Measurement) -> None: ...

    def heartbeat_body(self, line: Line) -> None:
        """The function of a child that times the reference workload each time it is told to."""

    def report_beat(self, secs: float) -> None:
        """Sends a beat to the worker."""

    def repeated(self) -> None:
        """Tells the worker that a phase is timed again."""

    programs: dict[str, BuiltCandidate]
    """Digest -> the fastest candidates of the workload that searches have timed, with their programs."""


@dataclass(eq=False, kw_only=True)
class Trial:
    """A child and its candidate. Stage and build time follow from its reports, the candidate does not."""

    child: Child
    candidate: Candidate
    copy: int = 0
    """Number of children of the same candidate that were started before it."""
    stage: Stage = "applying"
    build_secs: float = 0.0
    """0 until it is built."""
    program: bytes = b""
    """Of a candidate of a search, as it sent it before it ran."""
    over: bool = False
    """Whether its result was sent or it failed: then it is not asked for anything any more."""


class BatchRun(ABC):
    """One batch. `run` is called once, and sends one result per candidate."""

    def __init__(self, host: Host, bench: Bench, batch: Batch) -> None:
        self._host, self._bench, self._batch = host, bench, batch
        self._starts: deque[Callable[[], Trial | None]] = deque()
        """Each starts a child that will wait for its turn; or none, where it is not wanted any more."""
        self._trials: dict[Child, Trial] = {}
        self._building: list[Trial] = []
        self._built: list[Trial] = []
        self._usual_secs = batch.usual_secs
        self._most_repeats = 0 if batch.noisy else MAX_REPEATS
        self._heartbeat: Child | None = None
        self._over: set[str] = set()
        """Digests of the candidates whose result has been sent."""

    @abstractmethod
    def run(self) -> None:
        """Gives every candidate a time or a failure."""

    # -- children that get ready for their turn

    def _get_ready(self, enough: int, *, within_secs: float = math.inf) -> None:
        """Starts children until `enough` wait for their turn or none is left to start, or some wait and the seconds are
        over; freezes those that are not ready."""
        until = time.monotonic() + within_secs
        with quiet.computing(self._host.abandoned):
            for trial in self._building:
                trial.child.thaw()
            while len(self._built) < enough and (self._starts or self._building):
                if self._built and time.monotonic() >= until:
                    break
                while self._starts and len(self._building) < self._host.parallel_builds:
                    if (started := self._starts.popleft()()) is not None:
                        self._building.append(started)
                for child, event in self._host.events():
                    self._absorb(child, event)
                self._give_up_stragglers()
            for trial in self._building:
                trial.child.freeze()

    def _give_up_stragglers(self) -> None:
        """Ends a search's children that alone are waited for and compute far longer than the batch's others took to build,
        as builders.py has it: LLVM takes a minute for some code that is not fast. It is processor time that counts: other
        load makes nobody a straggler."""
        if self._batch.purpose is Purpose.CONFIRM or self._starts:
            return
        built_secs = [trial.build_secs for trial in self._trials.values() if trial.build_secs]
        if not built_secs:
            return
        median_secs, limit_secs = straggler_limit(built_secs)
        if any(trial.child.computed_secs() <= limit_secs for trial in self._building):
            return
        for trial in list(self._building):
            trial.child.kill()
            detail = f"given up after {limit_secs:.1f} s: the median build of its batch took {median_secs:.2f} s"
            self._over_with(trial, FailureKind.BUILD_TIMEOUT, detail)

    def _start(self, candidate: Candidate, body: Callable[[Line], None], **known: Any) -> Trial:
        """A new child of the candidate that runs `body`. known: fields of its Trial."""
        config = self._batch.config
        limits = self._host.limits(config)
        child = self._host.nursery.spawn(body, limits, deadline_secs=config.build_timeout_secs)
        self._trials[child] = trial = Trial(child=child, candidate=candidate, **known)
        return trial

    def _absorb(self, child: Child, event: FromChild | Ended) -> None:
        """Takes an event of a child that is no answer to `_ask`: it goes on building, or it fails."""
        trial = self._trials.get(child)
        if trial is None or trial.over:  # The heartbeat's child, which is replaced when needed, or one that has ended.
            return
        match event:
            case Applied() if trial.stage == "applying":
                trial.stage = "building"
            case Waiting(build_secs=secs, program=program) if trial.stage == "building":
                trial.stage, trial.build_secs, trial.program = "built", trial.build_secs + secs, program
                child.deadline = None
                self._building.remove(trial)
                self._built.append(trial)
            case Fault():
                self._over_with(trial, event.kind, event.detail)
            case Ended():
                self._over_with(trial, _kind_of_end(trial.stage, event), f"while {trial.stage}, the child {event}")
            case _:
                child.kill()
                kind = _kind_at(trial.stage)
                self._over_with(trial, kind, f"while {trial.stage}, the child reported out of turn: {event.message}")

    # -- timing; the caller holds the quiet

    def _undisturbed(self, measure: Callable[[], _T]) -> tuple[_T, float | None]:
        """(result of `measure`, ratio of the beat after it to the usual one); `measure` is repeated, at most MAX_REPEATS
        times, while that beat is too slow, unless the one before was too slow already."""
        usual = self._usual_secs = self._usual_secs or self._beat()
        repeats = 0
        while True:
            result, ratio = measure(), believed_ratio(self._beat, usual)
            slow = ratio is not None and drifted(ratio)
            if not slow or repeats >= self._most_repeats:
                self._most_repeats = 0 if slow else MAX_REPEATS
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
        """Times the reference workload; None when that fails, which says nothing about the candidates."""
        if self._heartbeat is None or self._heartbeat.ended:
            limits = self._host.limits(self._batch.config)
            self._heartbeat = self._host.nursery.spawn(self._host.heartbeat_body, limits, deadline_secs=_BEAT_SECS)
        answer = self._answer(self._heartbeat, GO, _BEAT_SECS)
        if not isinstance(answer, Sample):
            self._heartbeat.kill()
            self._heartbeat = None
            return None
        self._host.report_beat(answer.secs)
        return answer.secs

    def _ask(self, trial: Trial, byte: bytes, *expected: type[_Answer], number: float | None = None) -> _Answer | None:
        """Tells a waiting child to go on and returns its answer, of an expected type; None after its candidate's failure
        was sent."""
        if trial.over:
            return None
        trial.stage = "running"
        answer = self._answer(trial.child, byte, self._batch.config.run_timeout_secs, number)
        if not isinstance(answer, expected):
            self._absorb(trial.child, answer)
        if trial.over or not isinstance(answer, expected):
            return None
        trial.stage = "built"  # It waits again.
        return answer

    def _answer(self, child: Child, byte: bytes, limit_secs: float, number: float | None = None) -> FromChild | Ended:
        """Tells a waiting child to go on, waits for its answer or its end, and freezes it."""
        child.deadline = time.monotonic() + limit_secs
        child.tell(byte, math.nan if number is None else number)
        answer: FromChild | Ended | None = None
        while answer is None:
            # All events are processed, also those after the answer: an end is reported only once.
            for other, event in self._host.events():
                if other is not child or answer is not None:
                    self._absorb(other, event)
                    continue
                answer = event
                if not isinstance(event, Ended):
                    child.deadline = None
                    child.freeze()
        return answer

    # -- results

    def _timed(
        self, trial: Trial, run_secs: Sequence[float], ratio: float | None, check: CheckVerdict, **rule: Any
    ) -> None:
        if trial.over or trial.candidate.digest in self._over:  # One was killed while it waited for the others.
            return
        trial.over = True
        self._over.add(trial.candidate.digest)
        result = measured(
            trial.candidate,
            run_secs,
            check,
            build_secs=trial.build_secs,
            ratio=ratio,
            clock_hz=clock_hz(),
            cold_bytes=self._bench.cold_bytes(),
            **rule,
        )
        self._host.send(result)

    def _over_with(self, trial: Trial, kind: FailureKind, detail: str) -> None:
        """Records that a child failed, and sends the failure of its candidate."""
        trial.over = True
        trial.child.deadline = None
        for group in (self._building, self._built):
            if trial in group:
                group.remove(trial)
        self._fail(trial.candidate, kind, detail)

    def _fail(self, candidate: Candidate, kind: FailureKind, detail: str) -> None:
        """Sends the failure of a candidate, unless it has a result."""
        if candidate.digest not in self._over:
            self._over.add(candidate.digest)
            self._host.send(failed(candidate, kind, detail))


def _kind_of_end(stage: Stage, ended: Ended) -> FailureKind:
    """The failure kind for a child that ended without having reported a result."""
    if stage == "built" and not ended.misreport:
        return FailureKind.DEVICE_ERROR  # It only waited: whatever ended it came from outside.
    if ended.timed_out:
        return FailureKind.RUN_TIMEOUT if stage == "running" else FailureKind.BUILD_TIMEOUT
    return _kind_at(stage)


def _kind_at(stage: Stage) -> FailureKind:
    """The failure kind for a child that failed in this stage by its own fault."""
    if stage == "applying":
        return FailureKind.INVALID_SCHEDULE
    return FailureKind.BUILD_ERROR if stage == "building" else FailureKind.RUN_ERROR
