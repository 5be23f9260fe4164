"""What to type next, by the kind of an error: the line after its message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pitchpipe import errors
from pitchpipe.errors import PitchpipeError

_HINTS: dict[type[PitchpipeError], str] = {
    errors.UnsupportedOperator: "`pitchpipe models check FILE` lists everything in the file that would be refused",
    errors.UnsupportedShape: "`pitchpipe models check FILE` lists everything in the file that would be refused",
    errors.WrongResult: "`pitchpipe minify FILE` finds the operator at fault and writes a program that shows it",
    errors.Unauthorized: "set PITCHPIPE_TOKEN; where the service's database is, `pitchpipe tokens create` makes a token",
    errors.Forbidden: "`pitchpipe tokens create --scope SCOPE` makes a token that may; docs/operations.md has the scopes",
    errors.NotFound: "`pitchpipe jobs list` and `pitchpipe models list` show what this project has",
    errors.Unreachable: "`pitchpipe config show` has its URL; `pitchpipe server --with-coordinator` starts one",
    errors.Overloaded: "try again in a while; `pitchpipe jobs list` shows what it is busy with",
    errors.NoDevice: "`pitchpipe workers list` shows what is served; `pitchpipe worker` on the device adds it",
    errors.SchemaMismatch: "`pitchpipe db upgrade` brings the database to this version",
    errors.JobFailed: "`pitchpipe jobs show JOB` has the reason and what was measured",
    errors.MeasurementFailed: "`pitchpipe doctor` says what this machine lacks",
}


def hint(error: PitchpipeError) -> str | None:
    """The hint for the error's class, or the nearest of its bases that has one; None where the message says it all."""
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)


@contextmanager
def after_interrupt(next_step: str) -> Iterator[None]:
    """Says what to type next after a Ctrl-C in the block. It is raised again; Typer makes exit code 130 of it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"pitchpipe: interrupted\nnext: {next_step}", file=sys.stderr)
        raise
