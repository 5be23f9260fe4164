"""Innermost tiles of MetaSchedule's multi-level tiling that waste the vector unit: they are not sampled.

MetaSchedule splits every loop at random, vectorises the innermost one, and accumulates the innermost tile over the
reduction. Two kinds of tiles cannot be fast, and take most of the compilation time:

    vectors shorter than half a register    short, separate accesses: of 108 candidates of a convolution on AVX-512, the 45
                                            with less than 8 elements had 1/3 to 1/70 of the best one's speed
    as many vectors as there are registers  accumulators spill: 1/2 to 1/15 of the speed of a product's best, 0.6 to 1.6 s
                                            of compilation where others take 0.15 s
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.space.processor import VectorUnit

_STRUCTURE = "meta_schedule.tiling_structure"
_TRIES = 64
"""Samples of a tile until one fits; about half of them do. The last is taken in any case."""


def spatial_tiles(trace: Any) -> list[list[Any]]:
    """For every block that is tiled in several levels, the instructions that split its spatial axes; the last one splits the
    axis that is vectorised."""
    found: list[list[Any]] = []
    levels, tiles = 0, list[Any]()
    for inst in trace.insts:
        kind = inst.kind.name
        if kind == "Annotate" and str(inst.attrs[0]) == _STRUCTURE:
            structure = str(inst.inputs[1])
            levels = structure.count("S") if structure.count("S") != structure.count("R") else 0
        elif kind == "SamplePerfectTile" and int(inst.attrs[0]) == levels:
            tiles.append(inst)
        elif kind == "Reorder" and tiles:
            found.append(tiles)
            tiles = []
    return found


def wastes_vectors(trace: Any, unit: VectorUnit | None) -> bool:
    """Whether a decided trace has a tile that wastes the vector unit; never where `unit` is None."""
    return unit is not None and any(
        not _fits([_decision(trace, inst) for inst in tiles], _limit(tiles[-1]), unit) for tiles in spatial_tiles(trace)
    )


def with_full_vectors(sketch: Any, drawn: Any, unit: VectorUnit | None, rng: np.random.Generator) -> Any:
    """The sketch with its innermost tiles decided at random among those that use the vector unit well.

    drawn: a trace of the same instructions with any decisions, from which the extents of the loops follow.
    """
    for tiles in spatial_tiles(drawn) if unit is not None else []:
        assert unit is not None
        extents = [math.prod(_decision(drawn, inst)) for inst in tiles]
        levels, limit = len(_decision(drawn, tiles[-1])), _limit(tiles[-1])
        for _ in range(_TRIES):
            decided = [
                *(_split(extent, levels, limit, rng) for extent in extents[:-1]),
                _vector_split(extents[-1], levels, limit, rng, unit),
            ]
            if _fits(decided, limit, unit):
                break
        for inst, tile in zip(tiles, decided, strict=True):
            sketch = sketch.with_decision(inst, tile, True)
    return sketch


def _fits(tiles: Sequence[Sequence[int]], limit: int, unit: VectorUnit) -> bool:
    *others, last = tiles
    vectors = math.prod(tile[-1] for tile in others) * math.ceil(last[-1] / unit.lanes)
    return last[-1] >= _least(math.prod(last), limit, unit) and vectors < unit.registers


def _least(extent: int, limit: int, unit: VectorUnit) -> int:
    """Shortest vector that fits: half a register, or the largest divisor of a shorter axis."""
    return min(unit.lanes // 2, _divisors(extent, limit)[-1])


def _split(extent: int, levels: int, limit: int, rng: np.random.Generator) -> list[int]:
    """Random factors of a loop, one per level, the innermost at most `limit`: every prime factor goes to a random level."""
    tile = [1] * levels
    for prime in _primes(extent):
        free = levels if tile[-1] * prime <= limit else levels - 1
        tile[int(rng.integers(free))] *= prime
    return tile


def _vector_split(extent: int, levels: int, limit: int, rng: np.random.Generator, unit: VectorUnit) -> list[int]:
    """The same for the loop that is vectorised: the innermost factor is any divisor that is long enough."""
    least = _least(extent, limit, unit)
    lengths = [divisor for divisor in _divisors(extent, limit) if divisor >= least]
    length = lengths[int(rng.integers(len(lengths)))]
    return [*_split(extent // length, levels - 1, extent, rng), length]


def _decision(trace: Any, inst: Any) -> list[int]:
    return [int(factor) for factor in trace.get_decision(inst)]


def _limit(inst: Any) -> int:
    return int(inst.attrs[1])


def _divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def _primes(number: int) -> list[int]:
    """Prime factors, ascending."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found
