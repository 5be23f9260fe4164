"""A search's batch on a GPU: one runner checks and times program after program while builders go on.

Results are held back until the heartbeat kernel was timed after a group of them: if the GPU was slower than usual, the group
is timed again, at most twice. The programs of the fastest are kept, so that a confirming run need not compile them again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tuner.measure.drift import drifted
from workers.sandbox.builders import BuiltCandidate, Parts, fastest_with
from workers.sandbox.cpu.batch import MAX_REPEATS
from workers.sandbox.gpu.batch import GpuBatchRun, GpuHost
from workers.sandbox.gpu.children import TRIAL
from workers.sandbox.messages import Batch, Sampled

_GROUP = 16
"""Results between two beats."""
_STRAGGLER_POLL_SECS = 0.05


class SearchRun(GpuBatchRun):
    """A search's batch, in as little time as possible."""

    def __init__(self, host: GpuHost, batch: Batch) -> None:
        super().__init__(host, batch, batch.candidates)
        self._group: list[tuple[BuiltCandidate, Sampled]] = []
        self._incumbent_secs = batch.incumbent_secs
        self._parts = Parts()

    def _run(self) -> None:
        with self._host.phase("build, check and time") as self._parts:
            self._measure()
            self._parts.wait_secs += self._runners.take_waited_secs()

    def _measure(self) -> None:
        builders = self._builders
        while builders.pending or builders.ready or self._suspects or self._group:
            self._make_way()
            if len(self._group) >= _GROUP or not (builders.pending or builders.ready):
                self._report_group()
            if builders.ready:
                self._time(builders.ready)
            elif builders.pending:
                self._wait(_STRAGGLER_POLL_SECS)
                builders.give_up_stragglers()
            elif self._suspects:
                if (runner := self._host.runner) is not None and runner.served:
                    self._runners.end(runner)
                self._time(self._suspects)

    def _give_up(self, reason: str) -> None:
        for built, sampled in self._group:  # They have their times, and no beat.
            self._timed(built, sampled, sampled.run_secs, sampled.stop, None)
        super()._give_up(reason)

    def _time(self, queue: deque[BuiltCandidate]) -> None:
        """Times the first of the queue: its result joins the group, or its failure is sent, or it is checked again later."""
        if self._usual_secs is None:
            self._usual_secs = self._beat(self._runners.kept())
        runner = self._runners.kept()
        built = queue.popleft()
        alone = runner.served == 0
        runner.served += 1
        self._runners.give(built.program, self._incumbent_secs)
        answer = self._runners.ask(runner, TRIAL, self._batch.config.run_timeout_secs)
        sampled = self._judged(runner, built, answer, Sampled, alone=alone)
        if sampled is None:
            return
        self._parts.check_secs += sampled.check_secs
        self._group.append((built, sampled))
        if self._incumbent_secs is None or sampled.median_secs < self._incumbent_secs:
            self._incumbent_secs = sampled.median_secs

    def _report_group(self) -> None:
        """Takes a beat after a group and sends the group's results, or queues it again where the beat is too slow."""
        if not self._group:
            return
        group, ratio = self._group, self._drift(self._runners.kept())
        self._group = []
        slow = ratio is not None and drifted(ratio)
        again = [built for built, _ in group if slow and built.repeats < self._most_repeats]
        if again:
            self._host.repeated()
        else:
            self._most_repeats = 0 if slow else MAX_REPEATS
        for built, sampled in group:
            if built in again:
                built.repeats += 1
            else:
                self._timed(built, sampled, sampled.run_secs, sampled.stop, ratio)
                kept = replace(built, secs=sampled.median_secs, repeats=0)
                self._host.programs = fastest_with(self._host.programs, kept)
        self._builders.ready.extendleft(reversed(again))
