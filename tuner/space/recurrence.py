"""Schedules of recurrent layers (tuner/schedule/recurrence.py), for CPUs: how units are cut into panels.

All of a layer is in the rewrite that a trace names, so a sketch has one point and the space is a list. A panel's sums stay
in registers for all of a step's products: rows * gates * vectors of them, and one register for each gate's weights. More
rows share the weights that are read, more units hide the latency of multiply-adds; threads meet once a step, which takes
some microseconds, so one thread comes first where a step's weights stay in a core's cache.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.target import Target
from tuner.schedule.recurrence import Recurrence, find_recurrence
from tuner.schedule.trace import PANELS, REWRITE, rewritten
from tuner.space.access import dividing_lanes
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import Schedule

OWN_CACHE_BYTES = 1 << 20
"""What a core of today's processors holds in a cache of its own, about."""
STACK_BYTES = 1024
"""Of a panel's sums: TVM allocates what is larger on the heap."""
MOST = 12
"""Sketches of a layer."""


def recurrent_sketches(mod: Any, target: Target) -> list[Any]:
    """The layer in panels, those thought best first; none where the workload is no recurrent layer."""
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
    """Names of rewrites, those first that take the fewest loads for a multiply-add."""
    lanes = dividing_lanes(layer.units, unit.lanes)
    stays = 4 * layer.units * layer.gates * layer.units <= OWN_CACHE_BYTES
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
        ranked.append((parallel is stays, loads / products, -products, name))
    return [name for *_, name in sorted(ranked)]
