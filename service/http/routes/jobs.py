"""Jobs: submit, list, show, cancel, schedules, and the event stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from pitchpipe import telemetry
from pitchpipe.errors import InvalidTarget, NoDevice
from pitchpipe.wire.job import Budget, EventKind, JobEvent, JobRequest, JobState, JobView
from pitchpipe.wire.page import JobPage
from pitchpipe.wire.record import LookupRequest, LookupResponse
from pitchpipe.wire.target import Target
from service.http.auth import User
from service.http.context import Context, Ctx, Cursor, Limit
from service.http.problems import BODY, documented
from service.http.routes.targets import MAX_CHARS
from service.store import events, jobs, lookups, workers

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_EVENTS_PER_READ = 200
_ENDED = {state.value for state in JobState if state.ended}

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=128,
        pattern=r"^[\x21-\x7e]+$",
        description="sent again with the same body it gives the same job; with another body a 409",
    ),
]


@router.post(
    "",
    status_code=201,
    responses={**documented(*BODY, 404, 409), 200: {"model": JobView, "description": "The key's job, as it is now"}},
)
def submit_job(
    context: Ctx,
    principal: User,
    request: JobRequest,
    response: Response,
    http: Request,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queues a tuning job. Every target needs an active worker of the project that serves it."""
    caller = telemetry.parsed(http.headers.get(telemetry.HEADER))
    view, created = submit(context, principal.project, request, idempotency_key, caller)
    if not created:
        response.status_code = 200
    return view


def submit(
    context: Context, project: str, request: JobRequest, key: str | None = None, caller: str | None = None
) -> tuple[JobView, bool]:
    """The job, and whether this call made it. Its trace continues in this process's span or, where none is recorded, in the
    caller's. Raises NoDevice where a target has no active worker, and as the store does."""
    with telemetry.span("submit"), context.database.transaction() as session:
        parent = telemetry.traceparent() or caller
        view, created = jobs.submit(session, project, request, key, traceparent=parent)
        if created:
            # Inside the same transaction: a refused job leaves neither a row nor a spent key.
            served = {worker.target.key for worker in workers.active(session, project)}
            _refuse_unserved(request.targets, served)
    context.wake.notify()
    return view, created


def _refuse_unserved(targets: Sequence[Target], served: set[str]) -> None:
    for target in targets:
        if target.key not in served:
            known = ", ".join(sorted(served)) or "none"
            raise NoDevice(f"no active worker of this project serves {target.key}; targets served now: {known}")


@router.get("", responses=documented(400))
def list_jobs(context: Ctx, principal: User, cursor: Cursor = None, limit: Limit = 50) -> JobPage:
    """Jobs of the project, newest first, without their tasks."""
    with context.database.reading() as session:
        items, next_cursor = jobs.list_(session, principal.project, cursor, limit)
    return JobPage(items=tuple(items), next_cursor=next_cursor)


@router.get("/{job_id}", responses=documented(404))
def show_job(context: Ctx, principal: User, job_id: str) -> JobView:
    """One job with its tasks."""
    with context.database.reading() as session:
        return jobs.get(session, principal.project, job_id)


@router.post("/{job_id}/cancel", responses=documented(404, 409))
def cancel_job(context: Ctx, principal: User, job_id: str) -> JobView:
    """Ends a job; what it measured stays. Idempotent; a job that is done or failed is a conflict."""
    return end(context, principal.project, job_id)


def end(context: Context, project: str, job: str) -> JobView:
    """Cancels a job. Raises as the store does."""
    with context.database.transaction() as session:
        view = jobs.cancel(session, project, job)
    context.wake.notify()
    return view


@router.post("/{job_id}/pause", responses=documented(404, 409))
def pause_job(context: Ctx, principal: User, job_id: str) -> JobView:
    """Pauses a job: nothing of it is leased, and its clock stands. Idempotent; a job that has ended is a conflict."""
    return set_paused(context, principal.project, job_id, paused=True)


@router.post("/{job_id}/resume", responses=documented(404, 409))
def resume_job(context: Ctx, principal: User, job_id: str) -> JobView:
    """Lets a paused job go on with what it has left. Idempotent; a job that has ended is a conflict."""
    return set_paused(context, principal.project, job_id, paused=False)


