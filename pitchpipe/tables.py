"""Tables for people: what `tune` and the list commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pitchpipe.wire.lease import Steadiness
from pitchpipe.wire.record import Best


def show_tuning(result: dict[str, Any], console: Console) -> None:
    """The tasks of a finished `tune`, slowest first, then the whole model."""
    tasks = sorted(result["tasks"], key=lambda task: -task["weight"] * (task["tuned_secs"] or 0.0))
    total = sum(task["weight"] * (task["tuned_secs"] or 0.0) for task in tasks) or 1.0
    rows = [
        (
            task["name"][:44],
            str(task["weight"]),
            f"{task['flops'] / 1e6:.1f}",
            f"{task['weight'] * (task['tuned_secs'] or 0.0) / total:.1%}",
            str(task["trials"]),
            milliseconds(task["untuned_secs"]),
            milliseconds(task["tuned_secs"]),
            f"{task['flops'] / task['tuned_secs'] / 1e9:.1f}" if task["tuned_secs"] else "-",
        )
        for task in tasks
    ]
    headings = ("task", "weight", "MFLOP", "share", "trials", "untuned ms", "tuned ms", "GFLOP/s")
    show(console, f"{result['model']} on {result['device']}", headings, rows, numbers_from=1)
    whole = [
        ("untuned", f"{milliseconds(result['untuned_secs'])} ms"),
        ("tuned", f"{milliseconds(result['tuned_secs'])} ms"),
        ("speed-up", f"{result['speedup']:.1f}x"),
        ("largest absolute error", f"{result['max_abs_error']:.2e} against {result['reference']}"),
        ("trials", f"{result['trials']} ({result['failed_trials']} failed, {result['reused_tasks']} tasks reused)"),
        ("seconds spent", f"{result['seconds']:.0f}"),
    ]
    show(console, "whole model", ("", ""), whole, numbers_from=1)


def show(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 99
) -> None:
    """A plain table; columns from `numbers_from` on are right-aligned."""
    table = Table(title=title, title_justify="left", box=None, show_header=any(headings), pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position >= numbers_from else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console.width = 140
    console.print(table)
    console.print()


def milliseconds(secs: float | None) -> str:
    """Three decimals, or a dash for an unknown time."""
    return "-" if secs is None else f"{secs * 1e3:.3f}"


def interval(best: Best | None) -> str:
    """The ends of the interval of a served time, in milliseconds."""
    return "-" if best is None else f"{milliseconds(best.secs_low)} to {milliseconds(best.secs_high)}"


def steady(steadiness: Steadiness | None) -> str:
    """In a word whether a worker's timings can be trusted, and how far a noisy one is off."""
    if steadiness is None:
        return "unknown"
    return f"noisy {steadiness.ratio:.1f}x" if steadiness.noisy else "quiet"
