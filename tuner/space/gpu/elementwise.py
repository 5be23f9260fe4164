"""Kernels without a reduction: element-wise stages, copies, gathers, and transposes through shared memory."""

from __future__ import annotations

import math
from typing import Any

from tuner.space.access import spatial_axes
from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, VECTOR_BYTES, Limits
from tuner.space.gpu.stages import fused
from tuner.space.gpu.vectors import computed_lanes, lanes_of, step
from tuner.tvm_compat import ir, structural_walk, tirx, tvm

TILE = 32
"""Side of a tile of a transposition, in elements: a warp reads and writes whole lines of 64 or 128 bytes."""
MAX_VECTORS = 4
"""Vectors of a thread, at most: more of them in flight hide more of the memory's latency."""


def schedule_elementwise(schedule: Any, block: Any, limits: Limits) -> None:
    """One kernel: neighbouring threads take neighbouring vectors, in the order of the block's axes.

    What is computed, not only moved, is computed one element after another in registers, between vectors that are loaded
    and stored: of some functions TVM 0.27 has no vectors (erf), of some vectors no constants (eight floats), and where it
    has none, it loads and stores elements as well.
    """
    definition = schedule.get(block)
    axes = spatial_axes(definition)
    if (turned := _turned(definition, axes)) is not None:
        _transpose(schedule, block, *turned, limits)
        return
    loops = list(schedule.get_loops(block))
    total = math.prod(int(axis.dom.extent) for axis in axes)
    lanes = lanes_of(definition, axes) if axes else 1
    threads, each = _shares(total // lanes, limits)
    whole = lanes > 1 and int(axes[-1].dom.extent) % lanes == 0
    in_registers = whole and total % (lanes * threads * each) == 0 and not _moves(definition)
    if not in_registers and computed_lanes(definition, lanes) < lanes:
        lanes = computed_lanes(definition, lanes)
        threads, each = _shares(total // lanes, limits)
    if lanes == 1:
        spread(schedule, fused(schedule, block, loops), each, threads, inner=[])
        return
    loaded = _loads(schedule, block, axes, lanes) if in_registers else []
    loops = list(schedule.get_loops(block))
    if whole:  # Then no condition on another axis depends on the lane.
        last, vector = schedule.split(loops[-1], [None, lanes])
        loop = fused(schedule, block, [*loops[:-1], last])
    else:
        loop, vector = schedule.split(fused(schedule, block, loops), [None, lanes])
    inside = spread(schedule, loop, each, threads, inner=[vector])
    if in_registers:
        _through_registers(schedule, block, inside, loaded)
        schedule.unroll(vector)
    else:
        schedule.vectorize(vector)


def spread(schedule: Any, loop: Any, each: int, threads: int, *, inner: list[Any]) -> Any:
    """Binds a loop to blocks and threads, `each` iterations a thread; the innermost loop of those around `inner`."""
    if each == 1:
        blocks, thread = schedule.split(loop, [None, threads])
        inside = thread
    else:
        blocks, inside, thread = schedule.split(loop, [None, each, threads])
        schedule.reorder(blocks, thread, inside, *inner)
        schedule.unroll(inside)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return inside


def _shares(vectors: int, limits: Limits) -> tuple[int, int]:
    """(threads of a block, vectors of a thread): several vectors where there are enough to fill the device twice, and, if
    there are such numbers, without a remainder."""
    threads = BLOCK_THREADS if vectors >= BLOCK_THREADS * MULTIPROCESSORS else 2 * limits.warp
    threads, each = min(threads, limits.threads), 1
    while each < MAX_VECTORS and vectors >= 4 * each * threads * MULTIPROCESSORS * (2048 // threads):
        each *= 2
    counts = [threads >> power for power in range(4) if threads >> power >= limits.warp]
    even = ((count, n) for n in (each, each // 2, each // 4) if n for count in counts if vectors % (count * n) == 0)
    return next(even, (threads, each))


def _loads(schedule: Any, block: Any, axes: list[Any], lanes: int) -> list[Any]:
    """Stages that hold in registers what is read in vectors, in the order of the block's axes whatever its indices are."""
    definition = schedule.get(block)
    conditions: list[Any] = []
    structural_walk(
        definition.body, (ir.Call, lambda call: conditions.append(str(call.op)) if _chooses(call) else None)
    )
    if conditions:
        return []
    reads = [i for i, read in enumerate(definition.reads) if step(definition, read, axes, lanes, aligned=True) == 1]
    loaded = [schedule.reindex(block, ("read", index)) for index in reads]
    for each in loaded:
        schedule.set_scope(each, 0, "local")
    return loaded


def _through_registers(schedule: Any, block: Any, inside: Any, loaded: list[Any]) -> None:
    """Loads in vectors before what is computed, and stores the result after."""
    for each in loaded:
        schedule.compute_at(each, inside)
        schedule.vectorize(schedule.get_loops(each)[-1])
    stored = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(stored, inside)
    schedule.vectorize(schedule.get_loops(stored)[-1])


def _chooses(call: Any) -> bool:
    """Whether a call computes one of its arguments only, so that what it reads may not be there otherwise."""
    return str(getattr(call.op, "name", "")).endswith("if_then_else")


def _moves(definition: Any) -> bool:
    """Whether a block computes nothing but which element to take, and of which type."""
    value = definition.body.value if isinstance(definition.body, tirx.BufferStore) else None
    computed: list[Any] = []
    arithmetic = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select)

    def note(node: Any) -> None:
        if str(node.ty.dtype).startswith(("float", "bfloat")) and not (isinstance(node, ir.Call) and _chooses(node)):
            computed.append(node)

    structural_walk(value, ((*arithmetic, ir.Call), note))
    return value is not None and not computed


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
    tile = schedule.cache_read(block, read, "shared", consumer_blocks=[block])
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
    return int(tvm.runtime.DataType(str(buffer.dtype)).bits)
