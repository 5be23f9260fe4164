"""What every batch on a GPU does: builds on the host's cores, asks runners, judges failures, sends results.

A search and a confirming run (workers/sandbox/gpu/search.py, confirm.py) build on it. Builders compile all the time, and
one core is left to the runner that computes (workers/sandbox/gpu/runners.py), so building and timing overlap.

Failures. A hang, or an error after which the context cannot be used, ends the runner, and the candidate fails. A candidate
whose outputs are wrong in a runner that ran others before is checked again, alone in a new runner, because an earlier
candidate may have changed the context's memory. Where runners do not start twice in a row the device is at fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

from pitchpipe.wire.measure import Candidate, FailureKind, Measurement, Stop
from tuner.measure import quiet
from tuner.measure.drift import believed_ratio
from workers.sandbox.builders import Builders, BuildHost, BuiltCandidate
from workers.sandbox.cpu.batch import MAX_REPEATS
from workers.sandbox.gpu.children import BEAT
from workers.sandbox.gpu.runners import NoRunner, Runner, RunnerHost, Runners
from workers.sandbox.messages import Batch, Fault, FromChild, Sample, Sampled, Warmed
from workers.sandbox.nursery import Child, Ended
from workers.sandbox.report import failed, measured

_Answer = TypeVar("_Answer", Sample, Sampled, Warmed)
_BEAT_SECS = 20.0
_POLL_SECS = 0.5


class GpuHost(BuildHost, RunnerHost, Protocol):
    """The task process that a batch runs in."""

    programs: dict[str, BuiltCandidate]
    """Digest -> compiled program, of the fastest candidates that searches here have timed; the fastest first."""

    def events(self, timeout_secs: float = _POLL_SECS) -> list[tuple[Child, FromChild | Ended]]:
        """Reports and ends of children. Raises Cancelled."""

    def abandoned(self) -> bool:
        """Whether the batch is not wanted any more."""

    def send(self, result: Measurement) -> None: ...

    def report_beat(self, secs: float) -> None:
        """Sends a beat to the worker."""

    def repeated(self) -> None:
        """Tells the worker that results are measured again."""


class GpuBatchRun(ABC):
    """One batch, as a context manager. `run` is called once, and sends one result per candidate."""

    def __init__(self, host: GpuHost, batch: Batch, candidates: Sequence[Candidate]) -> None:
        """candidates: those of the batch that are to be built."""
        self._host, self._batch = host, batch
        self._builders = Builders(host, candidates, batch.config, self._fail)
        self._runners = Runners(host, batch.config, self._wait)
        self._suspects: deque[BuiltCandidate] = deque()
        """Candidates that were wrong after others in one process."""
        self._usual_secs = batch.usual_secs
        self._most_repeats = 0 if batch.noisy else MAX_REPEATS
        self._computing = ExitStack()

    def __enter__(self) -> GpuBatchRun:
        self._computing.enter_context(quiet.computing(self._host.abandoned))
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the builders that are left, and the runners but for the kept one."""
        self._computing.close()
        self._builders.end()
        self._runners.close()

    def run(self) -> None:
        """Gives every candidate a time or a failure."""
        try:
            self._run()
        except NoRunner as error:
            self._give_up(str(error))

    @abstractmethod
    def _run(self) -> None:
        """As `run`. Raises NoRunner."""

    def _give_up(self, reason: str) -> None:
        """Sends device_error for every candidate without a result."""
        for candidate in [*self._builders.left(), *(built.candidate for built in self._suspects)]:
            self._fail(candidate, FailureKind.DEVICE_ERROR, reason)

    def _make_way(self) -> None:
        """Pauses building while a worker for this host's CPU waits to time (tuner/measure/quiet.py)."""
        if not quiet.awaited():
            return
        while self._builders.at_work:
            self._wait(spawn=False)
        self._computing.close()
        self._computing.enter_context(quiet.computing(self._host.abandoned))

    def _wait(self, timeout_secs: float | None = None, *, spawn: bool = True) -> None:
        """Starts builders and takes the events of all children."""
        if spawn:
            self._builders.spawn()
        for child, event in self._host.events(_POLL_SECS if timeout_secs is None else timeout_secs):
            if not self._runners.absorb(child, event):
                self._builders.absorb(child, event)

    # -- what a runner says of a candidate

    def _judged(
        self, runner: Runner, built: BuiltCandidate, answer: FromChild | Ended, expected: type[_Answer], *, alone: bool
    ) -> _Answer | None:
        """The answer; None for a failure, which is sent, or of which the candidate is suspected.

        alone: whether the runner ran no other candidate before.
        """
        if isinstance(answer, expected):
            return answer
        if isinstance(answer, Ended):
            kind = FailureKind.RUN_TIMEOUT if answer.timed_out else FailureKind.RUN_ERROR
            self._fail(built.candidate, kind, f"while running, the process {answer}")
        elif not isinstance(answer, Fault):
            self._runners.end(runner)
            detail = f"while running, the process reported out of turn: {answer.message}"
            self._fail(built.candidate, FailureKind.RUN_ERROR, detail)
        else:
            if answer.spent:
                self._runners.end(runner)
            if answer.kind is FailureKind.WRONG_OUTPUT and not alone:
                self._suspects.append(built)
            else:
                self._fail(built.candidate, answer.kind, answer.detail)
        return None

    # -- beats

    def _beat(self, runner: Runner) -> float | None:
        """Times the heartbeat kernel; None when that fails."""
        answer = self._runners.ask(runner, BEAT, _BEAT_SECS)
        if not isinstance(answer, Sample):
            self._runners.end(runner)
            return None
        self._host.report_beat(answer.secs)
        return answer.secs

    def _drift(self, runner: Runner) -> float | None:
        """Ratio of a new beat to the usual one; None without a beat."""
        return believed_ratio(lambda: None if runner.child.ended else self._beat(runner), self._usual_secs)

    # -- results

    def _timed(
        self,
        built: BuiltCandidate,
        told: Sampled | Warmed,
        run_secs: Sequence[float],
        stop: Stop,
        ratio: float | None,
        **rule: Any,
    ) -> None:
        about: dict[str, Any] = {"build_secs": built.build_secs, "ratio": ratio, "clock_hz": told.clock_hz}
        about |= {"stop": stop, "calls": told.calls, "flushed": True} | rule
        self._host.send(measured(built.candidate, run_secs, told.check, **about))

    def _fail(self, candidate: Candidate, kind: FailureKind, detail: str) -> None:
        self._host.send(failed(candidate, kind, detail))
