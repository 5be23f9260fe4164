"""Outdated schedules of a project, those confirmed under other circumstances than its active workers have, and jobs that
replay them.

The state of an upgrade is in its results only: a workload leaves the list once it is confirmed on an active worker and,
where the replay was worse than before, once a job has searched. So an interrupted upgrade is continued by the next one.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pitchpipe.errors import NoDevice, NotFound
from pitchpipe.wire.job import Budget, JobOrigin, JobRequest, JobView
from pitchpipe.wire.measure import MeasureConfig
from pitchpipe.wire.target import Target
from pitchpipe.wire.upgrade import REPLAYED, Outdated, OutdatedList, UpgradeRequest, UpgradeStage
from service.store import job_tasks, jobs, replays, workers
from service.store.values import Circumstances, best_of, target_digest
from service.tables import BestRow, Job, JobTask


def outdated(session: Session, project: str, target: Target | None = None, limit: int = 100) -> OutdatedList:
    """The outdated schedules for targets that an active worker serves, in the order in which to replay them."""
    served = {worker.target for worker in workers.active(session, project)}
    found: list[Outdated] = []
    for wanted in sorted(served, key=str) if target is None else served & {target}:
        found += _of_target(session, project, wanted)
    found.sort(key=lambda each: (each.stage is UpgradeStage.RETUNE, -each.value_secs, each.workload, each.target.key))
    return OutdatedList(items=tuple(found[:limit]), total=len(found))


def submit(session: Session, project: str, request: UpgradeRequest, key: str | None = None) -> tuple[JobView, bool]:
    """A job on the workloads, and whether this call made it; the same key with the same request gives the old job.

    Raises NotFound where no job of the project has met any of them for the target, NoDevice where no worker serves it.
    """
    known = job_tasks.known_tasks(session, project, request.workloads, request.target)
    if not known:
        raise NotFound("no job of this project has met these workloads for that target")
    if not workers.circumstances(session, project, request.target):
        raise NoDevice(f"no active worker of this project serves {request.target.key}")
    replayed = request.stage is UpgradeStage.REPLAY
    trials = len(known) * (REPLAYED if replayed else request.trials)
    return jobs.submit(
        session,
        project,
        JobRequest(model=known[0][0], targets=(request.target,), budget=Budget(trials=trials)),
        key,
        origin=JobOrigin.UPGRADE if replayed else JobOrigin.RETUNE,
        only=[task.workload.digest for _, task in known],
    )


def _of_target(session: Session, project: str, target: Target) -> list[Outdated]:
    here = workers.circumstances(session, project, target)
    left = {
        workload: (row, current)
        for workload, (row, current) in replays.standing(session, project, target, here).items()
        if not current or row.owed > 0
    }
    weights = _weights(session, project, target, left.keys())
    return [
        Outdated(
            workload=workload,
            target=target,
            stage=UpgradeStage.RETUNE if current else UpgradeStage.REPLAY,
            value_secs=weights.get(workload, 0.0) * _saved_secs(row),
            served=best_of(row, row.trace).provenance(),
            reason="its replay did not hold" if current else _reason(row, here),
        )
        for workload, (row, current) in left.items()
    ]


def _weights(session: Session, project: str, target: Target, workloads: Collection[str]) -> dict[str, float]:
    """How often the workloads occur in one run of every model of the project."""
    weight = func.max(JobTask.body["weight"].as_integer())
    rows = session.execute(
        select(JobTask.workload, weight)
        .join(Job, Job.id == JobTask.job)
        .where(
            JobTask.project == project,
            JobTask.workload.in_(set(workloads)),
            JobTask.target_key == target_digest(target),
        )
        .group_by(JobTask.workload, Job.model)
    )
    found: dict[str, float] = {}
    for workload, occurrences in rows:
        found[workload] = found.get(workload, 0.0) + occurrences
    return found


def _saved_secs(row: BestRow) -> float:
    """Seconds that the schedule saves in one run; a baseline that ran out of time counts as the time limit."""
    baseline_secs = MeasureConfig().run_timeout_secs if row.baseline_secs is None else row.baseline_secs
    return max(0.0, baseline_secs - row.secs)


def _reason(row: BestRow, here: Collection[Circumstances]) -> str:
    own = replays.circumstances_of(row)
    told = min((own.differences(each) for each in here), key=len)
    return f"confirmed with another {' and '.join(told)}"
