"""Jobs and how far they are. states.py says which transition is allowed; the job's row orders concurrent writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import IdempotencyConflict, InvalidInput, InvalidTransition, NotFound
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.ids import json_digest, new_id
from pitchpipe.wire.job import Budget, EventKind, JobOrigin, JobRequest, JobState, JobView, Progress, TaskView
from pitchpipe.wire.record import Best
from service import states
from service.db import clock, instant
from service.store import batches, events, models
from service.store.models import comparison_of
from service.store.paging import page
from service.store.values import get_target, insert
from service.tables import Job, JobEventRow, JobTask, Model, spelled


def submit(
    session: Session,
    project: str,
    request: JobRequest,
    idempotency_key: str | None = None,
    *,
    origin: JobOrigin = JobOrigin.USER,
    only: Sequence[str] | None = None,
    traceparent: str | None = None,
) -> tuple[JobView, bool]:
    """The job, and whether this call made it: the same key with the same request gives the old job.

    only: digests of the workloads that become tasks; None for all of the model's. traceparent: of the submission, if it is
    part of a trace. Raises NotFound for an unknown model, IdempotencyConflict for the same key with another request.
    """
    models.get(session, project, request.model)
    body = request.model_dump(mode="json", by_alias=True)
    if request.budget.until_gain is None:
        del body["budget"]["until_gain"]  # So that the digest is the one that older services made of the same request.
    digest = json_digest(body if only is None else [body, origin.value, list(only)])
    job = session.execute(
        insert(session, Job)
        .values(
            id=new_id("job"),
            project=project,
            model=request.model,
            request=body,
            state=JobState.QUEUED,
            origin=origin,
            only=None if only is None else list(only),
            progress=Progress().model_dump(mode="json"),
            trials=0,
            failed_trials=0,
            spent_secs=0.0,
            last_event=0,
            idempotency_key=idempotency_key,
            request_digest=digest,
            traceparent=traceparent,
            created_at=clock(session),
        )
        .on_conflict_do_nothing(index_elements=[Job.project, Job.idempotency_key])
        .returning(Job.id)
    ).scalar_one_or_none()
    if job is not None:
        events.append(session, job, EventKind.STATE, {"state": JobState.QUEUED.value, "error": None})
        return get(session, project, job), True
    old = session.execute(
        select(Job.id, Job.request_digest).where(Job.project == project, Job.idempotency_key == idempotency_key)
    ).one()
    if old.request_digest != digest:
        raise IdempotencyConflict(f"the key {idempotency_key!r} was used for another request: job {old.id}")
    return get(session, project, old.id), False


def get(session: Session, project: str, job: str) -> JobView:
    """The job with its tasks. Raises NotFound."""
    row = session.execute(
        select(Job).where(Job.project == project, Job.id == job).execution_options(populate_existing=True)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no job {job}")
    tasks = session.scalars(
        select(JobTask).where(JobTask.job == job).order_by(JobTask.position).execution_options(populate_existing=True)
    )
    return _view(row, _models(session, [row])[row.model], tuple(_task_view(session, task) for task in tasks))


def task(session: Session, project: str, job: str, position: int) -> TaskView:
    """One task of a job, by its place in the model. Raises NotFound."""
    row = session.execute(
        select(JobTask).where(JobTask.project == project, JobTask.job == job, JobTask.position == position)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"job {job} has no task {position}")
    return _task_view(session, row)


def list_(
    session: Session, project: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[JobView], str | None]:
    """Jobs without their tasks, newest first."""
    rows, following = page(session, select(Job).where(Job.project == project), Job.id, "job", cursor, limit)
    found = _models(session, rows)
    return [_view(row, found[row.model], ()) for row in rows], following


def active(session: Session) -> list[tuple[str, str, JobState]]:
    """(project, job, state) of every job that has not ended, oldest first."""
    rows = session.execute(select(Job.project, Job.id, Job.state).where(Job.finished_at.is_(None)).order_by(Job.id))
    return [(row.project, row.id, row.state) for row in rows]


def running(session: Session) -> list[tuple[str, str]]:
    """(project, job) of every job that has neither ended nor is paused, oldest first."""
    rows = session.execute(
        select(Job.project, Job.id).where(Job.finished_at.is_(None), Job.paused_at.is_(None)).order_by(Job.id)
    )
    return [(row.project, row.id) for row in rows]


def waited_for(session: Session, project: str) -> set[str]:
    """Keys of the targets of users' jobs that have neither ended nor are paused."""
    requests = session.scalars(
        select(Job.request).where(
            Job.finished_at.is_(None),
            Job.paused_at.is_(None),
            Job.project == project,
            Job.origin == spelled(JobOrigin.USER),
        )
    )
    return {target.key for request in requests for target in JobRequest.model_validate(request).targets}


