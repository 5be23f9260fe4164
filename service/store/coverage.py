"""Coverage: which share of a model's expected time runs on what a look-up answers, by tier."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from pitchpipe.wire.record import LookupRequest, Tier
from pitchpipe.wire.target import Target
from service.store import lookups, workers
from service.store.values import get_target
from service.tables import Job, JobTask, Model

MOST_MODELS = 50
_NEWEST_JOBS = 500
"""Jobs among which models are looked for."""


@dataclass(frozen=True, kw_only=True)
class Covered:
    """A task of a model, and what a look-up answers for it."""

    name: str
    position: int
    tier: Tier
    secs: float | None
    """Of all its occurrences in one run: the served schedule's, or without one the baseline's; None is unknown."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """A model's tasks for a target, the costliest first."""

    job: str
    """The newest job that split the model; it has the tasks."""
    target: Target
    tasks: tuple[Covered, ...]

    @property
    def known_secs(self) -> float:
        """Of one run, as far as it is known."""
        return sum(task.secs or 0.0 for task in self.tasks)

    @property
    def unknown(self) -> int:
        """Tasks whose seconds are unknown."""
        return sum(task.secs is None for task in self.tasks)


def models(session: Session, project: str) -> list[tuple[str, str]]:
    """(id, name) of the models that newest jobs are on, the newest first."""
    newest = (
        select(Job.id, Job.model).where(Job.project == project).order_by(Job.id.desc()).limit(_NEWEST_JOBS).subquery()
    )
    rows = session.execute(
        select(Model.id, Model.name).join(newest, newest.c.model == Model.id).order_by(newest.c.id.desc())
    )
    return list({row.id: row.name for row in rows}.items())[:MOST_MODELS]


def of_model(session: Session, project: str, model: str) -> Coverage | None:
    """Of the model's newest job that has tasks; of one with several targets, the first task's. None without such a job.

    The look-up asks as an active worker of the target would, if there is one: else no answer is exact.
    """
    job = session.execute(
        select(Job.id)
        .where(Job.project == project, Job.model == model, Job.only.is_(None))
        .where(select(JobTask.job).where(JobTask.job == Job.id).exists())
        .order_by(Job.id.desc())
        .limit(1)
    ).scalar_one_or_none()
    if job is None:
        return None
    rows = session.scalars(select(JobTask).where(JobTask.job == job).order_by(JobTask.position)).all()
    key = rows[0].target_key
    rows = [row for row in rows if row.target_key == key]
    target = get_target(session, key)
    here = min(workers.circumstances(session, project, target), default=None)
    request = LookupRequest(
        target=target,
        workloads=tuple(row.workload for row in rows),
        device_class=here.device_class if here else None,
        toolchain=here.toolchain if here else None,
    )
    answers = {answer.workload: answer for answer in lookups.lookup(session, project, request).answers}
    tasks = []
    for row in rows:
        answer, weight = answers[row.workload], row.body["weight"]
        secs = answer.best.secs if answer.best is not None else row.untuned_secs
        tasks.append(
            Covered(
                name=row.body["name"],
                position=row.position,
                tier=answer.tier,
                secs=None if secs is None else weight * secs,
            )
        )
    return Coverage(job=job, target=target, tasks=tuple(sorted(tasks, key=lambda task: -(task.secs or 0.0))))
