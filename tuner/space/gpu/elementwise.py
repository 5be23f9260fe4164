"""Kernels without a reduction: element-wise stages, copies, gathers."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import Any

from tuner.space.access import spatial_axes
from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, Limits
from tuner.space.gpu.stages import fused
from tuner.space.gpu.transposition import (
    LEAST_ELEMENTS,
    LEAST_EXTENT,
    SECTOR_BYTES,
    find_transposition,
    schedule_transposition,
)
from tuner.space.gpu.vectors import computed_lanes, lanes_of, step, uniform_lanes
from tuner.tvm_compat import ScheduleError, ir, structural_walk, tirx, tvm

MAX_VECTORS = 4
"""Vectors of a thread, at most: more of them in flight hide more of the memory's latency."""
MUCH = 2
"""Times fewer bytes that threads along another axis have to move than along the last one."""
FULL_BLOCKS = 16 * MULTIPROCESSORS
"""Thread blocks of a kernel from which on the start of one is felt: small ones take longer to start than to run."""


def schedule_elementwise(schedule: Any, block: Any, limits: Limits) -> None:
    """One kernel: neighbouring threads take neighbouring vectors, in the order of the block's axes.

    What is computed, not only moved, is computed one element after another in registers, between vectors that are loaded
    and stored: of some functions TVM 0.27 has no vectors (erf), of some vectors no constants (eight floats), and where it
    has none, it loads and stores elements as well.
    """
    definition = schedule.get(block)
    axes = spatial_axes(definition)
    if (turned := find_transposition(definition, axes)) is not None:
        schedule_transposition(schedule, block, turned, limits)
        return
    if (along := _axis_of_loads(definition, axes)) is not None:
        loops = list(schedule.get_loops(block))
        schedule.reorder(*(loop for at, loop in enumerate(loops) if at != along), loops[along])
        spread(schedule, fused(schedule, block, list(schedule.get_loops(block))), 1, BLOCK_THREADS, inner=[])
        return
    loops = list(schedule.get_loops(block))
    total = math.prod(int(axis.dom.extent) for axis in axes)
    lanes = lanes_of(definition, axes) if axes else 1
    if lanes > 1 and any(step(definition, read, axes, lanes) is None for read in definition.reads):
        lanes = math.gcd(lanes, int(axes[-1].dom.extent))  # what is read may depend on the place along that axis
    threads, each = _shares(total // lanes, limits)
    whole = lanes > 1 and int(axes[-1].dom.extent) % lanes == 0
    in_registers = whole and total % (lanes * threads * each) == 0 and not _moves(definition)
    if not in_registers and (fewer := _vectorised_lanes(definition, axes, lanes)) < lanes:
        lanes = fewer
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


def _axis_of_loads(definition: Any, axes: list[Any]) -> int | None:
    """Along which axis neighbouring threads had better go: where elements are looked up, as channels of an image at places
    that were computed, what is loaded may lie side by side along another axis than the last, along which it is stored. None
    for the last."""
    long = [at for at, axis in enumerate(axes) if int(axis.dom.extent) > 1]
    if not long:
        return None
    loads: list[Any] = []
    choices: list[Any] = []
    structural_walk(definition.body, (ir.TensorLoad, loads.append))
    structural_walk(definition.body, (ir.Call, lambda call: choices.append(call) if _chooses(call) else None))
    branches = 1 + sum(all(map(_loads_any, call.args[1:])) for call in choices)  # of which one is taken
    counts = Counter(load.source for load in loads)
    regions = [
        *((read, counts[read.source] / branches) for read in definition.reads),
        *((each, 1) for each in definition.writes),
    ]

    def bytes_moved(at: int) -> float:
        """For each element."""
        moved = 0.0
        for region, count in regions:
            apart = step(definition, region, [axes[at]], 2)
            size = int(tvm.runtime.DataType(str(region.source.dtype)).bits) // 8
            is_small = math.prod(map(int, region.source.shape)) < LEAST_ELEMENTS
            moved += count * (0 if apart == 0 else size if apart == 1 or is_small else SECTOR_BYTES)
        return moved

    *others, last = long
    best = min((at for at in others if int(axes[at].dom.extent) >= LEAST_EXTENT), key=bytes_moved, default=last)
    return best if MUCH * bytes_moved(best) < bytes_moved(last) else None


def _loads_any(expression: Any) -> bool:
    loads: list[Any] = []
    structural_walk(expression, (ir.TensorLoad, loads.append))
    return bool(loads)


def _vectorised_lanes(definition: Any, axes: list[Any], lanes: int) -> int:
    return computed_lanes(definition, uniform_lanes(definition, axes[-1], lanes)) if axes else 1


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
    there are such numbers that do not make many blocks of few threads, without a remainder."""
    threads = BLOCK_THREADS if vectors >= BLOCK_THREADS * MULTIPROCESSORS else 2 * limits.warp
    threads, each = min(threads, limits.threads), 1
    while each < MAX_VECTORS and vectors >= 4 * each * threads * MULTIPROCESSORS * (2048 // threads):
        each *= 2
    counts = [threads >> power for power in range(4) if threads >> power >= limits.warp]
    fewest = min(threads * each // 4, vectors // FULL_BLOCKS)
    even = (
        (count, n)
        for n in (each, each // 2, each // 4)
        if n
        for count in counts
        if vectors % (count * n) == 0 and count * n >= fewest
    )
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
    loaded = []
    for index in reads:
        with suppress(ScheduleError):  # TVM 0.27 takes no reads whose index is written in two ways.
            loaded.append(schedule.reindex(block, ("read", index)))
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
