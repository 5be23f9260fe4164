"""Functions of mathematics beyond the elementary ones. float32 is computed in float64 where its rounding would show."""

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


def function(name: str, *operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of float64 numbers for operators of elements."""

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        def convert(to: Emitter, **arguments: Any) -> Any:
            return elementwise(to, name, body, WORK, *arguments.values())

        converter(*operators)(convert)
        return body

    return register


# Gamma: C. Lanczos's approximation (1964) with g = 7 and nine terms, as W. Press et al. give it.

LANCZOS = (
    *(0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


@function("lgamma", "lgamma.default")
def lgamma(x: Any) -> Any:
    mirrored = x < number(0.5)
    y = tirx.Select(mirrored, number(1) - x, x) - number(1)
    total = number(LANCZOS[0])
    for at, coefficient in enumerate(LANCZOS[1:], 1):
        total = total + number(coefficient) / (y + number(at))
    t = y + number(7.5)
    value = number(0.5 * math.log(2 * math.pi)) + (y + number(0.5)) * tirx.log(t) - t + tirx.log(total)
    part = x - tirx.floor(x)
    sine = tirx.abs(tirx.sin(number(math.pi) * part))
    reflected = number(math.log(math.pi)) - tirx.log(sine) - value
    pole = tirx.all(x <= number(0), x == tirx.floor(x))
    big = tirx.isinf(x)
    return choose(big, tirx.abs(x), pole, number(math.inf), mirrored, reflected, value)


@function("digamma", "digamma.default", "special_digamma.default", "special_psi.default")
def digamma(x: Any) -> Any:
    """The asymptotic series beyond ten, reached by psi(x + 1) = psi(x) + 1 / x; psi(1 - x) - pi / tan(pi x) below zero."""
    mirrored = x < number(0)
    part = x - tirx.floor(x)
    angle = number(math.pi) * part
    shift = number(math.pi) * tirx.cos(angle) / tirx.sin(angle)
    y = tirx.Select(mirrored, number(1) - x, x)
    total = number(0)
    for at in range(10):
        total = total - number(1) / (y + number(at))
    z = y + number(10)
    inverse = number(1) / (z * z)
    series = polynomial(inverse, [-1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12])
    value = total + tirx.log(z) - number(0.5) / z + series * inverse
    value = tirx.Select(mirrored, value - shift, value)
    zero = x == number(0)
    at_zero = tirx.if_then_else(number(1) / x > number(0), number(-math.inf), number(math.inf))
    pole = tirx.all(mirrored, x == tirx.floor(x))
    return choose(zero, at_zero, pole, number(math.nan), value)


def trigamma_above(x: Any) -> Any:
    """The sum of 1 / (x + k)^2 for x >= 1/2, by Euler and Maclaurin: ten terms, then an integral and its corrections."""
    total = number(0)
    for at in range(10):
        total = total + number(1) / ((x + number(at)) * (x + number(at)))
    z = x + number(10)
    inverse = number(1) / (z * z)
    series = polynomial(inverse, [1 / 42, -1 / 30, 1 / 6])
    return total + number(1) / z + inverse * number(0.5) + series * inverse / z


def trigamma(x: Any) -> Any:
    """Below 1/2 by reflection: the two values add up to (pi / sin(pi x))^2."""
    mirrored = x < number(0.5)
    sine = tirx.sin(number(math.pi) * (x - tirx.floor(x)))
    value = trigamma_above(tirx.Select(mirrored, number(1) - x, x))
    return choose(
        tirx.all(x <= number(0), x == tirx.floor(x)), number(math.inf),
        mirrored, number(math.pi**2) / (sine * sine) - value,
        value,
    )  # fmt: skip


@converter("polygamma.default")
def polygamma(to: Emitter, n: int, x: Any) -> Any:
    if n > 1:
        raise NotImplementedError("derivatives beyond the first")
    return elementwise(to, "polygamma", trigamma if n else digamma, WORK, x)


# The error function's relatives


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


# Bessel functions of the first kind with imaginary argument: power series, and their asymptotic expansions.


def _i_series(x: Any, order: int) -> Any:
    quarter = x * x * number(0.25)
    total = number(1)
    for k in range(40, 0, -1):
        total = number(1) + quarter * number(1 / (k * (k + order))) * total
    return total if order == 0 else total * x * number(0.5)


def _i_scaled(x: Any, order: int) -> Any:
    """exp(-x) I(x) for x beyond 15."""
    mu = 4.0 * order * order
    inverse, total = number(1) / x, number(1)
    for k in range(12, 0, -1):
        total = number(1) - inverse * number((mu - (2 * k - 1) ** 2) / (8 * k)) * total
    return total / tirx.sqrt(number(2 * math.pi) * x)


def _bessel_i(order: int, scaled: bool) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        z = tirx.abs(x)
        near = _i_series(tirx.min(z, number(15)), order)
        far = _i_scaled(tirx.max(z, number(15)), order)
        if scaled:
            value = tirx.if_then_else(z < number(15), near * tirx.exp(-z), far)
        else:
            value = tirx.if_then_else(z < number(15), near, far * tirx.exp(z))
        value = tirx.if_then_else(x < number(0), -value, value) if order else value
        return tirx.if_then_else(x != x, x, value)

    return body


function("i0", "i0.default", "special_i0.default", "bessel_i0.default", "special_modified_bessel_i0.default")(
    _bessel_i(0, False)
)
function("i0e", "special_i0e.default", "bessel_i0e.default")(_bessel_i(0, True))
function("i1", "special_i1.default", "bessel_i1.default", "special_modified_bessel_i1.default")(_bessel_i(1, False))
function("i1e", "special_i1e.default", "bessel_i1e.default")(_bessel_i(1, True))


def _spherical_j0(x: Any) -> Any:
    small = polynomial(x * x, [1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0])
    return choose(tirx.abs(x) < number(0.5), small, tirx.isinf(x), number(0), tirx.sin(x) / x)


function("spherical_bessel_j0", "special_spherical_bessel_j0.default", "spherical_bessel_j0.default")(_spherical_j0)
