"""A job's tuning loop on the database: the queue of its candidates, and candidates of other circumstances to replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.job import JobOrigin
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import MeasureConfig
from pitchpipe.wire.record import Best
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from service.db import Database
from service.store import batches, coordination, job_tasks, jobs, replays, workers
from service.store.values import Circumstances
from service.wake import Wake
from tuner.search.requests import Proposal
from tuner.tuning.confirm import MeasuredBatch
from tuner.tuning.replay import ReplayStage

BATCHES_AHEAD = 2
"""Batches of a job that are searched for, queued or measured per active worker, so that no worker waits for a search."""


@dataclass(frozen=True, kw_only=True)
class JobRows:
    """One active job, and the database with its rows: what both classes of this module need."""

    project: str
    job: str
    holder: str
    """The coordinator's name in the database: a write after it lost the role raises RoleLost."""
    origin: JobOrigin
    targets: frozenset[Target]
    tasks: Sequence[Task]
    """The tuning loop names a task by its index in this sequence."""
    database: Database
    wake: Wake


class JobQueue:
    """Implements tuner.tuning.loop.Measurer over the candidate queue of one job."""

    def __init__(self, rows: JobRows, on_collected: Callable[[Sequence[MeasuredBatch]], None]) -> None:
        """`on_collected` is called with the batches of every collection that found some."""
        self.rows, self.on_collected = rows, on_collected

    def submit(self, task: int, purpose: Purpose, proposals: Sequence[Proposal], incumbent_secs: float | None) -> int:
        """Queues the proposals that were never issued before and returns how many those are."""
        rows, of = self.rows, self.rows.tasks[task]
        with rows.database.transaction() as session:
            coordination.assure(session, rows.holder)
            issued = batches.issue(
                session,
                rows.job,
                of.workload.digest,
                of.target,
                purpose,
                [proposal.candidate for proposal in proposals],
                MeasureConfig(),
                incumbent_secs,
                {p.candidate.digest: p.features for p in proposals if p.features is not None},
                {p.candidate.digest: p.source for p in proposals if p.source is not None},
            )
        rows.wake.notify()
        return issued

    def collect(self) -> list[MeasuredBatch]:
        """Batches that have ended. The transaction that reads them marks them as observed, so each is returned once, also
        after a restart, when the ledger is rebuilt from the job's rows."""
        rows = self.rows
        with rows.database.transaction() as session:
            found = batches.finished(session, rows.job)
            if found:
                coordination.assure(session, rows.holder)
                batches.observed(session, [batch.batch for batch in found])
        ended = [batch.measured for batch in found]
        if ended:
            self.on_collected(ended)
        return ended

    def has_capacity(self, waiting: int) -> bool:
        """True while fewer than BATCHES_AHEAD batches per active worker are searched for, queued or measured.

        A job that no user waits for gets no capacity while one that a user waits for needs workers of the same target.
        """
        rows = self.rows
        with rows.database.reading() as session:
            if rows.origin.idle and jobs.waited_for(session, rows.project) & {target.key for target in rows.targets}:
                return False
            open_ = len(batches.open_(session, rows.job))
            ready = workers.serving(session, rows.project, rows.targets)
        return open_ + waiting < BATCHES_AHEAD * max(1, ready)

    def withdraw(self, purposes: Sequence[Purpose]) -> None:
        """Cancels the job's candidates for these purposes that no worker has leased; workers stop measuring its trials."""
        rows = self.rows
        with rows.database.transaction() as session:
            coordination.assure(session, rows.holder)
            batches.withdraw(session, rows.job, purposes)

    def parallel(self) -> int:
        """Active workers of the job's targets, at least one."""
        rows = self.rows
        with rows.database.reading() as session:
            return max(1, workers.serving(session, rows.project, rows.targets))


class JobReplays:
    """Implements tuner.tuning.loop.Replays over the records of the project."""

    def __init__(
        self,
        rows: JobRows,
        circumstances: Callable[[Target], frozenset[Circumstances] | None],
        decide: Callable[[int, Best | None], bool],
    ) -> None:
        """circumstances: target -> those of its workers, None while it has none. decide: takes the index of a task and the
        verdict on its replay; returns whether the task then needs no search."""
        self.rows, self.circumstances, self.decide = rows, circumstances, decide

    def unreplayed(self, task: int, n: int) -> list[Proposal]:
        """At most `n` candidates that only other circumstances have timed: the one that is served, then the fastest."""
        rows, of = self.rows, self.rows.tasks[task]
        digest = of.workload.digest
        here = self.circumstances(of.target)
        if here is None:
            return []
        with rows.database.reading() as session:
            _, before, _ = job_tasks.replay(session, rows.job, digest, of.target)
            known = replays.unreplayed(
                session,
                rows.project,
                digest,
                of.target,
                here,
                n,
                first=None if before is None else candidate_digest(digest, before.trace),
                without=[candidate_digest(digest, trace) for trace in (of.baseline, of.fixed) if trace is not None],
            )
        return [Proposal(candidate=candidate, features=features) for candidate, features in known]

    def confirmed(self, task: int, best: Best | None) -> bool:
        """Serves the verdict at once; a search that follows may replace it. Returns whether the task needs no search."""
        return self.decide(task, best)


def replay_stage(issued: set[tuple[Purpose, bool]]) -> ReplayStage:
    """How far a task's replay has come, from the (purpose, whether observed) of the batches that the job issued for it."""
    if (Purpose.REPLAY, False) in issued:
        return ReplayStage.MEASURING
    if (Purpose.CONFIRM, False) in issued:
        return ReplayStage.CONFIRMING
    return ReplayStage.MEASURED if (Purpose.REPLAY, True) in issued else ReplayStage.DUE
