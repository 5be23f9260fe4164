"""Candidates that cost the compiler seconds and cannot be fast: refused before anybody builds them.

MetaSchedule unrolls 0, 16, 64 or 512 steps, and a step may be a vector of several registers. Straight-line code of more
than some hundred vector statements fits no loop buffer and no register file, and LLVM takes up to 2.5 s for it, where
other candidates take 0.2 s: of 108 of a convolution, all with full vectors, the 33 above MOST_STATEMENTS took half of all
compilation, and the best of them ran at nine tenths of the best one's speed. Our own spaces unroll register tiles
explicitly and are not concerned.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import tirx, tvm

MOST_STATEMENTS = 480
_UNROLL = "pragma_auto_unroll_max_step"


def is_unrolled_too_far(function: Any, lanes: int) -> bool:
    """Whether TVM's UnrollLoop makes more statements of a scheduled tensor function than are worth it, each counted as
    often as registers of `lanes` elements are needed for its vector."""
    return _counted(function.body, 0, lanes).unrolled > MOST_STATEMENTS


class _Count:
    def __init__(self) -> None:
        self.code = self.steps = 0
        """Statements on registers, and as UnrollLoop counts them."""
        self.unrolled = 0
        """`code`, where a pragma unrolls."""
        self.has_loop = False
        """Something inside stays a loop: nothing around it is unrolled."""

    def repeat(self, times: int) -> None:
        self.code, self.steps = self.code * times, self.steps * times


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
            count.code *= math.ceil(extent / lanes)
        elif node.kind == tirx.ForKind.UNROLLED or (
            node.kind == tirx.ForKind.SERIAL and not count.has_loop and extent * count.steps <= most_steps
        ):
            count.repeat(extent)
        elif extent > 1:
            count.has_loop = True
    count.unrolled = max(count.unrolled, count.code if most_steps else 0)
    return count
