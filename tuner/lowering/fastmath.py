"""Elementary functions as arithmetic that vector units have: exp, log, erf, tanh, sigmoid, rsqrt, powers, angles.

TVM leaves exp, log, tanh, sigmoid, angles and powers of float32 to a call of the C library for every element, and does not
vectorise a statement with erf or rsqrt at all. Here they become multiplications, additions, comparisons with selection,
at most one division, and shifts of the exponent's bits: no call, no branch, no table. Vectorised or unrolled, it is
arithmetic like any other.

A workload keeps its intrinsics, and so does a schedule's outcome: a single call is easy to inline, to move and to count, and
no digest depends on how exp is computed. `expand_intrinsics` is the first step of compiling for a CPU, wherever that is:
measurements, references, deployments. Change MATH_VERSION with the arithmetic: it is part of the toolchain that
records and artifacts name.

Errors, against float64, in ulps (the distance of float32 numbers at the result), on processors with fused multiply-add and
without; tests/compiler/test_fastmath.py measures them on dense grids of compiled vector code:

    exp(x)      1.25; 0 where the result is below 2^-125.5 (x < -86.99); inf where it overflows; exp(0) = 1
    exp2(x)     1.25; 0 where the result is below 2^-125.5; exact where x is whole
    sigmoid(x)  2.5, for x >= -86.9; below, at most 2^-125 off
    tanh(x)     7.5, absolutely 4.5e-7; -1 and 1 for |x| >= 9.013, and at most an ulp beyond them elsewhere
    erf(x)      9, absolutely 5.5e-7; -1 and 1 for |x| >= 3.921, and at most an ulp beyond them elsewhere
    log(x)      1, subnormal x included; log(0) = -inf, NaN for negative x
    rsqrt(x)    1.5, from a square root and a division
    pow(x, c)   for c in POWERS 0.5, but 1.5 for -1/2, 2 for 3 and 3 for 4; roots of -inf are NaN, where pow gives inf

NaN gives NaN; infinities give the limits. float16 goes by way of float32. atan, atan2, asin and acos are in angles.py. sin,
cos and tan are expanded later (sines.py).

The coefficients are ours: least squares on 1200 Chebyshev nodes in float64, reweighted until the largest relative error
is smallest (C. L. Lawson, 1961), rational functions linearised by the denominator found before (C. Sanathanan and
J. Koerner, 1963); rounded to float32 and, for tanh and erf, changed by a few ulps at random wherever that made the float32
evaluation better. The ends of tanh and erf are numbers at which that evaluation gives exactly 1, fused or not. Range
reductions: W. J. Cody and W. Waite, Software Manual for the Elementary Functions, 1980.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.lowering import angles
from tuner.lowering.bfloat16 import expand_bfloat16
from tuner.lowering.bindings import without_vector_bindings
from tuner.lowering.booleans import expand_booleans
from tuner.lowering.dot_products import mark
from tuner.lowering.extrema import has_exponentials, keep_nan
from tuner.lowering.inequalities import hold_for_nan
from tuner.lowering.padded_reads import without_branches
from tuner.lowering.remainders import split_remainders
from tuner.lowering.selections import select_values
from tuner.tvm_compat import ir, tirx, tvm_ffi

MATH_VERSION = 3
"""Of the arithmetic here and in remainders.py, which all CPU code is made with."""

LOG2_E = 1.44269504
LN2 = 0.693147182464599609375
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; n * LN2_HIGH is exact for the n that occur."""
ROUND = 12582912.0
"""1.5 * 2^23: added to a float of magnitude below 2^22, it rounds to an integer that stands in the lowest bits."""
EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368724957108498, 0.0013814581325277686)
"""e^r = 1 + r + r^2 P(r), |r| <= ln(2) / 2: relative error 0.05 * 2^-24."""
TANH_END = 9.01272201538086
TANH = (
    (1.0, 0.13382692635059357, 0.0034974580630660057, 2.0635821783798747e-05, 1.3384302555152772e-08),
    (1.0, 0.4671602249145508, 0.025884360074996948, 0.0003288519801571965, 7.790245035721455e-07),
)
"""N and D of tanh x = x N(x^2) / D(x^2), |x| <= TANH_END: relative error 0.37 * 2^-24."""
ERF_END = 3.9207680225372314
ERF = (
    (
        *(1.128379225730896, 0.1744319051504135, 0.05070938542485237),
        *(0.0031082595232874155, 0.00027492354274727404, 2.231008920716704e-06),
    ),
    (
        *(1.0, 0.4879208207130432, 0.1075749471783638),
        *(0.013638968579471111, 0.0010127491550520062, 3.945701610064134e-05),
    ),
)
"""N and D of erf x = x N(x^2) / D(x^2), |x| <= ERF_END: relative error 0.9 * 2^-24."""
LOG = (
    *(0.3333333134651184, -0.2500081956386566, 0.20001226663589478, -0.16623356938362122),
    *(0.14201757311820984, -0.13160182535648346, 0.1276157796382904, -0.07634497433900833),
)
"""log(1 + t) = t - t^2 / 2 + t^3 P(t), 1 + t in [sqrt(1/2), sqrt(2)): relative error 0.1 * 2^-24."""
ROOT_HALF_BITS = 0x3F3504F3
"""Of sqrt(1/2)."""
ONE_BITS = 0x3F800000

