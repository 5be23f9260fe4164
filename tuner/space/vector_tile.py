"""The tile of MetaSchedule's multi-level tiling that becomes vectors: one that leaves half a register empty is not drawn.

MetaSchedule splits every loop at random and vectorises whatever is innermost. Where the last axis is left with fewer
elements than half a vector register holds, the vector is made of pieces that lie apart: of 108 such candidates of a
convolution on AVX-512, the 45 with less than 8 elements ran at 1/3 to 1/70 of the best one's speed, and took as long to
compile as all others together, up to 2.5 s each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_STRUCTURE = "meta_schedule.tiling_structure"


def vector_tiles(trace: Any) -> list[Any]:
    """For every block that is tiled in several levels, the instruction that splits its last spatial axis."""
    found: list[Any] = []
    levels, last = 0, None
    for inst in trace.insts:
        kind = inst.kind.name
        if kind == "Annotate" and str(inst.attrs[0]) == _STRUCTURE:
            structure = str(inst.inputs[1])
            levels = structure.count("S") if structure.count("S") != structure.count("R") else 0
        elif kind == "SamplePerfectTile" and int(inst.attrs[0]) == levels:
            last = inst
        elif kind == "Reorder" and last is not None:
            found.append(last)
            last = None
    return found


def has_short_vectors(trace: Any, lanes: int) -> bool:
    """Whether a decided trace has such a tile; `lanes` elements fill a register, 0 for a target without them."""
    for inst in vector_tiles(trace) if lanes else []:
        tile = [int(factor) for factor in trace.get_decision(inst)]
        if tile[-1] < _least(math.prod(tile), int(inst.attrs[1]), lanes):
            return True
    return False


def with_full_vectors(sketch: Any, drawn: Any, lanes: int, rng: np.random.Generator) -> Any:
    """An open trace with these tiles decided, at random; `drawn` has the same instructions with any decisions, which say
    how long the loops are."""
    for inst in vector_tiles(drawn) if lanes else []:
        tile = [int(factor) for factor in drawn.get_decision(inst)]
        extent, limit = math.prod(tile), int(inst.attrs[1])
        lengths = [d for d in _divisors(extent, limit) if d >= _least(extent, limit, lanes)]
        length = lengths[int(rng.integers(len(lengths)))]
        outer = [1] * (len(tile) - 1)
        for prime in _primes(extent // length):
            outer[int(rng.integers(len(outer)))] *= prime
        sketch = sketch.with_decision(inst, [*outer, length], True)
    return sketch


def _least(extent: int, limit: int, lanes: int) -> int:
    """Half a register, or what the axis has."""
    return min(lanes // 2, _divisors(extent, limit)[-1])


def _divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def _primes(number: int) -> list[int]:
    """Factors, ascending."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found
