"""Default schedules on a CPU: what a task that gets no trials runs, chosen without measuring.

A default schedule is a trace, so it is stored, replayed and checked like any other candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.space.access import dividing_lanes, element_bits, is_flat, turned_axis, vector_lanes
from tuner.space.inlining import inline_producers, root_blocks
from tuner.space.metaschedule import generate
from tuner.space.processor import VectorUnit
from tuner.space.recurrence import recurrent_sketches
from tuner.space.refusals import tell_refused
from tuner.space.rowwise import find_chain, schedule_chain, worth_parallelizing
from tuner.space.tiles import tiled_sketches
from tuner.space.windows import is_window
from tuner.space.winograd import winograd_sketches
from tuner.tvm_compat import Schedule, load_ir, loop_bindings, tirx, tvm_ffi

TURNS = 4
"""Chunks per core that a parallel loop has at least, where its extent allows: cores seldom start together."""
TILE = 8
"""Side of a tile of a transposition, in elements. On AVX-512, 16 by 16 was slower than 8 by 8."""


def default_trace(workload: Workload, target: Target) -> str:
    """The default schedule of a workload; the baseline where nothing better is known.

    A recurrent layer runs in the panels that the model in tuner/space/recurrence.py ranks best, a convolution of 3 x 3 by
    Winograd's algorithm where tuner/space/winograd.py offers it, any other contraction in the register tile that the model
    in tuner/space/tiles.py ranks best, pools of images whose channels come first by unrolled windows
    (tuner/space/windows.py), a chain of reductions row by row (tuner/space/rowwise.py). In anything else outer loops are
    parallel and the innermost is vectorised, and a transposition is tiled. Where TVM refuses one of these, or it
    changes nothing (a call of a library), the next is tried.
    """
    mod = load_ir(workload.ir)
    if panels := recurrent_sketches(mod, target):
        return encode_trace(panels[0].trace)
    for form, sketches_of in (("winograd", winograd_sketches), ("register tiles", tiled_sketches)):
        if (contracted := _contraction(form, sketches_of, mod, workload, target)) is not None:
            return contracted
    plans = {"windows": _windows, "row by row": _row_by_row, "stage by stage": _stage_by_stage}
    for choice, plan in plans.items():
        try:
            schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
            if not plan(schedule, target) or tvm_ffi.structural_equal(schedule.mod, mod):
                continue
            trace = encode_trace(schedule.trace)
            if tvm_ffi.structural_equal(apply_trace(mod, trace).mod, schedule.mod):
                return trace
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the baseline always works
            tell_refused("default", error, choice=choice)
            continue
    return BASELINE_TRACE


def _contraction(
    form: str, sketches_of: Callable[[Any, Target, int], list[Any]], mod: Any, workload: Workload, target: Target
) -> str | None:
    """The point of a design space that its model ranks best, the one that a search begins with; None where there is none."""
    try:
        if not (sketches := sketches_of(mod, target, 1)):
            return None
        space = generate(workload, target, empty=True).joined([sketches])
        schedule = space.candidate(space.analytic_seeds[0], seed=1)
        if schedule is None:
            return None
        trace = encode_trace(schedule.trace)
        apply_trace(mod, trace)
        return trace
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the other plans may apply
        tell_refused("default", error, choice=form)
        return None


def _windows(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    found = False
    for block in root_blocks(schedule):
        if is_window(schedule.get(block), target) and all(_loops(schedule, block)):
            _unroll_window(schedule, block, target)
            found = True
        else:
            _spread(schedule, block, target)
    return found


def _unroll_window(schedule: Any, block: Any, target: Target) -> None:
    lanes = VectorUnit.of(target, element_bits(schedule.get(block))).lanes
    spatial, window = _loops(schedule, block)
    steps = math.prod(int(schedule.get(loop).extent) for loop in [*spatial, *window])
    schedule.reorder(*spatial, *window)
    outer = _chunks(schedule, spatial[:-1], target) if len(spatial) > 1 else None
    if outer is not None and worth_parallelizing(steps, lanes):
        schedule.parallel(outer)
    for loop in window:
        schedule.unroll(loop)
    schedule.decompose_reduction(block, window[0])


def _row_by_row(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    chain = find_chain(schedule)
    if chain is None:
        return False
    schedule_chain(schedule, chain, target)
    return True


def _stage_by_stage(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    for block in root_blocks(schedule):
        _spread(schedule, block, target)
    return True


def _spread(schedule: Any, block: Any, target: Target) -> None:
    """Makes the outer spatial loops of a block parallel and vectorises the innermost one."""
    spatial, reductions = _loops(schedule, block)
    if not spatial:
        return
    definition = schedule.get(block)
    unit = VectorUnit.of(target, element_bits(definition)).lanes
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    steps = math.prod(extents) * math.prod(int(schedule.get(loop).extent) for loop in reductions)
    if not reductions and (turned := turned_axis(definition, unit)) is not None:
        _transpose(schedule, spatial, turned, target, unit, steps)
        return
    if not reductions and is_flat(definition):
        spatial, extents = [schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]], [math.prod(extents)]
        lanes = dividing_lanes(extents[0], unit)
    else:
        lanes = vector_lanes(definition, unit)
    inner = []
    if lanes > 1:
        spatial[-1], vector = schedule.split(spatial[-1], factors=[None, lanes])
        inner = [vector]
    elif len(spatial) > 1 and not reductions:
        spatial, inner = spatial[:-1], spatial[-1:]  # LLVM makes vectors of a plain innermost loop.
    if len(order := [*spatial, *reductions, *inner]) > 1:
        schedule.reorder(*order)
    outer = _chunks(schedule, spatial, target)
    if worth_parallelizing(steps, unit):
        schedule.parallel(outer)
    if lanes > 1:
        schedule.vectorize(inner[0])
    if reductions:
        start = schedule.decompose_reduction(block, reductions[0])
        if lanes > 1:
            schedule.vectorize(schedule.get_loops(start)[-1])


def _loops(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """(spatial loops, reduction loops) of a block; both empty where some loop is not one axis of the block."""
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


def _chunks(schedule: Any, loops: list[Any], target: Target) -> Any:
    """Fuses as few of the outer loops as give every core TURNS chunks: index arithmetic of the fused loop is done once per
    chunk."""
    count, taken = 1, 0
    while taken < len(loops) and count < TURNS * (target.num_cores or 1):
        count *= int(schedule.get(loops[taken]).extent)
        taken += 1
    return schedule.fuse(*loops[:taken]) if taken > 1 else loops[0]


def _transpose(schedule: Any, spatial: list[Any], turned: int, target: Target, unit: int, steps: int) -> None:
    """Tiles a transposition in squares that are read in vectors: LLVM transposes a tile in registers, and every cache line
    is used completely while it is in the cache."""
    others = [loop for number, loop in enumerate(spatial[:-1]) if number != turned]
    across, row = schedule.split(spatial[turned], factors=[None, _side(schedule, spatial[turned], unit)])
    along, column = schedule.split(spatial[-1], factors=[None, _side(schedule, spatial[-1], unit)])
    schedule.reorder(*others, across, along, column, row)
    outer = _chunks(schedule, [*others, across, along], target)
    if worth_parallelizing(steps, unit):
        schedule.parallel(outer)
    schedule.vectorize(row)


def _side(schedule: Any, loop: Any, unit: int) -> int:
    return dividing_lanes(int(schedule.get(loop).extent), min(unit, TILE))