def set_paused(context: Context, project: str, job: str, *, paused: bool) -> JobView:
    """Pauses or resumes a job. Raises as the store does."""
    with context.database.transaction() as session:
        view = jobs.set_paused(session, project, job, paused=paused)
    context.wake.notify()
    return view


@router.put("/{job_id}/budget", responses=documented(*BODY, 404, 409))
def extend_job(context: Ctx, principal: User, job_id: str, budget: Budget) -> JobView:
    """Raises the budget of a job that still searches; idempotent. Lowering it is refused, and a job that confirms or has
    ended is a conflict."""
    return extend(context, principal.project, job_id, budget)


def extend(context: Context, project: str, job: str, budget: Budget) -> JobView:
    """Raises a job's budget. Raises as the store does."""
    with context.database.transaction() as session:
        view = jobs.extend(session, project, job, budget)
    context.wake.notify()
    return view


@router.get("/{job_id}/schedules", responses=documented(400, 404, 409))
def job_schedules(
    context: Ctx,
    principal: User,
    job_id: str,
    target: Annotated[
        str | None, Query(max_length=MAX_CHARS, description="JSON; default: the job's only target")
    ] = None,
) -> LookupResponse:
    """The answers for the job's workloads, whether or not it has ended."""
    with context.database.reading() as session:
        view = jobs.get(session, principal.project, job_id)
        wanted = _one_target(view, target)
        digests = tuple(dict.fromkeys(task.workload for task in view.tasks if task.target.key == wanted.key))
        if not digests:
            return LookupResponse(answers=())
        return lookups.lookup(session, principal.project, LookupRequest(target=wanted, workloads=digests))


def _one_target(view: JobView, text: str | None) -> Target:
    if text is not None:
        return Target.parse(text)
    if len(view.targets) > 1:
        raise InvalidTarget("the job has several targets: name one with ?target=")
    return view.targets[0]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A job that somebody watches."""

    project: str
    ended: bool
    """Before the stream's first look: then whatever it does not find will never come."""


def _watched(context: Ctx, principal: User, job_id: str) -> Watched:
    """Answers 404 while the response is still a document; inside a stream it would be too late."""
    return watch(context, principal.project, job_id)


def watch(context: Context, project: str, job: str) -> Watched:
    """What `follow` needs to know before it starts. Raises NotFound."""
    with context.database.reading() as session:
        return Watched(project=project, ended=jobs.get(session, project, job).state.ended)


@router.get("/{job_id}/events", response_class=EventSourceResponse, responses=documented(404))
async def job_events(
    context: Ctx,
    watched: Annotated[Watched, Depends(_watched)],
    job_id: str,
    last_event_id: Annotated[int, Header(ge=0, lt=2**53, description="resume after this event")] = 0,
    after: Annotated[int, Query(ge=0, lt=2**53, description="the same for clients that cannot send headers")] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: `id` is the event's number, `event` its kind, `data` a JobEvent. Ends with the job."""
    async with aclosing(follow(context, watched, job_id, max(last_event_id, after))) as followed:
        async for found in followed:
            for event in found:
                yield ServerSentEvent(id=str(event.seq), event=event.kind.value, raw_data=event.model_dump_json())


async def follow(context: Context, watched: Watched, job: str, seq: int) -> AsyncGenerator[list[JobEvent]]:
    """The events after `seq` as they come, some at a time. Ends with the job, or when the process is going down: then the
    client comes back with what it saw last."""
    while True:
        generation = context.wake.generation
        found = await run_in_threadpool(_read, context, watched.project, job, seq)
        for at, event in enumerate(found):
            seq = event.seq
            if event.kind is EventKind.STATE and event.data.get("state") in _ENDED:
                yield found[: at + 1]
                return
        if found:
            yield found
        if context.wake.closed or (watched.ended and not found):
            return
        if not found:
            await context.wake.wait_async(context.poll_secs, since=generation)


def _read(context: Context, project: str, job_id: str, seq: int) -> list[JobEvent]:
    return context.database.glance(lambda session: events.after(session, project, job_id, seq, _EVENTS_PER_READ))
