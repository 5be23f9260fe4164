"""Commands over a running service, noun then verb: schedules, workers, models, misses; and doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe.cli.options import HERE, TARGET_HELP, Json, TargetText, Token, Url, client_of, print_json
from pitchpipe.cli.tables import interval, milliseconds, roofs, show, steady
from pitchpipe.client import Client
from pitchpipe.deploy.explain import explain_inexact
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.named_target import named_target
from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import detect_target
from pitchpipe.processes.plugins import step
from pitchpipe.wire.job import Budget, JobRequest, ModelFormat
from pitchpipe.wire.savings import MAX_DAYS
from pitchpipe.wire.target import Target

schedules = typer.Typer(no_args_is_help=True, help="Schedules of the project.")
workers = typer.Typer(no_args_is_help=True, help="Workers of the project.")
models = typer.Typer(no_args_is_help=True, help="Submitted models.")
misses = typer.Typer(no_args_is_help=True, help="What deployments missed.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    groups = {"schedules": schedules, "workers": workers, "models": models, "misses": misses}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    app.command("doctor")(doctor)


def _target_of(client: Client, model_or_job: str, target: str) -> Target:
    """The target that the option means: `auto` is the job's, where it has only one, else this machine's. The name of a kind
    that this machine has no device of is the target of the workers of that kind."""
    if target == "auto" and model_or_job.startswith("job_"):
        targets = client.job(model_or_job).targets
        if len(targets) == 1:
            return targets[0]
    return named_target(target, client)


@schedules.command("lookup")
def look_up(
    model_or_job: str,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    as_json: Json = False,
) -> None:
    """The best known schedules for a job id, a model id or a model's file; auto is a job's own target."""
    with client_of(url, token) as client:
        found = fetch(model_or_job, target=_target_of(client, model_or_job, target), client=client)
    if as_json:
        print_json(found.response)
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
    with client_of(url, token) as client:
        found = explain_inexact(model, target=wanted, client=client, trust=trust)
    if as_json:
        print_json(found)
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
    with client_of(url, token) as client:
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
    with client_of(url, token) as client:
        wanted = named_target(target, client)
        name = folder.absolute().name or "import"
        model = client.upload_model(json.dumps(pair).encode(), name=name, format=ModelFormat.METASCHEDULE)
        job = client.submit(JobRequest(model=model.id, targets=(wanted,), budget=Budget(trials=0)))
    print_json(job) if as_json else print(job.id)


@workers.command("list")
def list_workers(url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Workers of the project."""
    with client_of(url, token) as client:
        found = client.workers()
    if as_json:
        print_json(found)
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
    with client_of(url, token) as client:
        found = list(client.models())
    if as_json:
        print_json(found)
        return
    rows = [(m.id, m.name, m.format.value, str(m.comparison or "-"), str(m.size_bytes)) for m in found]
    show(Console(), "models", ("model", "name", "format", "comparison", "bytes"), rows, numbers_from=4)


@schedules.command("saved")
def saved(
    url: Url = HERE,
    token: Token = "",
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="up to today, UTC")] = 7,
    as_json: Json = False,
) -> None:
    """Seconds that served schedules saved the deployments that report their runs, day by day."""
    with client_of(url, token) as client:
        found = client.savings(days)
    if as_json:
        print_json(found)
        return
    named = [(str(day.day), day) for day in found.days] + [("together", found.last(days))]
    rows = [
        (name, str(of.runs), f"{of.baseline_saved_secs:.3g}", str(of.default_runs), f"{of.default_saved_secs:.3g}")
        for name, of in named
    ]
    headings = ("day", "runs", "s saved over baseline", "runs with a known default", "s saved over default")
    show(Console(), "saved by served schedules", headings, rows, numbers_from=1)


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
    with client_of(url, token) as client:
        found = client.misses(wanted, limit)
    if as_json:
        print_json(found)
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
    with client_of(url, token) as client:
        found = client.idle_budget() if trials_per_day is None else client.set_idle_budget(trials_per_day)
    print_json(found) if as_json else print(f"{found.trials_per_day} trials a day, {found.spent_today} granted today")


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
