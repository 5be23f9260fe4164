"""Logarithm and derivatives of the gamma function, Hurwitz's zeta function, incomplete gamma functions; in float64."""

from __future__ import annotations

import math
from typing import Any

import torch

from tuner.ingest.aten.emitter import HALF, Emitter, converter, elementwise, wide
from tuner.ingest.aten.iteration import Iteration, iterated
from tuner.ingest.aten.special import WORK, choose, erfc_of, function, number, polynomial, rounded
from tuner.tvm_compat import relax, tirx

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


def _trigamma(x: Any, dtype: str) -> Any:
    """Below 1/2 by reflection: the two values add up to (pi / sin(pi x))^2.

    pi x is rounded as PyTorch rounds it, which gives a finite result at the negative whole numbers.
    """
    mirrored = x < number(0.5)
    sine = tirx.sin(rounded(rounded(number(math.pi), dtype) * x, dtype))
    value = trigamma_above(tirx.Select(mirrored, number(1) - x, x))
    return tirx.if_then_else(mirrored, number(math.pi**2) / (sine * sine) - value, value)


@converter("polygamma.default")
def polygamma(to: Emitter, n: int, x: Any) -> Any:
    """The derivative of order n + 1 of log gamma; for n > 1 (-1)^(n + 1) n! zeta(n + 1, x).

    The factorial is infinite from where the type has no such number.
    """
    if n < 2:
        dtype = wide(to.dtype)
        return elementwise(to, "polygamma", (lambda x: _trigamma(x, dtype)) if n else digamma, WORK, x)
    dtype = wide(to.dtype)
    factorial = torch.tensor(math.exp(math.lgamma(n + 1)) if n < 171 else math.inf).to(getattr(torch, dtype)).item()
    values = to.cast(_zeta(to, n + 1, x), dtype)
    return to.cast(to.emit(relax.op.multiply(values, to.const(factorial if n % 2 else -factorial, dtype))), to.dtype)


# Hurwitz's zeta function: the sum of (q + k)^-s over k >= 0, by Euler and Maclaurin.

CORRECTIONS = (
    *(1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600),
    *(-3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000),
    *(77683 / 14101100039391805440000, -236364091 / 1693824136731743669452800000),
)
"""B_2j / (2j)! for j = 1 ... 12, B_2j Bernoulli's numbers."""
SUMMED, SUMMED_TO = 9, 9.0
"""At least so many terms after the first are added one by one, and all of a base up to that."""
MOST_SUMMED = 1 << 20
"""Of bases far below zero: there a term was too small long before, if there is a sum."""
ROUNDING = 2.0**-53


def _zeta(to: Emitter, s: Any, q: Any) -> Any:
    kept = "float32" if to.dtype in HALF else WORK
    return iterated(to, "zeta", lambda s, q: _hurwitz(s, q, wide(to.dtype), kept), WORK, s, q)


def _hurwitz(s: Any, q: Any, dtype: str, kept: str) -> Iteration:
    """Infinite at s = 1 and where q is 0, -1, ...; no number for s < 1, and for q < 0 unless s is whole.

    Terms overflow as in PyTorch, which computes the first in `dtype` and keeps the others in type `kept`.
    """

    def step(_k: Any, total: Any, base: Any, _term: Any) -> tuple[Any, ...]:
        following = rounded(tirx.pow(base + number(1), -s), kept)
        return total + following, base + number(1), following

    def small(total: Any, _base: Any, term: Any) -> Any:
        return tirx.abs(term) < number(ROUNDING) * total

    def result(total: Any, base: Any, term: Any) -> Any:
        rest = number(0)
        for j in range(len(CORRECTIONS) - 1, -1, -1):
            after = (s + number(2 * j + 1)) * (s + number(2 * j + 2)) / (base * base)
            rest = number(CORRECTIONS[j]) + after * rest if j + 1 < len(CORRECTIONS) else number(CORRECTIONS[j])
        corrected = total + term * base / (s - number(1)) - number(0.5) * term + term * s / base * rest
        pole = tirx.all(q <= number(0), q == tirx.floor(q))
        return choose(
            s == number(1), number(math.inf),
            s < number(1), number(math.nan),
            pole, number(math.inf),
            tirx.all(q <= number(0), s != tirx.floor(s)), number(math.nan),
            small(total, base, term), total,
            corrected,
        )  # fmt: skip

    low = number(SUMMED_TO - MOST_SUMMED)
    count = tirx.Cast("int64", tirx.floor(number(SUMMED_TO) - tirx.max(q, low))) + tirx.const(1, "int64")
    least = tirx.const(SUMMED, "int64")
    return Iteration(
        states=(rounded(tirx.pow(q, -s), dtype), q, number(math.inf)),
        steps=tirx.if_then_else(q < number(SUMMED_TO), tirx.max(count, least), least),
        step=step,
        goes_on=lambda *states: tirx.Not(small(*states)),
        result=result,
    )


@converter("special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar", "zeta.default")
def zeta(to: Emitter, x: Any, other: Any) -> Any:
    return _zeta(to, x, other)


