"""One batch on a CPU, from candidates to results.

A search goes in phases, because timing is exclusive on the host (tuner/measure/quiet.py):

    build   children build in parallel until enough of them wait for their turn; those still building are frozen
    time    one after another they are checked and timed, then the reference workload is (tuner/measure/heartbeat.py)
    report  if its beat is too slow, and was not so before, the whole phase is timed again; then the results are sent and the
            children ended

A confirming run builds every candidate in CONFIRM_PROCESSES children, since processes differ in where their memory is
placed. Then it takes one sample of each child in turn, forward and backward, between two beats.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from pitchpipe.wire.measure import Candidate, CheckVerdict, FailureKind, MeasureConfig, Measurement, Stop
from tuner.measure import quiet
from tuner.measure.candidate import Bench
from tuner.measure.drift import believed_ratio, drifted
from tuner.measure.heartbeat import clock_hz
from tuner.measure.timing import CONFIRM_PROCESSES, abba, confirmed
from workers.sandbox.cpu.child import GO, SAMPLE, candidate_body
from workers.sandbox.messages import Applied, Batch, Fault, FromChild, Sample, Sampled, Waiting, Warmed
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery
from workers.sandbox.report import failed, measured

_T = TypeVar("_T")
_Answer = TypeVar("_Answer", Sample, Sampled, Warmed)
_Stage = Literal["applying", "building", "built", "running"]

_FEWEST_PER_PHASE = 16
"""Candidates of a phase, at least. Each waits in a process of its own, so a phase is not much larger."""
MAX_REPEATS = 2
"""Times that a phase is timed again because its beat was too slow. After that its results are sent with the beat's ratio.
Further phases are then timed once, until a beat is as usual: what lasted for three phases will not end in a pause."""
_BEAT_SECS = 20.0
_PAUSES_SECS = (0.2, 1.0)
"""Pause before each repetition, in which most disturbances end."""


class Host(Protocol):
    """The task process that a batch runs in."""

    @property
    def nursery(self) -> Nursery: ...

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


@dataclass(eq=False, kw_only=True)
class _Trial:
    """A child and its candidate. Stage and build time follow from its reports, the candidate does not."""

    child: Child
    candidate: Candidate
    copy: int
    """Number of children of the same candidate that were started before it."""
    stage: _Stage = "applying"
    build_secs: float = 0.0
    over: bool = False
    """Whether its result was sent or it failed: then it is not asked for anything any more."""


class BatchRun:
    """One batch: sends one result per candidate. `search` or `confirm` is called once."""

    def __init__(self, host: Host, bench: Bench, batch: Batch) -> None:
        self._host, self._bench, self._batch = host, bench, batch
        self._waiting = deque(batch.candidates)
        self._trials: dict[Child, _Trial] = {}
        self._building: list[_Trial] = []
        self._built: list[_Trial] = []
        self._incumbent_secs = batch.incumbent_secs
        self._usual_secs = batch.usual_secs
        self._most_repeats = 0 if batch.noisy else MAX_REPEATS
        self._heartbeat: Child | None = None
        self._dismissed: list[Child] = []
        """Children that were killed. They are reaped while the next phase is built, since ending a process takes the kernel
        5 ms."""
        self._spawned: Counter[str] = Counter()
        self._over: set[str] = set()
        """Digests of the candidates whose result has been sent."""

    def search(self) -> None:
        """Gives every candidate a time or a failure, in as little time as possible."""
        enough = max(_FEWEST_PER_PHASE, 4 * self._host.parallel_builds)
        # Long traces compile slowly: started last, one of them would keep the other cores waiting at the end.
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
        for trial, sampled in timed:
            self._timed(trial, sampled.run_secs, ratio, sampled.check, stop=sampled.stop, calls=sampled.calls)
        self._dismissed = [trial.child for trial in phase]
        for child in self._dismissed:
            child.kill()

    def confirm(self) -> None:
        """Times all candidates interleaved, until the interval of each is narrow."""
        self._waiting = deque(candidate for _ in range(CONFIRM_PROCESSES) for candidate in self._batch.candidates)
        self._build(len(self._waiting) + 1)
        ready: dict[_Trial, Warmed] = {}
        with quiet.timing(self._host.abandoned):
            for trial in sorted(self._built, key=lambda trial: trial.copy):
                if not self._is_over(trial) and (warmed := self._ask(trial, GO, Warmed)) is not None:
                    ready[trial] = warmed
            samples, ratio = self._undisturbed(lambda: self._interleave(ready))
        for trial, warmed in ready.items():
            if (secs := samples.get(trial.candidate.digest)) and trial.copy == 0:
                rule = {"stop": Stop.CONFIRMED, "calls": warmed.calls, "processes": CONFIRM_PROCESSES}
                self._timed(trial, secs, ratio, warmed.check, **rule)

    def _is_over(self, trial: _Trial) -> bool:
        return trial.candidate.digest in self._over

    # -- building

    def _build(self, enough: int) -> None:
        """Builds until `enough` children wait to be timed or none is left to build; freezes those that still build."""
        with quiet.computing(self._host.abandoned):
            for trial in self._building:
                trial.child.thaw()
            while len(self._built) < enough and (self._waiting or self._building):
                while self._waiting and len(self._building) < self._host.parallel_builds:
                    if (candidate := self._waiting.popleft()).digest not in self._over:
                        self._building.append(self._spawn(candidate))
                for child, event in self._host.events():
                    self._absorb(child, event)
            for trial in self._building:
                trial.child.freeze()

    def _spawn(self, candidate: Candidate) -> _Trial:
        batch, copy = self._batch, self._spawned[candidate.digest]
        self._spawned[candidate.digest] += 1
        child = self._host.nursery.spawn(
            candidate_body(self._bench, candidate, batch.config, batch.purpose, copy),
            self._host.limits(batch.config),
            deadline_secs=batch.config.build_timeout_secs,
        )
        self._trials[child] = trial = _Trial(child=child, candidate=candidate, copy=copy)
        return trial

    def _absorb(self, child: Child, event: FromChild | Ended) -> None:
        """Takes an event of a child that is no answer to `_ask`: it goes on building, or it fails."""
        trial = self._trials.get(child)
        if trial is None or trial.over:  # The heartbeat's child, which is replaced when needed, or one that has ended.
            return
        match event:
            case Applied() if trial.stage == "applying":
                trial.stage = "building"
            case Waiting(build_secs=secs) if trial.stage == "building":
                trial.stage, trial.build_secs = "built", secs
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

    def _time(self, phase: Sequence[_Trial]) -> tuple[list[tuple[_Trial, Sampled]], float | None]:
        """(the children that got a time, the incumbent's seconds after them); the other children failed.

        The incumbent starts as that of the phases before, so that a phase which is repeated in a slower moment is not
        judged by its own earlier times.
        """
        timed, incumbent = [], self._incumbent_secs
        for trial in phase:
            sampled = self._ask(trial, GO, Sampled, incumbent)
            if sampled is None:
                continue
            timed.append((trial, sampled))
            if incumbent is None or sampled.median_secs < incumbent:
                incumbent = sampled.median_secs
        return timed, incumbent

    def _interleave(self, ready: Mapping[_Trial, Warmed]) -> dict[str, list[float]]:
        """Samples by candidate, in each round one of every process, without the candidates that failed."""
        config = self._batch.config
        going: dict[str, list[_Trial]] = {}
        for trial in ready:
            if not self._is_over(trial):
                going.setdefault(trial.candidate.digest, []).append(trial)
        trials = list(ready)
        samples: dict[str, list[float]] = {digest: [] for digest in going}
        for order in abba(len(ready)):
            if not going:
                break
            taken: dict[_Trial, float] = {}
            for trial in (trials[i] for i in order):
                if (digest := trial.candidate.digest) not in going:
                    continue
                if (sample := self._ask(trial, SAMPLE, Sample)) is None:
                    del going[digest], samples[digest]
                else:
                    taken[trial] = sample.secs
            for digest, group in list(going.items()):
                samples[digest] += [taken[trial] for trial in group]
                if confirmed(samples[digest], ready[group[0]].calls, config, len(group)):
                    del going[digest]
        return samples

    def _ask(
        self, trial: _Trial, byte: bytes, expected: type[_Answer], incumbent_secs: float | None = None
    ) -> _Answer | None:
        """Tells a waiting candidate to go on and returns its answer; None after its failure was reported."""
        if trial.over:
            return None
        trial.stage = "running"
        answer = self._answer(trial.child, byte, self._batch.config.run_timeout_secs, incumbent_secs)
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
        self, trial: _Trial, run_secs: Sequence[float], ratio: float | None, check: CheckVerdict, **rule: Any
    ) -> None:
        if trial.over or self._is_over(trial):  # One was killed while it waited for the others.
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

    def _over_with(self, trial: _Trial, kind: FailureKind, detail: str) -> None:
        """Records that a child failed, and sends the failure of its candidate."""
        trial.over = True
        trial.child.deadline = None
        for group in (self._building, self._built):
            if trial in group:
                group.remove(trial)
        if self._is_over(trial):  # Another of its processes failed before.
            return
        self._over.add(trial.candidate.digest)
        self._host.send(failed(trial.candidate, kind, detail))


def _kind_of_end(stage: _Stage, ended: Ended) -> FailureKind:
    """The failure kind for a child that ended without having reported a result."""
    if stage == "built" and not ended.misreport:
        return FailureKind.DEVICE_ERROR  # It only waited: whatever ended it came from outside.
    if ended.timed_out:
        return FailureKind.RUN_TIMEOUT if stage == "running" else FailureKind.BUILD_TIMEOUT
    return _kind_at(stage)


def _kind_at(stage: _Stage) -> FailureKind:
    """The failure kind for a child that failed in this stage by its own fault."""
    if stage == "applying":
        return FailureKind.INVALID_SCHEDULE
    return FailureKind.BUILD_ERROR if stage == "building" else FailureKind.RUN_ERROR
