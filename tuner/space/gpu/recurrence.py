"""Schedules of recurrent layers on a GPU (tuner/schedule/recurrence_kernels.py), ranked by an estimate of a step's time.

The whole schedule is in the rewrite that a trace names, so every sketch has one point and the space is a list. A step's time
is what no other step can hide: the launch or the barrier between two steps, the latency of a thread's loads, and what one
multiprocessor loads and multiplies for the tiles that it gets. A kernel a step uses all multiprocessors; one kernel that
holds the loop uses one for each tile of rows, and needs no launch between steps, so it suits small layers and many rows.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.target import Target
from tuner.schedule.recurrence import Recurrence, find_recurrence
from tuner.schedule.recurrence_kernels import Kernels
from tuner.schedule.rewrites import KERNELS, REWRITE, rewritten
from tuner.space.gpu.limits import MULTIPROCESSORS, Limits
from tuner.tvm_compat import Schedule

MOST_STEPS = 512
"""Of a layer with a kernel a step: beyond them the launches of a model with a few layers are thousands."""
SHARED_BYTES = 48 << 10
"""Of a thread block, at most: static shared memory."""
MOST = 6
"""Sketches of a layer with a kernel a step, and as many with one that holds the loop, at most."""

CLOCK = 1.7e9
"""Cycles a second. The figures below are of an H100 or H200; the ranking needs no more than their order of magnitude."""
LAUNCH = 1.0e-6 * CLOCK
"""Cycles between two kernels that follow each other in a graph and may begin early."""
BARRIER = 60
"""Cycles of a barrier of a thread block."""
LATENCY = 500
"""Cycles of a load from the L2 cache."""
UNDER_WAY = 4
"""Products whose loads a thread has under way at the same time."""
ADDITION = 4
"""Cycles of an addition in a chain."""
LOADED_BYTES = 64
"""A cycle, by a multiprocessor, from the L2 cache."""
ALL_LOADED_BYTES = 3000
"""The same by all of them."""
MULTIPLIED = 64
"""Multiply-adds a cycle of a multiprocessor, half of what it can: others of its instructions load."""


def recurrent_kernels(mod: Any, target: Target) -> list[Any]:
    """Schedules of the layer, those that the estimate ranks best first; none where the workload is no recurrent layer."""
    layer = find_recurrence(mod["main"])
    if layer is None:
        return []
    sketches = []
    for name in _choices(layer, Limits.of(target)):
        schedule = Schedule(rewritten(mod, name), seed=1, debug_mask=0, error_render_level="none")
        schedule.annotate(schedule.get_sblock("root"), REWRITE, name)
        sketches.append(schedule)
    return sketches


def _choices(layer: Recurrence, limits: Limits) -> list[str]:
    """Names of the best rewrites of either kind that fit the layer and the target, the best first."""
    ranked = []
    for name, (rows, units, parts, held) in KERNELS.items():
        kernels = Kernels(rows=rows, units=units, parts=parts, held=held)
        wasted = (rows > 1 and rows >= 2 * layer.rows) or (units > 8 and units >= 2 * layer.units)
        too_large = kernels.threads > limits.threads or kernels.shared_bytes(layer) > SHARED_BYTES
        if wasted or too_large or (layer.steps > MOST_STEPS and not held):
            continue
        ranked.append((_cycles(layer, kernels), name, held))
    ranked.sort()
    kinds = ([each for each in ranked if each[-1] is held][:MOST] for held in (False, True))
    return [name for _, name, _ in sorted(each for kind in kinds for each in kind)]


def _cycles(layer: Recurrence, kernels: Kernels) -> float:
    """Of a step, by estimate."""
    tiles_of_units = -(-layer.units // kernels.units)
    tiles_of_rows = -(-layer.rows // kernels.rows)
    blocks = tiles_of_rows if kernels.held else tiles_of_rows * tiles_of_units
    turns = tiles_of_units if kernels.held else 1
    on_one = turns * -(-blocks // MULTIPROCESSORS)
    item = 4 if layer.dtype == "float32" else 2
    products = layer.units * layer.gates * kernels.units
    loading = max(on_one * products * item / LOADED_BYTES, turns * blocks * products * item / ALL_LOADED_BYTES)
    work = max(loading, on_one * products * kernels.rows / MULTIPLIED)
    rounds = -(-layer.units // (kernels.parts * UNDER_WAY))
    adding = -(-kernels.rows // kernels.parts) * kernels.parts * ADDITION
    waiting = turns * (rounds * LATENCY + adding + 2 * BARRIER)
    return work + waiting + (BARRIER if kernels.held else LAUNCH)
