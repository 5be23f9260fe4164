"""One active job in the coordinator's memory: rebuilt from the database whenever the process is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

import structlog

from pitchpipe.errors import InvalidModel, PitchpipeError, StepDied
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.job import EventKind, JobOrigin, JobState, JobView, Progress, Replay
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.record import Best, Origin
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, TaskKind
from service.blobs import Blobs
from service.coordination.job_queue import JobQueue, JobReplays, JobRows
from service.coordination.predictor import ProjectPredictor
from service.db import Database
from service.store import batches, donors, events, jobs, models, records, replays, workers
from service.store.values import Circumstances
from service.wake import Wake
from tuner.execution.steps import split_ingested
from tuner.search.requests import Donor
from tuner.search.transfer import nearest
from tuner.tuning.budget import BudgetLedger, effort
from tuner.tuning.loop import TuningLoop
from tuner.tuning.replay import ReplayStage, outcome, still_holds
from tuner.workload.bound import bound_secs

log = structlog.get_logger()

BATCH_CANDIDATES = 32
"""Candidates of one search round: enough to amortise a search, few enough that feedback comes soon."""
DONORS = 4
"""Similar workloads whose schedules a task's first search begins with: its smallest batch (tuner/tuning/budget.py,
FEWEST)."""
CONFIRM_SECS = 1.5
"""Seconds held back from a budget in seconds for each task's confirming run."""
MAX_CRASHES = 3
"""A model whose split died this often fails its job: once may be the fault of a host that ran out of memory."""