def only(session: Session, job: str) -> frozenset[str] | None:
    """Digests of the workloads that the job is limited to; None where it is not."""
    found = session.execute(select(Job.only).where(Job.id == job)).scalar_one()
    return None if found is None else frozenset(found)


def transition(
    session: Session, job: str, to: JobState, error: str | None = None, error_code: str | None = None
) -> None:
    """Changes the job's state and appends a STATE event. The queued candidates of a job that ends are cancelled.

    Raises InvalidTransition, which lists the states so far.
    """
    state = _lock(session, job)
    if to not in states.JOB[state]:
        states.job_transition(job, history(session, job), to)
    at = clock(session)
    changes: dict[str, Any] = {"state": to, "error": error, "error_code": error_code}
    if to is JobState.INGESTING:
        changes["started_at"] = at
    if to.ended:
        changes |= {"finished_at": at, "paused_at": None}
    session.execute(update(Job).where(Job.id == job).values(**changes))
    events.append(session, job, EventKind.STATE, {"state": to.value, "error": error})
    if to.ended:
        batches.cancel_job(session, job)


def history(session: Session, job: str) -> list[JobState]:
    """The states the job went through, oldest first. Events of a pause or of a raised budget are left out."""
    rows = session.scalars(
        select(JobEventRow.data)
        .where(JobEventRow.job == job, JobEventRow.kind == EventKind.STATE)
        .order_by(JobEventRow.seq)
    )
    return [JobState(data["state"]) for data in rows if not data.keys() & {"paused", "budget"}]


def cancel(session: Session, project: str, job: str) -> JobView:
    """Cancels the job; idempotent. Raises NotFound, and InvalidTransition for a job that is done or failed."""
    view = get(session, project, job)
    if view.state is not JobState.CANCELLED:
        # Another cancellation may have come first; then there is nothing left to do.
        if _lock(session, job) is not JobState.CANCELLED:
            transition(session, job, JobState.CANCELLED)
        view = get(session, project, job)
    return view


def set_paused(session: Session, project: str, job: str, *, paused: bool) -> JobView:
    """Pauses the job or resumes it; idempotent. Nothing of a paused job is leased; what is leased already may end.

    Raises NotFound, and InvalidTransition for a job that has ended.
    """
    get(session, project, job)
    state = _lock(session, job)
    if state.ended:
        raise InvalidTransition(f"job {job} is {state.value}: it can be neither paused nor resumed")
    if paused is (session.scalar(select(Job.paused_at).where(Job.id == job)) is None):
        session.execute(update(Job).where(Job.id == job).values(paused_at=clock(session) if paused else None))
        batches.hold(session, job, paused=paused)
        events.append(session, job, EventKind.STATE, {"state": state.value, "error": None, "paused": paused})
    return get(session, project, job)


def extend(session: Session, project: str, job: str, budget: Budget) -> JobView:
    """Raises the job's budget to `budget`; idempotent. The trials that it spent stay charged.

    Raises NotFound, InvalidInput for a budget that would end the job sooner, and InvalidTransition for a job that spends no
    more trials: it confirms, has ended, or was granted its budget by another one.
    """
    view = get(session, project, job)
    state = _lock(session, job)
    if state.ended or state is JobState.CONFIRMING:
        raise InvalidTransition(
            f"job {job} is {state.value} and spends no more trials: submit its model anew, which begins with what it found"
        )
    if view.origin is not JobOrigin.USER:
        raise InvalidTransition(f"job {job} spends the idle budget, which is set by the day")
    request = JobRequest.model_validate(session.execute(select(Job.request).where(Job.id == job)).scalar_one())
    if not budget.holds(request.budget):
        raise InvalidInput("a budget is raised, never lowered: cancel the job to end it, what it measured stays")
    if budget != request.budget:
        changed = request.model_copy(update={"budget": budget})
        session.execute(update(Job).where(Job.id == job).values(request=changed.model_dump(mode="json", by_alias=True)))
        told = {"state": state.value, "error": None, "budget": budget.model_dump(mode="json")}
        events.append(session, job, EventKind.STATE, told)
    return get(session, project, job)


