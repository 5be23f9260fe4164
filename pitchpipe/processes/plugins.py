"""Steps that need a compiler, found by name so that the SDK imports none of it.

The tuner and the workers register them in the entry-point group "pitchpipe.steps"; without the extra `pitchpipe[compiler]`
a step's own import fails, and the error says what to install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from pitchpipe.errors import PitchpipeError

GROUP = "pitchpipe.steps"


class MissingExtra(PitchpipeError):
    """A library of an extra is not installed."""

    title = "An optional part of Pitchpipe is not installed"


def step(name: str) -> Callable[..., Any]:
    """The registered step; raises MissingExtra naming the library that is absent."""
    loaded: Callable[..., Any] = load(GROUP, name)
    return loaded


def names(group: str) -> list[str]:
    """What is registered in a group of entry points, each name once however often its package lies on the path."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """What is registered in a group under a name; raises MissingExtra for a name that nobody registered, and naming the
    library that its module lacks."""
    found = entry_points(group=group, name=name)
    if not found:
        raise MissingExtra(f"no installed package provides {name!r} among {group}")
    try:
        return next(iter(found)).load()
    except ImportError as error:
        extra = "torch" if error.name == "torch" else "compiler"
        raise MissingExtra(f"{name} needs {error.name}: install pitchpipe[{extra}]") from error
