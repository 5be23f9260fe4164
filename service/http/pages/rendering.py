"""Templates: one environment that escapes whatever is put into a page, and how values are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from service.http.pages.static import ADDRESS

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = "\N{EN DASH}"
"""Shown for what is not known."""


def seconds(value: float | None) -> str:
    """A duration with three digits and the unit that fits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size, unit = next((each for each in _UNITS if value >= each[0]), _UNITS[-1])
    return f"{value / size:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"


def span(value: float | None) -> str:
    """A longer duration: hours, minutes, seconds."""
    if value is None:
        return NOTHING
    minutes, secs = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{secs} s" if not hours else ""]
    return " ".join(filter(None, parts))


def saved(value: float | None) -> str:
    """Seconds gained, with three digits; negative where they were lost."""
    if value is None:
        return NOTHING
    return f"{value:.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"


def count(value: float | None) -> str:
    """A whole number."""
    return NOTHING if value is None else f"{value:,.0f}"


def scaled(value: float | None, unit: str = "") -> str:
    """A large number with three digits: 1.23 G."""
    if value is None:
        return NOTHING
    size, prefix = next(((size, prefix) for size, prefix in _SCALES if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}".strip()


def ratio(value: float | None) -> str:
    """How many times."""
    return NOTHING if value is None else f"{value:.3g}{_TIMES}" if value < 1000 else f"{value:,.0f}{_TIMES}"


def share(value: float | None) -> str:
    """A share of one, in per cent."""
    return NOTHING if value is None else f"{100 * value:.3g} %"


def when(value: float | datetime | None) -> str:
    """A moment, in UTC."""
    if value is None:
        return NOTHING
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def words(value: object) -> str:
    """Text as it is; a dash for none."""
    return NOTHING if value is None or value == "" else str(value).replace("_", " ")


def text(value: object) -> str:
    """Text as it is; a dash for none."""
    return NOTHING if value is None or value == "" else str(value)


def digest(value: object) -> str:
    """The beginning of a digest, which tells it from the others of a page."""
    return NOTHING if value is None else str(value)[:16]


def data(value: object) -> Markup:
    """JSON for a `<script type="application/json">`, in which no text can end the element."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "seconds": seconds,
    "saved": saved,
    "span": span,
    "count": count,
    "scaled": scaled,
    "ratio": ratio,
    "share": share,
    "when": when,
    "words": words,
    "text": text,
    "digest": digest,
}
"""How a value can be shown, by name: filters of templates, and kinds of columns."""

_ENVIRONMENT = Environment(
    loader=PackageLoader("service.http"),
    autoescape=True,
    undefined=StrictUndefined,
    auto_reload=False,  # else the files of a page are looked at for changes each time that it is rendered
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(SHOWN, data=data)
_ENVIRONMENT.globals.update(version=version("pitchpipe"), static=ADDRESS)


def render(template: str, **values: object) -> str:
    """The template's text with these values; every one of them is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)
