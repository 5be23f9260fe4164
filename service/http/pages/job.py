"""A job: its latency over time as it falls, its tasks by what there is left to gain, and what can be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pitchpipe.errors import InvalidInput
from pitchpipe.wire.job import EventKind, JobEvent, JobView
from pitchpipe.wire.task import TaskKind
from service.http.pages.tables import Column, Place, Spec
from service.http.pages.view import UserView, View, no_forgery
from service.http.routes import jobs as job_routes
from service.store import events, jobs, listings

router = APIRouter(prefix="/jobs/{job_id}", include_in_schema=False, dependencies=[Depends(no_forgery)])

SEND_EVERY_SECS = 2.0
"""Changes in between are sent together: a part is rendered anew for each, and nobody reads a table faster."""
_MOST_EVENTS = 5000
_COLUMNS = (
    Column(name="name", title="Task", link="/jobs/{job}/tasks/{position}"),
    Column(name="target", title="Target"),
    Column(name="kind", title="Kind"),
    Column(name="weight", title="Times", shown="count", help="how often one run of the model has it"),
    Column(name="trials", title="Trials", shown="count"),
    Column(name="failed_trials", title="Failed", shown="count"),
    Column(name="untuned_secs", title="Baseline", shown="seconds"),
    Column(name="best_secs", title="Best so far", shown="seconds"),
    Column(name="bound_secs", title="Bound", shown="seconds", help="no schedule is faster"),
    Column(name="share", title="Share of bound", shown="share"),
    Column(name="left_secs", title="Left to gain", shown="seconds", help="of one run of the model"),
)


def _watched(view: UserView, job_id: str) -> job_routes.Watched:
    """Answers 404 while the response is still a document; inside a stream it would be too late."""
    return job_routes.watch(view.context, view.project, job_id)


@router.get("")
def job_page(view: UserView, job_id: str) -> Response:
    """The page; what of it changes is sent again by `live`."""
    with view.reading() as session:
        known = events.after(session, view.project, job_id, 0, _MOST_EVENTS)
        job = jobs.get(session, view.project, job_id)
    query = urlencode(view.place.query)
    return view.page(
        "job.html",
        _tasks(view, job_id),
        plot=_plot(job, known),
        live=f"/jobs/{job.id}/live?after={known[-1].seq if known else 0}" + (f"&{query}" if query else ""),
        **_figures(job),
    )


@router.get("/live", response_class=EventSourceResponse)
async def live(
    view: UserView,
    watched: Annotated[job_routes.Watched, Depends(_watched)],
    job_id: str,
    last_event_id: Annotated[int, Header(ge=0, lt=2**53)] = 0,
    after: Annotated[int, Query(ge=0, lt=2**53)] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """What changed, as the page shows it: points of the plot, then figures and table. Resumes as the API's stream."""
    async with aclosing(job_routes.follow(view.context, watched, job_id, max(last_event_id, after))) as followed:
        async for found in followed:
            part, started = await run_in_threadpool(_part, view, job_id)
            for event in found:
                if (point := _point(event, started)) is not None:
                    yield ServerSentEvent(event="point", data=point)
            yield ServerSentEvent(id=str(found[-1].seq), raw_data=part)
            await asyncio.sleep(0 if view.context.wake.closed else SEND_EVERY_SECS)
    if not view.context.wake.closed:
        yield ServerSentEvent(event="end", raw_data="")


@router.post("/cancel")
def cancel(view: UserView, job_id: str) -> Response:
    """Ends the job; what it measured stays."""
    job_routes.end(view.context, view.project, job_id)
    return view.back(f"/jobs/{job_id}")


@router.post("/pause")
def pause(view: UserView, job_id: str) -> Response:
    """Lets the job stand until it is resumed."""
    job_routes.set_paused(view.context, view.project, job_id, paused=True)
    return view.back(f"/jobs/{job_id}")


@router.post("/resume")
def resume(view: UserView, job_id: str) -> Response:
    """Lets the job go on."""
    job_routes.set_paused(view.context, view.project, job_id, paused=False)
    return view.back(f"/jobs/{job_id}")


@router.post("/extend")
def extend(
    view: UserView,
    job_id: str,
    trials: Annotated[str, Form(max_length=12)] = "",
    seconds: Annotated[str, Form(max_length=12)] = "",
) -> Response:
    """Gives the job more to spend than it has."""
    with view.reading() as session:
        job = jobs.get(session, view.project, job_id)
    try:
        budget = job.budget.plus(int(trials or 0), float(seconds or 0))
    except ValueError as error:
        raise InvalidInput("an extension is a number of trials, a number of seconds, or both") from error
    job_routes.extend(view.context, view.project, job_id, budget)
    return view.back(f"/jobs/{job_id}")


def _part(view: View, job_id: str) -> tuple[str, float | None]:
    """The part of the page that changes, and when the job started."""
    query = {name: value for name, value in view.place.query.items() if name != "after"}
    view.place = Place(path=f"/jobs/{job_id}", query=query)
    with view.reading() as session:
        job = jobs.get(session, view.project, job_id)
        part = view.rendered(session, "parts/job.html", _tasks(view, job_id), **_figures(job))
    return part, None if job.started_at is None else job.started_at.timestamp()


def _tasks(view: View, job_id: str) -> Spec:
    return Spec(
        id="tasks",
        title="Tasks",
        listing=listings.tasks(view.project, job_id),
        columns=_COLUMNS,
        choices={"kind": tuple(TaskKind)},
        empty="The model has not been split into tasks yet.",
    )


def _figures(job: JobView) -> dict[str, Any]:
    """What the page says beside its table."""
    spent = job.progress.trials / job.budget.trials if job.budget.trials else None
    default_secs, bound_secs = _sum(job, "untuned_secs"), _sum(job, "bound_secs")
    return {"job": job, "spent": spent, "default_secs": default_secs, "bound_secs": bound_secs}


def _sum(job: JobView, field: str) -> float | None:
    """Of one run of the model; None until it is known of every task."""
    values = [(task.weight, getattr(task, field)) for task in job.tasks]
    return sum(weight * secs for weight, secs in values) if values and all(secs for _, secs in values) else None


def _plot(job: JobView, known: Sequence[JobEvent]) -> dict[str, Any]:
    """Seconds since the job started against seconds of one run, with the lines that it lies between."""
    started = None if job.started_at is None else job.started_at.timestamp()
    points = [point for event in known if (point := _point(event, started)) is not None]
    return {
        "points": points,
        "lines": {
            "baseline": _sum(job, "untuned_secs"),
            "bound": _sum(job, "bound_secs"),
            "forecast": None if job.state.ended else job.progress.forecast_secs,
        },
    }


def _point(event: JobEvent, started: float | None) -> list[float | None] | None:
    """[seconds since the start, seconds of one run, those forecast] of an event that tells them."""
    secs, forecast = event.data.get("best_secs"), event.data.get("forecast_secs")
    if event.kind is not EventKind.PROGRESS or started is None or not isinstance(secs, float | int):
        return None
    return [event.at.timestamp() - started, float(secs), float(forecast) if isinstance(forecast, float | int) else None]