Bind = Callable[[Any], Any]
"""Gives an expression a name: a variable to use more than once."""
Formula = Callable[..., Any]
"""(variables of float32..., bind) -> the arithmetic of a function of them."""


def expand_intrinsics(mod: Any) -> Any:
    """The module with arithmetic in place of the intrinsics in its tensor functions; for code generators of CPUs.

    Loops over remainders are split for them as well (remainders.py), padding of rows is read without a branch
    (padded_reads.py), choices between values are selections (selections.py), vectorised loops that bind variables are made
    plain (bindings.py), booleans between stages are bytes (booleans.py), bfloat16 is computed in float32 (bfloat16.py),
    maxima keep NaN (extrema.py), and it is unequal to all (inequalities.py). Products of bytes are calls (dot_products.py),
    of which PIPELINE of stack.py makes instructions.
    Sines, cosines and tangents stay calls, which PIPELINE expands (sines.py).
    Before TVM lowers the module: loops are still to be vectorised. Variables that are bound here are unique; passes that
    copy statements keep them so. Other functions of the module stay as they are.
    """
    return _EXPAND(without_vector_bindings(mod))


def expand_powers(mod: Any) -> Any:
    """The module with products and roots in place of `pow` by a constant in its tensor functions; for GPUs, whose other
    functions are their own. Before TVM lowers the module."""
    return _EXPAND_POWERS(mod)


def _expand_powers(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(ir.Call, _expanded_power)])
    return function if body.same_as(function.body) else function.with_body(body)


_EXPAND_POWERS = tirx.transform.prim_func_pass(_expand_powers, opt_level=0, name="pitchpipe.ExpandPowers")


def _expanded_power(call: Any) -> Any:
    return _expanded(call) if str(getattr(call.op, "name", "")) == "tirx.pow" else call


def _expand_function(function: Any, _mod: Any, _context: Any) -> Any:
    function = select_values(mark(without_branches(split_remainders(function))))
    exponentials = has_exponentials(function)
    body = tvm_ffi.structural_map(function.body, [(ir.Call, _expanded)])
    function = expand_bfloat16(function if body.same_as(function.body) else function.with_body(body))
    return expand_booleans(hold_for_nan(keep_nan(function, exponentials=exponentials)))


_EXPAND = tirx.transform.prim_func_pass(_expand_function, opt_level=0, name="pitchpipe.ExpandIntrinsics")


def _expanded(call: Any) -> Any:
    """The arithmetic of a call, innermost calls first; a call without a formula as it is."""
    name, dtype = str(getattr(call.op, "name", "")), str(getattr(call.ty, "dtype", ""))
    if dtype not in ("float16", "float32"):
        return call
    formula = POWERS.get(_constant(call.args[1])) if name == "tirx.pow" else FORMULAS.get(name)
    if formula is None:
        return call
    arguments = list(call.args)[:1] if name == "tirx.pow" else list(call.args)
    if dtype == "float32":
        return _bound(formula, arguments)
    return tirx.Cast(dtype, _bound(formula, [tirx.Cast("float32", each) for each in arguments]))


def _bound(formula: Formula, arguments: Sequence[Any]) -> Any:
    bindings: list[tuple[Any, Any]] = []

    def bind(value: Any) -> Any:
        variable = tirx.Var("value", value.ty)
        bindings.append((variable, value))
        return variable

    body = formula(*map(bind, arguments), bind)
    for variable, value in reversed(bindings):
        body = tirx.Let(variable, value, body)
    return body


def _constant(exponent: Any) -> float | None:
    return float(exponent.value) if isinstance(exponent, tirx.FloatImm) else None


def _real(value: float) -> Any:
    return tirx.const(value, "float32")


def _integer(value: int) -> Any:
    return tirx.const(value, "int32")


