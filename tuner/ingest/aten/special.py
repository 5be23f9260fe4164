"""Functions of mathematics beyond the elementary ones. float32 is computed in float64 where its rounding would show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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


def zeta_of(s: Any, q: Any) -> Any:
    """Hurwitz's zeta function for s > 1 by Euler and Maclaurin: ten terms, then an integral and its corrections."""
    bernoulli = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
    total = number(0)
    for at in range(10):
        total = total + tirx.pow(q + number(at), -s)
    w = q + number(10)
    power = tirx.pow(w, -s)
    total = total + power * w / (s - number(1)) + power * number(0.5)
    factor = s
    term = power / w
    for at, coefficient in enumerate(bernoulli):
        total = total + number(coefficient) * factor * term
        factor = factor * (s + number(2 * at + 1)) * (s + number(2 * at + 2))
        term = term / (w * w)
    return total


@function("zeta", "special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar", "zeta.default")
def zeta(s: Any, q: Any) -> Any:
    whole = q == tirx.floor(q)
    return choose(
        s == number(1), number(math.inf),
        s < number(1), number(math.nan),
        tirx.all(q <= number(0), whole), number(math.inf),
        tirx.all(q <= number(0), s != tirx.floor(s)), number(math.nan),
        zeta_negative(s, q),
    )  # fmt: skip


def zeta_negative(s: Any, q: Any) -> Any:
    """Below zero terms are added until q is above: as many as there are within the reach of the loop."""
    total = number(0)
    for at in range(16):
        moved = q + number(at)
        total = total + tirx.if_then_else(moved < number(0), tirx.pow(tirx.abs(moved), -s) * _sign_power(s), number(0))
    up = tirx.if_then_else(q < number(0), q - tirx.floor(q), q)
    far = q < number(-16)
    return tirx.if_then_else(far, number(math.nan), total + zeta_of(s, up))


def _sign_power(s: Any) -> Any:
    """(-1)^-s for a whole s."""
    return number(1) - number(2) * (s - number(2) * tirx.floor(s * number(0.5)))


@converter("polygamma.default")
def polygamma(to: Emitter, n: int, x: Any) -> Any:
    """(-1)^(n + 1) n! zeta(n + 1, x); at negative x by the sum over the terms there."""
    if n == 0:
        return elementwise(to, "digamma", digamma, WORK, x)
    sign = (-1.0) ** (n + 1) * math.factorial(n)

    def body(v: Any) -> Any:
        return number(sign) * zeta(number(n + 1.0), v)

    return elementwise(to, "polygamma", body, WORK, x)


# The error function's relatives


def erfc_of(x: Any) -> Any:
    """W. Press et al.'s rational Chebyshev approximation, relative error below 1.2e-7 everywhere."""
    z = tirx.abs(x)
    t = number(2) / (number(2) + z)
    ty = number(4) * t - number(2)
    d, dd = number(0), number(0)
    for coefficient in reversed(ERFC[1:]):
        d, dd = ty * d - dd + number(coefficient), d
    value = t * tirx.exp(-z * z + number(0.5) * (number(ERFC[0]) + ty * d) - dd)
    return tirx.if_then_else(x >= number(0), value, number(2) - value)


ERFC = (
    *(-1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3),
    *(-9.46595344482036e-4, 3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6),
    *(1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10),
    *(-2.27365122e-10, 9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13),
    *(3.81e-16, 7.106e-15, -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17),
)

function("erfc", "erfc.default", "special_erfc.default")(erfc_of)


@function("erfcx", "special_erfcx.default", "erfcx.default")
def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x): the exponentials of erfc's form cancel."""
    z = tirx.abs(x)
    t = number(2) / (number(2) + z)
    ty = number(4) * t - number(2)
    d, dd = number(0), number(0)
    for coefficient in reversed(ERFC[1:]):
        d, dd = ty * d - dd + number(coefficient), d
    value = t * tirx.exp(number(0.5) * (number(ERFC[0]) + ty * d) - dd)
    return tirx.if_then_else(x >= number(0), value, number(2) * tirx.exp(x * x) - value)


