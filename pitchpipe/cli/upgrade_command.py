"""`pitchpipe schedules upgrade`: against a service, or with everything embedded on a database of this machine."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe.cli.tables import show_upgrade
from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.places import own_database
from pitchpipe.tuning.progress import Progress
from pitchpipe.upgrade import Upgrade
from pitchpipe.wire.upgrade import RETUNE_TRIALS


def add_to(schedules: typer.Typer) -> None:
    """Attaches the command."""
    schedules.command("upgrade")(upgrade)


def upgrade(
    database: Annotated[
        str | None, typer.Option(help="of this machine, with everything embedded, in place of a service")
    ] = None,
    url: Annotated[
        str | None, typer.Option(envvar="PITCHPIPE_URL", help="of the service; without one, as `pitchpipe tune`")
    ] = None,
    token: Annotated[str, typer.Option(envvar="PITCHPIPE_TOKEN", help="of the project", show_default=False)] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="workloads taken up")] = None,
    budget_seconds: Annotated[float | None, typer.Option(min=1, help="then it ends; what is left stays")] = None,
    tune_trials: Annotated[
        int, typer.Option(min=0, help="of the search for each workload that came out worse; 0: none")
    ] = RETUNE_TRIALS,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
) -> None:
    """Replays what is served from another toolchain, driver or device class than the workers have, the most valuable first.

    It may be interrupted: the next one goes on with what is left. Exits 1 when a job failed.
    """
    service: AbstractContextManager[Client]
    service = Client(url, token) if database is None and url is not None else Embedded(database or own_database(), None)
    with service as client, Progress() as progress:
        work = Upgrade(client, limit=limit, seconds=budget_seconds, trials=tune_trials, on_view=progress.show)
        report = work.run()
    if as_json:
        print(json.dumps(report))
    else:
        show_upgrade(report, Console())
    for error in report["errors"]:
        print(error, file=sys.stderr)
    if report["errors"]:
        raise typer.Exit(1)
