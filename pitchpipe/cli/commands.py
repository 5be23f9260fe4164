"""Commands over a running service, noun then verb: jobs, schedules, workers, models; and doctor."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console

from pitchpipe.cli.tables import billions, interval, milliseconds, roofs, share, show, steady
from pitchpipe.client import Client
from pitchpipe.deploy.explain import explain_inexact
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.named_target import named_target
from pitchpipe.errors import DeadlineExceeded, InvalidInput, JobFailed
from pitchpipe.model.local import detect_target, parse_input
from pitchpipe.processes.plugins import step
from pitchpipe.sdk import submit
from pitchpipe.tuning.progress import Progress, state_of
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from pitchpipe.wire.target import Target

RETRY_SECS = 5.0
"""How long a command goes on trying to reach the service; whoever watches a job waits longer, for a restart."""
HERE = "http://127.0.0.1:8734"
"""Where `pitchpipe server` listens unless it is told otherwise."""

Url = Annotated[str, typer.Option(envvar="PITCHPIPE_URL", help="of the service")]
Token = Annotated[str, typer.Option(envvar="PITCHPIPE_TOKEN", help="of the project", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Trust = Annotated[bool, typer.Option(help="accept a file that can run code (.pt, .pt2, .py)")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="of TorchScript, or of ONNX with open shapes, in order, as float32[1,3,224,224]"),
]
PrecisionText = Annotated[
    str,
    typer.Option("--precision", help="of float32 products and convolutions on a GPU: ieee, or tf32 on tensor cores"),
]
Compare = Annotated[bool, typer.Option(help="first compare the model with the framework that it came from")]


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
TARGET_HELP = "auto, a device (cpu, cuda, cuda:1), or JSON with TVM's attribute names"
TargetText = Annotated[str, typer.Option(help=TARGET_HELP)]

jobs = typer.Typer(no_args_is_help=True, help="Tuning jobs.")
schedules = typer.Typer(no_args_is_help=True, help="Schedules of the project.")
workers = typer.Typer(no_args_is_help=True, help="Workers of the project.")
models = typer.Typer(no_args_is_help=True, help="Submitted models.")
misses = typer.Typer(no_args_is_help=True, help="What deployments missed.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    groups = {"jobs": jobs, "schedules": schedules, "workers": workers, "models": models, "misses": misses}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    app.command("pause")(pause_job)
    app.command("resume")(resume_job)
    app.command("doctor")(doctor)


def _client(url: str, token: str) -> Client:
    return Client(url, token, retry_secs=RETRY_SECS)


def _target_of(client: Client, model_or_job: str, target: str) -> Target:
    """For `auto` that of the job, if it has only one, else this machine's; of a name the workers' where this has none."""
    if target == "auto" and model_or_job.startswith("job_"):
        targets = client.job(model_or_job).targets
        if len(targets) == 1:
            return targets[0]
    return named_target(target, client)


def _print(items: BaseModel | Sequence[BaseModel]) -> None:
    one = isinstance(items, BaseModel)
    shown: Any = items.model_dump(mode="json") if one else [item.model_dump(mode="json") for item in items]  # type: ignore[union-attr]
    print(json.dumps(shown))


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
    with _client(url, token) as client:
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
    _print(job) if as_json else print(job.id)


@jobs.command("list")
def list_jobs(url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Jobs of the project, newest first."""
    with _client(url, token) as client:
        found = list(client.jobs())
    if as_json:
        _print(found)
        return
    rows = [
        (job.id, job.model_name, state_of(job), str(job.progress.trials), milliseconds(job.progress.best_secs))
        for job in found
    ]
    show(Console(), "jobs", ("job", "model", "state", "trials", "best ms"), rows, numbers_from=3)


@jobs.command("show")
def show_job(job: str, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """One job with its tasks."""
    with _client(url, token) as client:
        view = client.job(job)
    if as_json:
        _print(view)
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
    job: str,
    url: Url = HERE,
    token: Token = "",
    timeout: Annotated[float | None, typer.Option(min=0, help="seconds")] = None,
    as_json: Json = False,
) -> None:
    """Follows a job to its end; exits 1 if it failed or was cancelled, 124 when the timeout passes first."""
    with Client(url, token) as client, Progress() as progress:
        view = client.wait(job, timeout_secs=timeout, on_view=progress.show)
    if as_json:
        _print(view)
    if not view.state.ended:
        raise DeadlineExceeded(f"{job} is still {view.state.value}")
    if view.state is not JobState.DONE:
        raise JobFailed(f"{job} ended as {view.state.value}: {view.error or 'no reason given'}")


