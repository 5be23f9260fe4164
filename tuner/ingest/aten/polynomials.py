"""Orthogonal polynomials of a degree that is data, by their recurrences, element by element.

A degree is cut to a whole number; below zero the result is 0. Recurrences run in the result's type, operation by operation
as in PyTorch: what they lose to rounding, and that they give no number beyond an overflow, is part of the answer.
M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 1964: recurrences 22.7, Chebyshev's trigonometric forms
22.3, values at -1 and 1 22.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter
from tuner.ingest.aten.iteration import Iteration, iterated
from tuner.ingest.aten.special import choose
from tuner.tvm_compat import tirx

HERMITE_LIMIT = {"float32": 128, "float64": 512}
"""The largest degree for which PyTorch gives a number."""


def _polynomial(name: str, rule: Callable[[Any, Any], Iteration]) -> None:
    """Registers rule(x, n), n of int64, for both tensors and for either of them a number."""

    def body(x: Any, degree: Any) -> Iteration:
        known = tirx.all(degree > _real(degree, -1), degree < _real(degree, 2.0**62))
        return rule(x, tirx.if_then_else(known, tirx.Cast("int64", degree), _int(-1)))

    def convert(to: Emitter, x: Any, n: Any) -> Any:
        return iterated(to, name, body, to.dtype, x, n)

    converter(*(f"special_{name}.{overload}" for overload in ("default", "x_scalar", "n_scalar")))(convert)


def _real(like: Any, value: Any) -> Any:
    """A number, or a whole expression, in the type of `like`."""
    dtype = str(like.ty.dtype)
    return tirx.const(value, dtype) if isinstance(value, (int, float)) else tirx.Cast(dtype, value)


def _int(value: int) -> Any:
    return tirx.const(value, "int64")


def _signed(n: Any, size: Any) -> Any:
    """(-1)^n size."""
    return tirx.if_then_else(tirx.floormod(n, _int(2)) == _int(0), size, -size)


def _recurrence(x: Any, n: Any, first: Any, step: Callable[..., Any], *known: Any, endless: bool = False) -> Iteration:
    """p_0 = 1, p_1 = first, p_{k + 2} = step(k, p_k, p_{k + 1}), up to the first that is no number.

    `known` are conditions under which no step is made, each followed by p_n; `endless` recurrences go on without a number.
    """
    conditions = known[::2]
    steps = tirx.if_then_else(tirx.any(*conditions), _int(0), n - _int(1)) if conditions else n - _int(1)
    return Iteration(
        states=(_real(x, 1), first),
        steps=steps,
        step=lambda k, p, q: (q, step(k, p, q)),
        goes_on=None if endless else lambda _, q: tirx.Not(tirx.isnan(q)),
        result=lambda _, q: choose(n < _int(0), _real(x, 0), *known, n == _int(0), _real(x, 1), q),
    )


def _chebyshev(kind: str, trigonometric_from: int, *, shifted: bool) -> Callable[[Any, Any], Iteration]:
    """T, U, V or W of x, shifted of 2 x - 1. Inside (-1, 1) the trigonometric form, from a degree on."""

    def rule(given: Any, n: Any) -> Iteration:
        one = _real(given, 1)
        x = given + given - one if shifted else given
        twice = x + x
        first = {"t": x, "u": twice, "v": twice - one, "w": twice + one}[kind]
        next_degree, odd = _real(x, n + _int(1)), _real(x, n + n + _int(1))
        at_end = {"t": one, "u": next_degree, "v": one, "w": odd}[kind]
        at_start = _signed(n, {"t": one, "u": next_degree, "v": odd, "w": one}[kind])
        # PyTorch takes the limit where half the angle is rounded to it; of shifted W that is the other end's value.
        angle = tirx.acos(x)
        half, middle = angle / _real(x, 2), (_real(x, n) + _real(x, 0.5)) * angle
        inside = {
            "t": tirx.cos(_real(x, n) * angle),
            "u": tirx.sin(next_degree * angle) / tirx.sin(angle),
            "v": choose(tirx.sin(half) == one, _signed(n, odd), tirx.cos(middle) / tirx.cos(half)),
            "w": choose(
                tirx.cos(half) == one,
                _signed(n, one) if shifted else odd,
                tirx.sin(middle) / tirx.sin(half),
            ),
        }[kind]
        return _recurrence(
            x, n, first, lambda _, p, q: twice * q - p,
            x == one, at_end,
            x == -one, at_start,
            tirx.all(n >= _int(trigonometric_from), tirx.abs(x) < one), inside,
        )  # fmt: skip

    return rule


def _hermite_h(x: Any, n: Any) -> Iteration:
    beyond = n > _int(HERMITE_LIMIT[str(x.ty.dtype)])
    twice = x + x

    def step(k: Any, p: Any, q: Any) -> Any:
        return twice * q - _real(x, (k + _int(1)) * _int(2)) * p

    return _recurrence(x, n, twice, step, beyond, _real(x, math.nan), endless=True)


def _hermite_he(x: Any, n: Any) -> Iteration:
    beyond = n > _int(HERMITE_LIMIT[str(x.ty.dtype)])

    def step(k: Any, p: Any, q: Any) -> Any:
        return x * q - _real(x, k + _int(1)) * p

    return _recurrence(x, n, x, step, beyond, _real(x, math.nan), endless=True)


def _laguerre(x: Any, n: Any) -> Iteration:
    one = _real(x, 1)

    def step(k: Any, p: Any, q: Any) -> Any:
        j = k + _int(1)
        return ((_real(x, j + j) + (one - x)) * q - _real(x, j) * p) / _real(x, j + _int(1))

    return _recurrence(x, n, one - x, step, x == _real(x, 0), one)


def _legendre(x: Any, n: Any) -> Iteration:
    one = _real(x, 1)

    def step(k: Any, p: Any, q: Any) -> Any:
        j = k + _int(1)
        return (_real(x, j + j + _int(1)) * x * q - _real(x, j) * p) / _real(x, j + _int(1))

    return _recurrence(x, n, x, step, x == one, one, x == -one, _signed(n, one))


for _kind, _from, _shifted_from in (("t", 7, 7), ("u", 9, 7), ("v", 9, 7), ("w", 9, 5)):
    _polynomial(f"chebyshev_polynomial_{_kind}", _chebyshev(_kind, _from, shifted=False))
    _polynomial(f"shifted_chebyshev_polynomial_{_kind}", _chebyshev(_kind, _shifted_from, shifted=True))
_polynomial("hermite_polynomial_h", _hermite_h)
_polynomial("hermite_polynomial_he", _hermite_he)
_polynomial("laguerre_polynomial_l", _laguerre)
_polynomial("legendre_polynomial_p", _legendre)
