"""Sines, cosines and tangents of float32 as arithmetic that vector units have, for code generators of CPUs.

TVM leaves them to a call of the C library for every element: 16 calls for a vector of 16 lanes. Here |x| is reduced to

    |x| = n pi / 2 + r, |r| <= pi / 4 but for rounding.

sin r and cos r are polynomials; n mod 4 says which of them the result is, and its sign. There are two ways to n and r:

* Near numbers, |x| < 2^20: n is |x| * 2 / pi, rounded in float64, and r = |x| - n HIGH - n LOW, where HIGH + LOW = pi / 2.
  n has 20 bits and HIGH has 33, so n HIGH and the first difference are exact (W. J. Cody and W. Waite, 1980).
* Far numbers: |x| = m 2^e, with 24 bits of m. Of the bits of 2 / pi, those before bit e - 1 behind the point would give
  multiples of 4 and are left out. The product of m and the next 96 bits is |x| * 2 / pi mod 4, to within 2^-61; no float32
  comes closer than 2^-29.9 to a whole number there (M. H. Payne and R. N. Hanek, 1983).

The way of far numbers takes twice the time of all the rest, and few models need it. So it is a branch, which is taken where
any lane of the vector is far, infinite or NaN. It returns an angle in float64 with which the near way goes on: r, whose
last two bits are n mod 4. Those bits are zero in an angle that comes from float32, and change nothing in r.

Errors in ulps, measured on all float32 numbers from 2^-14 with fused multiply-add and without, and by
tests/compiler/test_fastmath.py and test_sines.py on grids:

    sin(x), cos(x)  1.6
    tan(x)          4

sin(-x) = -sin(x) and tan(-x) = -tan(x), also for x = 0. Infinities and NaN give NaN. float16 goes by way of float32; float64
is left to the C library. A number has the same result in every lane and in scalar code, so no schedule changes it.

This is done after TVM has vectorised loops, not where fastmath.py expands the other functions: TVM's passes would substitute
the variables that are bound here, which takes seconds. LLVM's code generator would too; long_values.py, the next pass,
prevents it. One sine takes 0.02 s to lower, 3.8 s if it is expanded before, and 1.2 s without long_values.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from tuner.tvm_compat import ir, tirx, tvm_ffi

VERSION = 1
"""Of this arithmetic; part of a CPU's toolchain."""
FAR_BITS, INFINITE_BITS = 0x49800000, 0x7F800000
"""Of 2^20 and of infinity in float32."""
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
ROUND = 1.5 * 2.0**52
"""Added to a float64 of magnitude below 2^51, it rounds to an integer that stands in the lowest bits."""
SINE = (-0.16666655242443085, 0.00833215843886137, -0.00019514957966748625)
"""sin r = r + r^3 P(r^2), |r| <= pi / 4: relative error 0.14 * 2^-24."""
COSINE = (0.04166664555668831, -0.0013887312961742282, 2.4432785721728578e-05)
"""cos r = 1 - r^2 / 2 + r^4 P(r^2), |r| <= pi / 4: relative error 0.003 * 2^-24."""
TWO_OVER_PI = (0x0517CC1B, 0x727220A9, 0x4FE13ABE, 0x8FA9A6EE, 0x06DB14AC, 0xC9E21C82, 0x0FF28B1D)
"""Its first 219 bits behind the point, after five zeros: for 2^20, which is 2^23 * 2^-3, the 96 bits begin there."""
LEAST_FAR = 147
"""The exponent's bits in 2^20."""

Bind = Callable[[Any], Any]


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(ir.Call, _expanded)])
    return function if body.same_as(function.body) else function.with_body(body)


SINES_EXPANDED = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.Sines")
"""The pass. After TVM has vectorised loops."""


def _expanded(call: Any) -> Any:
    """The arithmetic of a call, innermost calls first; another call as it is."""
    result = RESULTS.get(str(getattr(call.op, "name", "")))
    element, _, lanes = str(getattr(call.ty, "dtype", "")).partition("x")
    if result is None or element not in ("float16", "float32") or not (lanes or "1").isdecimal():
        return call
    vector = _Vector(int(lanes or 1))
    argument = call.args[0]
    if element == "float32":
        return _bound(lambda bind: result(vector, bind(argument), bind))
    wide = vector.cast("float32", argument)
    return vector.cast(element, _bound(lambda bind: result(vector, bind(wide), bind)))


def _bound(formula: Callable[[Bind], Any]) -> Any:
    """What the formula returns, within what it binds. Comparisons are not bound: TVM has no vector of them in a variable."""
    bindings: list[tuple[Any, Any]] = []

    def bind(value: Any) -> Any:
        variable = tirx.Var("value", value.ty)
        bindings.append((variable, value))
        return variable

    body = formula(bind)
    for variable, value in reversed(bindings):
        body = tirx.Let(variable, value, body)
    return body


