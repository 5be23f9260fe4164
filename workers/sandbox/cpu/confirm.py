"""A confirming run on a CPU: its candidates are timed interleaved, each in processes of its own.

    compile   a builder for each candidate makes machine code, once (workers/sandbox/builders.py)
    load      CONFIRM_PROCESSES processes for each candidate load that code and wait: processes with the same machine code
              differ in where their memory lies
    warm      they are checked, the candidates' before the baseline's
    time      rounds of one sample of every process, forward and backward, until nothing is left to decide
              (tuner/measure/interleaving.py), between two beats of the reference workload

A baseline that is far behind the others already when its first process is checked gets one timed call in that process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pitchpipe.wire.measure import BASELINE_TRACE, Stop
from tuner.measure import quiet
from tuner.measure.interleaving import Interleaving
from tuner.measure.timing import CONFIRM_PROCESSES, abba
from workers.sandbox.builders import Builders, BuiltCandidate
from workers.sandbox.cpu.batch import BatchRun, Trial
from workers.sandbox.cpu.child import GO, SAMPLE, process_body
from workers.sandbox.messages import Sample, Sampled, Warmed


class ConfirmRun(BatchRun):
    """A confirming run."""

    def run(self) -> None:
        built = self._compile()
        self._starts.extend(partial(self._load, each, copy) for copy in range(CONFIRM_PROCESSES) for each in built)
        self._get_ready(len(self._starts) + 1)
        with quiet.timing(self._host.abandoned):
            ready, behind = self._warm(sorted(self._built, key=lambda trial: trial.copy))
            samples, ratio = self._undisturbed(lambda: self._interleave(ready))
        for trial, told in behind.items():
            self._timed(trial, told.run_secs, ratio, told.check, stop=told.stop, calls=told.calls)
        for trial, warmed in ready.items():
            if (secs := samples.get(trial.candidate.digest)) and trial.copy == 0:
                rule = {"stop": Stop.CONFIRMED, "calls": warmed.calls, "processes": CONFIRM_PROCESSES}
                self._timed(trial, secs, ratio, warmed.check, **rule)

    def _compile(self) -> list[BuiltCandidate]:
        """The candidates that compile, in the order of the batch; the failures of the others are sent."""
        candidates = self._batch.candidates
        builders = Builders(self._host, candidates, self._batch.config, self._fail)
        built: dict[str, BuiltCandidate] = {}
        with quiet.computing(self._host.abandoned):
            while builders.pending:
                builders.spawn()
                for child, event in self._host.events():
                    builders.absorb(child, event)
                while builders.ready:
                    made = builders.ready.popleft()
                    built[made.candidate.digest] = made
        return [built[candidate.digest] for candidate in candidates if candidate.digest in built]

    def _load(self, built: BuiltCandidate, copy: int) -> Trial | None:
        """A process that loads the candidate's code; None where one has failed to."""
        if built.candidate.digest in self._over:
            return None
        body = process_body(self._bench, built, self._batch.config, copy)
        return self._start(built.candidate, body, copy=copy, stage="building", build_secs=built.build_secs)

    def _warm(self, trials: Sequence[Trial]) -> tuple[dict[Trial, Warmed], dict[Trial, Sampled]]:
        """(the processes that are ready to give samples, the baseline's one that is far behind them and has its time)."""
        ready: dict[Trial, Warmed] = {}
        behind: dict[Trial, Sampled] = {}
        fastest_secs: float | None = None
        baselines = [trial for trial in trials if _is_baseline(trial)]
        for trial in [*(trial for trial in trials if trial not in baselines), *baselines]:
            if trial.candidate.digest in self._over or (behind and trial in baselines):
                continue
            if trial in baselines and trial.copy == 0 and fastest_secs is not None:
                told = self._ask(trial, GO, Warmed, Sampled, number=fastest_secs)
            else:
                told = self._ask(trial, GO, Warmed)
            if isinstance(told, Sampled):
                behind[trial] = told
            elif isinstance(told, Warmed):
                ready[trial] = told
                if trial not in baselines:
                    fastest_secs = min(told.secs, fastest_secs or told.secs)
        return {trial: ready[trial] for trial in trials if trial in ready}, behind

    def _interleave(self, ready: Mapping[Trial, Warmed]) -> dict[str, list[float]]:
        """Samples by candidate, in each round one of every process, without the candidates that failed."""
        groups: dict[str, list[Trial]] = {}
        for trial in ready:
            if trial.candidate.digest not in self._over:
                groups.setdefault(trial.candidate.digest, []).append(trial)
        run = Interleaving(self._batch.config)
        for digest, group in groups.items():
            warm_secs = [ready[trial].secs for trial in group]
            run.add(digest, calls=ready[group[0]].calls, warm_secs=warm_secs, baseline=_is_baseline(group[0]))
        run.begin()
        trials = list(ready)
        for order in abba(len(trials)):
            if not run.going:
                break
            for trial in (trials[i] for i in order):
                if (digest := trial.candidate.digest) not in run.going:
                    continue
                if (sample := self._ask(trial, SAMPLE, Sample)) is None:
                    run.drop(digest)
                else:
                    run.take(digest, groups[digest].index(trial), sample.secs)
            run.settle()
        return run.samples


def _is_baseline(trial: Trial) -> bool:
    return trial.candidate.trace == BASELINE_TRACE
