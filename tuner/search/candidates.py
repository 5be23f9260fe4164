"""What a search draws and what becomes of it: candidates in the making."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Built:
    """A candidate that applied and passed the postprocessors."""

    family: str
    """Names its instructions: candidates of one sketch differ only in decisions."""
    key: str
    """Its trace before postprocessing: what is recognised when it is met again."""
    program: int
    """Structural hash of the schedule; several traces may make one program."""
    trace: Any
    """What a mutation starts from."""
    schedule: Any
    features: bytes


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A candidate to make: a random point of a sketch, a neighbour of a trace, or a trace as it is."""

    seed: int
    sketch: int | None = None
    mutated: Any = None
    decided: Any = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A candidate that applied and can still not be proposed; what it is would be the same if it were drawn again."""

    family: str
    key: str
    error: str | None
    """What was raised; None where a postprocessor said no."""


KNOWN = Built(family="", key="", program=0, trace=None, schedule=None, features=b"")
"""Stands for a draw that gave a candidate met before."""
