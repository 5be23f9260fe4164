"""What to type next, by the kind of an error: the line after its message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pitchpipe import errors
from pitchpipe.errors import PitchpipeError
from pitchpipe.places import default_database, own_database

_HINTS: dict[type[PitchpipeError], str] = {
    errors.UnsupportedOperator: "`pitchpipe models check FILE` lists everything in the file that would be refused",
    errors.UnsupportedShape: "`pitchpipe models check FILE` lists everything in the file that would be refused",
    errors.WrongResult: "`pitchpipe minify FILE` finds the operator at fault and writes a program that shows it",
    errors.Unauthorized: "set PITCHPIPE_TOKEN; where the service's database is, `pitchpipe tokens create` makes a token",
    errors.Forbidden: "`pitchpipe tokens create --scope SCOPE` makes a token that may; docs/operations.md has the scopes",
    errors.NotFound: "`pitchpipe jobs list` and `pitchpipe models list` show what this project has",
    errors.Unreachable: "`pitchpipe config show` has its URL; `pitchpipe server --with-coordinator` starts one; "
    f"`--url {default_database()}` reads what was tuned here without one",
    errors.Overloaded: "try again in a while; `pitchpipe jobs list` shows what it is busy with",
    errors.NoDevice: "`pitchpipe doctor` shows what this machine has, `pitchpipe workers list` what a service does",
    errors.InvalidTransition: "`pitchpipe jobs list` has the states; a new job reuses what an earlier one measured",
    errors.SchemaMismatch: "`pitchpipe db upgrade` brings the database to this version",
    errors.JobFailed: "`pitchpipe jobs show JOB` has the reason and what was measured",
    errors.MeasurementFailed: "`pitchpipe doctor` says what this machine lacks",
}


def hint(error: PitchpipeError) -> str | None:
    """The hint for the error's class, or the nearest of its bases that has one; None where the message says it all."""
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)


def after_tuning(database: str) -> str:
    """What to type next when a model was tuned on this machine."""
    _, file, path = database.partition("sqlite:///")
    where = "" if database == own_database() else f" {path}"
    shown = f"; `pitchpipe dashboard{where}` shows every trial in a browser" if file else ""
    return f"next: in Python, `pitchpipe.load(MODEL, pitchpipe.fetch(MODEL))` runs it{shown}"


@contextmanager
def after_interrupt(next_step: str) -> Iterator[None]:
    """Says what to type next after a Ctrl-C in the block. It is raised again; Typer makes exit code 130 of it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"pitchpipe: interrupted\nnext: {next_step}", file=sys.stderr)
        raise
