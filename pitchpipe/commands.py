"""Commands over a running service, noun then verb: jobs, schedules, workers, models; and doctor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console

from pitchpipe.client import Client
from pitchpipe.errors import DeadlineExceeded, InvalidInput, PitchpipeError
from pitchpipe.plugins import step
from pitchpipe.progress import Progress
from pitchpipe.sdk import fetch, submit
from pitchpipe.tables import milliseconds, show
from pitchpipe.tune import detect_target
from pitchpipe.wire.job import Budget, JobRequest, JobState, JobView, ModelFormat

Url = Annotated[str, typer.Option(envvar="PITCHPIPE_URL", help="of the service")]
Token = Annotated[str, typer.Option(envvar="PITCHPIPE_TOKEN", help="of the project", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
TargetText = Annotated[str, typer.Option(help="auto, or JSON with TVM's attribute names")]

jobs = typer.Typer(no_args_is_help=True, help="Tuning jobs.")
schedules = typer.Typer(no_args_is_help=True, help="Schedules of the project.")
workers = typer.Typer(no_args_is_help=True, help="Workers of the project.")
models = typer.Typer(no_args_is_help=True, help="Submitted models.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    for name, group in (("jobs", jobs), ("schedules", schedules), ("workers", workers), ("models", models)):
        app.add_typer(group, name=name)
    app.command("doctor")(doctor)


def _print(items: BaseModel | Sequence[BaseModel]) -> None:
    one = isinstance(items, BaseModel)
    shown: Any = items.model_dump(mode="json") if one else [item.model_dump(mode="json") for item in items]  # type: ignore[union-attr]
    print(json.dumps(shown))


@jobs.command("submit")
def submit_job(
    model: Path,
    url: Url = "http://127.0.0.1:8734",
    token: Token = "",
    target: TargetText = "auto",
    trials: Annotated[int | None, typer.Option(min=0)] = None,
    seconds: Annotated[float | None, typer.Option(min=1)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    trust: Annotated[bool, typer.Option(help="accept a file that can run code (.pt2, .py)")] = False,
    as_json: Json = False,
) -> None:
    """Sends a model's graph, without weights, and starts a job."""
    job = submit(
        model, target=target, trials=trials, seconds=seconds, seed=seed, client=Client(url, token), trust=trust
    )
    _print(job) if as_json else print(job.id)


@jobs.command("list")
def list_jobs(url: Url = "http://127.0.0.1:8734", token: Token = "", as_json: Json = False) -> None:
    """Jobs of the project, newest first."""
    found = list(Client(url, token).jobs())
    if as_json:
        _print(found)
        return
    rows = [
        (job.id, job.model_name, job.state.value, str(job.progress.trials), milliseconds(job.progress.best_secs))
        for job in found
    ]
    show(Console(), "jobs", ("job", "model", "state", "trials", "best ms"), rows, numbers_from=3)


@jobs.command("show")
def show_job(job: str, url: Url = "http://127.0.0.1:8734", token: Token = "", as_json: Json = False) -> None:
    """One job with its tasks."""
    view = Client(url, token).job(job)
    if as_json:
        _print(view)
        return
    rows = [
        (t.name[:44], str(t.weight), str(t.trials), milliseconds(t.untuned_secs), milliseconds(t.tuned_secs))
        for t in view.tasks
    ]
    title = f"{view.id} {view.model_name}: {view.state.value}" + (f" ({view.error})" if view.error else "")
    show(Console(), title, ("task", "weight", "trials", "untuned ms", "tuned ms"), rows, numbers_from=1)


@jobs.command("watch")
def watch_job(
    job: str,
    url: Url = "http://127.0.0.1:8734",
    token: Token = "",
    timeout: Annotated[float | None, typer.Option(min=0, help="seconds")] = None,
    as_json: Json = False,
) -> None:
    """Follows a job to its end; exits 1 if it failed or was cancelled, 124 when the timeout passes first."""
    client = Client(url, token)
    with Progress() as progress:
        view = client.wait(job, timeout_secs=timeout, on_view=progress.show)
    if as_json:
        _print(view)
    if not view.state.ended:
        raise DeadlineExceeded(f"{job} is still {view.state.value}")
    if view.state is not JobState.DONE:
        raise PitchpipeError(f"{job} ended as {view.state.value}: {view.error or 'no reason given'}")


