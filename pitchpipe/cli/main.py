"""The command line. Data goes to stdout, progress to stderr; exit codes are in docs/operations.md.

The service and the workers add their commands through the entry-point group "pitchpipe.commands".
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pitchpipe import __version__, telemetry
from pitchpipe.cli import (
    commands,
    config_commands,
    cost_model_commands,
    deploy_commands,
    examples,
    hints,
    job_commands,
    minify_commands,
    options,
    pin_command,
    record_commands,
    report_commands,
    upgrade_command,
)
from pitchpipe.cli.tables import show_tuning
from pitchpipe.cli.tune import TuneOptions, tune
from pitchpipe.embedded import DEFAULT_SECONDS
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import detect_target
from pitchpipe.places import default_database
from pitchpipe.processes.collector import collect_rarely
from pitchpipe.target_kind import hold_device
from pitchpipe.tuning.progress import Progress
from pitchpipe.wire.job import Budget

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, help="Tune tensor programs once for a whole fleet."
)
errors = Console(stderr=True)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"pitchpipe {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Options before any command."""


@app.command("tune")
def tune_command(
    model: Annotated[
        Path, typer.Argument(help="an .onnx, .tflite, .mlir, .pt2 or .pt file, or Relax JSON from the SDK")
    ],
    trials: Annotated[int | None, typer.Option(min=0, help="candidates to measure")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="seconds of tuning")] = None,
    until_gain: job_commands.UntilGain = None,
    target: options.TargetText = "auto",
    database: Annotated[str | None, typer.Option(envvar="PITCHPIPE_DATABASE_URL", help="SQLAlchemy URL")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the search and the input data")] = 0,
    trust: options.Trust = False,
    inputs: options.Inputs = None,
    compare: options.Compare = True,
    precision: options.PrecisionText = "ieee",
    html: report_commands.Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    log_level: Annotated[str, typer.Option(help="of the server and the worker")] = "warning",
) -> None:
    """Compares a model with its framework, tunes it on this machine, and compares it again."""
    telemetry.configure("pitchpipe")
    options = TuneOptions(
        path=model,
        database=database or default_database(),
        target=None if target == "auto" else detect_target(hold_device(target)),
        budget=Budget(
            trials=trials,
            seconds=DEFAULT_SECONDS if trials is None and seconds is None else seconds,
            until_gain=until_gain,
        ),
        seed=seed,
        trust=trust,
        inputs=tuple(inputs or ()),
        compare=compare,
        precision=precision,
        html=html,
        log_level=log_level,
    )
    with hints.after_interrupt("run the same command again: it goes on from what was measured"), Progress() as progress:
        result = tune(options, progress.show, progress.say)
    if as_json:
        print(json.dumps(result))
    else:
        show_tuning(result, Console())
        errors.print(hints.after_tuning(options.database), markup=False, highlight=False, soft_wrap=True)


job_commands.add_commands(app)
commands.add_commands(app)
deploy_commands.add_commands(app)
upgrade_command.add_to(commands.schedules)
pin_command.add_to(commands.schedules)
minify_commands.add_commands(app)
record_commands.add_commands(app)
cost_model_commands.add_commands(app)
report_commands.add_commands(app)
config_commands.add_commands(app)
for plugin in entry_points(group="pitchpipe.commands"):
    try:
        plugin.load()(app)
    except ImportError:
        continue  # an extra that is not installed: its commands are not offered
examples.attach(app)


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line and exits: 0 ok, 1 failed, 2 usage, 3 not found, 4 auth, 5 unreachable, 124, 130."""
    collect_rarely()
    try:
        app(arguments)
    except PitchpipeError as error:
        # One line, whatever a parser had to say.
        cause = " ".join(error.detail.split())
        errors.print(f"pitchpipe: {error.title}: {cause}", markup=False, highlight=False, soft_wrap=True)
        if (next_step := hints.hint(error)) is not None:
            errors.print(f"next: {next_step}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