class _Vector:
    """Constants and conversions of so many lanes; one lane is a scalar."""

    def __init__(self, lanes: int) -> None:
        self._suffix = f"x{lanes}" if lanes > 1 else ""

    def cast(self, dtype: str, value: Any) -> Any:
        return tirx.Cast(dtype + self._suffix, value)

    def bits(self, dtype: str, value: Any) -> Any:
        return tirx.reinterpret(dtype + self._suffix, value)

    def constant(self, dtype: str, value: float) -> Any:
        return tirx.const(value, dtype + self._suffix)

    def real(self, value: float) -> Any:
        return self.constant("float32", value)

    def double(self, value: float) -> Any:
        return self.constant("float64", value)

    def integer(self, value: int) -> Any:
        return self.constant("int32", value)

    def word(self, value: int) -> Any:
        return self.constant("uint32", value)

    def any(self, condition: Any) -> Any:
        return tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", condition) if self._suffix else condition


def _sine(v: _Vector, x: Any, bind: Bind) -> Any:
    quadrant, sine, cosine = _of_the_rest(v, x, bind)
    sign = (quadrant << v.integer(30)) ^ v.bits("int32", x)
    return _signed(v, tirx.Select(_is_odd(v, quadrant), cosine, sine), sign)


def _cosine(v: _Vector, x: Any, bind: Bind) -> Any:
    quadrant, sine, cosine = _of_the_rest(v, x, bind)
    sign = (quadrant + v.integer(1)) << v.integer(30)
    return _signed(v, tirx.Select(_is_odd(v, quadrant), sine, cosine), sign)


def _tangent(v: _Vector, x: Any, bind: Bind) -> Any:
    quadrant, sine, cosine = _of_the_rest(v, x, bind)
    sign = (quadrant << v.integer(31)) ^ v.bits("int32", x)
    odd = _is_odd(v, quadrant)
    return _signed(v, tirx.Select(odd, cosine, sine) / tirx.Select(odd, sine, cosine), sign)


RESULTS: dict[str, Callable[[_Vector, Any, Bind], Any]] = {
    "tirx.sin": _sine,
    "tirx.cos": _cosine,
    "tirx.tan": _tangent,
}


def _is_odd(v: _Vector, quadrant: Any) -> Any:
    return tirx.NE(quadrant & v.integer(1), v.integer(0))


def _signed(v: _Vector, value: Any, sign: Any) -> Any:
    """The value, negated where the first bit of the sign is set."""
    return v.bits("float32", v.bits("int32", value) ^ (sign & v.integer(-(2**31))))


def _of_the_rest(v: _Vector, x: Any, bind: Bind) -> tuple[Any, Any, Any]:
    """n, whose last two bits count, sin r and cos r."""
    magnitude = bind(v.bits("int32", x) & v.integer(0x7FFFFFFF))
    near = bind(v.cast("float64", v.bits("float32", magnitude)))
    far = tirx.GE(magnitude, v.integer(FAR_BITS))
    reduced = _bound(lambda inner: tirx.Select(far, _far(v, magnitude, inner), near))
    angle = bind(tirx.if_then_else(v.any(far), reduced, near))
    shifted = bind(angle * v.double(2 / math.pi) + v.double(ROUND))
    n = bind(shifted - v.double(ROUND))
    rest = (angle - n * v.double(HALF_PI_HIGH)) - n * v.double(HALF_PI_LOW)
    quadrant = bind(v.cast("int32", v.bits("int64", shifted) + v.bits("int64", angle)))
    r = bind(v.cast("float32", rest))
    square = bind(r * r)
    sine = bind(r + r * square * _polynomial(v, square, SINE))
    cosine = bind((v.real(1) - v.real(0.5) * square) + square * square * _polynomial(v, square, COSINE))
    return quadrant, sine, cosine


def _polynomial(v: _Vector, x: Any, coefficients: tuple[float, float, float]) -> Any:
    constant, first, second = map(v.real, coefficients)
    return (second * x + first) * x + constant


def _far(v: _Vector, magnitude: Any, bind: Bind) -> Any:
    """r with n mod 4 in its last two bits; NaN where the magnitude is infinite or NaN. Near numbers give anything."""
    place = bind(v.bits("uint32", (magnitude >> v.integer(23)) - v.integer(LEAST_FAR)))
    words = [v.word(each) for each in TWO_OVER_PI]
    for skipped in (2, 1):  # words, as the bits of 64 and of 32 in the place say
        skips = tirx.NE(place & v.word(32 * skipped), v.word(0))
        words = [bind(tirx.Select(skips, *pair)) for pair in zip(words[skipped:], words[:-skipped], strict=True)]
    shift = bind(place & v.word(31))
    back = bind(v.word(31) - shift)
    window = [(a << shift) | ((b >> v.word(1)) >> back) for a, b in itertools.pairwise(words)]

    def long(value: Any) -> Any:
        return v.cast("uint64", value)

    def count(value: int) -> Any:
        return v.constant("uint64", value)

    m = bind(v.bits("uint32", (magnitude & v.integer(0x7FFFFF)) | v.integer(0x800000)))
    high, middle, low = long(window[0] * m), long(window[1]) * long(m), long(window[2]) * long(m)
    product = bind((high << count(32)) + middle + (low >> count(32)))  # in units of 2^-62
    n = ((product >> count(61)) + count(1)) >> count(1)
    rest = v.cast("float64", v.bits("int64", product << count(2))) * v.double(math.pi / 2 * 2.0**-64)
    without = v.bits("int64", rest) & v.constant("int64", -4)
    both = without | v.bits("int64", n & count(3))
    finite = magnitude < v.integer(INFINITE_BITS)
    return tirx.Select(finite, v.bits("float64", both), v.double(math.nan))
