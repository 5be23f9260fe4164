"""What a path belongs to: who may ask for it, and how a refusal is told, follow from that."""

from __future__ import annotations

from enum import Enum


class Area(Enum):
    """Kinds of paths."""

    API = "api"
    """A bearer token; refusals are problem documents."""
    PAGE = "page"
    """The session of a browser; refusals are pages."""
    ENTRANCE = "entrance"
    """Pages and files that need no session: signing in, the documentation of the API, scripts and styles."""
    OTHER = "other"
    """Probes, the OpenAPI document, and paths that nobody knows."""


_PAGES = frozenset(
    {"", "jobs", "records", "workers", "schedules", "misses", "cost-models", "instance", "sign-out"}  # by first segment
)
_ENTRANCES = frozenset({"sign-in", "docs", "static"})


def area_of(path: str) -> Area:
    """The area of a request's path."""
    first = path[1:].partition("/")[0]
    if first == "v1":
        return Area.API
    if first in _PAGES:
        return Area.PAGE
    return Area.ENTRANCE if first in _ENTRANCES else Area.OTHER
