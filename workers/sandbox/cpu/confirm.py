"""A confirming run on a CPU: its candidates are timed interleaved, each in processes of its own.

make      builders compile, once, what no search of this task process has (workers/sandbox/builders.py), while processes
          load what is compiled: CONFIRM_PROCESSES for each candidate, and one for the baseline. Processes with the same
          machine code differ in where their memory lies
warm      they are checked, the candidates' before the baseline's, which gets its other processes now, unless its first
          call shows that it is far behind: then that call is its time
time      rounds of one sample of every process, forward and backward, until nothing is left to decide
          (tuner/measure/interleaving.py), between two beats of the reference workload
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Stop
from tuner.measure import quiet
from tuner.measure.candidate import Bench
from tuner.measure.interleaving import Interleaving
from tuner.measure.timing import CONFIRM_PROCESSES, abba
from workers.sandbox.builders import Builders, BuiltCandidate
from workers.sandbox.cpu.batch import BatchRun, Host, Trial
from workers.sandbox.cpu.child import GO, SAMPLE, process_body
from workers.sandbox.messages import Batch, Sample, Sampled, Warmed


class ConfirmRun(BatchRun):
    """A confirming run."""

    def __init__(self, host: Host, bench: Bench, batch: Batch) -> None:
        super().__init__(host, bench, batch)
        self._programs: dict[str, BuiltCandidate] = {}

    def run(self) -> None:
        with self._host.phase("build"):
            self._make()
        with ExitStack() as silence:
            with self._host.phase("check"):
                silence.enter_context(quiet.timing(self._host.abandoned))
                ready, behind = self._warm()
            with self._host.phase("time"):
                samples, ratio = self._undisturbed(lambda: self._interleave(ready))
        for trial, told in behind.items():
            self._timed(trial, told.run_secs, ratio, told.check, stop=told.stop, calls=told.calls)
        for trial, warmed in ready.items():
            if (secs := samples.get(trial.candidate.digest)) and trial.copy == 0:
                rule = {"stop": Stop.CONFIRMED, "calls": warmed.calls, "processes": CONFIRM_PROCESSES}
                self._timed(trial, secs, ratio, warmed.check, **rule)

    def _make(self) -> None:
        """Compiles what is not compiled, and has processes load it; the failures of those that do not compile are sent."""
        known, unknown = self._host.programs, list[Candidate]()
        for candidate in self._batch.candidates:
            if candidate.digest in known:
                self._load_later(known[candidate.digest])
            else:
                unknown.append(candidate)
        builders = Builders(self._host, unknown, self._batch.config, self._fail)
        with quiet.computing(self._host.abandoned):
            while builders.pending or self._starts or self._building:
                builders.spawn()
                room = 1 if builders.at_work else self._host.parallel_builds
                while self._starts and len(self._building) < room:
                    if (started := self._starts.popleft()()) is not None:
                        self._building.append(started)
                if builders.at_work or self._building:
                    for child, event in self._host.events():
                        builders.absorb(child, event)
                        self._absorb(child, event)
                while builders.ready:
                    self._load_later(builders.ready.popleft())

    def _load_later(self, built: BuiltCandidate, copies: Iterable[int] | None = None) -> None:
        """Starts processes that load the candidate's program, when there is room; of the baseline one at first."""
        self._programs[built.candidate.digest] = built
        if copies is None:
            copies = range(1 if built.candidate.trace == BASELINE_TRACE else CONFIRM_PROCESSES)
        self._starts.extend(partial(self._load, built, copy) for copy in copies)

    def _load(self, built: BuiltCandidate, copy: int) -> Trial | None:
        """A process that loads the candidate's code; None where one has failed to."""
        if built.candidate.digest in self._over:
            return None
        body = process_body(self._bench, built, self._batch.config, copy)
        return self._start(built.candidate, body, copy=copy, stage="building", build_secs=built.build_secs)

    def _warm(self) -> tuple[dict[Trial, Warmed], dict[Trial, Sampled]]:
        """(the processes that are ready to give samples, the baseline's one that is far behind them and has its time)."""
        ready: dict[Trial, Warmed] = {}
        behind: dict[Trial, Sampled] = {}
        for trial in self._in_order(trial for trial in self._built if not _is_baseline(trial)):
            if (told := self._ask(trial, GO, Warmed)) is not None:
                ready[trial] = told
        fastest_secs = min(
            (told.secs for trial, told in ready.items() if trial.candidate.digest not in self._over), default=None
        )
        for trial in [trial for trial in self._built if _is_baseline(trial)]:
            answer = self._ask(trial, GO, Warmed, Sampled, number=fastest_secs)
            if isinstance(answer, Sampled):
                behind[trial] = answer
            elif isinstance(answer, Warmed):
                ready[trial] = answer
                self._load_later(self._programs[trial.candidate.digest], range(1, CONFIRM_PROCESSES))
                self._get_ready(len(self._built) + len(self._starts))
                for other in [other for other in self._built if _is_baseline(other) and other.copy]:
                    if (told := self._ask(other, GO, Warmed)) is not None:
                        ready[other] = told
        return {trial: ready[trial] for trial in self._in_order(ready)}, behind

    def _in_order(self, trials: Iterable[Trial]) -> list[Trial]:
        """In the batch's order, the first process of each before the second of any."""
        order = {candidate.digest: place for place, candidate in enumerate(self._batch.candidates)}
        return sorted(trials, key=lambda trial: (trial.copy, order[trial.candidate.digest]))

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
