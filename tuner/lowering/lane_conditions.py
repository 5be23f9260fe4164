"""Conditions and indices in which no lane of a vector stands, where all lanes have the same.

TVM 0.27 takes a vectorised statement apart, lane by lane, if a condition in it has the lane (the border between the tensors
of a concatenation, `8 * x + lane < 64`), and so it does where an index divides by what is no power of two: the place in a
window of the channels of 48, (8 * x + lane) // 48. Where the bound or the divisor is a multiple of the lanes, x decides
alone. For every whole number y:

    y < 8 n             is   y // 8 < n
    y // (8 n)          is   (y // 8) // n
    y % (8 n)           is   (y // 8) % n * 8 + y % 8

and TVM simplifies (8 * x + lane) // 8.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, structural_walk, tirx, tvm, tvm_ffi


def free_of_lanes(mod: Any) -> Any:
    """The module with such conditions and indices in its tensor functions. Before TVM lowers the module."""
    return _FREE(mod)


def _free(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.For, _in_loop)])
    return function if body.same_as(function.body) else function.with_body(body)


_FREE = tirx.transform.prim_func_pass(_free, opt_level=0, name="pitchpipe.FreeOfLanes")


def _in_loop(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes, moving = int(loop.extent), _moving(loop)

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

    def split(index: Any) -> Any:
        divisor = index.b
        if not isinstance(divisor, tirx.IntImm) or int(divisor) % lanes or not _reads(index.a, moving):
            return index
        found = type(index)(divided(index.a), divided(divisor))
        if isinstance(index, tirx.FloorDiv):
            return found
        width = tirx.const(lanes, str(divisor.ty.dtype))
        return found * width + tirx.floormod(index.a, width)

    # y < bound, y >= bound, bound <= y, bound > y
    kinds = [(kind, compared) for kind in (tirx.LT, tirx.GE, tirx.LE, tirx.GT)]
    return tvm_ffi.structural_map(loop, [*kinds, (tirx.FloorDiv, split), (tirx.FloorMod, split)])


def _moving(loop: Any) -> set[Any]:
    """The loop's variable, and the axes of blocks in it that depend on it."""
    found, count = {loop.loop_var}, 0

    def visit(realized: Any) -> None:
        axes = zip(realized.block.iter_vars, realized.iter_values, strict=True)
        found.update(axis.var for axis, value in axes if _reads(value, found))

    while len(found) > count:  # a block in a block is visited before it
        count = len(found)
        structural_walk(loop.body, (tvm.s_tir.SBlockRealize, visit))
    return found


def _reads(expr: Any, variables: set[Any]) -> bool:
    read: list[Any] = []
    structural_walk(expr, (ir.Var, read.append))
    return any(each in variables for each in read)
