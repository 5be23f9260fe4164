"""Default schedules: what a task is compared with, and what a task gets that is not worth trials.

Both are traces, so they are stored, replayed and checked like any other candidate.
"""

from __future__ import annotations

import math
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.trace import apply_trace, encode_trace
from tuner.tvm_compat import Schedule, dlight, load_ir, loop_bindings, tirx, to_tvm_target, tvm_ffi, uses

VECTOR_BITS = 512
"""Width of the vectorised inner loop; LLVM splits it for narrower machines."""
MIN_LANES = 4
"""Shorter vectors are left to LLVM."""
PARALLEL_MIN_STEPS = 1 << 16
"""Statement instances below which waking a second thread (5 us and more) costs more than it gives."""


def baseline_trace(workload: Workload, target: Target) -> str:
    """The untuned default: the workload as it is where the compiler takes it unscheduled (CPU), else TVM's own default
    GPU schedule (one thread per output element)."""
    if target.kind == "llvm":
        return BASELINE_TRACE
    mod = load_ir(workload.ir)
    tvm_target = to_tvm_target(target)
    with tvm_target:
        schedule = dlight.gpu.Fallback().apply(mod["main"], tvm_target, False)
    if schedule is None:
        raise InvalidTrace("TVM's default GPU schedule does not apply to the workload")
    return encode_trace(schedule.trace)


def fixed_trace(workload: Workload, target: Target) -> str:
    """The default schedule of a task without trials; the baseline where nothing better is known.

    On a CPU: producers that are no reduction are inlined, outer spatial loops are fused and run in parallel, the
    innermost spatial loop is vectorised, reductions keep their order. Every step is optional: what TVM refuses for a
    block is left out.
    """
    if target.kind != "llvm":
        return baseline_trace(workload, target)
    mod = load_ir(workload.ir)
    try:
        schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
        _inline_producers(schedule)
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            _spread(schedule, block)
        trace = encode_trace(schedule.trace)
        if not tvm_ffi.structural_equal(apply_trace(mod, trace).mod, schedule.mod):
            return BASELINE_TRACE
    except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; the baseline always works
        return BASELINE_TRACE
    return trace


def _inline_producers(schedule: Any) -> None:
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if not schedule.get_consumers(block):
            continue
        try:
            schedule.compute_inline(block)
        except Exception:  # noqa: BLE001 - a reduction, or read through an access TVM cannot substitute
            continue


def _spread(schedule: Any, block: Any) -> None:
    """Threads over the outer spatial loops, lanes over the innermost one."""
    spatial, reductions = _loops(schedule, block)
    if not spatial:
        return
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    steps = math.prod(extents) * math.prod(int(schedule.get(loop).extent) for loop in reductions)
    inner = None
    if not reductions:
        lanes = _lanes(schedule, block, math.prod(extents))
        outer = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    else:
        lanes = _lanes(schedule, block, extents[-1])
        outer = spatial[-1]
    if lanes > 1:
        outer, inner = schedule.split(outer, factors=[None, lanes])
    if reductions:
        spatial = [*spatial[:-1], outer]
        schedule.reorder(*spatial, *reductions, *([inner] if inner is not None else []))
        outer = schedule.fuse(*spatial) if len(spatial) > 1 else outer
    if steps >= PARALLEL_MIN_STEPS:
        schedule.parallel(outer)
    if inner is not None:
        schedule.vectorize(inner)
    if reductions:
        start = schedule.decompose_reduction(block, reductions[0])
        if inner is not None:
            schedule.vectorize(schedule.get_loops(start)[-1])


def _loops(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """Spatial and reduction loops of a block; none for one that is not a plain loop nest over its own axes."""
    kind_of = {}
    for axis, value in zip(schedule.get(block).iter_vars, loop_bindings(schedule, block), strict=True):
        if isinstance(value, tirx.Var):
            kind_of[value] = int(axis.iter_type)
    loops = list(schedule.get_loops(block))
    kinds = [kind_of.get(schedule.get(loop).loop_var) for loop in loops]
    if any(kind not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for kind in kinds):
        return [], []
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar]
    return spatial, [loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.CommReduce]


def _lanes(schedule: Any, block: Any, extent: int) -> int:
    """Elements of one vector of what the block writes, halved until they divide the loop; 1 where that leaves too
    few."""
    if not _contiguous(schedule, block):
        return 1
    bits = int("".join(c for c in str(schedule.get(block).writes[0].source.dtype) if c.isdigit()) or 32)
    lanes = VECTOR_BITS // max(bits, 8)
    while lanes > 1 and extent % lanes:
        lanes //= 2
    return lanes if lanes >= MIN_LANES else 1


def _contiguous(schedule: Any, block: Any) -> bool:
    """Whether lanes along the innermost spatial axis write neighbours and, where it is the last index, read neighbours.

    A read that has the axis in another index is a gather with a constant stride: still better than a reduction that
    LLVM may not reorder.
    """
    definition = schedule.get(block)
    axis = [a.var for a in definition.iter_vars if int(a.iter_type) == tirx.IterVar.DataPar][-1]
    for region in [*definition.reads, *definition.writes]:
        if region.region and uses(last := region.region[-1].min, axis) and not _unit_step(last, axis):
            return False
    return not any(uses(dim.min, axis) for region in definition.writes for dim in region.region[:-1])


def _unit_step(index: Any, axis: Any) -> bool:
    """Whether the index grows by one with the axis."""
    if isinstance(index, tirx.Add):
        left, right = uses(index.a, axis), uses(index.b, axis)
        return left != right and _unit_step(index.a if left else index.b, axis)
    if isinstance(index, tirx.Sub):
        return not uses(index.b, axis) and _unit_step(index.a, axis)
    return bool(index.same_as(axis))
