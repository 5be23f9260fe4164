"""Inverse trigonometric functions of float32 as arithmetic that vector units have (fastmath.py).

All are the angle of a point: atan(x) of (1, x), asin(x) of (sqrt(1 - x^2), x), acos(x) of (x, sqrt(1 - x^2)). That of (x, y)
is, in the first octant, atan(a) = a P(a^2) with a = min(|x|, |y|) / max(|x|, |y|), and in the others pi / 2 with that added
or taken away, or pi without it.

Errors in ulps, measured by tests/compiler/test_fastmath.py: atan and atan2 3, asin 3.5, acos 4 (there 1 - x and 1 + x are
exact or rounded once). Signed zeros and infinities give what C's functions give; what is no number, and asin and acos beyond
[-1, 1], gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.tvm_compat import tirx

ATAN = (
    *(1.0, -0.3333328366279602, 0.1999826580286026, -0.142619326710701, 0.1094202995300293),
    *(-0.08377315104007721, 0.057552091777324677, -0.03080458752810955, 0.01072693895548582, -0.0017539290711283684),
)
"""P of atan a = a P(a^2), 0 <= a <= 1: relative error 0.04 * 2^-24, found as fastmath.py says."""
HALF_PI_HIGH, HALF_PI_LOW = 1.57079637050628662109375, -4.37113900018624283e-8
"""pi / 2 in two parts."""
MAGNITUDE, INFINITE_BITS = 0x7FFFFFFF, 0x7F800000
"""The bits of a float32 but for its sign; those of infinity."""

Bind = Callable[[Any], Any]


def atan2(y: Any, x: Any, bind: Bind) -> Any:
    """The angle of (x, y), within [-pi, pi]."""
    tall, wide = bind(_from_bits(_bits(y) & _integer(MAGNITUDE))), bind(_from_bits(_bits(x) & _integer(MAGNITUDE)))
    small, large = bind(tirx.Min(tall, wide)), bind(tirx.Max(tall, wide))
    # 0 / 0 and infinity / infinity are those of corners: of the origin, which counts as on an axis, and of a diagonal.
    corner = tirx.Select(tirx.EQ(large, _real(0.0)), _real(0.0), _real(1.0))
    a = bind(tirx.Select(tirx.EQ(small, large), corner, small / large))
    square = bind(a * a)
    value = _real(ATAN[-1])
    for coefficient in ATAN[-2::-1]:
        value = value * square + _real(coefficient)
    octant = bind(a * value)
    before = _bits(x) < _integer(0)
    upright = (_real(HALF_PI_HIGH) - tirx.Select(before, _real(0.0) - octant, octant)) + _real(HALF_PI_LOW)
    level = tirx.Select(before, (_real(2 * HALF_PI_HIGH) - octant) + _real(2 * HALF_PI_LOW), octant)
    half = bind(tirx.Select(tall > wide, upright, level))
    angle = _from_bits(_bits(half) | (_bits(y) & _integer(-1 - MAGNITUDE)))
    known = tirx.Select(_bits(wide) > _integer(INFINITE_BITS), x, angle)
    return tirx.Select(_bits(tall) > _integer(INFINITE_BITS), y, known)


def atan(x: Any, bind: Bind) -> Any:
    return atan2(x, bind(_real(1.0)), bind)


def asin(x: Any, bind: Bind) -> Any:
    return atan2(x, bind(_beside(x)), bind)


def acos(x: Any, bind: Bind) -> Any:
    return atan2(bind(_beside(x)), x, bind)


def _beside(x: Any) -> Any:
    """sqrt(1 - x^2): NaN beyond [-1, 1]."""
    return tirx.sqrt((_real(1.0) - x) * (_real(1.0) + x))


def _bits(x: Any) -> Any:
    return tirx.reinterpret("int32", x)


def _from_bits(bits: Any) -> Any:
    return tirx.reinterpret("float32", bits)


def _real(value: float) -> Any:
    return tirx.const(value, "float32")


def _integer(value: int) -> Any:
    return tirx.const(value, "int32")
