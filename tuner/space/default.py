"""Default schedules on a CPU: what a task that gets no trials runs, chosen without measuring.

A default schedule is a trace, so it is stored, replayed and checked like any other candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.schedule.rewrites import PARALLEL
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.space.access import element_bits
from tuner.space.inlining import inline_producers, root_blocks
from tuner.space.lines import whole_rewrite
from tuner.space.long_rows import has_long_rows, schedule_long_rows
from tuner.space.metaschedule import generate
from tuner.space.pieces import spread_pieces
from tuner.space.processor import VectorUnit
from tuner.space.recurrence import recurrent_sketches
from tuner.space.refusals import tell_refused
from tuner.space.rowwise import find_chain, schedule_chain, worth_parallelizing
from tuner.space.spread import axis_loops, divide_columns, fuse_outer, spread
from tuner.space.tiles import tiled_sketches
from tuner.space.windows import is_window
from tuner.space.winograd import winograd_sketches
from tuner.tvm_compat import Schedule, load_ir, tvm_ffi


def default_trace(workload: Workload, target: Target) -> str:
    """The default schedule of a workload; the baseline where nothing better is known."""
    return next(default_traces(workload, target), BASELINE_TRACE)


def default_traces(workload: Workload, target: Target) -> Iterator[str]:
    """The default schedule of a workload, and what comes after it where that turns out not to be right.

    A recurrent layer runs in the panels that the model in tuner/space/recurrence.py ranks best, a function that is written
    out with its outermost loop in parallel (tuner/schedule/lines.py), a convolution of 3 x 3 by
    Winograd's algorithm where tuner/space/winograd.py offers it, any other contraction in the register tile that the model
    in tuner/space/tiles.py ranks best, sums of columns by rows (tuner/space/spread.py), pools of
    images whose channels come first by unrolled windows (tuner/space/windows.py), concatenations piece by piece
    (tuner/space/pieces.py), a chain of reductions row by row
    (tuner/space/rowwise.py), with its rows divided where they are fewer than cores (tuner/space/long_rows.py). In anything
    else outer loops are parallel and the innermost is vectorised, and a transposition is tiled. Where TVM refuses one of
    these, or it changes nothing (a call of a library), the next is tried.
    """
    mod = load_ir(workload.ir)
    if panels := recurrent_sketches(mod, target):
        yield encode_trace(panels[0].trace)
    if (divided := whole_rewrite(mod, PARALLEL)) is not None:
        yield encode_trace(divided.trace)
    for form, sketches_of in (("winograd", winograd_sketches), ("register tiles", tiled_sketches)):
        if (contracted := _contraction(form, sketches_of, mod, workload, target)) is not None:
            yield contracted
    plans = {
        "columns": _columns,
        "windows": _windows,
        "pieces": _pieces,
        "long rows": _long_rows,
        "row by row": _row_by_row,
        "stage by stage": _stage_by_stage,
    }
    for choice, plan in plans.items():
        try:
            schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
            if not plan(schedule, target) or tvm_ffi.structural_equal(schedule.mod, mod):
                continue
            trace = encode_trace(schedule.trace)
            same = tvm_ffi.structural_equal(apply_trace(mod, trace).mod, schedule.mod)
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the baseline always works
            tell_refused("default", error, choice=choice)
            continue
        if same:
            yield trace


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


def _columns(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    chain = find_chain(schedule)
    if chain is not None and sum(bool(stage.reduction) for stage in chain.stages) > 1:
        return False  # Row by row, or column by column, its data is read once.
    return _where_it_applies(schedule, target, divide_columns)


def _windows(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    return _where_it_applies(schedule, target, _unroll_window)


def _pieces(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    return _where_it_applies(schedule, target, spread_pieces)


def _where_it_applies(schedule: Any, target: Target, plan: Callable[[Any, Any, Target], bool]) -> bool:
    """Schedules the blocks that the plan is for, and spreads the others; False where it is for none."""
    blocks = root_blocks(schedule)
    planned = [block for block in blocks if plan(schedule, block, target)]
    for block in blocks if planned else []:
        if block not in planned:
            spread(schedule, block, target)
    return bool(planned)


def _unroll_window(schedule: Any, block: Any, target: Target) -> bool:
    if not is_window(schedule.get(block), target) or not all(axis_loops(schedule, block)):
        return False
    lanes = VectorUnit.of(target, element_bits(schedule.get(block))).lanes
    spatial, window = axis_loops(schedule, block)
    steps = math.prod(int(schedule.get(loop).extent) for loop in [*spatial, *window])
    schedule.reorder(*spatial, *window)
    outer = fuse_outer(schedule, spatial[:-1], target) if len(spatial) > 1 else None
    if outer is not None and worth_parallelizing(steps, lanes):
        schedule.parallel(outer)
    for loop in window:
        schedule.unroll(loop)
    schedule.decompose_reduction(block, window[0])
    return True


def _long_rows(schedule: Any, target: Target) -> bool:
    inline_producers(schedule)
    chain = find_chain(schedule)
    return chain is not None and has_long_rows(chain, target) and schedule_long_rows(schedule, chain, target)


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
        spread(schedule, block, target)
    return True
