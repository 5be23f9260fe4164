"""Kernels without a reduction: element-wise stages, copies, gathers, and transposes through shared memory."""

from __future__ import annotations

import math
from typing import Any

from tuner.space.access import spatial_axes
from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, VECTOR_BYTES, Limits
from tuner.space.gpu.stages import fused
from tuner.space.gpu.vectors import lanes_of, step

TILE = 32
"""Side of a tile of a transposition, in elements: a warp reads and writes whole lines of 64 or 128 bytes."""
MAX_VECTORS = 4
"""Vectors of a thread, at most: more of them in flight hide more of the memory's latency."""


def schedule_elementwise(schedule: Any, block: Any, limits: Limits) -> None:
    """One kernel: neighbouring threads take neighbouring vectors, in the order of the block's axes."""
    axes = spatial_axes(schedule.get(block))
    if (turned := _turned(schedule.get(block), axes)) is not None:
        _transpose(schedule, block, *turned, limits)
        return
    lanes = lanes_of(schedule.get(block), axes) if axes else 1
    total = math.prod(int(axis.dom.extent) for axis in axes)
    loop = fused(schedule, block, list(schedule.get_loops(block)))
    vector = None
    if lanes > 1:
        loop, vector = schedule.split(loop, [None, lanes])
    vectors = total // lanes
    threads = BLOCK_THREADS if vectors >= BLOCK_THREADS * MULTIPROCESSORS else 2 * limits.warp
    spread(schedule, loop, vectors, min(threads, limits.threads), inner=[] if vector is None else [vector])
    if vector is not None:
        schedule.vectorize(vector)


def spread(schedule: Any, loop: Any, extent: int, threads: int, *, inner: list[Any]) -> None:
    """Binds a loop to blocks and threads, several iterations a thread where there are enough to fill the device twice."""
    each = 1
    while each < MAX_VECTORS and extent >= 4 * each * threads * MULTIPROCESSORS * (2048 // threads):
        each *= 2
    if each == 1:
        blocks, thread = schedule.split(loop, [None, threads])
    else:
        blocks, turn, thread = schedule.split(loop, [None, each, threads])
        schedule.reorder(blocks, thread, turn, *inner)
        schedule.unroll(turn)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")


def _turned(definition: Any, axes: list[Any]) -> tuple[int, int] | None:
    """(index of a read, position of the axis along which it is contiguous) of a transposition: no read is contiguous along
    the last axis, and both axes are long enough for a tile."""
    if len(axes) < 2 or not definition.reads:
        return None
    large = [
        (i, read) for i, read in enumerate(definition.reads) if math.prod(int(n) for n in read.source.shape) >= TILE**2
    ]
    if any(step(definition, read, axes[-1:], 1 + (int(axes[-1].dom.extent) > 1)) == 1 for _, read in large):
        return None
    for index, read in large:
        for position, axis in enumerate(axes[:-1]):
            extents = int(axis.dom.extent), int(axes[-1].dom.extent)
            if min(extents) >= TILE // 4 and step(definition, read, [axis], 2) == 1:
                return index, position
    return None


def _transpose(schedule: Any, block: Any, read: int, position: int, limits: Limits) -> None:
    """Tiles of TILE x TILE: read along the axis in which the source is contiguous, written along the last."""
    definition = schedule.get(block)
    buffer = definition.reads[read].source
    loops = list(schedule.get_loops(block))
    tile = schedule.cache_read(block, read, "shared")
    across, row = schedule.split(loops[position], [None, TILE])
    along, column = schedule.split(loops[-1], [None, TILE])
    others = [loop for number, loop in enumerate(loops[:-1]) if number != position]
    schedule.reorder(*others, across, along, row, column)
    blocks = schedule.fuse(*others, across, along)
    schedule.bind(blocks, "blockIdx.x")
    threads = min(BLOCK_THREADS, limits.threads)
    schedule.compute_at(tile, blocks)
    for nest in ([row, column], list(schedule.get_loops(tile))[1:]):
        loop = schedule.fuse(*nest) if len(nest) > 1 else nest[0]
        turn, thread = schedule.split(loop, [None, threads])
        schedule.reorder(thread, turn)
        schedule.bind(thread, "threadIdx.x")
        schedule.unroll(turn)
    if len(buffer.shape) > 1:
        bits = max(VECTOR_BYTES // 4 * 8 // _bits(buffer), 1)
        schedule.storage_align(tile, 0, -2, TILE * bits, bits)


def _bits(buffer: Any) -> int:
    from tuner.tvm_compat import tvm

    return int(tvm.runtime.DataType(str(buffer.dtype)).bits)
