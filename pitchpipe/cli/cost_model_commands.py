"""`pitchpipe cost-models`: the registry of cost models."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe.cli.options import HERE, Json, Token, Url, client_of, print_json
from pitchpipe.cli.tables import show
from pitchpipe.wire.cost_model import CostModelDetail, CostModelView, Marks

LIMIT = 50
Version = Annotated[str, typer.Argument(metavar="COST_MODEL", help="id of a version, as `list` prints it")]

cost_models = typer.Typer(no_args_is_help=True, help="Versions of the project's cost models.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.add_typer(cost_models, name="cost-models")


@cost_models.command("list")
def list_cost_models(
    url: Url = HERE,
    token: Token = "",
    kind: Annotated[str | None, typer.Option(help="of target: llvm or cuda")] = None,
    limit: Annotated[int, typer.Option(min=1, help="versions at most")] = LIMIT,
    as_json: Json = False,
) -> None:
    """Versions, newest first, with their marks beside those of the version that served."""
    with client_of(url, token) as client:
        found = list(islice(client.cost_models(kind), limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.target_kind,
            str(each.version),
            each.state.value,
            "-" if each.parent is None else str(each.parent),
            str(each.samples),
            _marks(each.held_out),
            _marks(each.shadow),
            each.reason,
        )
        for each in found
    ]
    headings = ("cost model", "target", "version", "state", "parent", "samples", "held out", "in the shadow", "reason")
    show(Console(), "cost models", headings, rows)


@cost_models.command("show")
def show_cost_model(version: Version, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """One version: its data, its marks task by task, and which version replaced which, and why."""
    with client_of(url, token) as client:
        found = client.cost_model(version)
    if as_json:
        print_json(found)
        return
    console = Console()
    show(console, found.id, ("", ""), _facts(found))
    for title, tasks in (("held-out tasks", found.held_out_tasks), ("in the shadow", found.shadow_tasks)):
        rows = [
            (
                task.workload[:16],
                str(task.candidates),
                f"{task.pairwise:.3f}",
                "-" if task.rival_pairwise is None else f"{task.rival_pairwise:.3f}",
                f"{task.peak_1:.3f}",
                f"{task.peak_5:.3f}",
            )
            for task in tasks
        ]
        headings = ("workload", "candidates", "pairwise", "that of its rival", "peak@1", "peak@5")
        show(console, title, headings, rows, numbers_from=1)
    changes = [
        (
            f"{change.at:%Y-%m-%d %H:%M:%S}",
            str(change.version),
            "-" if change.replaced is None else str(change.replaced),
            change.by or "the rule",
            change.reason,
        )
        for change in found.changes
    ]
    show(console, "which served", ("since (UTC)", "version", "replaced", "by", "reason"), changes)


@cost_models.command("promote")
def promote(version: Version, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Lets a version serve, whatever its marks. The next that is trained is compared with it."""
    with client_of(url, token) as client:
        _tell(client.promote_cost_model(version), as_json=as_json)


@cost_models.command("rollback")
def roll_back(version: Version, url: Url = HERE, token: Token = "", as_json: Json = False) -> None:
    """Lets the version serve that this one, which serves now, had replaced."""
    with client_of(url, token) as client:
        _tell(client.roll_back_cost_model(version), as_json=as_json)


def _tell(view: CostModelView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
    else:
        print(f"{view.id}: version {view.version} for {view.target_kind} is {view.state.value}")


def _facts(found: CostModelDetail) -> list[tuple[str, str]]:
    rows = [
        ("target", found.target_kind),
        ("version", str(found.version)),
        ("origin", found.origin.value),
        ("state", f"{found.state.value}: {found.reason}" if found.reason else found.state.value),
        ("parent", "-" if found.parent is None else str(found.parent)),
        ("created", f"{found.created_at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    if (data := found.data) is not None:
        told = (
            f"{data.samples} records of {data.tasks} tasks, {data.since:%Y-%m-%d %H:%M} to {data.until:%Y-%m-%d %H:%M}"
        )
        rows.append(("trained on", f"{told} UTC"))
    return [*rows, ("held out", _marks(found.held_out)), ("in the shadow", _marks(found.shadow))]


def _marks(marks: Marks | None) -> str:
    """Pairwise accuracy beside that of the version that served, and on how many tasks."""
    if marks is None or marks.pairwise is None:
        return "-"
    rival = "" if marks.rival_pairwise is None else f", rival {marks.rival_pairwise:.3f}"
    return f"{marks.pairwise:.3f}{rival} ({marks.tasks} tasks)"
