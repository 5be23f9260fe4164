"""Bessel functions, modified Bessel functions and Airy's, in float64.

Where PyTorch takes the sine and cosine of a large phase, the phase is rounded to the result's type as it rounds it: beyond
1e4 that is most of what its float32 results are off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten import bessel_tables as table
from tuner.ingest.aten.emitter import Emitter, converter, elementwise, wide
from tuner.ingest.aten.special import WORK, choose, function, number, polynomial, rounded
from tuner.tvm_compat import tirx

# Imaginary argument, first kind: power series, and their asymptotic expansions.


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


# Imaginary argument, second kind: Chebyshev series on (0, 2] beside a logarithm, and in 8 / x beyond.


def _chebyshev(coefficients: Sequence[float]) -> tuple[float, ...]:
    """A table's series of y in [-2, 2] as a polynomial of y / 2, from the highest power down."""
    series = [coefficients[-1] / 2, *coefficients[-2::-1]]
    return tuple(float(one) for one in np.polynomial.chebyshev.cheb2poly(series)[::-1])


K_NEAR = (_chebyshev(table.K0_A), _chebyshev(table.K1_A))
K_FAR = (_chebyshev(table.K0_B), _chebyshev(table.K1_B))


def _bessel_k(order: int, scaled: bool) -> Callable[[Any], Any]:
    """K, or exp(x) K."""

    def body(x: Any) -> Any:
        smooth = polynomial(x * x * number(0.5) - number(1), K_NEAR[order])
        logarithm = tirx.log(x * number(0.5)) * _i_series(x, order)
        near = logarithm + smooth / x if order else smooth - logarithm
        far = polynomial(number(4) / x - number(1), K_FAR[order]) / tirx.sqrt(x)
        if scaled:
            near = near * tirx.exp(x)
        else:
            far = far * tirx.exp(-x)
        return choose(
            x == number(0), number(math.inf),
            x < number(0), number(math.nan),
            x <= number(2), near,
            far,
        )  # fmt: skip

    return body


for _order in (0, 1):
    function(f"bessel_k{_order}", f"special_modified_bessel_k{_order}.default")(_bessel_k(_order, False))
    function(f"bessel_k{_order}e", f"special_scaled_modified_bessel_k{_order}.default")(_bessel_k(_order, True))


# Real argument: quotients of polynomials of x^2 up to 5, beyond it amplitude and phase.

ZEROS = ((5.78318596294678452118, 30.4712623436620863991), (14.6819706421238932572, 49.2184563216946036703))
"""Squares of the first zeros of J0 and J1."""
NEAR = ((table.J0_RP, table.J0_RQ), (table.J1_RP, table.J1_RQ))
NEAR_Y = ((table.Y0_YP, table.Y0_YQ), (table.Y1_YP, table.Y1_YQ))
FAR = (
    (table.J0_PP, table.J0_PQ, table.J0_QP, table.J0_QQ),
    (table.J1_PP, table.J1_PQ, table.J1_QP, table.J1_QQ),
)


def _j_near(x: Any, order: int) -> Any:
    square = x * x
    (first, second), (above, below) = ZEROS[order], NEAR[order]
    factors = (square - number(first)) * (square - number(second))
    value = factors * polynomial(square, above) / polynomial(square, below)
    return value * x if order else value


def _y_near(x: Any, order: int) -> Any:
    square = x * x
    above, below = NEAR_Y[order]
    smooth = polynomial(square, above) / polynomial(square, below)
    logarithm = tirx.log(x) * _j_near(x, order)
    return (
        x * smooth + number(2 / math.pi) * (logarithm - number(1) / x)
        if order
        else smooth + number(2 / math.pi) * logarithm
    )


def _far(x: Any, order: int, second: bool, dtype: str) -> Any:
    """sqrt(2 / (pi x)) (P cos t - 5 / x Q sin t), with t = x - (1 / 4 + order / 2) pi.

    Of the second kind the brackets hold P sin t + 5 / x Q cos t.
    """
    inverse = number(25) / (x * x)
    p, p_below, q, q_below = (polynomial(inverse, one) for one in FAR[order])
    shift = math.pi * (0.25 + 0.5 * order)
    phase = rounded(x - rounded(number(shift), dtype), dtype)
    sine, cosine = tirx.sin(phase), tirx.cos(phase)
    main, other = (sine, cosine) if second else (cosine, -sine)
    return (p / p_below * main + number(5) / x * (q / q_below) * other) * number(math.sqrt(2 / math.pi)) / tirx.sqrt(x)


