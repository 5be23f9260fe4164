"""Conditions that hold for all lanes of a vector or for none, written so that no lane stands in them.

TVM 0.27 takes a vectorised statement apart, lane by lane, if a condition in it has the lane: the border between the tensors
of a concatenation, `8 * x + lane < 64`. Where the bound is a multiple of the lanes, x decides alone:
y < 8 n is y // 8 < n for every whole number y, and TVM simplifies (8 * x + lane) // 8.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import tirx, tvm_ffi


def free_of_lanes(mod: Any) -> Any:
    """The module with such conditions in its tensor functions. Before TVM lowers the module."""
    return _FREE(mod)


def _free(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.For, _in_loop)])
    return function if body.same_as(function.body) else function.with_body(body)


_FREE = tirx.transform.prim_func_pass(_free, opt_level=0, name="pitchpipe.FreeOfLanes")


def _in_loop(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes = int(loop.extent)

    def divided(value: Any) -> Any:
        dtype = str(value.ty.dtype)
        if isinstance(value, tirx.IntImm):
            return tirx.const(int(value) // lanes, dtype)
        return tirx.floordiv(value, tirx.const(lanes, dtype))

    def compared(comparison: Any) -> Any:
        bound = comparison.b if isinstance(comparison, tirx.LT | tirx.GE) else comparison.a
        if not isinstance(bound, tirx.IntImm) or int(bound) % lanes:
            return comparison
        return type(comparison)(divided(comparison.a), divided(comparison.b))

    # y < bound, y >= bound, bound <= y, bound > y
    kinds = (tirx.LT, tirx.GE, tirx.LE, tirx.GT)
    return tvm_ffi.structural_map(loop, [(kind, compared) for kind in kinds])
