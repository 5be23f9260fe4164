"""One active job in the coordinator's memory. A new coordinator process rebuilds it from the database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

import structlog

from pitchpipe.errors import InvalidModel, PitchpipeError, StepDied
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.job import Budget, EventKind, JobOrigin, JobState, JobView, Progress, Replay
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.record import Best, Origin
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, TaskKind
from service.blobs import Blobs
from service.coordination.job_queue import JobQueue, JobReplays, JobRows, replay_stage
from service.coordination.job_spans import JobSpans
from service.coordination.outlook import known_of, progress_of
from service.coordination.predictor import ProjectPredictor
from service.db import Database
from service.store import batches, coordination, donors, events, job_tasks, jobs, models, records, replays, workers
from service.store.record_store import SqlRecordStore
from service.store.values import Circumstances
from service.wake import Wake
from tuner.execution.steps import split_ingested
from tuner.search.requests import Donor
from tuner.search.transfer import nearest
from tuner.tuning.budget import BudgetLedger, effort
from tuner.tuning.confirm import MeasuredBatch
from tuner.tuning.loop import MEASURED_SHOWN, TuningLoop
from tuner.tuning.replay import ReplayStage, outcome, still_holds
from tuner.workload.bound import bound_secs

log = structlog.get_logger()

BATCH_CANDIDATES = 32
"""Candidates of one search round, at most: enough to amortise the search, few enough to learn from results soon."""
DONORS = 4
"""Similar workloads whose schedules a task's first search begins with: its smallest batch (FEWEST in tuning/budget.py)."""
LOOK_SECS = 1.0
"""Time between two looks for a worker, without which the job's clock stands."""
MAX_CRASHES = 3
"""Deaths of the process that splits a model, after which the job fails: one may be due to a host without memory."""


