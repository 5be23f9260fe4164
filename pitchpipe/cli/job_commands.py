"""Commands over the jobs of a running service."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe import telemetry
from pitchpipe.cli import hints
from pitchpipe.cli.options import (
    HERE,
    Compare,
    Inputs,
    JobId,
    Json,
    PrecisionText,
    TargetText,
    Token,
    Trust,
    Url,
    client_of,
    print_json,
)
from pitchpipe.cli.tables import billions, milliseconds, share, show
from pitchpipe.client import Client
from pitchpipe.errors import DeadlineExceeded, JobFailed
from pitchpipe.model.local import parse_input
from pitchpipe.sdk import submit
from pitchpipe.tuning.progress import Progress, state_of
from pitchpipe.wire.job import Budget, JobState

jobs = typer.Typer(no_args_is_help=True, help="Tuning jobs.")


def add_commands(app: typer.Typer) -> None:
    """Attaches the group, and what one looks for in it and beside it."""
    app.add_typer(jobs, name="jobs")
    for group in (app, jobs):
        group.command("pause")(pause_job)
        group.command("resume")(resume_job)


def share_of(text: str) -> float:
    """A share as it is typed: 1% or 0.01. Raises BadParameter for anything else."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 < share < 1:
        raise typer.BadParameter(f"{text!r} is no share between 0 and 1, such as 1% or 0.01")
    return share


UntilGain = Annotated[
    float | None,
    typer.Option(
        parser=share_of, metavar="SHARE", help="stop when another minute is expected to save less of a run, as 1%"
    ),
]


@jobs.command("submit")
def submit_job(
    model: Path,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trials: Annotated[int | None, typer.Option(min=0)] = None,
    seconds: Annotated[float | None, typer.Option(min=1)] = None,
    until_gain: UntilGain = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    trust: Trust = False,
    inputs: Inputs = None,
    compare: Compare = True,
    precision: PrecisionText = "ieee",
    as_json: Json = False,
) -> None:
    """Compares a model with its framework, sends its graph, without weights, and starts a job."""
    telemetry.configure("pitchpipe")
    with client_of(url, token) as client:
        job = submit(
            model,
            [parse_input(text) for text in inputs or ()],
            target=target,
            trials=trials,
            seconds=seconds,
            until_gain=until_gain,
            seed=seed,
            client=client,
            trust=trust,
            compare=compare,
            precision=precision,
        )
    print_json(job) if as_json else print(job.id)


@jobs.command("list")
def list_jobs(url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Jobs of the project, newest first."""
    with client_of(url, token) as client:
        found = list(client.jobs())
    if as_json:
        print_json(found)
        return
    rows = [
        (job.id, job.model_name, state_of(job), str(job.progress.trials), milliseconds(job.progress.best_secs))
        for job in found
    ]
    show(Console(), "jobs", ("job", "model", "state", "trials", "best ms"), rows, numbers_from=3)


@jobs.command("show")
def show_job(job: JobId, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """One job with its tasks."""
    with client_of(url, token) as client:
        view = client.job(job)
    if as_json:
        print_json(view)
        return
    rows = [
        (
            t.name[:44],
            str(t.weight),
            str(t.trials),
            milliseconds(t.untuned_secs),
            milliseconds(t.tuned_secs),
            billions(t.flops_per_sec),
            billions(t.bytes_per_sec),
            share(t.bound_share),
        )
        for t in view.tasks
    ]
    title = f"{view.id} {view.model_name}: {state_of(view)}" + (f" ({view.error})" if view.error else "")
    title += f"\n{view.comparison}" if view.comparison is not None else ""
    headings = ("task", "weight", "trials", "baseline ms", "tuned ms", "GFLOP/s", "GB/s", "of bound")
    show(Console(), title, headings, rows, numbers_from=1)


@jobs.command("watch")
def watch_job(
    job: JobId,
    url: Url = HERE,
    token: Token = "",
    timeout: Annotated[float | None, typer.Option(min=0, help="seconds")] = None,
    as_json: Json = False,
) -> None:
    """Follows a job to its end; exits 1 if it failed or was cancelled, 124 when the timeout passes first."""
    goes_on = f"the job goes on; `pitchpipe jobs watch {job}` follows it again, `pitchpipe jobs cancel {job}` ends it"
    with hints.after_interrupt(goes_on), Client(url, token) as client, Progress() as progress:
        view = client.wait(job, timeout_secs=timeout, on_view=progress.show)
    if as_json:
        print_json(view)
    if not view.state.ended:
        raise DeadlineExceeded(f"{job} is still {view.state.value}")
    if view.state is not JobState.DONE:
        raise JobFailed(f"{job} ended as {view.state.value}: {view.error or 'no reason given'}")


@jobs.command("cancel")
def cancel_job(job: JobId, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Cancels a job; what it measured stays."""
    with client_of(url, token) as client:
        view = client.cancel(job)
    print_json(view) if as_json else print(view.state.value)


def bounds(budget: Budget) -> str:
    """What a job may spend, in words."""
    found = ((budget.trials, "trials"), (budget.seconds, "s"))
    return ", ".join(f"{bound:g} {unit}" for bound, unit in found if bound is not None)


@jobs.command("extend")
def extend_job(
    job: JobId,
    url: Url = HERE,
    token: Token = "",
    trials: Annotated[int, typer.Option(min=0, help="more trials than it has")] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="more seconds than it has")] = 0.0,
    as_json: Json = False,
) -> None:
    """Gives a job that still searches more to spend; one that confirms or has ended is submitted anew."""
    with client_of(url, token) as client:
        view = client.extend(job, client.job(job).budget.plus(trials, seconds))
    print_json(view) if as_json else print(bounds(view.budget))


def pause_job(job: JobId, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Pauses a job: nothing of it is measured, and its clock stands, until `resume`."""
    with client_of(url, token) as client:
        view = client.pause(job)
    print_json(view) if as_json else print(state_of(view))


def resume_job(job: JobId, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Lets a paused job go on with what it has left."""
    with client_of(url, token) as client:
        view = client.resume(job)
    print_json(view) if as_json else print(state_of(view))
