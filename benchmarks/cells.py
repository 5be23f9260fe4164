"""Cells and tables of Markdown: numbers, times, ratios and what is said of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]


def number(value: Any) -> str:
    """Three significant digits of a number that is not whole; anything else as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def time(secs: float | None) -> str:
    """Seconds in the unit that suits them."""
    if secs is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if secs * factor >= 1:
            return f"{secs * factor:.3g} {unit}"
    return f"{secs * 1e6:.3g} µs"


def ratio(value: float | None, interval: Sequence[float] | None = None) -> str:
    """With its interval, if it has one."""
    if value is None:
        return "-"
    return f"{value:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def verdict(interval: Sequence[float]) -> str:
    """Of a ratio that is above 1 where ours was faster."""
    return "faster" if interval[0] > 1 else "**slower**" if interval[1] < 1 else "tie"


def table(rows: Iterable[Any], columns: dict[str, Callable[[Any], str]]) -> Iterator[str]:
    """Lines of a Markdown table: heading -> cell of a row."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(row) for cell in columns.values()) + " |"


def plain(*names: str) -> dict[str, Callable[[Row], str]]:
    """Columns that show a value as it is, under its own name."""
    return {name.replace("_", " "): lambda row, name=name: number(row.get(name, "-")) for name in names}


def counted(counts: dict[str, int]) -> str:
    """Names with how many there are of each."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def cut(text: str | None) -> str:
    """The first line of a reason, fit for a list."""
    return (text or "").strip().split("\n")[0][:200].replace("|", "\\|")
