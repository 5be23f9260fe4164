"""Scheduling of the stages around a contraction, the same for every sketch: copies, padding, epilogue, write-back."""

from __future__ import annotations

import math
from typing import Any

from tuner.space.contraction import Contraction
from tuner.tvm_compat import Schedule, Trace, inline_into_producer, ir, structural_walk

VECTORS_PER_SEC, WEIGHT_BYTES_PER_SEC = 5e9, 40e9
"""What a core does with a short product: multiply-adds of vectors, and B from the L2 cache or the next."""
PARALLEL_MIN_SECS = 5e-6
"""Of a product that is divided among cores. To hand a part to a second thread took 1.3 us while that was spinning, which
it does for a while after its last part, and else 5 to 40."""


def is_short(found: Contraction, lanes: int) -> bool:
    """Whether a core alone ends the contraction, in vectors of so many lanes, before dividing it would pay."""
    steps = math.prod(found.extents)
    weight_bytes = math.prod(found.extents[axis] for axis in found.weight_axes if axis is not None) * found.bits // 8
    return steps / lanes / VECTORS_PER_SEC + weight_bytes / WEIGHT_BYTES_PER_SEC < PARALLEL_MIN_SECS


def on_one_core(schedule: Any, mod: Any) -> Any:
    """The same schedule of the module without parallel loops."""
    trace = schedule.trace
    kept = [instruction for instruction in trace.insts if instruction.kind.name != "Parallel"]
    alone = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
    Trace(kept, dict(trace.decisions.items())).apply_to_schedule(alone, remove_postproc=False)
    return alone


def inline_copies(schedule: Any, block: Any) -> bool:
    """Inlines the stages before the contraction that only move data; returns whether there were any."""
    inlined = False
    for producer in schedule.get_producers(block):
        inline_copies(schedule, producer)
        if isinstance(schedule.get(producer).body.value, ir.TensorLoad):
            schedule.compute_inline(producer)
            inlined = True
    return inlined


def producers_to_place(schedule: Any, block: Any) -> list[Any]:
    """The stages before the contraction, in order; mostly padding."""
    found: list[Any] = []
    for producer in schedule.get_producers(block):
        found += [*producers_to_place(schedule, producer), producer]
    return found


def producer(schedule: Any, block: Any, read: int) -> Any:
    """The stage that writes what the block reads as its read number `read`."""
    buffer = schedule.get(block).reads[read].source
    (found,) = [b for b in schedule.get_producers(block) if schedule.get(b).writes[0].source.same_as(buffer)]
    return found


def last_consumer(schedule: Any, block: Any) -> Any:
    """The last stage after a block, with all others that it reads inlined into it; None where no stage is after the block.

    A stage may be read by several others: a GELU by tanh reads its argument three times. One may also lie beside the block:
    in half precision a residual is cast before it is added.
    """
    chain: list[Any] = []
    while following := schedule.get_consumers(chain[-1] if chain else block):
        chain.append(following[0])
    for stage in chain[:-1]:
        schedule.compute_inline(stage)
    while len(readers := schedule.get_consumers(block)) > 1:
        schedule.compute_inline(next(stage for stage in readers if schedule.get_consumers(stage)))
    if not chain:
        return None
    while (beside := _other_producer(schedule, chain[-1], block)) is not None:
        schedule.compute_inline(beside)
    return chain[-1]


def _other_producer(schedule: Any, stage: Any, block: Any) -> Any:
    """A stage that a stage reads, other than the block; None where there is none."""
    written = schedule.get(block).writes[0].source
    producers = schedule.get_producers(stage)
    return next((each for each in producers if not schedule.get(each).writes[0].source.same_as(written)), None)


def inline_epilogue(schedule: Any, block: Any) -> Any:
    """Inlines all stages after the contraction into a stage that writes its result back; returns that stage."""
    last = last_consumer(schedule, block)
    result = schedule.cache_write(block, 0, "global")
    if last is not None:
        inline_into_producer(schedule, last)
    return result


def calls_functions(schedule: Any, stage: Any) -> bool:
    """Whether a stage calls functions (erf, exp). Unrolled over a tile it would compile for seconds, so such a stage reads
    the tile from a buffer, in a loop."""
    found: list[Any] = []
    structural_walk(schedule.get(stage).body, (ir.Call, found.append))
    return bool(found)


def write_back(schedule: Any, result: Any, at: Any, lanes: int, *, unroll: bool = True) -> None:
    """Places the write-back of a tile at the loop `at`. A tile in registers needs constant indices, so it is unrolled."""
    schedule.reverse_compute_at(result, at, preserve_unit_loops=True)
    place = schedule.get(at).loop_var
    loops = list(schedule.get_loops(result))
    above = next(i for i, loop in enumerate(loops) if schedule.get(loop).loop_var.same_as(place))
    *rows, columns = loops[above + 1 :]
    for loop in rows if unroll else []:
        schedule.unroll(loop)
    _vectorize(schedule, columns, lanes, unroll=unroll)


def place(schedule: Any, producer: Any, at: Any, lanes: int) -> None:
    """Schedules a stage before the contraction: a parallel loop of its own where `at` is None, else computed at that loop,
    in vectors of `lanes`."""
    if at is not None:
        schedule.compute_at(producer, at, preserve_unit_loops=True)
        _vectorize(schedule, schedule.get_loops(producer)[-1], lanes)
        return
    loops = list(schedule.get_loops(producer))
    _vectorize(schedule, loops[-1], lanes)
    schedule.parallel(schedule.fuse(*loops[: min(2, len(loops) - 1)]) if len(loops) > 2 else loops[0])


def sample(schedule: Any, values: list[int], preferred: int) -> Any:
    """A sampling instruction over the values, decided as the preferred one; a single value as it is."""
    if len(values) == 1:
        return values[0]
    return schedule.sample_categorical(values, [1.0 / len(values)] * len(values), values.index(preferred))


def busy(chunks: int, cores: int) -> float:
    """Share of the cores' time that `chunks` of equal length use."""
    return chunks / (math.ceil(chunks / cores) * cores)


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max(divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0)


def _vectorize(schedule: Any, loop: Any, lanes: int, *, unroll: bool = True) -> None:
    """Vectorises a loop in vectors of `lanes`, since wider ones take long to compile; a longer loop that they do not divide
    is left to LLVM."""
    extent = int(schedule.get(loop).extent)
    if extent % lanes == 0 and extent > lanes:
        outer, loop = schedule.split(loop, [None, lanes])
        if unroll and extent <= 8 * lanes:
            schedule.unroll(outer)
    elif extent > lanes:
        return
    schedule.vectorize(loop)
