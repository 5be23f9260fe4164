"""Commands that say what is wrong with a model: `pitchpipe minify`, `pitchpipe models check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe.cli.commands import models
from pitchpipe.cli.options import HERE, Inputs, Json, TargetText, Token, Trust, Url, client_of
from pitchpipe.cli.tables import show
from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import detect_target, parse_input
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind

OUT = Path("minified")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.command("minify")(minify)
    models.command("check")(check)


def minify(
    model: Annotated[Path | None, typer.Argument(help="any file that `pitchpipe tune` takes")] = None,
    task: Annotated[
        str | None, typer.Option(help="in place of a model: a workload's digest, or a JSON file of its ir and trace")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the script")] = OUT,
    seconds: Annotated[float, typer.Option(min=1, help="of one build with its run, after which it hangs")] = WALL_SECS,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trust: Trust = False,
    inputs: Inputs = None,
    as_json: Json = False,
) -> None:
    """Finds the first operator of a model that is wrong or crashes, and writes a script that shows it; exits 1 if so."""
    if (model is None) == (task is None):
        raise InvalidInput("give a model's file or --task, one of them")
    wanted = target if target == "auto" else detect_target(target)
    if task is not None:
        from pitchpipe.deploy.minify_task import minify_task

        with client_of(url, token) as client:
            found = minify_task(task, target=wanted, client=client, out=out, wall_secs=seconds)
    else:
        from pitchpipe.deploy.minify import first_difference

        assert model is not None
        examples = [parse_input(text) for text in inputs] if inputs else None
        found = first_difference(model, examples, target=wanted, trust=trust, out=out, wall_secs=seconds)
    if as_json:
        print(found.model_dump_json())
    else:
        _show(found)
    if found.kind is not FindingKind.NOTHING:
        raise typer.Exit(1)


def _show(found: Finding) -> None:
    rows = [
        ("found", found.kind.value),
        ("operator", found.operator or ""),
        ("node", found.node or ""),
        ("takes", ", ".join(f"{each.dtype}{list(each.shape)}" for each in found.arguments)),
        ("detail", found.detail),
        ("compared with", found.reference or ""),
        ("at fault", found.cause or ""),
        ("script", found.script or ""),
    ]
    show(Console(), "minify", ("", ""), [row for row in rows if row[1]])


def check(
    file: Annotated[Path, typer.Argument(help="any file that `pitchpipe tune` takes")],
    trust: Trust = False,
    inputs: Inputs = None,
    as_json: Json = False,
) -> None:
    """Lists what in a model's file would be refused, and where, without building it; exits 1 if anything would."""
    from pitchpipe.deploy.minify import refusals

    found = refusals(file, [parse_input(text) for text in inputs or ()], trust=trust)
    if as_json:
        print(json.dumps([refusal.model_dump(mode="json") for refusal in found]))
    elif found:
        rows = [(each.operator or "", each.node or "", each.reason) for each in found]
        show(Console(), f"{file.name}: refused", ("operator", "node", "why"), rows)
    else:
        print(f"{file.name}: nothing would be refused")
    if found:
        raise typer.Exit(1)