class BudgetRaised(Exception):
    """The job has more to spend than its run knows, which is to be rebuilt."""


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
        """holder: the coordinator's name in the database; a write after it lost the role raises RoleLost."""
        self.project, self.job, self.holder = project, job, holder
        self.database, self.blobs, self.wake, self.predictor = database, blobs, wake, predictor
        self._spans = JobSpans(database, job)
        self.executor = self._spans.timed(executor)
        self._budget: Budget | None = None
        self._split: Future[list[Task]] | None = None
        self._crashes = 0
        self._loop: TuningLoop | None = None
        self._confirming = False
        self._published: tuple[int, int, int] | None = None
        self._spent_secs = 0.0
        self._stepped_at = time.monotonic()
        self._looked_at = -math.inf
        self._served = True

    def step(self) -> None:
        """Advances the job as far as is possible without waiting. Raises the error that fails the job, or RoleLost."""
        now = time.monotonic()
        if self._loop is None or self._has_worker(now):
            self._spent_secs += now - self._stepped_at
        self._stepped_at = now
        if self._loop is None:
            view = self._view()
            if view.state in (JobState.QUEUED, JobState.INGESTING) and not self._ingest(view):
                return
            view = self._view()
            self._confirming = view.state is JobState.CONFIRMING
            self._loop = self._build_loop(view)
        finished = self._loop.step(self._spent_secs)
        if known_of(self._ledger) != self._published:
            self._publish()
        if finished:
            self._complete()
        elif not self._loop.searching and not self._confirming:
            self._confirming = True
            self._enter(JobState.CONFIRMING)

    def _has_worker(self, now: float) -> bool:
        """Whether a worker of one of the job's targets is there."""
        if now - self._looked_at >= LOOK_SECS:
            self._looked_at = now
            with self.database.reading() as session:
                self._served = workers.serving(session, self.project, self._targets) > 0
        return self._served

    def store_clock(self) -> None:
        """Stores the seconds spent, so that whoever steps the job next goes on from them. Raises RoleLost."""
        with self.database.transaction() as session:
            coordination.assure(session, self.holder)
            jobs.set_spent(session, self.job, self._spent_secs)

    def abandon(self) -> None:
        """Cancels the steps that the executor has not started yet."""
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
            self._assure_budget(jobs.get(session, self.project, self.job))
        self.wake.notify()

    def _assure_budget(self, view: JobView) -> None:
        """Raises BudgetRaised where the job got more to spend since the loop was built. In a transaction that changes the
        job's state the change is then undone: it locked the job's row, so the budget is not raised in between."""
        if self._budget not in (None, view.budget):
            raise BudgetRaised

    def _ingest(self, view: JobView) -> bool:
        if view.origin in (JobOrigin.UPGRADE, JobOrigin.RETUNE):
            # The workloads as earlier jobs stored them: another version may split the model into other workloads.
            if view.state is JobState.QUEUED:
                self._enter(JobState.INGESTING)
            with self.database.reading() as session:
                wanted = sorted(jobs.only(session, self.job) or ())
                known = job_tasks.known_tasks(session, self.project, wanted, view.targets[0])
            return self._accept(view, [task for _, task in known])
        if self._split is None:
            if view.state is JobState.QUEUED:
                self._enter(JobState.INGESTING)
            with self.database.reading() as session:
                # Raises the cause when the model was refused; the job fails with it.
                model = models.get(session, self.project, view.model)
                ingested = models.ingested(session, self.project, view.model)
            if ingested is None:
                return False  # ModelChecks will store it
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
        """Stores the tasks and marks which are reused and which are replayed.

        A task is reused if its best was confirmed under the circumstances of an active worker, by a job whose effort was at
        least that of this job. It is replayed if its schedules were found under other circumstances only. False, with
        nothing stored, while a task has stored schedules and no worker serves its target, so that this is not known.
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
            job_tasks.set_tasks(session, self.job, tasks)
            reused = replayed = 0
            for target, one in found:
                if not one.current:
                    replayed += 1
                    job_tasks.to_be_replayed(session, self.job, one.workload, target, one.best, one.effort)
                elif one.best is not None and (one.effort >= offered or view.origin is JobOrigin.UPGRADE):
                    reused += 1
                    secs = {"untuned_secs": one.best.baseline_secs, "tuned_secs": one.best.secs}
                    job_tasks.update_task(session, self.job, one.workload, target, reused=True, **secs)
            jobs.transition(session, self.job, JobState.TUNING)
            jobs.update_progress(session, self.job, Progress(reused_tasks=reused), self._spent_secs)
            told = {"tasks": len(tasks), "reused": reused, "to_replay": replayed}
            events.append(session, self.job, EventKind.TASKS, told)
        self.wake.notify()
        return True

    def _effort(self, view: JobView, tasks: Sequence[Task]) -> float:
        return effort(sum(task.kind is TaskKind.TUNED for task in tasks), view.budget.trials, view.budget.seconds)

    def _build_loop(self, view: JobView) -> TuningLoop:
        store = SqlRecordStore(self.database, self.project, here=self._circumstances)
        with self.database.transaction() as session:
            self._tasks = job_tasks.tasks(session, self.job)
            self._here = {target: replays.measured_by(session, self.job, target) for target in view.targets}
            issued = batches.purposes(session, self.job)
            self._spent_secs = max(self._spent_secs, jobs.spent_secs(session, self.job))
            open_ = batches.open_(session, self.job)
            early = batches.charged_early(session, self.job)
        self._offered = self._effort(view, self._tasks)
        budget = self._budget = view.budget
        self._ledger = BudgetLedger(
            self._tasks, trials=budget.trials, seconds=budget.seconds, batch_size=BATCH_CANDIDATES
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
            # No trial is spent after the confirming runs began, and which tasks had become stale is not stored.
            for ledger in self._ledger.tasks:
                ledger.exhausted = True
        done: set[int] = set()
        replaying: dict[int, ReplayStage] = {}
        for shown in view.tasks:
            at = index[shown.workload, shown.target.key]
            if shown.reused or shown.tuned_secs is not None:
                done.add(at)
            elif shown.replay is Replay.DUE and shown.kind is TaskKind.TUNED and not self._confirming:
                replaying[at] = replay_stage(issued.get((shown.workload, shown.target.key), set()))
            fastest = store.fastest(shown.workload, shown.target, MEASURED_SHOWN)
            counted_later = early.get((shown.workload, shown.target.key), 0)
            self._ledger.restore(
                at,
                trials=shown.trials - counted_later,
                failed=shown.failed_trials,
                best_secs=fastest[0][1] if fastest else None,
                default_secs=dict(fastest).get(self._tasks[at].fixed or ""),
                in_flight=in_flight[at] + counted_later,
                batches_in_flight=batches_in_flight[at],
            )
            if shown.tuned_secs is not None:
                self._ledger.confirmed(at, shown.tuned_secs)
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
            JobQueue(rows, on_collected=self._collected),
            store,
            lambda kind: self.predictor(self.project, kind),
            self.executor,
            seed=view.seed,
            until_gain=budget.until_gain,
            confirming=frozenset(confirming),
            on_confirmed=self._confirmed,
            on_undoubted=partial(self._decide, last=True, confirmed=False),
            on_searched=self.wake.notify,
            donors=self._donors,
            donors_only=self._origin is JobOrigin.TRANSFER,
            replays=JobReplays(rows, self._circumstances, partial(self._decide, last=False)),
            replaying=replaying,
            replay_only=self._origin is JobOrigin.UPGRADE,
        )

    def _circumstances(self, target: Target) -> frozenset[Circumstances] | None:
        """The circumstances of all workers that have measured for the job or could have; None while there was none.

        Those of a worker that was lost meanwhile stay, so that its measurements for this job still count.
        """
        with self.database.reading() as session:
            self._here[target] |= workers.circumstances(session, self.project, target)
        return self._here[target] or None

    def _collected(self, ended: Sequence[MeasuredBatch]) -> None:
        self._spans.confirmed(ended, self._tasks)
        self._learn_bounds()

    def _learn_bounds(self) -> None:
        """Updates the bound of each task from the rooflines of the active workers; without any, the old bound stays."""
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
                    job_tasks.update_task(session, self.job, task.workload.digest, task.target, bound_secs=secs)

    def _donors(self, task: Task) -> list[Donor]:
        with self.database.reading() as session:
            signature, known = donors.known(session, self.project, task.workload.digest, task.target)
        found = [] if signature is None else nearest(signature, known, DONORS)
        return [Donor(workload=one.workload, trace=one.trace) for one in found]

    def _confirmed(self, at: int, best: Best) -> None:
        self._ledger.confirmed(at, best.secs)
        self._decide(at, best, last=True)

    def _decide(self, at: int, best: Best | None, *, last: bool, confirmed: bool = True) -> bool:
        """Stores a verdict on a task; returns whether it then needs no search: where a replayed schedule still holds and was
        found with at least the effort that this job offers.

        last: whether it came after the search, not a replay. confirmed: by a run; else it counts as no effort of this job.
        """
        task = self._tasks[at]
        digest, target = task.workload.digest, task.target
        holds, effort, owed = False, 0.0, 0.0
        with self.database.transaction() as session:
            replay, before, spent = job_tasks.replay(session, self.job, digest, target)
            if replay is Replay.DUE:
                ended = replays.failures(session, self.job, digest, target)
                holds = still_holds(before, best, ended)
                effort, owed = (spent, 0.0) if holds else (0.0, spent)
                job_tasks.update_task(session, self.job, digest, target, replay=outcome(task, before, best, ended))
            enough = holds and spent >= self._offered
            if best is None:
                return enough
            refitted = before is not None and before.origin is Origin.TRANSFERRED and not last
            if (self._origin is JobOrigin.TRANSFER or refitted) and best.record is not None:
                # Not after a search: its winner counts as found by the search, also where that began with a donor.
                candidate = candidate_digest(digest, best.trace)
                source = batches.source(session, self.project, digest, target, candidate)
                if source is not None:
                    best = best.model_copy(update={"origin": Origin.TRANSFERRED, "source": source})
            if best.record is not None:
                first = replays.first_found(session, self.project, digest, target, best)
                best = best.model_copy(update={"replayed_from": first})
            if self._origin is not JobOrigin.TRANSFER or best.record is not None:
                # Without a re-fitted schedule that is faster, nothing is served and the miss waits for a search.
                with self._spans.span("set_best", task):
                    records.set_best(session, self.project, digest, target, best, effort=effort, owed=owed)
            if last or enough or self._origin is JobOrigin.UPGRADE:
                told: dict[str, object] = {"untuned_secs": best.baseline_secs, "tuned_secs": best.secs}
                told |= {"device_class": best.device_class} if confirmed else {}
                job_tasks.update_task(session, self.job, digest, target, **told)
        return enough

    def _publish(self) -> None:
        """Stores the job's progress and appends it to its events."""
        self._published = known_of(self._ledger)
        with self.database.transaction() as session:
            view = jobs.get(session, self.project, self.job)
            self._assure_budget(view)
            progress = progress_of(self._ledger, self._spent_secs, view.progress)
            jobs.update_progress(session, self.job, progress, self._spent_secs)
            events.append(session, self.job, EventKind.PROGRESS, progress.model_dump())
        self.wake.notify()

    def _complete(self) -> None:
        with self.database.transaction() as session:
            if self._origin is not JobOrigin.UPGRADE:  # An upgrade searches nothing, so it adds no effort.
                for workload, target, device_class in job_tasks.confirmed_on(session, self.job):
                    records.add_effort(session, self.project, workload, target, device_class, self._offered)
            jobs.transition(session, self.job, JobState.DONE)
            self._assure_budget(jobs.get(session, self.project, self.job))
        self.wake.notify()