@function("erfinv", "erfinv.default", "special_erfinv.default", "erf_inv.default")
def erfinv(y: Any) -> Any:
    """M. Giles's approximation (2010), and two steps of Newton's method."""
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
    for _ in range(2):
        x = x - (number(1) - erfc_of(x) - y) / (number(2 / math.sqrt(math.pi)) * tirx.exp(-x * x))
    return choose(tirx.abs(y) == number(1), y * number(math.inf), tirx.abs(y) > number(1), number(math.nan), x)


@function("ndtri", "special_ndtri.default", "ndtri.default")
def ndtri(p: Any) -> Any:
    return choose(
        p == number(0), number(-math.inf), p == number(1), number(math.inf),
        number(math.sqrt(2)) * erfinv(number(2) * p - number(1)),
    )  # fmt: skip


@function("log_ndtr", "special_log_ndtr.default")
def log_ndtr(x: Any) -> Any:
    t = x * number(math.sqrt(0.5))
    below = tirx.log(erfcx(-t) * number(0.5)) - t * t
    return tirx.if_then_else(x < number(-1), below, tirx.log(erfc_of(-t) * number(0.5)))


# Bessel functions of the first kind with imaginary argument: power series, and their asymptotic expansions.


def _i_series(x: Any, order: int) -> Any:
    quarter = x * x * number(0.25)
    term = number(1)
    total = number(1)
    for k in range(1, 40):
        term = term * quarter / number(k * (k + order))
        total = total + term
    return total if order == 0 else total * x * number(0.5)


def _i_scaled(x: Any, order: int) -> Any:
    """exp(-x) I(x) sqrt(2 pi x) for x beyond 15."""
    mu = 4.0 * order * order
    term, total = number(1), number(1)
    for k in range(1, 12):
        term = -term * number((mu - (2 * k - 1) ** 2) / (8 * k)) / x
        total = total + term
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


# Orthogonal polynomials: the recurrence p(k + 1) = (a x + b) p(k) - c p(k - 1), for degrees up to HIGHEST

HIGHEST = 24


def _family(start: Callable[[Any], Any], step: Callable[[Any, int, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def body(x: Any, degree: Any) -> Any:
        n = tirx.trunc(degree)
        before, now = number(1), start(x)
        result = tirx.if_then_else(n == number(1), now, number(1))
        for k in range(1, HIGHEST):
            before, now = now, step(x, k, now, before)
            result = tirx.if_then_else(n == number(k + 1), now, result)
        return choose(n < number(0), number(0), n > number(HIGHEST), number(math.nan), result)

    return body


def _chebyshev(first: Callable[[Any], Any], argument: Callable[[Any], Any] = lambda x: x) -> Callable[[Any, Any], Any]:
    inner = _family(first, lambda x, _, now, before: number(2) * x * now - before)
    return lambda x, n: inner(argument(x), n)


def _shifted(x: Any) -> Any:
    return x + x - number(1)


for _letter, _first in {
    "t": lambda x: x,
    "u": lambda x: x + x,
    "v": lambda x: x + x - number(1),
    "w": lambda x: x + x + number(1),
}.items():
    for _prefix, _argument in (("", lambda x: x), ("shifted_", _shifted)):
        _operator = f"special_{_prefix}chebyshev_polynomial_{_letter}"
        function("chebyshev", f"{_operator}.default", f"{_operator}.x_scalar", f"{_operator}.n_scalar")(
            _chebyshev(_first, _argument)
        )
_FAMILIES = {
    "hermite_polynomial_h": _family(
        lambda x: x + x, lambda x, k, now, before: number(2) * x * now - number(2 * k) * before
    ),
    "hermite_polynomial_he": _family(lambda x: x, lambda x, k, now, before: x * now - number(k) * before),
    "laguerre_polynomial_l": _family(
        lambda x: number(1) - x,
        lambda x, k, now, before: ((number(2 * k + 1) - x) * now - number(k) * before) / number(k + 1),
    ),
    "legendre_polynomial_p": _family(
        lambda x: x, lambda x, k, now, before: (number(2 * k + 1) * x * now - number(k) * before) / number(k + 1)
    ),
}
for _operator, _body in _FAMILIES.items():
    function("polynomial", *(f"special_{_operator}.{each}" for each in ("default", "x_scalar", "n_scalar")))(_body)
