"""A confirming run on a GPU: its candidates are timed interleaved, each in CONFIRM_PROCESSES fresh runners.

The runners make their contexts while builders compile what no search of this process has compiled already. Each of them
holds all candidates, and gives one sample of each in turn, forward and backward, between two beats. If a candidate fails,
the others start over in new runners; one that was wrong after others is checked before them then.
"""

from __future__ import annotations

from dataclasses import replace

from pitchpipe.wire.measure import FailureKind, Stop
from tuner.measure.drift import drifted
from tuner.measure.interleaving import Interleaving
from tuner.measure.timing import CONFIRM_PROCESSES, abba
from workers.sandbox.builders import BuiltCandidate
from workers.sandbox.gpu.batch import GpuBatchRun, GpuHost
from workers.sandbox.gpu.children import SAMPLE, WARM, WARM_BRIEFLY
from workers.sandbox.gpu.runners import Runner
from workers.sandbox.messages import Batch, Sample, Warmed


class ConfirmRun(GpuBatchRun):
    """A confirming run."""

    def __init__(self, host: GpuHost, batch: Batch) -> None:
        unknown = [candidate for candidate in batch.candidates if candidate.digest not in host.programs]
        super().__init__(host, batch, unknown)
        self._known = [replace(host.programs[c.digest]) for c in batch.candidates if c.digest in host.programs]
        self._present: list[BuiltCandidate] = []
        """The candidates that may still get a time, in the order in which they are checked."""

    def _run(self) -> None:
        self._runners.end(self._host.runner)  # It ran candidates, and holds memory.
        starting = [self._runners.start() for _ in range(CONFIRM_PROCESSES)]
        self._present += self._known
        with self._host.phase("build"):
            self._build()
        order = {candidate.digest: index for index, candidate in enumerate(self._batch.candidates)}
        self._present.sort(key=lambda built: order[built.candidate.digest])
        while self._present:
            runners = [self._runners.started(runner) for runner in starting]
            with self._host.phase("check and time") as parts:
                over = self._confirmed(runners)
                parts.wait_secs += self._runners.take_waited_secs()
            for runner in runners:  # They hold the code and the memory of every candidate.
                self._runners.end(runner)
            if over:
                return
            starting = [self._runners.start() for _ in range(CONFIRM_PROCESSES if self._present else 0)]

    def _build(self) -> None:
        while self._builders.pending or self._builders.ready:
            self._make_way()
            if self._builders.pending:
                self._wait()
            while self._builders.ready:
                self._present.append(self._builders.ready.popleft())

    def _give_up(self, reason: str) -> None:
        super()._give_up(reason)
        for built in self._present:
            self._fail(built.candidate, FailureKind.DEVICE_ERROR, reason)

    def _confirmed(self, runners: list[Runner]) -> bool:
        """One attempt; whether all were timed. False after a failure: the candidate was removed, or moved to the beginning
        to be checked before the others."""
        warm: list[list[Warmed]] = []
        for runner in runners:
            warm.append([])
            for built in self._present:
                told = self._warmed(runner, built, first=runner is runners[0])
                if told is None:
                    self._without(built)
                    return False
                warm[-1].append(told)
        if self._usual_secs is None:
            self._usual_secs = self._beat(runners[0])
        repeats = 0
        while True:
            samples = self._interleave(runners, warm)
            if samples is None:
                return False
            ratio = self._drift(runners[0])
            if repeats >= self._most_repeats or ratio is None or not drifted(ratio):
                break
            repeats += 1
            self._host.repeated()
        for built, told, secs in zip(self._present, warm[0], samples, strict=True):
            self._timed(built, told, secs, Stop.CONFIRMED, ratio, processes=len(runners))
        return True

    def _warmed(self, runner: Runner, built: BuiltCandidate, *, first: bool) -> Warmed | None:
        """Has a runner check a candidate and keep it; the first runner checks all input sets, the others one."""
        number = runner.served
        runner.served += 1
        self._runners.give(built.program)
        request = WARM if first else WARM_BRIEFLY
        answer = self._runners.ask(runner, request, self._batch.config.run_timeout_secs, number=number)
        return self._judged(runner, built, answer, Warmed, alone=number == 0)

    def _without(self, built: BuiltCandidate) -> None:
        """Removes a candidate that failed. One that was only wrong after others goes to the beginning instead; one that was
        moved before, was right there and is wrong after others again fails as device_error."""
        self._present.remove(built)
        if not self._suspects:
            return
        self._suspects.clear()
        if built.judged:
            detail = "its outputs are right alone, and wrong after those of others in the same process"
            self._fail(built.candidate, FailureKind.DEVICE_ERROR, detail)
        else:
            built.judged = True
            self._present.insert(0, built)

    def _interleave(self, runners: list[Runner], warm: list[list[Warmed]]) -> list[list[float]] | None:
        """Samples of each candidate; None after one failed and was removed."""
        run = Interleaving(self._batch.config)
        digests = [built.candidate.digest for built in self._present]
        baseline = self._batch.candidates[0].digest
        for number, digest in enumerate(digests):
            told = [each[number] for each in warm]
            warm_secs = [each.secs for each in told]
            run.add(digest, calls=told[0].calls, warm_secs=warm_secs, baseline=digest == baseline)
        run.begin()
        turns = [(process, number) for process in range(len(runners)) for number in range(len(digests))]
        for order in abba(len(turns)):
            if not run.going:
                return [run.samples[digest] for digest in digests]
            for process, number in (turns[i] for i in order):
                if digests[number] not in run.going:
                    continue
                built, runner = self._present[number], runners[process]
                answer = self._runners.ask(runner, SAMPLE, self._batch.config.run_timeout_secs, number=number)
                sample = self._judged(runner, built, answer, Sample, alone=True)
                if sample is None:
                    self._present.remove(built)
                    return None
                run.take(digests[number], process, sample.secs)
            run.settle()
        raise AssertionError("the orders of rounds never end")