def _bessel_j(to: Emitter, order: int, x: Any) -> Any:
    def body(given: Any) -> Any:
        x = tirx.abs(given)
        value = choose(x <= number(5), _j_near(x, order), _far(x, order, False, wide(to.dtype)))
        return tirx.if_then_else(given < number(0), -value, value) if order else value

    return elementwise(to, f"bessel_j{order}", body, WORK, x)


def _bessel_y(to: Emitter, order: int, x: Any) -> Any:
    def body(x: Any) -> Any:
        return choose(
            x == number(0), number(-math.inf),
            x < number(0), number(math.nan),
            x <= number(5), _y_near(x, order),
            _far(x, order, True, wide(to.dtype)),
        )  # fmt: skip

    return elementwise(to, f"bessel_y{order}", body, WORK, x)


@converter("bessel_j0.default", "special_bessel_j0.default")
def bessel_j0(to: Emitter, x: Any) -> Any:
    return _bessel_j(to, 0, x)


@converter("bessel_j1.default", "special_bessel_j1.default")
def bessel_j1(to: Emitter, x: Any) -> Any:
    return _bessel_j(to, 1, x)


@converter("special_bessel_y0.default")
def bessel_y0(to: Emitter, x: Any) -> Any:
    return _bessel_y(to, 0, x)


@converter("special_bessel_y1.default")
def bessel_y1(to: Emitter, x: Any) -> Any:
    return _bessel_y(to, 1, x)


def _spherical_j0(x: Any) -> Any:
    small = polynomial(x * x, [1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1.0])
    return choose(tirx.abs(x) < number(0.5), small, tirx.isinf(x), number(0), tirx.sin(x) / x)


function("spherical_bessel_j0", "special_spherical_bessel_j0.default", "spherical_bessel_j0.default")(_spherical_j0)


# Airy's function: between -2.09 and 2.09 its power series, outside its asymptotic forms.

AI, AI_SLOPE = 0.355028053887817239260, 0.258819403792806798405
"""Ai(0) and -Ai'(0)."""
AIRY_NEAR, AIRY_ZERO = 2.09, 103.892
"""Where the series ends; from where on PyTorch gives 0."""


def _airy_series(x: Any) -> Any:
    """Ai(0) (1 + x^3 / 6 + ...) + Ai'(0) (x + x^4 / 12 + ...), fourteen terms each."""
    cube = x * x * x
    even = odd = number(1)
    for k in range(14, 0, -1):
        even = number(1) + cube * number(1 / ((3 * k - 1) * 3 * k)) * even
        odd = number(1) + cube * number(1 / (3 * k * (3 * k + 1))) * odd
    return number(AI) * even - number(AI_SLOPE) * x * odd


def _airy_above(x: Any) -> Any:
    zeta = number(2 / 3) * x * tirx.sqrt(x)
    inverse = number(1) / zeta
    ratio = polynomial(inverse, table.AIRY_AN) / polynomial(inverse, table.AIRY_AD)
    return number(0.5 / math.sqrt(math.pi)) * ratio * tirx.exp(-zeta) / tirx.sqrt(tirx.sqrt(x))


def _airy_below(x: Any, dtype: str) -> Any:
    zeta = number(-2 / 3) * x * tirx.sqrt(-x)
    inverse = number(1) / zeta
    square = inverse * inverse
    f = number(1) + square * polynomial(square, table.AIRY_AFN) / polynomial(square, table.AIRY_AFD)
    g = inverse * polynomial(square, table.AIRY_AGN) / polynomial(square, table.AIRY_AGD)
    phase = rounded(rounded(zeta, dtype) + rounded(number(math.pi / 4), dtype), dtype)
    wave = tirx.sin(phase) * f - tirx.cos(phase) * g
    return number(1 / math.sqrt(math.pi)) * wave / tirx.sqrt(tirx.sqrt(-x))


@converter("special_airy_ai.default")
def airy_ai(to: Emitter, x: Any) -> Any:
    def body(x: Any) -> Any:
        return choose(
            tirx.isinf(x), number(math.nan),
            x > number(AIRY_ZERO), number(0),
            x >= number(AIRY_NEAR), _airy_above(x),
            x < number(-AIRY_NEAR), _airy_below(x, wide(to.dtype)),
            _airy_series(x),
        )  # fmt: skip

    return elementwise(to, "airy_ai", body, WORK, x)