@jobs.command("cancel")
def cancel_job(job: str, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Cancels a job; what it measured stays."""
    with _client(url, token) as client:
        view = client.cancel(job)
    _print(view) if as_json else print(view.state.value)


def pause_job(job: str, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Pauses a job: nothing of it is measured, and its clock stands, until `resume`."""
    with _client(url, token) as client:
        view = client.pause(job)
    _print(view) if as_json else print(state_of(view))


def resume_job(job: str, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Lets a paused job go on with what it has left."""
    with _client(url, token) as client:
        view = client.resume(job)
    _print(view) if as_json else print(state_of(view))


@schedules.command("lookup")
def look_up(
    model_or_job: str,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    as_json: Json = False,
) -> None:
    """The best known schedules for a job id, a model id or a model's file; auto is a job's own target."""
    with _client(url, token) as client:
        found = fetch(model_or_job, target=_target_of(client, model_or_job, target), client=client)
    if as_json:
        _print(found.response)
        return
    rows = [
        (
            answer.workload[:16],
            answer.tier.value,
            milliseconds(answer.best.secs if answer.best else None),
            interval(answer.best),
            answer.reason,
        )
        for answer in found.response.answers
    ]
    show(Console(), "schedules", ("workload", "tier", "ms", "95 % interval", "reason"), rows)


@schedules.command("explain")
def explain_schedules(
    model: Path,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trust: Annotated[bool, typer.Option(help="accept a file that can run code (.pt2, .py)")] = False,
    as_json: Json = False,
) -> None:
    """Why workloads of a model's file have no exact schedule: the nearest stored ones and what tells them apart."""
    wanted = target if target == "auto" else detect_target(target)
    with _client(url, token) as client:
        found = explain_inexact(model, target=wanted, client=client, trust=trust)
    if as_json:
        _print(found)
        return
    rows = []
    for one in found.misses:
        rows.append((one.operators or one.workload[:16], one.tier.value, "", "", one.reason))
        for near in one.nearest:
            told = "; ".join(f"{d.subject}: asked {d.asked}, stored {d.stored}" for d in near.differences)
            rows.append(("", "", near.operators or near.workload[:16], milliseconds(near.secs), told or "the same key"))
    show(Console(), "not exact", ("workload", "tier", "nearest", "ms", "why"), rows)


@schedules.command("export")
def export_schedules(
    model_or_job: str,
    folder: Path,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
) -> None:
    """Writes MetaSchedule's pair of JSON files, which stock TVM applies; prints how many schedules they hold."""
    with _client(url, token) as client:
        wanted = _target_of(client, model_or_job, target)
        found = fetch(model_or_job, target=wanted, client=client)
        served = [(answer.workload, answer.best) for answer in found.response.answers if answer.best is not None]
        entries = [(client.workload(workload), best.trace, best.secs) for workload, best in served]
    try:
        written = step("export_metaschedule")(entries, wanted, folder)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror}") from error
    if written < len(entries):
        print(
            f"{len(entries) - written} left out: stock TVM has neither templates nor rewrites of workloads",
            file=sys.stderr,
        )
    print(written)


@schedules.command("import")
def import_schedules(
    folder: Path,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    as_json: Json = False,
) -> None:
    """Submits MetaSchedule's pair of JSON files as a job that measures them: nothing unverified is ever served."""
    try:
        pair = {name: (folder / f"database_{name}.json").read_text() for name in ("workload", "tuning_record")}
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{folder} holds a file that is no text: {error}") from error
    with _client(url, token) as client:
        wanted = named_target(target, client)
        name = folder.absolute().name or "import"
        model = client.upload_model(json.dumps(pair).encode(), name=name, format=ModelFormat.METASCHEDULE)
        job = client.submit(JobRequest(model=model.id, targets=(wanted,), budget=Budget(trials=0)))
    _print(job) if as_json else print(job.id)


@workers.command("list")
def list_workers(url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Workers of the project."""
    with _client(url, token) as client:
        found = client.workers()
    if as_json:
        _print(found)
        return
    rows = [
        (
            w.id,
            w.name,
            w.state.value,
            steady(w.steadiness),
            w.device.model,
            w.target.key,
            *roofs(w.roofline),
            str(w.trials),
        )
        for w in found
    ]
    headings = ("worker", "name", "state", "steadiness", "device", "target", "GFLOP/s", "GB/s", "trials")
    show(Console(), "workers", headings, rows)


@models.command("list")
def list_models(url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Models of the project."""
    with _client(url, token) as client:
        found = list(client.models())
    if as_json:
        _print(found)
        return
    rows = [(m.id, m.name, m.format.value, str(m.comparison or "-"), str(m.size_bytes)) for m in found]
    show(Console(), "models", ("model", "name", "format", "comparison", "bytes"), rows, numbers_from=4)


@misses.command("list")
def list_misses(
    url: Url = HERE,
    token: Token = "",
    target: Annotated[str | None, typer.Option(help=f"only of this one; {TARGET_HELP}")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    as_json: Json = False,
) -> None:
    """What deployments ran without a schedule, the most valuable first."""
    wanted = None if target is None else detect_target(target)
    with _client(url, token) as client:
        found = client.misses(wanted, limit)
    if as_json:
        _print(found)
        return
    rows = [
        (m.workload[:16], m.stage.value, f"{m.value_secs:.3g}", str(m.runs), milliseconds(m.default_secs), m.job or "")
        for m in found
    ]
    show(Console(), "misses", ("workload", "stage", "s spent", "runs", "default ms", "job"), rows, numbers_from=2)


@misses.command("budget")
def idle_budget(
    trials_per_day: Annotated[int | None, typer.Argument(min=0, help="0 is off; left out, nothing changes")] = None,
    url: Url = HERE,
    token: Token = "",
    as_json: Json = False,
) -> None:
    """Sets or shows what idle workers may spend on misses in a day."""
    with _client(url, token) as client:
        found = client.idle_budget() if trials_per_day is None else client.set_idle_budget(trials_per_day)
    _print(found) if as_json else print(f"{found.trials_per_day} trials a day, {found.spent_today} granted today")


def doctor(
    database: Annotated[str | None, typer.Option(envvar="PITCHPIPE_DATABASE_URL", help="SQLAlchemy URL")] = None,
    as_json: Json = False,
) -> None:
    """Prints versions, target, threads and database, and what is wrong; exits 1 when something is."""
    from pitchpipe.cli.doctor import examine

    findings = examine(database)
    if as_json:
        print(json.dumps([finding.model_dump(mode="json") for finding in findings]))
    else:
        rows = [("ok" if f.ok else "WRONG", f.subject, f.detail) for f in findings]
        show(Console(), "doctor", ("", "what", "found"), rows)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
