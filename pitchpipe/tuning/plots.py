"""Two plots as SVG texts, which a report carries with it: lines over time, and bars."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 44
BAR, NAMED = 22, 260
"""Height of a bar's row, and width of its name."""
TICKS = 5
COLOURS = ("#1f77b4", "#d95f02")
"""Told apart with any kind of sight, on a light and on a dark ground."""
LONGEST = 36
"""Characters of a bar's name; all of it is in its tooltip."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points from left to right; between two of them the value of the first holds."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(title: str, x_label: str, y_label: str, drawn: Sequence[Line], marks: Sequence[tuple[str, float]]) -> str:
    """Lines from zero up, and dashed marks across: (name, value). At least one line, each with a point or more."""
    right = max(x for line in drawn for x, _ in line.points) or 1.0
    top = max([*(y for line in drawn for _, y in line.points), *(value for _, value in marks)]) * 1.05 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * x / right, HEIGHT - BOTTOM - up * y / top

    parts = [_text(LEFT, 18, f"{title} ({y_label})", bold=True), _text(WIDTH - RIGHT, HEIGHT - 6, x_label, "end")]
    for value in _ticks(top):
        x, y = at(0.0, value)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity=".15"/>')
        parts.append(_text(x - 6, y + 4, f"{value:g}", "end"))
    for value in _ticks(right):
        parts.append(_text(at(value, 0.0)[0], HEIGHT - BOTTOM + 18, f"{value:g}", "middle"))
    for name, value in marks:
        _, y = at(0.0, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-dasharray="4 4"/>')
        parts.append(_text(WIDTH - RIGHT, y - 4, f"{name}: {value:.3g}", "end"))
    for number, line in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<path d="{_steps([at(*point) for point in line.points])}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{html.escape(line.name)}</title></path>"
        )
        x, y = at(*line.points[-1])
        parts.append(_text(x - 4, y + 16, f"{line.name}: {line.points[-1][1]:.3g}", "end", colour=colour))
    return _svg(title, HEIGHT, parts)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Shares of a whole, each with its name."""
    parts = [_text(0, 18, title, bold=True)]
    room, largest = WIDTH - NAMED - 64, max((value for _, value in values), default=1.0) or 1.0
    for number, (name, value) in enumerate(values):
        y = TOP + BAR * number
        cut = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        width = room * value / largest
        parts.append(f"<g><title>{html.escape(name)}</title>{_text(NAMED - 8, y + 12, cut, 'end')}")
        parts.append(f'<rect x="{NAMED}" y="{y}" width="{width:.1f}" height="{BAR - 6}" fill="{COLOURS[0]}"/>')
        parts.append(_text(NAMED + width + 6, y + 12, f"{value:.1%}") + "</g>")
    return _svg(title, TOP + BAR * len(values) + 8, parts)


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
    return f'{head}aria-label="{html.escape(title)}" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'


def _text(
    x: float, y: float, words: str, anchor: str = "start", *, bold: bool = False, colour: str = "currentColor"
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="12" fill="{colour}"{weight}>{html.escape(words)}</text>'


def _steps(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{ax:.1f}V{ay:.1f}" for ax, ay in rest)


def _ticks(top: float) -> Iterator[float]:
    """Round numbers from 0 to the top, about TICKS of them."""
    raw = top / TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= raw)
    for number in range(int(top / step) + 1):
        yield round(number * step, 12)
