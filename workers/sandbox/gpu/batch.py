"""One batch on a GPU, from candidates to results.

Builders compile on the host's cores all the time; the runner times their programs on the GPU, one after another, so building
and timing overlap. One core is left to the runner.

Groups. Results are held back until the heartbeat kernel was timed after a group of them: if the GPU was slower than usual,
the group is timed again, at most twice.

Failures. A hang, or an error after which the context cannot be used, ends the runner: the candidate fails, the next one gets
a new runner, and builders go on. A candidate whose outputs are wrong in a runner that ran others before is checked again
after the others, alone in a new runner, because an earlier candidate may have changed the context's memory. Where the runner
does not start twice in a row the device is at fault.

A confirming run has a new runner that holds all candidates and takes one sample of each in turn, forward and backward,
between two beats. If a candidate fails, the others start over in another runner.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol, TypeVar

from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig, Measurement, Stop
from tuner.measure import quiet
from tuner.measure.drift import believed_ratio, drifted
from tuner.measure.gpu_turn import GpuTurn
from tuner.measure.timing import abba, confirmed
from workers.sandbox.builders import Builders, BuildHost, BuiltCandidate
from workers.sandbox.cpu.batch import MAX_REPEATS
from workers.sandbox.gpu.children import BEAT, SAMPLE, TRIAL, WARM, request
from workers.sandbox.messages import Batch, Broken, Fault, FromChild, Sample, Sampled, Started, Warmed
from workers.sandbox.nursery import Child, Ended, Limits, Line
from workers.sandbox.report import failed, measured

_Answer = TypeVar("_Answer", Sample, Sampled, Warmed)
_GROUP = 16
"""Results between two beats."""
_START_SECS = 60.0
"""Time limit for a runner to make its context and copy the inputs, which takes half a second."""
_BEAT_SECS = 20.0
_MAX_STARTS = 2
_TURN_POLL_SECS = 2e-3
_STRAGGLER_POLL_SECS = 0.05
_POLL_SECS = 0.5


@dataclass(eq=False, kw_only=True)
class Runner:
    """The one process with a context on the GPU."""

    child: Child
    uuid: str = ""
    """UUID of the GPU, once the runner has started."""
    served: int = 0
    """Number of candidates that it was given."""
    busy: bool = True
    """Whether it has not answered the last request yet."""


class GpuHost(BuildHost, Protocol):
    """The task process that a batch runs in."""

    runner: Runner | None
    """The runner that is kept for further batches, if any."""

    @property
    def inbox(self) -> mmap:
        """Memory shared with the runner."""

    def runner_limits(self, config: MeasureConfig) -> Limits: ...

    def runner_body(self, config: MeasureConfig, programs: Sequence[bytes]) -> Callable[[Line], None]: ...

    def events(self, timeout_secs: float = _POLL_SECS) -> list[tuple[Child, FromChild | Ended]]:
        """Reports and ends of children. Raises Cancelled."""

    def abandoned(self) -> bool:
        """Whether the batch is not wanted any more."""

    def send(self, result: Measurement) -> None: ...

    def report_beat(self, secs: float) -> None:
        """Sends a beat to the worker."""

    def repeated(self) -> None:
        """Tells the worker that results are measured again."""


class _NoRunner(Exception):
    """No runner starts: the device is at fault."""


class GpuBatchRun:
    """One batch: sends one result per candidate. `search` or `confirm` is called once."""

    def __init__(self, host: GpuHost, batch: Batch) -> None:
        self._host, self._batch = host, batch
        self._builders = Builders(host, batch.candidates, batch.config, self._fail)
        self._suspects: deque[BuiltCandidate] = deque()
        self._group: list[tuple[BuiltCandidate, Sampled]] = []
        self._incumbent_secs = batch.incumbent_secs
        self._usual_secs = batch.usual_secs
        self._most_repeats = 0 if batch.noisy else MAX_REPEATS
        self._computing = ExitStack()
        self._turn: GpuTurn | None = None

    def __enter__(self) -> GpuBatchRun:
        self._computing.enter_context(quiet.computing(self._host.abandoned))
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the builders that are left, and the runner unless it is idle."""
        self._computing.close()
        if self._turn is not None:
            self._turn.close()
        runner = self._host.runner
        self._builders.end()
        if runner is not None and not runner.child.ended and runner.busy:
            self._host.nursery.end(runner.child)

    def search(self) -> None:
        """Gives every candidate a time or a failure, in as little time as possible."""
        try:
            self._search()
        except _NoRunner as error:
            for built, sampled in self._group:
                self._timed(built, sampled, sampled.run_secs, sampled.stop, None)
            self._give_up(str(error))

    def _search(self) -> None:
        builders = self._builders
        while builders.pending or builders.ready or self._suspects or self._group:
            self._make_way()
            if len(self._group) >= _GROUP or not (builders.pending or builders.ready):
                self._report_group()
            if builders.ready:
                self._time(builders.ready)
            elif builders.pending:
                self._pump(_STRAGGLER_POLL_SECS)
                builders.give_up_stragglers()
            elif self._suspects:
                self._renew_unless_fresh()
                self._time(self._suspects)

    def _make_way(self) -> None:
        """Pauses building while a worker for this host's CPU waits to time (tuner/measure/quiet.py)."""
        if not quiet.awaited():
            return
        while self._builders.at_work:
            self._pump(spawn=False)
        self._computing.close()
        self._computing.enter_context(quiet.computing(self._host.abandoned))

    def _pump(self, timeout_secs: float = _POLL_SECS, *, spawn: bool = True) -> None:
        """Starts builders and processes their events."""
        if spawn:
            self._builders.spawn()
        for child, event in self._host.events(timeout_secs):
            self._builders.absorb(child, event)

    # -- the runner

    def _runner(self, programs: Sequence[bytes] = ()) -> Runner:
        """An idle runner, the kept one or a new one. Raises _NoRunner."""
        runner = self._host.runner
        if runner is not None and not runner.child.ended:
            return runner
        reason = ""
        for _ in range(_MAX_STARTS):
            config = self._batch.config
            child = self._host.nursery.spawn(
                self._host.runner_body(config, programs), self._host.runner_limits(config), deadline_secs=_START_SECS
            )
            self._host.runner = runner = Runner(child=child)
            answer = self._heard(runner)
            if isinstance(answer, Started):
                runner.uuid = answer.uuid
                return runner
            reason = answer.reason if isinstance(answer, Broken) else str(answer)
            self._end_runner()
        raise _NoRunner(f"a process that uses the GPU does not start: {reason}")

    def _end_runner(self) -> None:
        if self._host.runner is not None and not self._host.runner.child.ended:
            self._host.nursery.end(self._host.runner.child)
        self._host.runner = None

    def _renew_unless_fresh(self) -> None:
        if self._host.runner is not None and self._host.runner.served:
            self._end_runner()

    def _tell(self, byte: bytes, limit_secs: float, number: float = math.nan) -> FromChild | Ended:
        """Sends a request to the runner, once this process has its turn on the GPU, and waits for its answer or its end."""
        runner = self._runner()
        if self._turn is None:
            self._turn = GpuTurn(runner.uuid)
        while not self._turn.take():
            self._pump(_TURN_POLL_SECS)
        try:
            runner.child.deadline = time.monotonic() + limit_secs
            runner.busy = True
            runner.child.tell(byte, number)
            return self._heard(runner)
        finally:
            self._turn.give_back()

    def _heard(self, runner: Runner) -> FromChild | Ended:
        """Waits for the runner's next report or its end; builders go on meanwhile."""
        while True:
            self._builders.spawn()
            answer: FromChild | Ended | None = None
            for child, event in self._host.events():
                if child is not runner.child:
                    self._builders.absorb(child, event)
                elif answer is None:
                    answer = event
            if answer is not None:
                if isinstance(answer, Ended):
                    self._host.runner = None
                runner.child.deadline, runner.child.received_bytes = None, 0  # A report's limit, for each answer anew.
                runner.busy = False
                return answer

    # -- timing

    def _time(self, queue: deque[BuiltCandidate]) -> None:
        """Times the first of the queue: its result joins the group, or its failure is sent, or it is checked again later."""
        if self._usual_secs is None:
            self._usual_secs = self._beat()
        runner = self._runner()
        built = queue.popleft()
        alone = runner.served == 0
        runner.served += 1
        message = request(built.program, self._incumbent_secs)
        self._host.inbox[: len(message)] = message
        answer = self._tell(TRIAL, self._batch.config.run_timeout_secs)
        sampled = self._unless_failed(built, answer, Sampled, alone=alone)
        if sampled is None:
            return
        self._group.append((built, sampled))
        if self._incumbent_secs is None or sampled.median_secs < self._incumbent_secs:
            self._incumbent_secs = sampled.median_secs

    def _unless_failed(
        self, built: BuiltCandidate, answer: FromChild | Ended, expected: type[_Answer], *, alone: bool
    ) -> _Answer | None:
        """The runner's answer; None for a failure, which is sent unless the candidate is to be checked again."""
        if isinstance(answer, expected):
            return answer
        if isinstance(answer, Ended):
            kind = FailureKind.RUN_TIMEOUT if answer.timed_out else FailureKind.RUN_ERROR
            self._fail(built.candidate, kind, f"while running, the process {answer}")
        elif not isinstance(answer, Fault):
            self._end_runner()
            detail = f"while running, the process reported out of turn: {answer.message}"
            self._fail(built.candidate, FailureKind.RUN_ERROR, detail)
        else:
            if answer.spent:
                self._end_runner()
            if answer.kind is FailureKind.WRONG_OUTPUT and not alone:
                self._suspects.append(built)
            else:
                self._fail(built.candidate, answer.kind, answer.detail)
        return None

    def _beat(self) -> float | None:
        """Times the heartbeat kernel; None when that fails."""
        answer = self._tell(BEAT, _BEAT_SECS)
        if not isinstance(answer, Sample):
            self._end_runner()
            return None
        self._host.report_beat(answer.secs)
        return answer.secs

    def _drift(self) -> float | None:
        """Ratio of a new beat to the usual one; None without a beat."""
        return believed_ratio(self._beat, self._usual_secs)

    def _report_group(self) -> None:
        """Takes a beat after a group and sends the group's results, or queues it again where the beat is too slow."""
        if not self._group:
            return
        group, ratio = self._group, self._drift()
        self._group = []
        slow = ratio is not None and drifted(ratio)
        again = [built for built, _ in group if slow and built.repeats < self._most_repeats]
        if not again:
            self._most_repeats = 0 if slow else MAX_REPEATS
        if again:
            self._host.repeated()
        for built, sampled in group:
            if built in again:
                built.repeats += 1
            else:
                self._timed(built, sampled, sampled.run_secs, sampled.stop, ratio)
        self._builders.ready.extendleft(reversed(again))

    # -- a confirming run

    def confirm(self) -> None:
        """Times all candidates interleaved, until the interval of each is narrow."""
        built: list[BuiltCandidate] = []
        ready = self._builders.ready
        while self._builders.pending:
            self._make_way()
            self._pump()
            built += ready
            ready.clear()
        order = {candidate.digest: index for index, candidate in enumerate(self._batch.candidates)}
        present = sorted(built, key=lambda made: order[made.candidate.digest])
        try:
            while present and not self._confirmed(present):
                pass
        except _NoRunner as error:
            ready.extend(present)
            self._give_up(str(error))

    def _confirmed(self, present: list[BuiltCandidate]) -> bool:
        """One attempt in a new runner; whether all were timed. False after a failure: the candidate was removed from
        `present`, or moved to its beginning to be checked before the others."""
        self._end_runner()
        runner = self._runner([built.program for built in present])
        limit_secs = self._batch.config.run_timeout_secs
        warm: list[Warmed] = []
        for number, built in enumerate(present):
            runner.served += 1
            warmed = self._unless_failed(built, self._tell(WARM, limit_secs, number), Warmed, alone=number == 0)
            if warmed is None:
                present.remove(built)
                if self._suspects:
                    self._suspects.clear()
                    self._judge_first(built, present)
                return False
            warm.append(warmed)
        if self._usual_secs is None:
            self._usual_secs = self._beat()
        repeats = 0
        while True:
            samples = self._interleave(present, warm)
            if samples is None:
                return False
            ratio = self._drift()
            if repeats >= self._most_repeats or ratio is None or not drifted(ratio):
                break
            repeats += 1
            self._host.repeated()
        self._end_runner()  # It holds the code and the memory of every candidate.
        for built, warmed, secs in zip(present, warm, samples, strict=True):
            self._timed(built, warmed, secs, Stop.CONFIRMED, ratio)
        return True

    def _judge_first(self, built: BuiltCandidate, present: list[BuiltCandidate]) -> None:
        """Moves a candidate that was wrong after others to the beginning. One that was moved before, was right there and is
        wrong after others again fails as device_error."""
        if built.judged:
            detail = "its outputs are right alone, and wrong after those of others in the same process"
            self._fail(built.candidate, FailureKind.DEVICE_ERROR, detail)
        else:
            built.judged = True
            present.insert(0, built)

    def _interleave(self, present: list[BuiltCandidate], warm: list[Warmed]) -> list[list[float]] | None:
        """Samples of each candidate; None after one failed and was removed from `present`."""
        config = self._batch.config
        samples: list[list[float]] = [[] for _ in present]
        done: set[int] = set()
        for order in abba(len(present)):
            if len(done) == len(present):
                break
            for number in (n for n in order if n not in done):
                answer = self._tell(SAMPLE, config.run_timeout_secs, number)
                sample = self._unless_failed(present[number], answer, Sample, alone=True)
                if sample is None:
                    del present[number]
                    return None
                samples[number].append(sample.secs)
                if confirmed(samples[number], warm[number].calls, config):
                    done.add(number)
        return samples

    # -- results

    def _timed(
        self, built: BuiltCandidate, told: Sampled | Warmed, run_secs: Sequence[float], stop: Stop, ratio: float | None
    ) -> None:
        about: dict[str, Any] = {"build_secs": built.build_secs, "ratio": ratio, "clock_hz": told.clock_hz}
        about |= {"stop": stop, "calls": told.calls, "flushed": True}
        self._host.send(measured(built.candidate, run_secs, told.check, **about))

    def _fail(self, candidate: Candidate, kind: FailureKind, detail: str) -> None:
        self._host.send(failed(candidate, kind, detail))

    def _give_up(self, reason: str) -> None:
        """Sends device_error for every candidate without a result."""
        left = [*self._builders.left(), *(built.candidate for built in self._suspects)]
        for candidate in left:
            self._fail(candidate, FailureKind.DEVICE_ERROR, reason)
