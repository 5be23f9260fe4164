"""The stages of a candidate in a search: drawn, then an individual of the population or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Individual:
    """A complete schedule with its features: its trace applied and it passed the postprocessors. Not compiled."""

    family: str
    """Digest of its instructions: candidates of one sketch differ only in decisions."""
    key: str
    """Its trace before postprocessing, by which it is recognised when it is drawn again."""
    program: int
    """Structural hash of the scheduled program; several traces may give one program."""
    trace: Any
    """The trace that a mutation starts from."""
    schedule: Any
    features: bytes


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A candidate to build: a random point of a sketch, a mutation of a trace, or a trace as it is."""

    seed: int
    sketch: int | None = None
    mutated: Any = None
    decided: Any = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A candidate whose trace applied, but which cannot be proposed; it counts as known from then on."""

    family: str
    key: str
    error: str | None
    """The exception that was raised; None where a postprocessor refused it."""


KNOWN = Individual(family="", key="", program=0, trace=None, schedule=None, features=b"")
"""Stands for the outcome of a draw that gave a known candidate."""
