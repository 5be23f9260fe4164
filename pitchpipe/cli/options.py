"""What the commands have in common: their options, a client, and how values are printed as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.errors import InvalidInput, PitchpipeError
from pitchpipe.wire.page import MAX_PAGE

RETRY_SECS = 5.0
"""How long a command goes on trying to reach the service; whoever watches a job waits longer, for a restart."""
HERE = "http://127.0.0.1:8734"
"""Where `pitchpipe server` listens unless it is told otherwise."""
SQLITE = "sqlite:///"
COMPLETION_SECS = 0.5
"""How long the shell waits for each step of a completion that the service is asked for."""
COMPLETED = 20
"""Jobs that a completion offers, at most."""

Url = Annotated[
    str,
    typer.Option(envvar="PITCHPIPE_URL", help="of the service; sqlite:///PATH: of what was tuned here without one"),
]
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


TARGET_HELP = "auto, a device (cpu, cuda, cuda:1), or JSON with TVM's attribute names"
TargetText = Annotated[str, typer.Option(help=TARGET_HELP)]


def client_of(url: str, token: str) -> AbstractContextManager[Client]:
    """A client that gives up soon, for a command that asks once. A SQLite file is served for as long as that takes.

    Raises InvalidInput where there is no such file.
    """
    if not url.startswith(SQLITE):
        return Client(url, token, retry_secs=RETRY_SECS)
    if not Path(url.removeprefix(SQLITE)).is_file():
        raise InvalidInput(f"there is no database {url.removeprefix(SQLITE)}: `pitchpipe tune` makes one")
    return Embedded(url, None, measures=False)


def print_json(items: BaseModel | Sequence[BaseModel]) -> None:
    """Prints one wire value, or several as a list."""
    one = isinstance(items, BaseModel)
    shown: Any = items.model_dump(mode="json") if one else [item.model_dump(mode="json") for item in items]  # type: ignore[union-attr]
    print(json.dumps(shown))


def newest_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """(id, what it is) of the newest jobs that begin so, for the shell's completion; none unless the service answers at
    once."""
    url, token = ctx.params.get("url") or HERE, ctx.params.get("token")
    try:
        with Client(url, token, timeout_secs=COMPLETION_SECS, retry_secs=0) as client:
            page = list(islice(client.jobs(), MAX_PAGE))
    except PitchpipeError:
        return []
    found = (job for job in page if job.id.startswith(incomplete))
    return [(job.id, f"{job.model_name}: {job.state.value}") for job in islice(found, COMPLETED)]


JobId = Annotated[str, typer.Argument(help="id of a job", show_default=False, autocompletion=newest_jobs)]
