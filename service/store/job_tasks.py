"""The tasks of jobs: stored with their workloads, found again, marked for a replay, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidInput, NotFound
from pitchpipe.wire.job import Replay
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.record import Best
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload
from service.store import workloads
from service.store.values import get_target, insert, put_target, target_digest
from service.tables import Job, JobTask, StoredWorkload

_TASK_FIELDS = frozenset(
    {"reused", "untuned_secs", "tuned_secs", "bound_secs", "device_class", "replay", "earlier", "earlier_effort"}
)


def set_tasks(session: Session, job: str, tasks: Sequence[Task]) -> None:
    """Stores the tasks that the model was split into, and their workloads, each once for all targets.

    Idempotent: after a restart the trials that tasks were already charged stay.
    """
    project = session.execute(select(Job.project).where(Job.id == job)).scalar_one()
    for task in {task.workload.digest: task for task in tasks}.values():
        workloads.put(session, project, task.workload, task.signature)
    rows = []
    for position, task in enumerate(tasks):
        rows.append(
            {
                "job": job,
                "workload": task.workload.digest,
                "target_key": put_target(session, task.target),
                "project": project,
                "position": position,
                "body": task.model_dump(mode="json", exclude={"workload", "target", "signature"}),
                "trials": 0,
                "failed_trials": 0,
                "reused": False,
            }
        )
    if rows:
        session.execute(insert(session, JobTask).on_conflict_do_nothing(), rows)


def tasks(session: Session, job: str) -> list[Task]:
    """The job's tasks in the order of `set_tasks`, with their IR."""
    rows = session.execute(
        select(JobTask, StoredWorkload)
        .join(
            StoredWorkload,
            (StoredWorkload.project == JobTask.project) & (StoredWorkload.digest == JobTask.workload),
        )
        .where(JobTask.job == job)
        .order_by(JobTask.position)
    )
    return [
        Task(
            workload=Workload(digest=stored.digest, ir=stored.ir, schema_version=stored.schema_version),
            target=get_target(session, task.target_key),
            **task.body,
        )
        for task, stored in rows
    ]


def baseline(session: Session, project: str, job: str, position: int) -> tuple[str, str]:
    """(IR of its workload, trace of its baseline) of one task. Raises NotFound."""
    row = session.execute(
        select(JobTask.workload, JobTask.body["baseline"].as_string().label("trace")).where(
            JobTask.project == project, JobTask.job == job, JobTask.position == position
        )
    ).one_or_none()
    if row is None:
        raise NotFound(f"job {job} has no task {position}")
    return workloads.get(session, project, row.workload).ir, row.trace or BASELINE_TRACE


def known_tasks(session: Session, project: str, workloads: Sequence[str], target: Target) -> list[tuple[str, Task]]:
    """(model, Task) of each workload, in the given order, from the newest job of the project that has it; unknown ones are
    left out. The imported traces (seeds) of a task are not included.
    """
    rows = session.execute(
        select(JobTask, StoredWorkload, Job.model)
        .join(Job, Job.id == JobTask.job)
        .join(
            StoredWorkload,
            (StoredWorkload.project == JobTask.project) & (StoredWorkload.digest == JobTask.workload),
        )
        .where(
            JobTask.project == project,
            JobTask.workload.in_(set(workloads)),
            JobTask.target_key == target_digest(target),
        )
        .order_by(Job.id)
    )
    found = {
        stored.digest: (
            model,
            Task(
                workload=Workload(digest=stored.digest, ir=stored.ir, schema_version=stored.schema_version),
                target=target,
                **task.body | {"seeds": ()},
            ),
        )
        for task, stored, model in rows
    }
    return [found[workload] for workload in dict.fromkeys(workloads) if workload in found]


def to_be_replayed(
    session: Session, job: str, workload: str, target: Target, earlier: Best | None, effort: float
) -> None:
    """Marks the task for a replay, since its schedules were found under other circumstances.

    earlier: its best that is served, if any. effort: trials per task that the job which found it offered.
    """
    body = None if earlier is None else earlier.model_dump(mode="json")
    update_task(session, job, workload, target, replay=Replay.DUE, earlier=body, earlier_effort=effort)


def replay(session: Session, job: str, workload: str, target: Target) -> tuple[Replay | None, Best | None, float]:
    """(state of the replay, best that was served before, its effort) of a task; (None, None, 0.0) without a replay."""
    row = session.execute(
        select(JobTask.replay, JobTask.earlier, JobTask.earlier_effort).where(
            JobTask.job == job, JobTask.workload == workload, JobTask.target_key == target_digest(target)
        )
    ).one()
    return row.replay, None if row.earlier is None else Best.model_validate(row.earlier), row.earlier_effort or 0.0


def confirmed_on(session: Session, job: str) -> list[tuple[str, Target, str]]:
    """(workload, target, device class) of the tasks that the job has confirmed."""
    rows = session.execute(
        select(JobTask.workload, JobTask.target_key, JobTask.device_class).where(
            JobTask.job == job, JobTask.device_class.is_not(None), JobTask.tuned_secs.is_not(None)
        )
    )
    return [(row.workload, get_target(session, row.target_key), row.device_class) for row in rows]


def update_task(session: Session, job: str, workload: str, target: Target, **fields: Any) -> None:
    """Sets some of _TASK_FIELDS. Trials are no such field: only reports charge them. Raises InvalidInput, NotFound."""
    if unknown := fields.keys() - _TASK_FIELDS:
        raise InvalidInput(f"{sorted(unknown)} of a task are not set by hand")
    changed = session.execute(
        update(JobTask)
        .where(JobTask.job == job, JobTask.workload == workload, JobTask.target_key == target_digest(target))
        .values(**fields)
        .returning(JobTask.position)
    ).scalar_one_or_none()
    if changed is None:
        raise NotFound(f"job {job} has no task {workload} for that target")
