"""Operators of the bits of floating-point numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, elementwise, wide
from tuner.tvm_compat import tirx

FORMATS = {
    "float64": ("int64", 52, 1022),
    "float32": ("int32", 23, 126),
    "float16": ("int16", 10, 14),
}
"""Type -> the whole numbers of its size, bits of its fraction, its exponent field at a half."""
SMALLEST = {"float64": -1022, "float32": -126}
"""Exponent of the smallest number that is not subnormal."""


@converter("frexp.Tensor", "frexp.default")
def frexp(to: Emitter, x: Any) -> tuple[Any, Any]:
    """x = mantissa 2^exponent with 1/2 <= |mantissa| < 1; zeros, infinities and what is no number with exponent 0."""
    dtype = wide(to.dtype)
    whole, fraction, half = FORMATS[dtype]
    lift = fraction + 2

    def parts(value: Any) -> tuple[Any, Any, Any]:
        """Whether it has parts, the bits of a number that is not subnormal, and the exponent that it has less."""
        usual = tirx.all(value != tirx.const(0, dtype), tirx.isfinite(value))
        subnormal = tirx.abs(value) < tirx.const(2.0 ** SMALLEST[dtype], dtype)
        normal = tirx.Select(subnormal, value * tirx.const(2.0**lift, dtype), value)
        return (
            usual,
            tirx.reinterpret(whole, normal),
            tirx.Select(subnormal, tirx.const(lift, whole), tirx.const(0, whole)),
        )

    def field(bits: Any) -> Any:
        return (bits >> tirx.const(fraction, whole)) & tirx.const(2 * half + 3, whole)

    def mantissa(value: Any) -> Any:
        usual, bits, _ = parts(value)
        bits = bits + ((tirx.const(half, whole) - field(bits)) << tirx.const(fraction, whole))
        return tirx.if_then_else(usual, tirx.reinterpret(dtype, bits), value)

    def exponent(given: Any, at: Any) -> Any:
        usual, bits, less = parts(given[0](*at))
        found = field(bits) - tirx.const(half, whole) - less
        return tirx.Cast("int32", tirx.if_then_else(usual, found, tirx.const(0, whole)))

    return elementwise(to, "mantissa", mantissa, dtype, x), to.compute(
        "exponent", exponent, to.shape, to.cast(x, dtype)
    )


@converter("nextafter.default")
def nextafter(to: Emitter, x: Any, other: Any) -> Any:
    """The number next to x towards the other; the other where they are equal, no number where either is none.

    Of one sign, numbers are in the order of their bits. bfloat16 is the upper half of float32.
    """
    dtype = wide(to.dtype) if to.dtype == "bfloat16" else to.dtype
    whole, _, _ = FORMATS[dtype]
    step = 1 << 16 if to.dtype == "bfloat16" else 1
    unit, least = tirx.const(step, whole), tirx.const(float(np.array(step, whole).view(dtype)), dtype)
    if dtype == "float64":  # TVM's JSON has no number so small
        least = tirx.reinterpret(dtype, unit)

    def body(a: Any, b: Any) -> Any:
        bits = tirx.reinterpret(whole, a)
        zero = tirx.const(0, dtype)
        away = tirx.any(tirx.all(a < b, a > zero), tirx.all(a > b, a < zero))
        moved = tirx.reinterpret(dtype, tirx.Select(away, bits + unit, bits - unit))
        from_zero = tirx.Select(b > zero, least, -least)
        same = tirx.any(a == b, tirx.isnan(b))
        return tirx.if_then_else(same, b, tirx.if_then_else(tirx.isnan(a), a, tirx.Select(a == zero, from_zero, moved)))

    return elementwise(to, "nextafter", body, dtype, x, other)
