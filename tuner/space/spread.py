"""Stages that share nothing with their neighbours, on a CPU: outer loops are parallel, the innermost is vectorised.

A transposition is tiled, in squares that are read in vectors where vectors divide both axes.
"""

from __future__ import annotations

import math
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import (
    dividing_lanes,
    element_bits,
    in_last_only,
    is_flat,
    narrow_axis,
    spatial_axes,
    strides,
    turned_axis,
    vector_lanes,
)
from tuner.space.processor import VectorUnit
from tuner.space.rowwise import worth_parallelizing
from tuner.tvm_compat import loop_bindings, tirx

TURNS = 4
"""Chunks per core that a parallel loop has at least, where its extent allows: cores seldom start together."""
TILE = 8
"""Side of a tile of a transposition, in elements. On AVX-512, 16 by 16 was slower than 8 by 8."""
COLUMNS = 64
"""Elements of the last axis in a tile of a transposition whose other axis no vector divides, at most."""


def spread(schedule: Any, block: Any, target: Target) -> None:
    """Makes the outer spatial loops of a block parallel and vectorises the innermost one."""
    spatial, reductions = axis_loops(schedule, block)
    if not spatial:
        return
    definition = schedule.get(block)
    unit = VectorUnit.of(target, element_bits(definition)).lanes
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    steps = math.prod(extents) * math.prod(int(schedule.get(loop).extent) for loop in reductions)
    if not reductions and (turned := turned_axis(definition, unit)) is not None:
        _transpose(schedule, spatial, turned, target, unit, steps)
        return
    if not reductions and (narrow := narrow_axis(definition)) is not None and _columns(extents[-1]) >= TILE:
        _transpose_narrow(schedule, spatial, narrow, target, unit, steps)
        return
    if not reductions and is_flat(definition):
        spatial, extents = [schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]], [math.prod(extents)]
        lanes = dividing_lanes(extents[0], unit)
    else:
        lanes = vector_lanes(definition, unit)
    inner = []
    if lanes > 1:
        spatial[-1], vector = schedule.split(spatial[-1], factors=[None, lanes])
        inner = [vector]
    elif len(spatial) > 1 and not reductions:
        spatial, inner = spatial[:-1], spatial[-1:]  # LLVM makes vectors of a plain innermost loop.
    if len(order := [*spatial, *reductions, *inner]) > 1:
        schedule.reorder(*order)
    outer = fuse_outer(schedule, spatial, target)
    if worth_parallelizing(steps, unit):
        schedule.parallel(outer)
    if lanes > 1:
        schedule.vectorize(inner[0])
    if reductions:
        start = schedule.decompose_reduction(block, reductions[0])
        if lanes > 1:
            schedule.vectorize(schedule.get_loops(start)[-1])


def divide_columns(schedule: Any, block: Any, target: Target) -> bool:
    """Divides sums of columns among cores by rows: each adds whole rows to sums of its own (rfactor), and these are added up
    afterwards. Memory is read in its order. This reorders floating-point additions.

    False where the block is no such reduction, has other work for all cores, or takes too little time. TVM raises for a
    reduction that it cannot take apart.
    """
    spatial, reductions = axis_loops(schedule, block)
    if not spatial or not reductions:
        return False
    definition = schedule.get(block)
    unit = VectorUnit.of(target, element_bits(definition)).lanes
    lanes = vector_lanes(definition, unit)
    *others, columns = [int(schedule.get(loop).extent) for loop in spatial]
    rows = math.prod(int(schedule.get(loop).extent) for loop in reductions)
    if lanes == 1 or math.prod(others) >= TURNS * (target.num_cores or 1) or not _lie_side_by_side(definition, lanes):
        return False
    if not worth_parallelizing(math.prod(others) * columns * rows, unit):
        return False
    row = reductions[0]
    if len(reductions) > 1 and equal_chunks(int(schedule.get(row).extent), target) == 1:
        row = schedule.fuse(*reductions)
    chunks = equal_chunks(int(schedule.get(row).extent), target)
    if chunks == 1:
        return False
    chunk, _ = schedule.split(row, factors=[chunks, None])
    partial = schedule.rfactor(chunk, 0)
    *before, column, chunk = schedule.get_loops(partial)[: len(spatial) + 1]
    inner = schedule.get_loops(partial)[len(spatial) + 1 :]
    outer, vector = schedule.split(column, factors=[None, lanes])
    schedule.reorder(chunk, *before, *inner, outer, vector)
    schedule.parallel(schedule.fuse(chunk, *before) if before else chunk)
    _vectorize_sum(schedule, partial, inner[0], vector)
    *before, column, chunk = schedule.get_loops(block)
    outer, vector = schedule.split(column, factors=[None, lanes])
    schedule.reorder(*before, outer, chunk, vector)
    _vectorize_sum(schedule, block, chunk, vector)
    return True


