"""Schedules of recurrent layers (tuner/schedule/recurrence.py), for CPUs: how units are divided into panels.

The whole schedule of a layer is in the rewrite that a trace names, so every sketch has one point and the space is a list.
The sums of a panel stay in registers through all products of a step: rows * gates * vectors of them, and one register for
each gate's weights. With more rows each weight that is loaded serves more products, with more units the latency of
multiply-adds is hidden. Threads synchronise once a step, so one thread is ranked first where a step is short.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.target import Target
from tuner.schedule.recurrence import Recurrence, find_recurrence
from tuner.schedule.rewrites import PANELS, REWRITE, rewritten
from tuner.space.access import dividing_lanes
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import Schedule

BARRIER_SECS = 0.5e-6
"""Of the threads' meeting at the end of a step, while each has a core: 0.1 to 0.3 us of two, by the difference of divided
and undivided layers, and more of more."""
FLOPS_PER_SEC = 100e9
"""Of one core, for weights that are in its caches. Layers of 96 and 128 units reached 45 to 120."""
STACK_BYTES = 1024
"""Bytes of a panel's sums, at most. A larger buffer was taken from TVM's runtime when the panels were chosen."""
MOST = 12
"""Sketches of a layer, at most."""


def recurrent_sketches(mod: Any, target: Target) -> list[Any]:
    """Schedules of the layer in panels, those that the model ranks best first; none where the workload is no recurrent
    layer."""
    layer = find_recurrence(mod["main"])
    if layer is None:
        return []
    sketches = []
    for name in _choices(layer, VectorUnit.of(target, 32), target.num_cores or 1)[:MOST]:
        schedule = Schedule(rewritten(mod, name), seed=1, debug_mask=0, error_render_level="none")
        schedule.annotate(schedule.get_sblock("root"), REWRITE, name)
        sketches.append(schedule)
    return sketches


def _choices(layer: Recurrence, unit: VectorUnit, cores: int) -> list[str]:
    """Names of the rewrites that fit the layer and the target, those with the fewest loads per multiply-add first."""
    lanes = dividing_lanes(layer.units, unit.lanes)
    step_secs = 2 * layer.rows * layer.units * layer.gates * layer.units / FLOPS_PER_SEC
    divided = step_secs / cores + BARRIER_SECS < step_secs
    ranked = []
    for name, (rows, units, width, parallel) in PANELS.items():
        vectors = rows * layer.gates * units // width
        fits = vectors + layer.gates <= unit.registers and 4 * rows * layer.gates * units <= STACK_BYTES
        if width != lanes or layer.rows % rows or layer.units % units or not fits or (parallel and cores == 1):
            continue
        if parallel and layer.units // units < cores:
            continue
        products = rows * layer.gates * units // width
        loads = rows + layer.gates * units // width
        ranked.append((parallel is not divided, loads / products, -products, name))
    return [name for *_, name in sorted(ranked)]
