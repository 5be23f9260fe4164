"""The reference program of a GPU workload: the unscheduled workload on all of the host's cores.

Unscheduled, a workload of a GPU's size takes seconds on one core. Here the outermost loop of every block is parallel. No
order of summation changes, so the outputs are those of the unscheduled program, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import Schedule

_FEWEST_STEPS = 1 << 22
"""Iterations of the smallest block that is made parallel: they take about ten milliseconds on one core."""


def on_all_cores(mod: Any) -> Any:
    """The module with the outermost loop of each large block parallel, where that loop is spatial."""
    schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        if math.prod(int(schedule.get(loop).extent) for loop in loops) < _FEWEST_STEPS:
            continue
        try:
            schedule.parallel(loops[0])
        except Exception:  # noqa: BLE001 - no loop, or a reduction: TVM raises whatever its C++ side met
            continue
    return schedule.mod