# The incomplete gamma functions: P(a, x) of the integral from 0 to x, Q(a, x) = 1 - P(a, x) of the rest.

LARGE = 200.0
"""Of a, from where on N. M. Temme's uniform expansion is used for x near a."""
MOST_STEPS = 2000
"""Of a series and of a fraction, as many as PyTorch makes."""
UNIFORM = (
    (
        *(-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600),
        *(-1.8540622107151600e-6, 8.296711340953086e-7, -1.7665952736826079e-7, 6.7078535434014986e-9),
    ),
    (
        *(-1 / 540, -1 / 288, 25 / 9450, -77 / 77760, 2.0576131687242798e-4, -4.0187755201646901e-7),
        *(-1.8098550334489978e-5, 7.6491609160811101e-6, -1.6120900894563446e-6, 4.6471278028074343e-9),
    ),
)
"""The expansion's first two terms, each a power series in eta (NIST Digital Library of Mathematical Functions, 8.12)."""


def _incomplete(a: Any, x: Any, upper: bool) -> Iteration:
    """P by a power series where x < a + 1 (DLMF 8.11.4), else Q by a continued fraction (8.9.2; W. Lentz, 1976).

    Both have the factor x^a exp(-x) / Gamma(a). The states are those of the fraction in W. Press et al., Numerical Recipes:
    its denominators, c, d, value, and how far the last step changed the value; of the series c is the last term.
    """
    series = x < a + number(1)
    tiny = number(1e-300)

    def step(k: Any, base: Any, c: Any, d: Any, value: Any, _change: Any) -> tuple[Any, ...]:
        i = tirx.Cast(WORK, k) + number(1)
        numerator = -i * (i - a)
        following = tirx.Select(series, base + number(1), base + number(2))
        next_d = number(1) / (numerator * d + following)
        next_c = tirx.Select(series, c * x / following, following + numerator / c)
        factor = next_c * next_d
        return (
            following,
            next_c,
            next_d,
            tirx.Select(series, value + next_c, value * factor),
            tirx.Select(series, next_c / value, tirx.abs(factor - number(1))),
        )

    def result(_base: Any, _c: Any, _d: Any, value: Any, _change: Any) -> Any:
        power = tirx.exp(a * tirx.log(x) - x - lgamma(a)) * value
        direct = tirx.Not(series) if upper else series
        found = tirx.if_then_else(direct, power, number(1) - power)
        empty, full = (number(1), number(0)) if upper else (number(0), number(1))
        return choose(
            tirx.any(x < number(0), a < number(0)), number(math.nan),
            a == number(0), tirx.if_then_else(x > number(0), full, number(math.nan)),
            x == number(0), empty,
            tirx.isinf(a), tirx.if_then_else(tirx.isinf(x), number(math.nan), empty),
            tirx.isinf(x), full,
            near, _uniform(a, x, upper),
            found,
        )  # fmt: skip

    near = tirx.all(a > number(LARGE), tirx.abs(x - a) * tirx.sqrt(a) < number(4.5) * a)
    usual = tirx.all(a > number(0), x > number(0), tirx.Not(tirx.isinf(a)), tirx.Not(tirx.isinf(x)), tirx.Not(near))
    base = tirx.if_then_else(series, a, x + number(1) - a)
    first = number(1) / base
    return Iteration(
        states=(base, tirx.if_then_else(series, first, number(1) / tiny), first, first, number(1)),
        steps=tirx.if_then_else(usual, tirx.const(MOST_STEPS, "int64"), tirx.const(0, "int64")),
        step=step,
        goes_on=lambda *states: states[-1] > number(1e-14),
        result=result,
    )


def _uniform(a: Any, x: Any, upper: bool) -> Any:
    """For large a and x near it; DLMF 8.12.3 and 8.12.4."""
    sigma = (x - a) / a
    # eta^2 / 2 = sigma - log(1 + sigma), as a power series: |sigma| is below a third here.
    half = sigma * sigma * polynomial(sigma, [(-1) ** k / k for k in range(24, 1, -1)])
    eta = tirx.if_then_else(sigma < number(0), -tirx.sqrt(half * number(2)), tirx.sqrt(half * number(2)))
    first, second = (polynomial(eta, series[::-1]) for series in UNIFORM)
    correction = tirx.exp(-a * half) / tirx.sqrt(number(2 * math.pi) * a) * (first + second / a)
    argument = eta * tirx.sqrt(a * number(0.5))
    if upper:
        return number(0.5) * erfc_of(argument) + correction
    return number(0.5) * erfc_of(-argument) - correction


@converter("igamma.default", "special_gammainc.default")
def igamma(to: Emitter, x: Any, other: Any) -> Any:
    return iterated(to, "igamma", lambda a, x: _incomplete(a, x, False), WORK, x, other)


@converter("igammac.default", "special_gammaincc.default")
def igammac(to: Emitter, x: Any, other: Any) -> Any:
    return iterated(to, "igammac", lambda a, x: _incomplete(a, x, True), WORK, x, other)
