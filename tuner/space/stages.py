"""What every sketch of a contraction does with the stages around it: copies, padding, epilogue, write-back."""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import ir, structural_walk


def inline_copies(schedule: Any, block: Any) -> bool:
    """Stages before the contraction that only move data are read through; whether there were any."""
    inlined = False
    for producer in schedule.get_producers(block):
        inline_copies(schedule, producer)
        if isinstance(schedule.get(producer).body.value, ir.TensorLoad):
            schedule.compute_inline(producer)
            inlined = True
    return inlined


def producers_to_place(schedule: Any, block: Any) -> list[Any]:
    """The stages that compute what the contraction reads: padding, mostly."""
    found: list[Any] = []
    for producer in schedule.get_producers(block):
        found += [*producers_to_place(schedule, producer), producer]
    return found


def producer(schedule: Any, block: Any, read: int) -> Any:
    """The stage that writes what the block reads as its read number `read`."""
    buffer = schedule.get(block).reads[read].source
    (found,) = [b for b in schedule.get_producers(block) if schedule.get(b).writes[0].source.same_as(buffer)]
    return found


def inline_epilogue(schedule: Any, block: Any) -> Any:
    """The stage that writes the tile back, which computes what follows the contraction on its way."""
    chain: list[Any] = []
    while following := schedule.get_consumers(chain[-1] if chain else block):
        chain.append(following[0])
    for stage in chain[:-1]:
        schedule.compute_inline(stage)
    result = schedule.cache_write(block, 0, "global")
    if chain:
        schedule.reverse_compute_inline(chain[-1])
    return result


def calls_functions(schedule: Any, stage: Any) -> bool:
    """Whether a stage computes more than arithmetic (erf, exp): unrolled over a tile it would cost the compiler seconds,
    so the tile leaves the registers before."""
    found: list[Any] = []
    structural_walk(schedule.get(stage).body, (ir.Call, found.append))
    return bool(found)


def write_back(schedule: Any, result: Any, at: Any, lanes: int, *, unroll: bool = True) -> None:
    """Places the write-back of a tile at a loop; unrolled, so with constant indices, where the tile is in registers."""
    schedule.reverse_compute_at(result, at, preserve_unit_loops=True)
    place = schedule.get(at).loop_var
    loops = list(schedule.get_loops(result))
    above = next(i for i, loop in enumerate(loops) if schedule.get(loop).loop_var.same_as(place))
    *rows, columns = loops[above + 1 :]
    for loop in rows if unroll else []:
        schedule.unroll(loop)
    _vectorize(schedule, columns, lanes, unroll=unroll)


def place(schedule: Any, producer: Any, at: Any, lanes: int) -> None:
    """A stage before the contraction: parallel on its own, or computed at a loop for what is read there."""
    if at is not None:
        schedule.compute_at(producer, at, preserve_unit_loops=True)
        _vectorize(schedule, schedule.get_loops(producer)[-1], lanes)
        return
    loops = list(schedule.get_loops(producer))
    _vectorize(schedule, loops[-1], lanes)
    schedule.parallel(schedule.fuse(*loops[: min(2, len(loops) - 1)]) if len(loops) > 2 else loops[0])


def sample(schedule: Any, values: list[int], preferred: int) -> Any:
    """One of the values, left to the search, which begins with the one that is preferred."""
    if len(values) == 1:
        return values[0]
    return schedule.sample_categorical(values, [1.0 / len(values)] * len(values), values.index(preferred))


def busy(tasks: int, cores: int) -> float:
    """Share of the cores' time that equal tasks use."""
    return tasks / (math.ceil(tasks / cores) * cores)


def largest_divisor(number: int, limit: int) -> int:
    """Of `number`, not above `limit`."""
    return max(divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0)


def _vectorize(schedule: Any, loop: Any, lanes: int, *, unroll: bool = True) -> None:
    """A loop in vectors of the machine: wider ones cost the compiler dearly. Rests are left to it."""
    extent = int(schedule.get(loop).extent)
    if extent % lanes == 0 and extent > lanes:
        outer, loop = schedule.split(loop, [None, lanes])
        if unroll and extent <= 8 * lanes:
            schedule.unroll(outer)
    elif extent > lanes:
        return
    schedule.vectorize(loop)
