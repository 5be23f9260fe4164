"""The error function's relatives, and what functions of mathematics beyond the elementary ones have in common (bessel.py,
gamma.py, polynomials.py): float32 is computed in float64 where its rounding would show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, elementwise
from tuner.tvm_compat import tirx

WORK = "float64"


def number(value: float) -> Any:
    return tirx.const(value, WORK)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Coefficients from the highest power down."""
    result = number(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + number(coefficient)
    return result


def choose(*cases: Any) -> Any:
    """choose(c1, v1, c2, v2, ..., otherwise)."""
    result = cases[-1]
    for at in range(len(cases) - 3, -1, -2):
        result = tirx.if_then_else(cases[at], cases[at + 1], result)
    return result


def rounded(x: Any, dtype: str) -> Any:
    """x as it is once it was kept in that type."""
    return tirx.Cast(WORK, tirx.Cast(dtype, x))


def function(name: str, *operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of float64 numbers for operators of elements."""

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        def convert(to: Emitter, **arguments: Any) -> Any:
            return elementwise(to, name, body, WORK, *arguments.values())

        converter(*operators)(convert)
        return body

    return register


def _erfc_exponent(z: Any) -> tuple[Any, Any]:
    """t and P of erfc(z) = t exp(-z^2 + P), t = 2 / (2 + z), z >= 0.

    W. Press et al.'s Chebyshev series, relative error below 1.2e-7 everywhere, as a polynomial of 2 t - 1.
    """
    t = number(2) / (number(2) + z)
    return t, polynomial(number(2) * t - number(1), ERFC)


_SERIES = (
    *(-1.3026537197817094 / 2, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3),
    *(-9.46595344482036e-4, 3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6),
    *(1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10),
)
ERFC = tuple(float(one) for one in np.polynomial.chebyshev.cheb2poly(_SERIES)[::-1])
"""Coefficients from the highest power down."""


def erfc_of(x: Any) -> Any:
    z = tirx.abs(x)
    t, exponent = _erfc_exponent(z)
    value = t * tirx.exp(exponent - z * z)
    return tirx.if_then_else(x >= number(0), value, number(2) - value)


function("erfc", "erfc.default", "special_erfc.default")(erfc_of)


@function("erfcx", "special_erfcx.default", "erfcx.default")
def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x): the exponentials of erfc's form cancel."""
    t, exponent = _erfc_exponent(tirx.abs(x))
    value = t * tirx.exp(exponent)
    return tirx.if_then_else(x >= number(0), value, number(2) * tirx.exp(x * x) - value)


@function("log_ndtr", "special_log_ndtr.default")
def log_ndtr(x: Any) -> Any:
    t = x * number(math.sqrt(0.5))
    below = tirx.log(erfcx(-t) * number(0.5)) - t * t
    return tirx.if_then_else(x < number(-1), below, tirx.log(erfc_of(-t) * number(0.5)))


def _first_erfinv(y: Any) -> Any:
    """M. Giles's approximation (2010)."""
    w = -tirx.log((number(1) - y) * (number(1) + y))
    near = polynomial(
        w - number(2.5),
        [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
         0.246640727, 1.50140941],
    )  # fmt: skip
    far = polynomial(
        tirx.sqrt(w) - number(3),
        [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682],
    )  # fmt: skip
    x = tirx.if_then_else(w < number(5), near, far) * y
    return choose(tirx.abs(y) == number(1), y * number(math.inf), tirx.abs(y) > number(1), number(math.nan), x)


@converter("erfinv.default", "special_erfinv.default", "erf_inv.default")
def erfinv(to: Emitter, x: Any) -> Any:
    return elementwise(to, "erfinv", _first_erfinv, WORK, x)


@converter("special_ndtri.default", "ndtri.default")
def ndtri(to: Emitter, x: Any) -> Any:
    def body(p: Any) -> Any:
        return number(math.sqrt(2)) * _first_erfinv(number(2) * p - number(1))

    return elementwise(to, "ndtri", body, WORK, x)
