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
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise MissingExtra(f"no installed package provides the step {name!r}")
    try:
        loaded: Callable[..., Any] = next(iter(found)).load()
    except ImportError as error:
        extra = "torch" if error.name == "torch" else "compiler"
        raise MissingExtra(f"{name} needs {error.name}: install pitchpipe[{extra}]") from error
    return loaded
