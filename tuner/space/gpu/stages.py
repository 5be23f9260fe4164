"""Which stages of a workload are computed where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tuner.space.inlining import copied_operations, is_reduction, root_blocks
from tuner.tvm_compat import dividing, inline_into_producer, ir, loop_bindings, structural_walk, tirx

MOST_COPIED = 512
"""Cost, in additions, of all copies of a stage that are still cheaper than a kernel of its own. Chains of stages that each
read the one before more than once would double with every stage."""


def inline_stages(schedule: Any) -> list[Any]:
    """Inlines every stage but reductions, results and what would be copied too often into those that use it; returns the
    blocks that are left.

    Computing an element again costs a thread less than a kernel and two accesses to memory cost. A reshape behind a
    reduction would hide the rows of the stage before it, so that stage takes its place. What is a result and used as well
    (the sum of a residual, before its norm) is computed for both.
    """
    if any(is_reduction(schedule, block) for block in root_blocks(schedule)):
        while _joined_to_producer(schedule, root_blocks(schedule)[-1]):
            pass
    for block in root_blocks(schedule):
        users = schedule.get_consumers(block)
        if (
            users
            and not is_reduction(schedule, block)
            and not schedule.get_producers(block)
            and writes_result(schedule, block)
        ):
            schedule.cache_write(block, 0, "global", consumer_blocks=list(users))
    for block in root_blocks(schedule):
        if is_reduction(schedule, block) or not (users := schedule.get_consumers(block)):
            continue
        if copied_operations(schedule, block, users) <= MOST_COPIED:
            _tried(schedule.compute_inline, block)
    return root_blocks(schedule)


def divide_by_group(schedule: Any, blocks: Sequence[Any]) -> None:
    """Divides in two each axis c of a stage that reads what another reduced at c // size alone: it then has the rows of
    that reduction, as of a norm of groups of channels, whose reshape back to channels is fused with what follows."""
    reduced = {
        region.source for block in blocks if is_reduction(schedule, block) for region in schedule.get(block).writes
    }
    for block in blocks:
        definition = schedule.get(block)
        if not is_reduction(schedule, block) and (found := _group_axis(definition, reduced)) is not None:
            divided = dividing([axis.var.ty.dtype for axis in definition.iter_vars], *found)
            _tried(partial(schedule.transform_block_layout, index_map=divided), block)


def _group_axis(definition: Any, reduced: set[Any]) -> tuple[int, int] | None:
    """(place of the axis, size of a group), if there is one."""
    quotients: list[Any] = []

    def note(load: Any) -> None:
        if load.source in reduced:
            quotients.extend(index for index in load.indices if isinstance(index, tirx.FloorDiv))

    structural_walk(definition.body, (ir.TensorLoad, note))
    found = {
        (place, int(quotient.b))
        for quotient in quotients
        for place, axis in enumerate(definition.iter_vars)
        if quotient.a.same_as(axis.var)
        and isinstance(quotient.b, tirx.IntImm)
        and int(axis.dom.extent) % int(quotient.b) == 0
    }
    return found.pop() if len(found) == 1 else None


def is_opaque(schedule: Any, block: Any) -> bool:
    """Whether a block has axes that are neither data-parallel nor reductions (a sort, a running sum), or loops within."""
    definition = schedule.get(block)
    kinds = {int(axis.iter_type) for axis in definition.iter_vars}
    return not kinds <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce} or not isinstance(
        definition.body, tirx.BufferStore | tirx.SeqStmt
    )


def reduction_axes(definition: Any) -> list[Any]:
    """The axes of a block that it reduces, in order."""
    return [axis for axis in definition.iter_vars if int(axis.iter_type) == tirx.IterVar.CommReduce]


def writes_result(schedule: Any, block: Any) -> bool:
    """Whether a block writes a parameter of the function."""
    params = list(schedule.mod["main"].params)
    return any(region.source.same_as(param) for region in schedule.get(block).writes for param in params)


def axis_loops(schedule: Any, block: Any) -> list[Any] | None:
    """The loop of each axis of a block, None for an axis of one iteration that has none; None in place of the list where
    some axis is not one loop, or some loop of more than one iteration no axis."""
    loops = list(schedule.get_loops(block))
    found: list[Any] = []
    for axis, value in zip(schedule.get(block).iter_vars, loop_bindings(schedule, block), strict=True):
        at = next((loop for loop in loops if schedule.get(loop).loop_var.same_as(value)), None)
        if at is None and int(axis.dom.extent) > 1:
            return None
        found.append(at)
    own = [loop for loop in found if loop is not None]
    others = [loop for loop in loops if not any(loop.same_as(other) for other in own)]
    return found if all(_is_unit(schedule.get(loop)) for loop in others) else None


def _is_unit(loop: Any) -> bool:
    """Whether a loop has one iteration."""
    return isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 1


def fused(schedule: Any, block: Any, loops: list[Any]) -> Any:
    """The loops as one; a loop of one iteration around all loops of the block where there are none."""
    if not loops:
        around = list(schedule.get_loops(block))
        return schedule.add_unit_loop(around[0] if around else block)
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _joined_to_producer(schedule: Any, last: Any) -> bool:
    """Whether the last block, which only moves elements, was inlined into the one that makes them for it alone."""
    producers = list(schedule.get_producers(last))
    return (
        _copies(schedule, last)
        and len(producers) == 1
        and not is_reduction(schedule, producers[0])
        and len(schedule.get_consumers(producers[0])) == 1
        and _tried(partial(inline_into_producer, schedule), last)
    )


def _copies(schedule: Any, block: Any) -> bool:
    """Whether a block only moves elements and casts them."""
    body = schedule.get(block).body
    value = body.value if isinstance(body, tirx.BufferStore) else None
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, ir.TensorLoad)


def _tried(step: Callable[[Any], None], block: Any) -> bool:
    try:
        step(block)
    except Exception:  # noqa: BLE001 - not of the form that TVM can substitute; then it stays as it is
        return False
    return True
