"""a != b holds where either is no number, as in the frameworks, for code generators of CPUs.

TVM's LLVM code compares so that it fails there, and its simplifier makes a != b of every other form of comparisons. So
the operands are asked by their bits.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import tirx, tvm_ffi

INFINITIES = {"float16": 0x7C00, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
"""By type: the bits of infinity. What is no number has larger ones, but for the sign."""


def hold_for_nan(function: Any) -> Any:
    """The tensor function with such inequalities. After bfloat16 was expanded, so that it has none."""
    body = tvm_ffi.structural_map(function.body, [(tirx.NE, _held)])
    return function if body.same_as(function.body) else function.with_body(body)


def _held(unequal: Any) -> Any:
    found = unequal
    for operand in (unequal.a, unequal.b):
        if str(operand.ty.dtype) in INFINITIES and not isinstance(operand, tirx.FloatImm):
            found = tirx.Or(found, _is_no_number(operand))
    return found


def _is_no_number(x: Any) -> Any:
    dtype = str(x.ty.dtype)
    bits = dtype.replace("float", "int")
    sign = int(dtype.removeprefix("float")) - 1
    magnitude = tirx.reinterpret(bits, x) & tirx.const((1 << sign) - 1, bits)
    return magnitude > tirx.const(INFINITIES[dtype], bits)
