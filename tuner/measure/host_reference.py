"""The untransformed workload of a GPU, made fast enough on the host to be its reference.

Naive code of a GPU's workload takes seconds on one core. Here the outermost loop of every block runs on all cores; no
order of summation changes, so the outputs are those of the untransformed build, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import Schedule

_FEWEST_STEPS = 1 << 22
"""Of a block that is worth the threads: some ten milliseconds on one core."""


def on_all_cores(mod: Any) -> Any:
    """The workload with the outermost loop of each large block in parallel, where that loop is spatial."""
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