def _clamped(x: Any, low: float, high: float, bind: Bind) -> Any:
    """x within [low, high]. NaN stays NaN: both are comparisons that give their second operand where they fail."""
    return bind(tirx.Min(_real(high), tirx.Max(_real(low), x)))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """By Horner's rule; the constant comes first."""
    value = _real(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + _real(coefficient)
    return value


def _exp(x: Any, bind: Bind) -> Any:
    """2^n e^r with n an integer and |r| <= ln(2) / 2."""
    x = _clamped(x, -87.5, 89.0, bind)
    shifted = bind(x * _real(LOG2_E) + _real(ROUND + 126))
    n = bind(shifted - _real(ROUND + 126))
    r = bind((x - n * _real(LN2_HIGH)) - n * _real(LN2_LOW))
    return _scaled_exp(r, shifted)


def _exp2(x: Any, bind: Bind) -> Any:
    """2^n e^(t ln 2) with x = n + t, n an integer and |t| <= 1/2."""
    x = _clamped(x, -126.5, 128.5, bind)
    shifted = bind(x + _real(ROUND + 126))
    t = x - bind(shifted - _real(ROUND + 126))
    return _scaled_exp(bind(t * _real(LN2)), shifted)


def _scaled_exp(r: Any, shifted: Any) -> Any:
    """2^n e^r, computed as 2^(n - 1) * 2 e^r: so the largest n has its power.

    shifted: a float32 with n + 126 in its lowest bits, which become the exponent's of 2^(n - 1): at the lower end of the
    range they are the bits of 0; at the upper end the product overflows.
    """
    power = tirx.reinterpret("float32", tirx.reinterpret("int32", shifted) << _integer(23))
    return _polynomial(r, (2.0, 2.0, *(2 * c for c in EXP))) * power


def _sigmoid(x: Any, bind: Bind) -> Any:
    return _real(1.0) / (_real(1.0) + _exp(bind(_real(0.0) - x), bind))


def _odd_ratio(x: Any, end: float, ratio: tuple[Sequence[float], Sequence[float]], bind: Bind) -> Any:
    """x N(x^2) / D(x^2), x clamped to [-end, end]."""
    x = _clamped(x, -end, end, bind)
    square = bind(x * x)
    return x * _polynomial(square, ratio[0]) / _polynomial(square, ratio[1])


def _tanh(x: Any, bind: Bind) -> Any:
    return _odd_ratio(x, TANH_END, TANH, bind)


def _erf(x: Any, bind: Bind) -> Any:
    return _odd_ratio(x, ERF_END, ERF, bind)


def _whole(value: Any, bind: Bind) -> Any:
    """An int32 by a name, which is that of the float32 of its bits. Where a logarithm becomes a whole number, TVM's
    narrowing of types bounds a named whole number twice, once without what it is bound to, and refuses the two bounds."""
    return tirx.reinterpret("int32", bind(tirx.reinterpret("float32", value)))


def _log(x: Any, bind: Bind) -> Any:
    """k ln 2 + log(1 + t) with x = 2^k (1 + t) and 1 + t in [sqrt(1/2), sqrt(2))."""
    bits = tirx.reinterpret("int32", x)
    subnormal = _whole((bits - _integer(ONE_BITS - (126 << 23))) >> _integer(31), bind)  # all ones, or zero
    scale = tirx.reinterpret("float32", _integer(ONE_BITS) + (subnormal & _integer(23 << 23)))
    offset = _whole(tirx.reinterpret("int32", x * scale) - _integer(ROOT_HALF_BITS), bind)
    exponent = (offset >> _integer(23)) - (subnormal & _integer(23))
    k = bind(tirx.Cast("float32", exponent))
    significand = (offset & _integer(0x7FFFFF)) + _integer(ROOT_HALF_BITS)
    t = bind(tirx.reinterpret("float32", significand) - _real(1.0))
    higher = t * t * _polynomial(t, (-0.5, *LOG))
    value = k * _real(LN2_HIGH) + (t + (higher + k * _real(LN2_LOW)))
    bounded = tirx.Select(x < _real(math.inf), value, x)
    return tirx.Select(x > _real(0.0), bounded, tirx.Select(tirx.EQ(x, _real(0.0)), _real(-math.inf), _real(math.nan)))


def _rsqrt(x: Any, _bind: Bind) -> Any:
    return _real(1.0) / tirx.sqrt(x)


def _fourth(x: Any, bind: Bind) -> Any:
    square = bind(x * x)
    return square * square


FORMULAS: dict[str, Formula] = {
    "tirx.exp": _exp,
    "tirx.exp2": _exp2,
    "tirx.log": _log,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.rsqrt": _rsqrt,
    "tirx.acos": angles.acos,
    "tirx.asin": angles.asin,
    "tirx.atan": angles.atan,
    "tirx.atan2": angles.atan2,
}
POWERS: dict[float | None, Formula] = {
    -1.0: lambda x, _: _real(1.0) / x,
    -0.5: _rsqrt,
    0.5: lambda x, _: tirx.sqrt(x),
    1.0: lambda x, _: x,
    2.0: lambda x, _: x * x,
    3.0: lambda x, _: x * x * x,
    4.0: _fourth,
}
"""By the constant exponent; others are left to the C library."""
