"""Candidates that cost the compiler seconds and cannot be fast: refused before anybody builds them.

MetaSchedule unrolls 0, 16, 64 or 512 steps. Unrolled 512 times, code whose vectors fill no register takes LLVM 0.4 to
3.5 s where others take 0.05, and it leaves most of the vector unit idle: of 128 candidates of a product or a convolution
they were six in a hundred, a quarter of all compilation, and ran at a third of the best one's speed or less.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import tirx, tvm_ffi

MANY_STEPS = 512
_UNROLL = "pragma_auto_unroll_max_step"


def is_unrolled_for_nothing(function: Any, lanes: int) -> bool:
    """Whether a scheduled tensor function unrolls MANY_STEPS while a vectorised loop is shorter than `lanes` elements,
    those of a vector register, or none is vectorised."""
    steps = 0
    vectors: list[int] = []

    def visit(loop: Any) -> None:
        nonlocal steps
        steps = max(steps, int(loop.annotations.get(_UNROLL, 0)))
        if loop.kind == tirx.ForKind.VECTORIZED:
            vectors.append(int(loop.extent))

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return steps >= MANY_STEPS and min(vectors, default=0) < lanes