@jobs.command("cancel")
def cancel_job(job: str, url: Url = "http://127.0.0.1:8734", token: Token = "", as_json: Json = False) -> None:
    """Cancels a job; what it measured stays."""
    view: JobView = Client(url, token).cancel(job)
    _print(view) if as_json else print(view.state.value)


@schedules.command("lookup")
def look_up(
    model_or_job: str,
    url: Url = "http://127.0.0.1:8734",
    token: Token = "",
    target: TargetText = "auto",
    as_json: Json = False,
) -> None:
    """The best known schedules for a job id or an ONNX file."""
    found = fetch(model_or_job, target=target, client=Client(url, token))
    if as_json:
        _print(found.response)
        return
    rows = [
        (
            answer.workload[:16],
            answer.tier.value,
            milliseconds(answer.best.secs if answer.best else None),
            answer.reason,
        )
        for answer in found.response.answers
    ]
    show(Console(), "schedules", ("workload", "tier", "ms", "reason"), rows)


@schedules.command("export")
def export_schedules(
    model_or_job: str,
    folder: Path,
    url: Url = "http://127.0.0.1:8734",
    token: Token = "",
    target: TargetText = "auto",
) -> None:
    """Writes MetaSchedule's pair of JSON files, which stock TVM applies."""
    client = Client(url, token)
    wanted = detect_target(target)
    found = fetch(model_or_job, target=wanted, client=client)
    served = [answer for answer in found.response.answers if answer.best is not None]
    entries = [(client.workload(a.workload), a.best.trace, a.best.secs) for a in served if a.best is not None]
    step("export_metaschedule")(entries, wanted, folder)
    print(len(entries))


@schedules.command("import")
def import_schedules(
    folder: Path,
    url: Url = "http://127.0.0.1:8734",
    token: Token = "",
    target: TargetText = "auto",
    as_json: Json = False,
) -> None:
    """Submits MetaSchedule's pair of JSON files as a job that measures them: nothing unverified is ever served."""
    client = Client(url, token)
    try:
        pair = {name: (folder / f"database_{name}.json").read_text() for name in ("workload", "tuning_record")}
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}") from error
    model = client.upload_model(json.dumps(pair).encode(), name=folder.name, format=ModelFormat.METASCHEDULE)
    request = JobRequest(model=model.id, targets=(detect_target(target),), budget=Budget(trials=0))
    job = client.submit(request)
    _print(job) if as_json else print(job.id)


@workers.command("list")
def list_workers(url: Url = "http://127.0.0.1:8734", token: Token = "", as_json: Json = False) -> None:
    """Workers of the project."""
    found = list(Client(url, token).workers())
    if as_json:
        _print(found)
        return
    rows = [(w.id, w.name, w.state.value, w.device.model, w.target.key, str(w.trials)) for w in found]
    show(Console(), "workers", ("worker", "name", "state", "device", "target", "trials"), rows)


@models.command("list")
def list_models(url: Url = "http://127.0.0.1:8734", token: Token = "", as_json: Json = False) -> None:
    """Models of the project."""
    found = list(Client(url, token).models())
    if as_json:
        _print(found)
        return
    rows = [(m.id, m.name, m.format.value, str(m.size_bytes)) for m in found]
    show(Console(), "models", ("model", "name", "format", "bytes"), rows, numbers_from=3)


def doctor(
    database: Annotated[str | None, typer.Option(envvar="PITCHPIPE_DATABASE_URL", help="SQLAlchemy URL")] = None,
    as_json: Json = False,
) -> None:
    """Prints versions, target, threads and database, and what is wrong; exits 1 when something is."""
    from pitchpipe.doctor import examine

    findings = examine(database)
    if as_json:
        print(json.dumps([finding.model_dump(mode="json") for finding in findings]))
    else:
        rows = [("ok" if f.ok else "WRONG", f.subject, f.detail) for f in findings]
        show(Console(), "doctor", ("", "what", "found"), rows)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
