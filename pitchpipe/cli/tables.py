"""Tables for people: what `tune` and the list commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pitchpipe.tuning.report import unconfirmed
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.lease import Steadiness
from pitchpipe.wire.record import Best
from pitchpipe.wire.roofline import Roofline

WIDEST = 10_000
"""Of a table, in characters."""


def show_tuning(result: dict[str, Any], console: Console) -> None:
    """The tasks of a finished `tune`, slowest first, then the whole model."""
    tasks = sorted(result["tasks"], key=lambda task: -task["weight"] * (task["tuned_secs"] or 0.0))
    open_tasks = sum(task["tuned_secs"] is None for task in tasks)
    total = sum(task["weight"] * (task["tuned_secs"] or 0.0) for task in tasks) or 1.0
    rows = [
        (
            task["name"][:44],
            str(task["weight"]),
            f"{task['flops'] / 1e6:.1f}",
            "-" if open_tasks else f"{task['weight'] * task['tuned_secs'] / total:.1%}",
            str(task["trials"]),
            milliseconds(task["untuned_secs"]),
            milliseconds(task["tuned_secs"]),
            billions(task["flops_per_sec"]),
            billions(task["bytes_per_sec"]),
            share(task["bound_share"]),
        )
        for task in tasks
    ]
    headings = ("task", "weight", "MFLOP", "share", "trials", "baseline ms", "tuned ms", "GFLOP/s", "GB/s", "of bound")
    show(console, f"{result['model']} on {result['device']}", headings, rows, numbers_from=1)
    whole = [
        ("default schedules", f"{milliseconds(result['default_secs'])} ms"),
        ("tuned", f"{milliseconds(result['tuned_secs'])} ms, {result['speedup']:.2f}x as fast"),
        *_peer(result),
        ("largest absolute error", f"{result['max_abs_error']:.2e} against {result['reference']}"),
        *((f"{build} build", str(Comparison(**told))) for build, told in result["comparison"].items()),
        (
            "trials",
            f"{result['trials']} ({result['failed_trials']} failed, {result['reused_tasks']} tasks reused, "
            f"{result['replayed_tasks']} replayed)",
        ),
        ("seconds spent", f"{result['seconds']:.0f}"),
    ]
    if open_tasks:
        whole.append(("not confirmed", unconfirmed(open_tasks, len(tasks))))
    if result["untuned_secs"] is not None:
        whole.append(("unscheduled loops, summed", f"{milliseconds(result['untuned_secs'])} ms"))
    show(console, "whole model", ("", ""), whole, numbers_from=1)


def _peer(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The row of the best installed peer."""
    if result["peer_secs"] is None:
        return [("best peer", f"none: {result['peer']}")]
    told = f"{milliseconds(result['peer_secs'])} ms; tuned is {result['peer_speedup']:.2f}x as fast"
    return [(result["peer"], told)]


def show_upgrade(report: dict[str, Any], console: Console) -> None:
    """The rows of an upgrade's report, then how many ended how."""
    rows = [
        (
            (row["name"] or row["workload"][:16])[:44],
            row["outcome"].replace("_", " ") + (", tuned again" if row["tuned_again"] else ""),
            milliseconds(row["secs_before"]),
            milliseconds(row["secs_after"]),
            milliseconds(row["baseline_secs_after"]),
            str(row["trials"]),
        )
        for row in report["rows"]
    ]
    show(console, "replayed", ("task", "outcome", "before ms", "now ms", "baseline ms", "trials"), rows, numbers_from=2)
    whole = [(name.replace("_", " "), str(count)) for name, count in report["summary"].items() if count]
    whole += [("left", str(report["left"])), ("trials", str(report["trials"])), ("seconds", f"{report['seconds']:.0f}")]
    show(console, "upgrade", ("", ""), whole, numbers_from=1)


def show(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers_from: int = 99,
) -> None:
    """A plain table; columns from `numbers_from` on are right-aligned. Nothing is cropped, so that what a row says can be
    copied: on a narrow terminal its lines run over the edge."""
    table = Table(title_justify="left", box=None, show_header=any(headings), pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position >= numbers_from else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(title, style="table.title", markup=False, highlight=False, soft_wrap=True)
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum)
    console.print(table)
    console.print()


def milliseconds(secs: float | None) -> str:
    """Three decimals, of less than a tenth three digits, or a dash for an unknown time."""
    if secs is None:
        return "-"
    return f"{secs * 1e3:#.3g}" if 0 < abs(secs) < 1e-4 else f"{secs * 1e3:.3f}"


def billions(per_sec: float | None) -> str:
    """A rate in billions a second, or a dash for an unknown one."""
    return "-" if per_sec is None else f"{per_sec / 1e9:.1f}"


def share(of_bound: float | None) -> str:
    """How near a time is to the least possible, or a dash where that is unknown."""
    return "-" if of_bound is None else f"{of_bound:.0%}"


def roofs(roofline: Roofline | None) -> tuple[str, str]:
    """Peak in GFLOP/s, and GB/s of each level of the memory, nearest to the cores first."""
    if roofline is None:
        return "-", "-"
    levels = "/".join(f"{level.bytes_per_sec / 1e9:.0f}" for level in roofline.levels)
    return f"{roofline.flops_per_sec / 1e9:.0f}", levels or "-"


def interval(best: Best | None) -> str:
    """The ends of the interval of a served time, in milliseconds."""
    return "-" if best is None else f"{milliseconds(best.secs_low)} to {milliseconds(best.secs_high)}"


def steady(steadiness: Steadiness | None) -> str:
    """In a word whether a worker's timings can be trusted, and how far a noisy one is off."""
    if steadiness is None:
        return "unknown"
    return f"noisy {steadiness.ratio:.1f}x" if steadiness.noisy else "quiet"
