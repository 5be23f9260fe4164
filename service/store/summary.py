"""Figures over a project, for its first page."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.lease import WorkerState
from pitchpipe.wire.measure import MEASURE_VERSION
from service.tables import BestRow, Job, Miss, WorkerRow, spelled


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a project has and does."""

    running_jobs: int
    trials: int
    """Of all its jobs."""
    workers: dict[str, int]
    """By state."""
    noisy_workers: int
    schedules: int
    """Served: one for each workload, target and device class."""
    median_speedup: float | None
    """Baseline over schedule, of those whose baseline has a time."""
    misses: int


def of_project(session: Session, project: str) -> Summary:
    """Counts of the project's rows."""
    states = dict(
        session.execute(
            select(WorkerRow.state, func.count()).where(WorkerRow.project == project).group_by(WorkerRow.state)
        ).all()
    )
    noisy = select(func.count()).where(
        WorkerRow.project == project, WorkerRow.state == spelled(WorkerState.ACTIVE), WorkerRow.noisy.is_(True)
    )
    served = (BestRow.project == project, BestRow.measure_version == MEASURE_VERSION)
    known = session.execute(select(func.count()).where(*served, BestRow.baseline_secs.is_not(None))).scalar_one()
    speedup = BestRow.baseline_secs / BestRow.secs
    median = session.scalars(
        select(speedup).where(*served, BestRow.baseline_secs.is_not(None)).order_by(speedup).offset(known // 2).limit(1)
    ).one_or_none()
    return Summary(
        running_jobs=session.execute(
            select(func.count()).where(Job.project == project, Job.finished_at.is_(None))
        ).scalar_one(),
        trials=session.execute(
            select(func.coalesce(func.sum(Job.trials), 0)).where(Job.project == project)
        ).scalar_one(),
        workers={state.value: states.get(state, 0) for state in WorkerState},
        noisy_workers=session.execute(noisy).scalar_one(),
        schedules=session.execute(select(func.count()).select_from(BestRow).where(*served)).scalar_one(),
        median_speedup=median,
        misses=session.execute(select(func.count()).select_from(Miss).where(Miss.project == project)).scalar_one(),
    )