def equal_chunks(extent: int, target: Target) -> int:
    """The equal chunks, TURNS per core at most, with which the busiest core has least to do; 1 where nothing divides."""
    cores = target.num_cores or 1
    counts = [count for count in range(1, TURNS * cores + 1 if cores > 1 else 2) if extent % count == 0]
    return min(counts, key=lambda count: (math.ceil(count / cores) / count, -count))


def _lie_side_by_side(definition: Any, lanes: int) -> bool:
    """Whether a vector of columns is one of memory wherever the block reads."""
    last = spatial_axes(definition)[-1]
    return all(in_last_only(found) for found in strides(definition, definition.reads, last, lanes) if found)


def _vectorize_sum(schedule: Any, block: Any, reduction: Any, vector: Any) -> None:
    schedule.vectorize(vector)
    start = schedule.decompose_reduction(block, reduction)
    schedule.vectorize(schedule.get_loops(start)[-1])


def axis_loops(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """(spatial loops, reduction loops) of a block; both empty where some loop is not one axis of the block."""
    kind_of = {}
    for axis, value in zip(schedule.get(block).iter_vars, loop_bindings(schedule, block), strict=True):
        if isinstance(value, tirx.Var):
            kind_of[value] = int(axis.iter_type)
    loops = list(schedule.get_loops(block))
    kinds = [kind_of.get(schedule.get(loop).loop_var) for loop in loops]
    if any(kind not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for kind in kinds):
        return [], []
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    return spatial, [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]


def fuse_outer(schedule: Any, loops: list[Any], target: Target) -> Any:
    """Fuses as few of the outer loops as give every core TURNS chunks: index arithmetic of the fused loop is done once per
    chunk."""
    count, taken = 1, 0
    while taken < len(loops) and count < TURNS * (target.num_cores or 1):
        count *= int(schedule.get(loops[taken]).extent)
        taken += 1
    return schedule.fuse(*loops[:taken]) if taken > 1 else loops[0]


def _transpose(schedule: Any, spatial: list[Any], turned: int, target: Target, unit: int, steps: int) -> None:
    """Tiles a transposition in squares that are read in vectors: LLVM transposes a tile in registers, and every cache line
    is used completely while it is in the cache."""
    others = [loop for number, loop in enumerate(spatial[:-1]) if number != turned]
    across, row = schedule.split(spatial[turned], factors=[None, _side(schedule, spatial[turned], unit)])
    along, column = schedule.split(spatial[-1], factors=[None, _side(schedule, spatial[-1], unit)])
    schedule.reorder(*others, across, along, column, row)
    outer = fuse_outer(schedule, [*others, across, along], target)
    if worth_parallelizing(steps, unit):
        schedule.parallel(outer)
    schedule.vectorize(row)


def _transpose_narrow(schedule: Any, spatial: list[Any], narrow: int, target: Target, unit: int, steps: int) -> None:
    """Tiles a transposition in pieces of the last axis with all of the narrow one: what a tile reads is one piece of memory,
    which stays in the cache until each of its elements has been written."""
    others = [loop for number, loop in enumerate(spatial[:-1]) if number != narrow]
    along, column = schedule.split(spatial[-1], factors=[None, _columns(int(schedule.get(spatial[-1]).extent))])
    schedule.reorder(*others, along, spatial[narrow], column)
    outer = fuse_outer(schedule, [*others, along], target)
    if worth_parallelizing(steps, unit):
        schedule.parallel(outer)


def _columns(extent: int) -> int:
    """The largest divisor of at most COLUMNS."""
    return max(divisor for divisor in range(1, COLUMNS + 1) if extent % divisor == 0)


def _side(schedule: Any, loop: Any, unit: int) -> int:
    return dividing_lanes(int(schedule.get(loop).extent), min(unit, TILE))
