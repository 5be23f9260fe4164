"""Loops whose variable is divided by a power of two for its remainder, as repeated tensors have them, are split by it.

LLVM 22 loses the remainder in `for i in range(16): ... x[i % 4]` where it vectorises such a loop for AVX-512 around loops
that it has unrolled: a repeated tensor of two to four dimensions is then read past its end. Of a loop that is split in
two, 4 by 4, the remainder is the inner loop's variable, and nothing is left to be lost; the index costs less as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.tvm_compat import ir, tirx, tvm, tvm_ffi


def split_remainders(function: Any) -> Any:
    """The tensor function with such loops split, before TVM lowers it; what it computes is the same."""
    divisors = _divisors(function.body)
    if not divisors:
        return function

    def split(loop: Any) -> Any:
        divisor = divisors.get(loop.loop_var)
        return loop if divisor is None else _split(loop, divisor)

    return function.with_body(tvm_ffi.structural_map(function.body, [(tirx.For, split)]))


def _divisors(body: Any) -> dict[Any, int]:
    """Variable of a serial loop -> the largest power of two for whose remainder it is divided."""
    loops: dict[Any, int] = {}
    bindings: dict[Any, Any] = {}
    remainders: list[Any] = []

    def note_loop(loop: Any) -> Any:
        extent = _number(loop.extent)
        if loop.kind == tirx.ForKind.SERIAL and not loop.annotations and _number(loop.min) == 0 and extent is not None:
            loops[loop.loop_var] = extent
        return loop

    def note_block(realize: Any) -> Any:
        bindings.update(
            (each.var, value) for each, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        )
        return realize

    def note_remainder(found: Any) -> Any:
        remainders.append(found)
        return found

    visitors = [(tirx.For, note_loop), (tvm.s_tir.SBlockRealize, note_block), (tirx.FloorMod, note_remainder)]
    tvm_ffi.structural_map(body, visitors)
    found: dict[Any, int] = {}
    for remainder in remainders:
        divisor = _number(remainder.b)
        if divisor is None or divisor < 2 or divisor & (divisor - 1):
            continue
        for variable in _affine(remainder.a, bindings, divisor):
            if loops.get(variable, 0) > divisor:
                found[variable] = max(divisor, found.get(variable, 0))
    return found


def _affine(value: Any, bindings: Mapping[Any, Any], divisor: int) -> list[Any]:
    """The variables of a sum of loop variables and constants, but those that come in multiples of the divisor."""
    if isinstance(value, ir.Var):
        return _affine(bindings[value], bindings, divisor) if value in bindings else [value]
    if isinstance(value, (tirx.Add, tirx.Sub)):
        return [*_affine(value.a, bindings, divisor), *_affine(value.b, bindings, divisor)]
    if isinstance(value, tirx.Cast):
        return _affine(value.value, bindings, divisor)
    if isinstance(value, tirx.Mul):
        for factor, other in ((value.a, value.b), (value.b, value.a)):
            number = _number(factor)
            if number is not None:
                return [] if number % divisor == 0 else _affine(other, bindings, divisor)
    return []


def _split(loop: Any, divisor: int) -> Any:
    """The loop in two. Where the divisor does not divide the extent, the block of the last round is guarded."""
    extent = _number(loop.extent) or 0
    dtype = str(loop.loop_var.ty.dtype)
    outer, inner = (tirx.Var(f"{loop.loop_var.name}_{part}", dtype) for part in ("outer", "inner"))
    value = outer * tirx.const(divisor, dtype) + inner
    realised: list[Any] = []

    def replaced(variable: Any) -> Any:
        return value if variable.same_as(loop.loop_var) else variable

    def guarded(realize: Any) -> Any:
        realised.append(realize)
        within = tirx.And(realize.predicate, value < tirx.const(extent, dtype))
        return tvm.s_tir.SBlockRealize(realize.iter_values, within, realize.block)

    body = tvm_ffi.structural_map(loop.body, (ir.Var, replaced))
    if extent % divisor:
        body = tvm_ffi.structural_map(body, (tvm.s_tir.SBlockRealize, guarded))
        if len(realised) != 1:  # a block within a block may not name a loop outside of both
            return loop
    rounds = -(-extent // divisor)
    within = tirx.For(inner, tirx.const(0, dtype), tirx.const(divisor, dtype), tirx.ForKind.SERIAL, body)
    return tirx.For(outer, tirx.const(0, dtype), tirx.const(rounds, dtype), tirx.ForKind.SERIAL, within)


def _number(value: Any) -> int | None:
    return int(value.value) if isinstance(value, tirx.IntImm) else None
