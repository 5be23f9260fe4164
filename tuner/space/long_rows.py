"""Chains of reductions with fewer rows than cores, such as a norm of one whole image, for CPUs.

Row by row (tuner/space/rowwise.py) one core would do it all. Here a row's reduction is divided into chunks, whose partial
results (rfactor) are computed side by side, each row by row, and added up afterwards; element-wise stages are parallel on
their own. Each stage goes over the data again, which more cores make up for where a row is long. This reorders
floating-point additions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import spatial_axes
from tuner.space.chain import Stage, stage_of
from tuner.space.inlining import is_reduction, root_blocks
from tuner.space.processor import VectorUnit
from tuner.space.rowwise import Chain, fills_the_last_dimensions, schedule_chain, worth_parallelizing
from tuner.space.spread import equal_chunks, spread


def has_long_rows(chain: Chain, target: Target) -> bool:
    """Whether there are fewer rows than cores, and each is worth dividing."""
    first = chain.stages[0]
    rows = math.prod(first.extents[axis] for axis in first.parallel)
    lanes = VectorUnit.of(target, chain.bits).lanes
    return (
        not chain.along_parallel
        and rows < (target.num_cores or 1)
        and all(worth_parallelizing(math.prod(stage.extents), lanes) for stage in chain.stages if stage.reduction)
    )


def schedule_long_rows(schedule: Any, chain: Chain, target: Target) -> bool:
    """Schedules a chain of long rows stage by stage; False where some reduction does not divide."""
    stages = {str(schedule.get(stage.block).name_hint): stage for stage in chain.stages}
    for block in root_blocks(schedule):
        stage = stages[str(schedule.get(block).name_hint)]
        if not is_reduction(schedule, block):
            spread(schedule, block, target)
        elif not _divided(schedule, stage, chain, target):
            return False
    return True


def _divided(schedule: Any, stage: Stage, chain: Chain, target: Target) -> bool:
    """Schedules a reduction: partial results of chunks, row by row, and their sum on one core."""
    block = stage.block
    loops = schedule.get_loops(block)
    reduced = [loops[axis] for axis in stage.reduction]
    if len(reduced) > 1 and fills_the_last_dimensions(schedule, stage):
        reduced = [schedule.fuse(*reduced)]
    chunks = [equal_chunks(int(schedule.get(loop).extent), target) for loop in reduced]
    number = next((n for n, count in enumerate(chunks) if count % (target.num_cores or 1) == 0), 0)
    if chunks[number] == 1:
        return False
    chunk, _ = schedule.split(reduced[number], [chunks[number], None])
    partial = schedule.rfactor(chunk, len(schedule.get(block).writes[0].region))
    spatial = [axis.var for axis in spatial_axes(schedule.get(partial))]
    loops = schedule.get_loops(partial)
    at = len(spatial) - 1 + number
    schedule.reorder(loops[at], *loops[:at])  # The axis of chunks is the block's first.
    schedule_chain(schedule, replace(chain, stages=(stage_of(schedule, partial, spatial),)), target)
    return True
