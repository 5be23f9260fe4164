"""A job from its submission to its schedules, whoever runs it: submitted or taken up again, watched, ended early.

A job that is interrupted ends with what it has measured: a job without trials follows it, whose confirming runs decide what
of that is served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pitchpipe import telemetry
from pitchpipe.client import Client
from pitchpipe.errors import InvalidTransition, JobFailed, from_problem
from pitchpipe.model.local import LocalModel
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.job import Budget, JobEvent, JobRequest, JobState, JobView
from pitchpipe.wire.target import Target

CONFIRM_SECS = 30.0
"""What an interrupted job's confirming runs may take; a small model needs a few seconds. Tasks that are left then keep what
they were served before."""
OnView = Callable[[JobView], object]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that is over, and whether somebody interrupted it."""

    view: JobView
    """With the trials that were spent, and the times that were confirmed."""
    interrupted: bool = False


@telemetry.span("submit")
def submit_or_resume(
    client: Client,
    model: LocalModel,
    target: Target,
    budget: Budget,
    seed: int,
    comparison: Comparison,
    *,
    resume: bool = True,
) -> JobView:
    """The interrupted job for the same model, target, budget and seed if there is one, else a new job.

    resume: false for a service that others use, too: such a job may be somebody else's.
    """
    uploaded = client.upload_model(model.data, name=model.name, format=model.format)
    client.tell_comparison(uploaded.id, comparison)
    request = JobRequest(model=uploaded.id, targets=(target,), budget=budget, seed=seed)
    for job in client.jobs() if resume else ():
        same = (job.model, job.targets, job.budget, job.seed) == (
            request.model,
            request.targets,
            request.budget,
            request.seed,
        )
        if same and not job.state.ended:
            return job
    return client.submit(request)


def watched(client: Client, job: JobView, on_view: OnView) -> JobView:
    """The job once it is done; `on_view` sees it after every event. Raises the error that a job failed with, JobFailed for
    one that was cancelled."""
    for _ in client.events(job.id):
        on_view(client.job(job.id))
    view = client.job(job.id)
    if view.state is JobState.CANCELLED:
        raise JobFailed("the job was cancelled")
    if view.state is not JobState.DONE:
        raise from_problem(500, view.error_code or "", view.error or "the job failed")
    return view


def watched_or_ended_early(client: Client, job: JobView, on_view: OnView) -> Ended:
    """As `watched`; but a KeyboardInterrupt ends the job with what it has measured. Another one, and one before the first
    trial, is raised."""
    try:
        return Ended(view=watched(client, job, on_view))
    except KeyboardInterrupt:
        try:
            view = client.cancel(job.id)
        except InvalidTransition:  # it ended a moment ago
            return Ended(view=watched(client, job, on_view), interrupted=True)
        if not view.progress.trials:
            raise
    rest = client.submit(
        JobRequest(model=job.model, targets=job.targets, budget=Budget(trials=0, seconds=CONFIRM_SECS), seed=job.seed)
    )
    confirmed = watched(client, rest, on_view)
    trials = {(task.workload, task.target): (task.trials, task.failed_trials) for task in view.tasks}
    tasks = []
    for task in confirmed.tasks:
        spent, failed = trials.get((task.workload, task.target), (0, 0))
        tasks.append(task.model_copy(update={"trials": spent, "failed_trials": failed}))
    progress = confirmed.progress.model_copy(
        update={"trials": view.progress.trials, "failed_trials": view.progress.failed_trials}
    )
    whole = {"tasks": tuple(tasks), "progress": progress, "started_at": view.started_at, "budget": view.budget}
    return Ended(view=confirmed.model_copy(update=whole), interrupted=True)


def history(client: Client, job: JobView) -> tuple[JobEvent, ...]:
    """What has happened to a job that has ended, from its stored events. Nothing for one that runs: its stream is open."""
    return tuple(client.events(job.id)) if job.state.ended else ()
