"""Design spaces: the schedules reachable for a workload on a target.

A space is a list of sketches: schedules whose traces have sampling instructions left to decide, and what turns a
decided trace into a candidate (postprocessors) or into a neighbour (mutators). MetaSchedule's own space is the first
member of a union; a space of ours is one more entry of `_GENERATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.space.metaschedule import Space, generate
from tuner.space.rowwise import rowwise_sketches
from tuner.space.tiles import tiled_sketches
from tuner.space.winograd import winograd_sketches

__all__ = ["Space", "design_space", "space_of"]

KEPT_SPACES = 64
"""Spaces kept per process. Generating one costs 10 to 500 ms, holding one a few MB."""

_GENERATORS: Sequence[Callable[[Any, Target], list[Any]]] = (tiled_sketches, winograd_sketches, rowwise_sketches)
"""Spaces beside MetaSchedule's: (module, target) -> sketches; none where a generator has nothing to say."""


@lru_cache(maxsize=KEPT_SPACES)
def space_of(workload: Workload, target: Target) -> Space:
    """The union of all spaces for the workload on the target; the same whether it was cached or not."""
    space = generate(workload, target)
    extra = [sketch for generator in _GENERATORS for sketch in generator(space.mod, target)]
    return space.joined(extra)


def design_space(workload: Workload, target: Target) -> list[Any]:
    """The sketches of the space, as TVM schedules."""
    return list(space_of(workload, target).schedules)
