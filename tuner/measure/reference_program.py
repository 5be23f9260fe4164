"""The reference program: the unscheduled workload, on all cores and in vectors, with every sum in its order.

Unscheduled, a large workload takes a second or more on one core, and the outputs of a new workload are waited for. What is
changed here changes no result. A block's spatial loops are independent of one another, so they may be parallel, in
vectors, and outside or inside the reduction's loops; those stay in their order, one after another, so that each element
is the same sum of the same terms, rounded at the same places. Nothing is inlined: what the workload stores is stored.

Where vectors run along the last axis they are the outermost loop, too: a panel of a product's columns stays in the cache
for all rows.

It runs some times, so LLVM optimises a small one not at all: that halves the time of compiling, at twice that of a run, and
changes no result either.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.space.access import element_bits, in_last_only, spatial_axes, strides, vector_lanes
from tuner.tvm_compat import Schedule, loop_bindings, tirx, tvm

_VECTOR_BITS = 512
"""Of a vector: one register of the widest units, several of narrower ones."""
_VECTORS = 4
"""Vectors of a reduction's innermost loop: neighbouring sums hide one another's latency. More make more code, not speed."""
_FEWEST_STEPS = 1 << 16
"""Iterations of the smallest block that is divided among cores."""
_OPTIMISED_FLOPS = 1 << 28
"""Of the smallest program that LLVM optimises."""


def on_all_cores(mod: Any) -> Any:
    """The module with the spatial loops of each block parallel and in vectors, where the block allows it."""
    schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        before = schedule.copy()
        try:
            _spread(schedule, block)
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; then the block stays as it is
            schedule = before
    return schedule.mod


def target_of(mod: Any, target: Any) -> Any:
    """The CPU's target to compile the reference program of `mod` for."""
    if tvm.s_tir.analysis.estimate_tir_flops(mod) >= _OPTIMISED_FLOPS:
        return target
    return tvm.target.Target({**target.export(), "opt-level": 0})


def _spread(schedule: Any, block: Any) -> None:
    spatial, reductions = _loops(schedule, block)
    if not spatial:
        return
    definition = schedule.get(block)
    steps = math.prod(int(schedule.get(loop).extent) for loop in [*spatial, *reductions])
    vector = []
    if (width := _width(definition, bool(reductions))) > 1:
        panels, lane = schedule.split(spatial[-1], factors=[None, width])
        spatial, vector = [panels, *spatial[:-1]], [lane]
    if len(order := [*spatial, *reductions, *vector]) > 1:
        schedule.reorder(*order)
    if steps >= _FEWEST_STEPS:
        schedule.parallel(schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0])
    if vector:
        schedule.vectorize(vector[0])
    if reductions:
        start = schedule.decompose_reduction(block, reductions[0])
        if vector:
            schedule.vectorize(schedule.get_loops(start)[-1])


def _width(definition: Any, reduces: bool) -> int:
    """Elements of the vector loop along the last spatial axis; 1 where there is none."""
    axis, lanes = spatial_axes(definition)[-1], vector_lanes(definition, _VECTOR_BITS // element_bits(definition))
    if lanes == 1 or not reduces:
        return lanes
    if not all(in_last_only(found) for found in strides(definition, definition.reads, axis, lanes) if found):
        return lanes  # It gathers, element by element.
    return next(lanes * n for n in (_VECTORS, 2, 1) if int(axis.dom.extent) % (lanes * n) == 0)


def _loops(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """(spatial loops, reduction loops) of a block, in order; both empty where some loop is not one axis of the block."""
    axes = {
        value: axis for axis, value in zip(schedule.get(block).iter_vars, loop_bindings(schedule, block), strict=True)
    }
    loops = list(schedule.get_loops(block))
    found = [axes.get(schedule.get(loop).loop_var) for loop in loops]
    kinds = [None if axis is None else int(axis.iter_type) for axis in found]
    if any(kind not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for kind in kinds):
        return [], []
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    return spatial, [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]
