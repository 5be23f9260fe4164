"""A search's batch on a CPU. It goes in phases, because timing is exclusive on the host (tuner/measure/quiet.py):

build   children build in parallel until enough of them wait for their turn; those still building are frozen
time    one after another they are checked and timed, then the reference workload is (tuner/measure/heartbeat.py)
report  if its beat is too slow, and was not so before, the whole phase is timed again; then the results are sent and the
        children ended

A phase ends early where a workload is so large that its candidates take seconds: what was timed is known then, when the
job's seconds are over.
"""

from __future__ import annotations

import time
from functools import partial

from pitchpipe.wire.measure import Candidate
from tuner.measure import quiet
from tuner.measure.candidate import Bench
from workers.sandbox.builders import BuiltCandidate, Parts, fastest_with
from workers.sandbox.cpu.batch import BatchRun, Host, Trial
from workers.sandbox.cpu.child import GO, candidate_body
from workers.sandbox.messages import Batch, Sampled
from workers.sandbox.nursery import Child

_FEWEST_PER_PHASE = 16
"""Candidates of a phase, at least. Each waits in a process of its own, so a phase is not much larger."""
_BUILDING_SECS, _TIMING_SECS = 4.0, 2.0
"""Of a phase, after which the candidates that are not ready yet, or not timed, are left to the next one."""


class SearchRun(BatchRun):
    """A search's batch, in as little time as possible."""

    def __init__(self, host: Host, bench: Bench, batch: Batch) -> None:
        super().__init__(host, bench, batch)
        # The best of a search come first: of a large workload few are timed before the job's seconds are over. Long traces
        # compile slowly: started last, one of them would keep the other cores waiting at the end.
        best = batch.candidates[: host.parallel_builds]
        others = batch.candidates[host.parallel_builds :]
        ordered = sorted(others, key=lambda candidate: len(candidate.trace), reverse=True)
        self._starts.extend(partial(self._spawn, candidate) for candidate in (*best, *ordered))
        self._incumbent_secs = batch.incumbent_secs
        self._parts = Parts()
        self._dismissed: list[Child] = []
        """Children that were killed. They are reaped while the next phase is built, since ending a process takes the kernel
        5 ms."""

    def run(self) -> None:
        enough = max(_FEWEST_PER_PHASE, 4 * self._host.parallel_builds)
        while self._starts or self._building or self._built:
            if not self._built:  # Those that the phase before had no time for come first.
                with self._host.phase("build"):
                    self._get_ready(enough, within_secs=_BUILDING_SECS)
            if self._built:
                with self._host.phase("check and time") as self._parts:
                    self._time_phase()

    def _spawn(self, candidate: Candidate) -> Trial:
        return self._start(candidate, candidate_body(self._bench, candidate, self._batch.config))

    def _time_phase(self) -> None:
        phase, self._built = self._built, []
        self._host.nursery.end_all(self._dismissed)  # Their ends would disturb a timing; most are over by now.
        with quiet.timing(self._host.abandoned):
            (timed, self._incumbent_secs), ratio = self._undisturbed(lambda: self._time(phase))
        for trial, sampled in timed:
            self._timed(trial, sampled.run_secs, ratio, sampled.check, stop=sampled.stop, calls=sampled.calls)
            self._keep(trial, sampled.median_secs)
        self._dismissed = [trial.child for trial in phase]
        for child in self._dismissed:
            child.kill()

    def _keep(self, trial: Trial, secs: float) -> None:
        if trial.program:
            self._host.programs = fastest_with(
                self._host.programs,
                BuiltCandidate(
                    candidate=trial.candidate, program=trial.program, build_secs=trial.build_secs, secs=secs
                ),
            )

    def _time(self, phase: list[Trial]) -> tuple[list[tuple[Trial, Sampled]], float | None]:
        """(the children that got a time, the incumbent's seconds after them); the other children failed, or were taken out
        of the phase.

        The incumbent starts as that of the phases before, so that a phase which is repeated in a slower moment is not
        judged by its own earlier times.
        """
        timed: list[tuple[Trial, Sampled]] = []
        incumbent, until = self._incumbent_secs, time.monotonic() + _TIMING_SECS
        for at, trial in enumerate(phase):
            if timed and time.monotonic() >= until:
                self._built[:0] = phase[at:]
                del phase[at:]
                break
            sampled = self._ask(trial, GO, Sampled, number=incumbent)
            if sampled is None:
                continue
            self._parts.check_secs += sampled.check_secs
            timed.append((trial, sampled))
            if incumbent is None or sampled.median_secs < incumbent:
                incumbent = sampled.median_secs
        return timed, incumbent
