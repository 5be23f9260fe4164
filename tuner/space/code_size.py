"""Candidates whose unrolled code is so long that they compile for seconds and cannot be fast: refused before compilation.

MetaSchedule unrolls up to 0, 16, 64 or 512 steps, and a step may be a vector of several registers. Straight-line code of
several hundred vector statements fits neither a loop buffer nor the registers, and LLVM takes up to 2.5 s for it, where
other candidates take 0.2 s; 60 s for 49 vectors of 49 elements that lie apart in memory. Of 108 candidates of a
convolution, all with full vectors, the 33 above MOST_STATEMENTS took half of the compilation time, and the fastest of them
had nine tenths of the speed of the fastest of all. Our own spaces unroll register tiles explicitly, without the pragma, so
this does not concern them.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import tirx, tvm, tvm_ffi, uses

MOST_STATEMENTS = 480
_UNROLL = "pragma_auto_unroll_max_step"


def is_unrolled_too_far(function: Any, lanes: int) -> bool:
    """Whether TVM's UnrollLoop makes more than MOST_STATEMENTS statements of a scheduled tensor function, where a statement
    on a vector counts once for every register of `lanes` elements that it takes, or for every element of a vector that
    fills no whole number of registers and whose elements lie apart."""
    return _counted(function.body, 0, lanes).unrolled > MOST_STATEMENTS


class _Count:
    def __init__(self) -> None:
        self.code = self.steps = 0
        """Statements, counted per register and as UnrollLoop counts them."""
        self.unrolled = 0
        """The most of `code` in any part where the pragma unrolls."""
        self.has_loop = False
        """Whether something inside stays a loop, so that UnrollLoop unrolls nothing around it."""

    def repeat(self, times: int) -> None:
        self.code, self.steps = self.code * times, self.steps * times


def _lies_apart(loop: Any) -> bool:
    """Whether some block in a vectorised loop reads or writes elements that do not lie side by side along the loop."""
    found = False

    def visit(realize: Any) -> None:
        nonlocal found
        bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        along = [axis.var for axis, value in bound if uses(value, loop.loop_var)]
        for region in (*realize.block.reads, *realize.block.writes):
            found = found or any(uses(dim.min, var) for dim in list(region.region)[:-1] for var in along)

    tvm_ffi.structural_walk(loop.body, (tvm.s_tir.SBlockRealize, visit))
    return found


def _counted(node: Any, most_steps: int, lanes: int) -> _Count:
    count = _Count()
    if isinstance(node, tvm.s_tir.SBlockRealize):
        parts = [part for part in (node.block.body, node.block.init) if part is not None]
    elif isinstance(node, tirx.SeqStmt):
        parts = list(node.seq)
    elif isinstance(node, tirx.For):
        parts = [node.body]
        most_steps = int(node.annotations.get(_UNROLL, most_steps))
    elif isinstance(node, tirx.IfThenElse):
        parts = [part for part in (node.then_case, node.else_case) if part is not None]
    else:
        parts = []
        count.code = count.steps = int(isinstance(node, tirx.BufferStore))
    for part in parts:
        inner = _counted(part, most_steps, lanes)
        count.code, count.steps = count.code + inner.code, count.steps + inner.steps
        count.unrolled += inner.unrolled
        count.has_loop |= inner.has_loop
    if isinstance(node, tirx.For):
        extent = int(node.extent)
        if node.kind == tirx.ForKind.VECTORIZED:
            ragged = extent > lanes and extent % lanes
            count.code *= extent if ragged and _lies_apart(node) else math.ceil(extent / lanes)
        elif node.kind == tirx.ForKind.UNROLLED or (
            node.kind == tirx.ForKind.SERIAL and not count.has_loop and extent * count.steps <= most_steps
        ):
            count.repeat(extent)
        elif extent > 1:
            count.has_loop = True
    count.unrolled = max(count.unrolled, count.code if most_steps else 0)
    return count
