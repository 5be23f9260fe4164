"""Which kernels a workload becomes, chosen by counting bytes and threads.

After element-wise stages are inlined, what is left are reductions and results:

* all of them as one kernel, row by row (rows.py), where they share rows and these keep the device busy, or where there is
  so little to read that one launch is what counts;
* else a kernel for every stretch of stages that does so; a reduction of few rows becomes two, the first of which reduces
  parts of each row (`split_long_rows`);
* a stage without a reduction is a kernel of its own (elementwise.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.space.gpu.elementwise import schedule_elementwise
from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, Limits, NoSchedule
from tuner.space.gpu.mapping import Chain, mapping_of, row_lanes
from tuner.space.gpu.rows import find_chain, schedule_chain
from tuner.space.gpu.stages import axis_loops, divide_by_group, fused, inline_stages, is_opaque
from tuner.space.inlining import is_reduction

ONE_LAUNCH = 1 << 16
"""Elements up to which one block of threads reads them in about the time of a launch."""
PART = 4 * BLOCK_THREADS
"""Elements of a part of a row, at least."""


def schedule_memory_bound(schedule: Any, limits: Limits) -> None:
    """Schedules every stage of a workload; raises NoSchedule for one that has a stage of another kind (a sort, a running
    sum)."""
    blocks = inline_stages(schedule)
    if not blocks or any(is_opaque(schedule, block) or axis_loops(schedule, block) is None for block in blocks):
        raise NoSchedule("a stage is neither a reduction nor one statement for each element")
    divide_by_group(schedule, blocks)
    for block in blocks if len(blocks) > 1 else ():
        if not schedule.get_loops(block):
            schedule.add_unit_loop(block)  # TVM's rfactor fails beside a stage without a loop.
    schedule_in_order(schedule, blocks, limits)


def schedule_in_order(schedule: Any, blocks: list[Any], limits: Limits) -> None:
    """Makes kernels of consecutive blocks; raises NoSchedule."""
    while blocks:
        count, chain = _longest_chain(schedule, blocks, limits)
        if chain is None:
            schedule_elementwise(schedule, blocks.pop(0), limits)
        elif _too_few_rows(chain, limits):
            blocks = [*split_long_rows(schedule, chain, limits), *blocks[1:]]
        else:
            schedule_chain(schedule, chain, mapping_of(chain, limits))
            del blocks[:count]


def _longest_chain(schedule: Any, blocks: Sequence[Any], limits: Limits) -> tuple[int, Chain | None]:
    """(number of blocks, chain) of the most blocks from the first on that may be one kernel, None for an element-wise stage
    alone; raises NoSchedule."""
    for count in range(len(blocks), 0, -1):
        chain = find_chain(schedule, blocks[:count])
        if chain is not None and (count == 1 or not _too_few_rows(chain, limits)):
            return count, chain
    if is_reduction(schedule, blocks[0]):
        raise NoSchedule("a reduction has loops that are not its axes")
    return 1, None


def _too_few_rows(chain: Chain, limits: Limits) -> bool:
    """Whether the chain, row by row, would leave most of the device idle for long."""
    in_block = chain.columns * (chain.rows if chain.side_by_side else 1)
    return _parts(chain, limits) > 1 and 2 * _blocks(chain, limits) <= MULTIPROCESSORS and in_block > ONE_LAUNCH


def _blocks(chain: Chain, limits: Limits) -> int:
    """Blocks of threads that the rows are for."""
    return -(-chain.rows // (limits.warp * row_lanes(chain, limits))) if chain.side_by_side else chain.rows


def _parts(chain: Chain, limits: Limits) -> int:
    """Parts of each row that keep the device busy."""
    wanted, least = (4, PART // 8) if chain.side_by_side else (2, PART)
    return min(wanted * MULTIPROCESSORS // _blocks(chain, limits), chain.columns // least)


def split_long_rows(schedule: Any, chain: Chain, limits: Limits) -> list[Any]:
    """Divides the rows of a chain's first reduction: (reduction of each part, reduction of the parts' results)."""
    stage = chain.stages[0]
    definition = schedule.get(stage.block)
    loops = axis_loops(schedule, stage.block)
    assert loops is not None
    at = [i for i, axis in enumerate(definition.iter_vars) if any(axis.var.same_as(row) for row in stage.rows)]
    rows = [loops[i] for i in at]
    columns = [loop for i, loop in enumerate(loops) if i not in at and loop is not None]
    if len(order := [*rows, *columns]) > 1:
        schedule.reorder(*order)
    column = fused(schedule, stage.block, columns)
    parts = _parts(chain, limits)
    exact = [n for n in range(max(parts // 2, 2), parts + 1) if stage.columns % n == 0]
    part, _ = schedule.split(column, [max(exact, default=parts), None])
    # Partial results lie side by side along what the second reduction's threads take.
    return [schedule.rfactor(part, 0 if chain.side_by_side else len(definition.writes[0].region)), stage.block]
