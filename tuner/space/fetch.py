"""Vectors of cooperative fetches that TVM can make CUDA C++ of.

In MetaSchedule's sketches the threads of a block fill shared memory together, each of them several elements at once, and how
many is drawn from 1 to 4 or 8. For elements of 16 bits TVM 0.27 refuses an odd number ("Only support an even number of lanes
for half type"), and where the elements do not lie side by side in memory, as in a transposed operand, its code does not
compile ("too many arguments in function call"). Such a decision is replaced by the next smaller one that works.
"""

from __future__ import annotations

from typing import Any

from tuner.space.gpu.vectors import step
from tuner.tvm_compat import tvm

_FETCH = "meta_schedule.cooperative_fetch"
NARROW_BITS = 16
"""Elements up to which vectors are packed into registers of 32 bits."""


def with_working_fetches(schedule: Any) -> Any:
    """The trace of a schedule before postprocessing, with such decisions replaced; None where there are none."""
    trace = schedule.trace
    drawn = {
        str(inst.outputs[0]): inst
        for inst in trace.insts
        if inst.kind.name == "SampleCategorical" and len(inst.outputs) == 1
    }
    changed = None
    for inst in trace.insts:
        if inst.kind.name != "Annotate" or str(inst.attrs[0]) != _FETCH or str(inst.inputs[1]) not in drawn:
            continue
        decided = drawn[str(inst.inputs[1])]
        lanes = [int(choice) for choice in decided.attrs[0]]
        now = int(trace.decisions[decided])
        if not works(definition := schedule.get(inst.inputs[0]), lanes[now]):
            least = max((i for i in range(now) if works(definition, lanes[i])), key=lambda i: lanes[i], default=None)
            if least is not None:
                changed = (changed or trace).with_decision(decided, least, False)
    return changed


def works(definition: Any, lanes: int) -> bool:
    """Whether a block that copies may take so many elements at once."""
    regions = [*definition.reads, *definition.writes]
    if lanes == 1 or all(int(tvm.runtime.DataType(str(r.source.dtype)).bits) > NARROW_BITS for r in regions):
        return True
    if lanes % 2:
        return False
    last = [definition.iter_vars[-1]]
    return all(step(definition, region, last, lanes) is not None for region in regions)