def traceparent(session: Session, job: str) -> str | None:
    """W3C trace context that the job's spans continue; None where its submission was in no trace."""
    return session.scalar(select(Job.traceparent).where(Job.id == job))


def set_spent(session: Session, job: str, secs: float) -> None:
    """Stores how long the job has been tuned; see `spent_secs`."""
    session.execute(update(Job).where(Job.id == job).values(spent_secs=secs))


def update_progress(session: Session, job: str, progress: Progress, spent_secs: float) -> None:
    """Stores the progress, except its trials: views show those that reports charged. Raises NotFound."""
    changed = session.execute(
        update(Job)
        .where(Job.id == job)
        .values(progress=progress.model_dump(mode="json"), spent_secs=spent_secs)
        .returning(Job.id)
    )
    if changed.scalar_one_or_none() is None:
        raise NotFound(f"no job {job}")


def spent_secs(session: Session, job: str) -> float:
    """Seconds of tuning as they were last stored; a restarted coordinator goes on from here."""
    return session.execute(select(Job.spent_secs).where(Job.id == job)).scalar_one()


def _lock(session: Session, job: str) -> JobState:
    """Locks the job's row and returns its state."""
    state = session.execute(select(Job.state).where(Job.id == job).with_for_update(key_share=True)).scalar_one_or_none()
    if state is None:
        raise NotFound(f"no job {job}")
    return state


def _models(session: Session, rows: Sequence[Job]) -> dict[str, tuple[str, Comparison | None]]:
    """Name and comparison of the jobs' models."""
    found = select(Model.id, Model.name, Model.comparison).where(Model.id.in_({row.model for row in rows}))
    return {row.id: (row.name, comparison_of(row.comparison)) for row in session.execute(found)}


def _view(row: Job, model: tuple[str, Comparison | None], views: tuple[TaskView, ...]) -> JobView:
    request = JobRequest.model_validate(row.request)
    return JobView(
        id=row.id,
        model=row.model,
        model_name=model[0],
        comparison=model[1],
        targets=request.targets,
        budget=request.budget,
        seed=request.seed,
        state=row.state,
        origin=row.origin,
        paused=row.paused_at is not None,
        error=row.error,
        error_code=row.error_code,
        progress=Progress(**row.progress | {"trials": row.trials, "failed_trials": row.failed_trials}),
        tasks=views,
        created_at=instant(row.created_at),
        started_at=None if row.started_at is None else instant(row.started_at),
        finished_at=None if row.finished_at is None else instant(row.finished_at),
    )


def _task_view(session: Session, row: JobTask) -> TaskView:
    secs, bound_secs = row.tuned_secs, row.bound_secs
    before = None if row.earlier is None else Best.model_validate(row.earlier)
    return TaskView(
        workload=row.workload,
        target=get_target(session, row.target_key),
        trials=row.trials,
        failed_trials=row.failed_trials,
        reused=row.reused,
        untuned_secs=row.untuned_secs,
        tuned_secs=secs,
        bound_secs=bound_secs,
        flops_per_sec=None if secs is None else row.body["flops"] / secs,
        bytes_per_sec=None if secs is None else row.body["bytes"] / secs,
        bound_share=None if secs is None or bound_secs is None else bound_secs / secs,
        replay=row.replay,
        earlier=None if before is None else before.provenance(),
        earlier_baseline_secs=None if before is None else before.baseline_secs,
        **{name: row.body[name] for name in ("name", "kind", "weight", "flops", "bytes")},
    )
