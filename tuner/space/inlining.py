"""Which stages of a workload without contractions are computed where they are read, and which are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tuner.space.access import MIN_LANES, spatial_axes, strides
from tuner.tvm_compat import inline_into_producer, ir, tirx, tvm_ffi

CHEAP_OPERATIONS = 8
"""Cost, in additions, of a stage that is cheaper to compute again at each use than to store and load."""
MOST_COPIED = 64
"""Cost of all copies of a stage that is read more than once. A chain of stages that each read the one before twice would
double with every stage."""


def inline_producers(schedule: Any) -> None:
    """Inlines the stages that are cheaper to compute again than to store: cheap ones, and those that one stage reads."""
    blocks = root_blocks(schedule)
    reduces = any(is_reduction(schedule, block) for block in blocks)
    gone: Any = None
    for block in blocks:
        if block is gone or not (consumers := schedule.get_consumers(block)) or is_reduction(schedule, block):
            continue
        # A reshape at the end of a chain hides the row axes of the stage before it, so it is inlined into that stage.
        turns = reduces and block is blocks[-2] and _is_copy(schedule, blocks[-1])
        if turns and _tried(partial(inline_into_producer, schedule), blocks[-1]):
            gone = blocks[-1]
            continue
        if not _worth_storing(schedule, block, consumers):
            _tried(schedule.compute_inline, block)


def root_blocks(schedule: Any) -> list[Any]:
    """The blocks of a workload, in order."""
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _tried(step: Any, block: Any) -> bool:
    try:
        step(block)
    except Exception:  # noqa: BLE001 - not of the form that TVM can substitute; then it stays as it is
        return False
    return True


def _worth_storing(schedule: Any, block: Any, consumers: Sequence[Any]) -> bool:
    stored = _instances(schedule, block)
    read_often = any(_instances(schedule, consumer) > stored for consumer in consumers)
    if _operations(schedule.get(block).body) <= CHEAP_OPERATIONS:
        return read_often and _gathers(schedule.get(block))
    if len(consumers) > 1 or read_often:
        return True
    return copied_operations(schedule, block, consumers) > MOST_COPIED


def _gathers(definition: Any) -> bool:
    """Whether a vector along the last axis would have to gather what a stage reads, as each channel its group's mean."""
    axes = spatial_axes(definition)
    return bool(axes) and any(None in each for each in strides(definition, definition.reads, axes[-1], MIN_LANES))


def copied_operations(schedule: Any, block: Any, consumers: Sequence[Any]) -> int:
    """Cost, in additions, of all copies of a stage that is inlined into its consumers, an access counted as one; 0 where
    that makes one copy only."""
    stage = schedule.get(block)
    buffer = stage.writes[0].source
    readers = [_loads(schedule.get(consumer).body) for consumer in consumers]
    copies = sum(load.source.same_as(buffer) for loads in readers for load in loads)
    return (_operations(stage.body) + len(_loads(stage.body))) * copies if copies > 1 else 0


def _loads(body: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (ir.TensorLoad, found.append))
    return found


def _operations(body: Any) -> int:
    """Approximate cost of one statement instance in additions; one division or call alone exceeds CHEAP_OPERATIONS."""
    cost = 0

    def arithmetic(_: Any) -> None:
        nonlocal cost
        cost += 1

    def expensive(value: Any) -> None:
        nonlocal cost
        if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "prim.if_then_else":
            cost += CHEAP_OPERATIONS + 1 if str(value.ty.dtype).startswith("float") else 0

    tvm_ffi.structural_walk(body, ((tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min), arithmetic))
    tvm_ffi.structural_walk(body, ((tirx.Div, ir.Call), expensive))
    return cost


def _instances(schedule: Any, block: Any) -> int:
    return math.prod(int(axis.dom.extent) for axis in schedule.get(block).iter_vars)


def is_reduction(schedule: Any, block: Any) -> bool:
    return any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in schedule.get(block).iter_vars)


def _is_copy(schedule: Any, block: Any) -> bool:
    body = schedule.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, ir.TensorLoad)