class JobRun:
    """Steps one job from queued to done. One thread calls it."""

    def __init__(
        self,
        project: str,
        job: str,
        database: Database,
        blobs: Blobs,
        wake: Wake,
        executor: Executor,
        predictor: Callable[[str, str], ProjectPredictor],
        holder: str,
    ) -> None:
        """`holder` is who coordinates: what it writes after it lost that role raises RoleLost."""
        self.project, self.job, self.holder = project, job, holder
        self.database, self.blobs, self.wake, self.executor, self.predictor = database, blobs, wake, executor, predictor
        self._split: Future[list[Task]] | None = None
        self._crashes = 0
        self._loop: TuningLoop | None = None
        self._confirming = False
        self._published = 0
        self._spent_secs = 0.0
        self._looked_at = time.monotonic()

    def step(self) -> None:
        """Moves whatever can move; raises the error that fails the job, or RoleLost."""
        now = time.monotonic()
        self._spent_secs += now - self._looked_at
        self._looked_at = now
        if self._loop is None:
            view = self._view()
            if view.state in (JobState.QUEUED, JobState.INGESTING) and not self._ingest(view):
                return
            view = self._view()
            self._confirming = view.state is JobState.CONFIRMING
            self._loop = self._build_loop(view)
        finished = self._loop.step(self._spent_secs)
        if self._ledger.trials != self._published:
            self._publish()
        if finished:
            self._complete()
        elif not self._loop.searching and not self._confirming:
            self._confirming = True
            self._enter(JobState.CONFIRMING)

    def abandon(self) -> None:
        """Nobody waits for what was asked of the executor: what has not started yet never will."""
        if self._split is not None:
            self._split.cancel()
        if self._loop is not None:
            self._loop.abandon()

    def _view(self) -> JobView:
        with self.database.reading() as session:
            return jobs.get(session, self.project, self.job)

    def _enter(self, state: JobState) -> None:
        with self.database.transaction() as session:
            jobs.transition(session, self.job, state)
        self.wake.notify()

    def _ingest(self, view: JobView) -> bool:
        if view.origin in (JobOrigin.UPGRADE, JobOrigin.RETUNE):
            # The workloads as jobs met them: another version may split their model into others.
            if view.state is JobState.QUEUED:
                self._enter(JobState.INGESTING)
            with self.database.reading() as session:
                wanted = sorted(jobs.only(session, self.job) or ())
                known = jobs.known_tasks(session, self.project, wanted, view.targets[0])
            return self._accept(view, [task for _, task in known])
        if self._split is None:
            if view.state is JobState.QUEUED:
                self._enter(JobState.INGESTING)
            with self.database.reading() as session:
                # Raises the cause when the model was refused; the job fails with it.
                model = models.get(session, self.project, view.model)
                ingested = models.ingested(session, self.project, view.model)
            if ingested is None:
                return False  # ModelChecks, in the same ticks, reads it
            self._split = self.executor.submit(
                split_ingested, self.blobs.get(ingested), model.format.value, view.targets
            )
            self._split.add_done_callback(lambda _: self.wake.notify())
        if not self._split.done():
            return False
        try:
            tasks = self._split.result()
        except Exception as error:
            if isinstance(error, PitchpipeError) and not isinstance(error, StepDied):
                raise
            self._split, self._crashes = None, self._crashes + 1
            if self._crashes >= MAX_CRASHES:
                raise
            log.warning("a split died", job=self.job, crashes=self._crashes, error=repr(error)[:300])
            return False
        with self.database.reading() as session:
            only = jobs.only(session, self.job)
        if only is not None:
            tasks = [task for task in tasks if task.workload.digest in only]
        if not tasks:
            reason = "computes nothing that can be tuned" if only is None else "has none of the workloads asked for"
            raise InvalidModel(f"the model {reason}")
        return self._accept(view, tasks)

    def _accept(self, view: JobView, tasks: list[Task]) -> bool:
        """Stores the tasks. Marks those reused that were settled on the workers of today with at least the effort this job
        offers, and those to be replayed that were found under other circumstances.

        False, and nothing is stored, while no worker serves a target for which that has to be known.
        """
        offered = self._effort(view, tasks)
        with self.database.transaction() as session:
            found: list[tuple[Target, replays.Found]] = []
            for target in view.targets:
                here = workers.circumstances(session, self.project, target)
                digests = [task.workload.digest for task in tasks if task.target == target and not task.seeds]
                earlier = replays.found(session, self.project, digests, target, here)
                if earlier and not here:
                    return False
                found += ((target, one) for one in earlier)
            jobs.set_tasks(session, self.job, tasks)
            reused = replayed = 0
            for target, one in found:
                if not one.current:
                    replayed += 1
                    jobs.to_be_replayed(session, self.job, one.workload, target, one.best, one.effort)
                elif one.best is not None and (one.effort >= offered or view.origin is JobOrigin.UPGRADE):
                    reused += 1
                    secs = {"untuned_secs": one.best.baseline_secs, "tuned_secs": one.best.secs}
                    jobs.update_task(session, self.job, one.workload, target, reused=True, **secs)
            jobs.transition(session, self.job, JobState.TUNING)
            jobs.update_progress(session, self.job, Progress(reused_tasks=reused), self._spent_secs)
            told = {"tasks": len(tasks), "reused": reused, "to_replay": replayed}
            events.append(session, self.job, EventKind.TASKS, told)
        self.wake.notify()
        return True

    def _effort(self, view: JobView, tasks: Sequence[Task]) -> float:
        tuned = sum(task.kind is TaskKind.TUNED for task in tasks)
        return effort(tuned, view.budget.trials, view.budget.seconds)

    def _build_loop(self, view: JobView) -> TuningLoop:
        store = records.SqlRecordStore(self.database, self.project, here=self._circumstances)
        with self.database.transaction() as session:
            self._tasks = jobs.tasks(session, self.job)
            self._here = {target: replays.measured_by(session, self.job, target) for target in view.targets}
            issued = batches.purposes(session, self.job)
            self._spent_secs = max(self._spent_secs, jobs.spent_secs(session, self.job))
            open_ = batches.open_(session, self.job)
            early = batches.charged_early(session, self.job)
        self._offered = self._effort(view, self._tasks)
        seconds = view.budget.seconds
        if seconds is not None:
            seconds = max(1.0, seconds - CONFIRM_SECS * len(self._tasks))
        self._ledger = BudgetLedger(
            self._tasks, trials=view.budget.trials, seconds=seconds, batch_size=BATCH_CANDIDATES
        )
        index = {(task.workload.digest, task.target.key): i for i, task in enumerate(self._tasks)}
        in_flight, batches_in_flight = [0] * len(self._tasks), [0] * len(self._tasks)
        confirming: set[int] = set()
        for batch in open_:
            at = index[batch.workload, batch.target.key]
            if batch.purpose is Purpose.CONFIRM:
                confirming.add(at)
            else:
                in_flight[at] += batch.candidates
                batches_in_flight[at] += 1
        if self._confirming:
            # No trial is spent after the confirming runs began: which tasks had become stale is not stored.
            for ledger in self._ledger.tasks:
                ledger.exhausted = True
        done: set[int] = set()
        replaying: dict[int, ReplayStage] = {}
        for shown in view.tasks:
            at = index[shown.workload, shown.target.key]
            if shown.reused or shown.tuned_secs is not None:
                done.add(at)
            elif shown.replay is Replay.DUE and shown.kind is TaskKind.TUNED and not self._confirming:
                replaying[at] = _stage(issued.get((shown.workload, shown.target.key), set()))
            fastest = store.fastest(shown.workload, shown.target, 1)
            counted_later = early.get((shown.workload, shown.target.key), 0)
            self._ledger.restore(
                at,
                trials=shown.trials - counted_later,
                failed=shown.failed_trials,
                best_secs=fastest[0][1] if fastest else None,
                in_flight=in_flight[at] + counted_later,
                batches_in_flight=batches_in_flight[at],
            )
        self._targets, self._origin = frozenset(view.targets), view.origin
        self._learn_bounds()
        rows = JobRows(
            project=self.project,
            job=self.job,
            holder=self.holder,
            origin=view.origin,
            targets=self._targets,
            tasks=self._tasks,
            database=self.database,
            wake=self.wake,
        )
        return TuningLoop(
            self._tasks,
            frozenset(done),
            self._ledger,
            JobQueue(rows, on_collected=self._learn_bounds),
            store,
            lambda kind: self.predictor(self.project, kind),
            self.executor,
            seed=view.seed,
            confirming=frozenset(confirming),
            on_confirmed=self._confirmed,
            donors=self._donors,
            donors_only=self._origin is JobOrigin.TRANSFER,
            replays=JobReplays(rows, self._circumstances, partial(self._decide, last=False)),
            replaying=replaying,
            replay_only=self._origin is JobOrigin.UPGRADE,
        )

    def _circumstances(self, target: Target) -> frozenset[Circumstances] | None:
        """Those of all workers that measured for the job or might have; None while there was none.

        A worker that is lost takes nothing with it: what it measured for this job stays comparable with the rest.
        """
        with self.database.reading() as session:
            self._here[target] |= workers.circumstances(session, self.project, target)
        return self._here[target] or None

    def _learn_bounds(self) -> None:
        """How fast each task can be on the workers that are active now. While there is none, what was known stays."""
        with self.database.reading() as session:
            rooflines = {target: workers.rooflines(session, self.project, target) for target in self._targets}
        learnt = []
        for task, ledger in zip(self._tasks, self._ledger.tasks, strict=True):
            if rooflines[task.target] and ledger.bound_secs != (secs := bound_secs(task, rooflines[task.target])):
                ledger.bound_secs = secs
                learnt.append((task, secs))
        if learnt:
            with self.database.transaction() as session:
                for task, secs in learnt:
                    jobs.update_task(session, self.job, task.workload.digest, task.target, bound_secs=secs)

    def _donors(self, task: Task) -> list[Donor]:
        with self.database.reading() as session:
            signature, known = donors.known(session, self.project, task.workload.digest, task.target)
        found = [] if signature is None else nearest(signature, known, DONORS)
        return [Donor(workload=one.workload, trace=one.trace) for one in found]

    def _confirmed(self, at: int, best: Best) -> None:
        self._decide(at, best, last=True)

    def _decide(self, at: int, best: Best | None, *, last: bool) -> bool:
        """Takes a confirming run's verdict on a task, the `last` one or that on a replay; whether the task is settled by it.

        It is where what an earlier effort had found still holds, and that effort is as large as this job's.
        """
        task = self._tasks[at]
        digest, target = task.workload.digest, task.target
        holds, effort, owed = False, 0.0, 0.0
        with self.database.transaction() as session:
            replay, before, spent = jobs.replay(session, self.job, digest, target)
            if replay is Replay.DUE:
                ended = replays.failures(session, self.job, digest, target)
                holds = still_holds(before, best, ended)
                effort, owed = (spent, 0.0) if holds else (0.0, spent)
                jobs.update_task(session, self.job, digest, target, replay=outcome(task, before, best, ended))
            settled = holds and spent >= self._offered
            if best is None:
                return settled
            refitted = before is not None and before.origin is Origin.TRANSFERRED and not last
            if (self._origin is JobOrigin.TRANSFER or refitted) and best.record is not None:
                # After a search the winner is the best that was found, wherever it began.
                candidate = candidate_digest(digest, best.trace)
                source = batches.source(session, self.project, digest, target, candidate)
                if source is not None:
                    best = best.model_copy(update={"origin": Origin.TRANSFERRED, "source": source})
            if best.record is not None:
                first = replays.first_found(session, self.project, digest, target, best)
                best = best.model_copy(update={"replayed_from": first})
            if self._origin is not JobOrigin.TRANSFER or best.record is not None:
                # Where nothing that was re-fitted beat the baseline, the search is still to come: a miss stays one.
                records.set_best(session, self.project, digest, target, best, effort=effort, owed=owed)
            if last or settled or self._origin is JobOrigin.UPGRADE:
                secs = {"untuned_secs": best.baseline_secs, "tuned_secs": best.secs}
                jobs.update_task(session, self.job, digest, target, device_class=best.device_class, **secs)
        return settled

    def _publish(self) -> None:
        """Progress for whoever watches, after batches were charged."""
        self._published = self._ledger.trials
        ledger = self._ledger
        eta = ledger.eta(self._spent_secs, tail_secs=CONFIRM_SECS * len(self._tasks))
        with self.database.transaction() as session:
            view = jobs.get(session, self.project, self.job)
            progress = Progress(
                trials=view.progress.trials,
                failed_trials=view.progress.failed_trials,
                reused_tasks=view.progress.reused_tasks,
                best_secs=ledger.latency(),
                eta_secs=eta.secs,
                eta_low_secs=eta.low_secs,
                eta_high_secs=eta.high_secs,
            )
            jobs.update_progress(session, self.job, progress, self._spent_secs)
            events.append(session, self.job, EventKind.PROGRESS, progress.model_dump())

    def _complete(self) -> None:
        with self.database.transaction() as session:
            if self._origin is not JobOrigin.UPGRADE:  # What it replayed keeps the effort of before, or none.
                for workload, target, device_class in jobs.confirmed_on(session, self.job):
                    records.settle(session, self.project, workload, target, device_class, self._offered)
            jobs.transition(session, self.job, JobState.DONE)
        self.wake.notify()


def _stage(issued: set[tuple[Purpose, bool]]) -> ReplayStage:
    """How far a task's replay has come, from the (purpose, whether observed) of the batches that the job issued for it."""
    if (Purpose.REPLAY, False) in issued:
        return ReplayStage.MEASURING
    if (Purpose.CONFIRM, False) in issued:
        return ReplayStage.CONFIRMING
    return ReplayStage.MEASURED if (Purpose.REPLAY, True) in issued else ReplayStage.DUE
