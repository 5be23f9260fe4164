"""Design spaces: the schedules reachable for a workload on a target.

A space is a list of sketches, which are schedules whose traces have sampling instructions left to decide; postprocessors,
which turn a decided trace into a candidate; and mutators, which turn it into a neighbour. It is a union: of MetaSchedule's
own space and of those of the target's kind (`TargetKind.design_spaces`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import structlog

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.space.metaschedule import Space, generate

log = structlog.get_logger("pitchpipe.space")

__all__ = ["Space", "space_of"]

KEPT_SPACES = 64
"""Spaces kept per process. Generating one costs 10 to 500 ms, holding one a few MB."""


@lru_cache(maxsize=KEPT_SPACES)
def space_of(workload: Workload, target: Target) -> Space:
    """The union of all spaces for the workload on the target. Deterministic, so that a cached space equals a new one."""
    space, generators = generate(workload, target), kind_of(target).design_spaces()
    return space.joined([_generated(generator, space.mod, target) for generator in generators])


def _generated(generator: Callable[[Any, Target], list[Any]], mod: Any, target: Target) -> list[Any]:
    """The generator's sketches. One that fails on a workload gives none, and the other spaces are searched."""
    try:
        return generator(mod, target)
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met
        log.warning("no sketches", generator=generator.__name__, error=f"{type(error).__name__}: {error}"[:300])
        return []
