"""A deterministic mutation of tile sizes: it depends on the trace and the random generator alone.

MetaSchedule's MutateTileSize iterates over a map in the order of addresses, so equal traces get different neighbours. This
one makes the same moves: a divisor of one factor of a tile goes to another factor, or a sampled width of a cooperative fetch
or factor of a split is sampled again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_FETCH = "meta_schedule.cooperative_fetch"
_TRIES = 16
"""Attempts at a change: a move may exceed the limit of the innermost factor, a new sample may equal the old one."""


def mutate_tile_size(trace: Any, rng: np.random.Generator) -> Any:
    """The trace with one decision changed; None where it has none to change or _TRIES attempts changed none."""
    tiles = [
        inst
        for inst in trace.insts
        if inst.kind.name == "SamplePerfectTile" and math.prod(map(int, trace.get_decision(inst) or ())) > 1
    ]
    drawn = _drawn_widths(trace)
    if not tiles and not drawn:
        return None
    for _ in range(_TRIES):
        chosen = int(rng.integers(len(tiles) + len(drawn)))
        if chosen >= len(tiles):
            inst = drawn[chosen - len(tiles)]
            decision: Any = int(rng.integers(len(inst.attrs[0])))
            if decision == int(trace.get_decision(inst)):
                continue
        else:
            inst = tiles[chosen]
            decision = _moved([int(f) for f in trace.get_decision(inst)], int(inst.attrs[1]), rng)
            if decision is None:
                continue
        return trace.with_decision(inst, decision, True)
    return None


def _moved(tile: list[int], max_innermost: int, rng: np.random.Generator) -> list[int] | None:
    """The tile with a divisor of one factor moved to another; None for a tile of one factor, or where the innermost factor
    would exceed `max_innermost`."""
    if len(tile) < 2:
        return None
    sources = [i for i, factor in enumerate(tile) if factor > 1]
    source = sources[int(rng.integers(len(sources)))]
    others = [i for i in range(len(tile)) if i != source]
    target = others[int(rng.integers(len(others)))]
    divisors = [d for d in range(2, tile[source] + 1) if tile[source] % d == 0]
    divisor = divisors[int(rng.integers(len(divisors)))]
    moved = list(tile)
    moved[source] //= divisor
    moved[target] *= divisor
    return moved if moved[-1] <= max_innermost else None


def _drawn_widths(trace: Any) -> list[Any]:
    """The SampleCategorical instructions that decide the width of a cooperative fetch or a factor of a split."""
    drawn = [inst for inst in trace.insts if inst.kind.name == "SampleCategorical"]
    used = [inst.inputs[1] for inst in trace.insts if inst.kind.name == "Annotate" and str(inst.attrs[0]) == _FETCH]
    used += [factor for inst in trace.insts if inst.kind.name == "Split" for factor in inst.inputs[1:]]
    return [
        inst for inst in drawn if any(inst.outputs[0].same_as(value) for value in used if hasattr(value, "same_as"))
    ]
