"""Jobs: the table of all, and the form that submits a model's file."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, UploadFile
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pitchpipe.errors import InvalidInput, InvalidModel
from pitchpipe.frontends import FRONTENDS
from pitchpipe.wire.job import Budget, JobOrigin, JobRequest, JobState, ModelFormat
from pitchpipe.wire.target import Target
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView, no_forgery
from service.http.routes import jobs as job_routes
from service.http.routes import models as model_routes
from service.store import listings, workers

router = APIRouter(prefix="/jobs", include_in_schema=False, dependencies=[Depends(no_forgery)])

JOB_COLUMNS = (
    Column(name="id", title="Job", link="/jobs/{id}"),
    Column(name="model", title="Model"),
    Column(name="state", title="State", shown="words"),
    Column(name="origin", title="Origin"),
    Column(name="trials", title="Trials", shown="count"),
    Column(name="failed_trials", title="Failed", shown="count"),
    Column(name="best_secs", title="One run", shown="seconds", help="sum over the tasks, best so far"),
    Column(name="spent_secs", title="Tuned for", shown="span"),
    Column(name="created_at", title="Submitted (UTC)", shown="when"),
)
SUFFIXES = {
    suffix: frontend.format for frontend in FRONTENDS.values() if not frontend.is_local for suffix in frontend.suffixes
}
"""Of files that may be sent -> their format."""


@router.get("")
def jobs_page(view: UserView) -> Response:
    """All jobs of the project, newest first."""
    with view.reading() as session:
        served = {worker.target.key: worker.target for worker in workers.active(session, view.project)}
    table = Spec(
        id="jobs",
        title="Jobs",
        listing=listings.jobs(view.project),
        columns=JOB_COLUMNS,
        choices={"state": tuple(JobState), "origin": tuple(JobOrigin)},
        empty="No job yet.",
    )
    return view.page("jobs.html", table, targets=sorted(served), suffixes=", ".join(sorted(SUFFIXES)))


@router.post("")
async def submit(
    request: Request,
    view: UserView,
    file: UploadFile,
    target: Annotated[list[str], Form()],
    trials: Annotated[str, Form(max_length=12)] = "",
    seconds: Annotated[str, Form(max_length=12)] = "",
) -> Response:
    """Stores the file as a model, waits until it was judged, and queues a job on it."""
    name = PurePath(file.filename or "").name or "model"
    targets = tuple(Target.parse(text) for text in target)
    budget = _budget(trials, seconds)
    format = _format(name)
    model_routes.refuse_local(format)
    context = view.context
    model = await run_in_threadpool(model_routes.store, context, view.project, name[:256], format, file.file)
    if not model.checked:
        context.wake.notify()
        model = await model_routes.verdict(request, context, view.project, model)
    wanted = JobRequest(model=model.id, targets=targets, budget=budget)
    job, _ = await run_in_threadpool(job_routes.submit, context, view.project, wanted)
    return view.back(f"/jobs/{job.id}")


def _format(name: str) -> ModelFormat:
    found = SUFFIXES.get(PurePath(name).suffix.lower())
    if found is None:
        raise InvalidModel(
            f"a file is told by its name's ending: {', '.join(sorted(SUFFIXES))}; other formats are converted on your "
            "machine: `pitchpipe jobs submit FILE`"
        )
    return found


def _budget(trials: str, seconds: str) -> Budget:
    try:
        return Budget(trials=int(trials) if trials else None, seconds=float(seconds) if seconds else None)
    except ValueError as error:
        raise InvalidInput("a budget is a number of trials, a number of seconds, or both") from error
