"""Operators that compute element by element of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.ingest.aten.emitter import (
    HALF,
    Emitter,
    converter,
    dtype_of,
    elementwise,
    is_float,
    wide,
)
from tuner.tvm_compat import relax, tirx

op = relax.op

EXACT: dict[str, Callable[[Any], Any]] = {
    "abs.default": op.abs,
    "ceil.default": op.ceil,
    "floor.default": op.floor,
    "neg.default": op.negative,
    "relu.default": op.nn.relu,
    "sign.default": op.sign,
    "square.default": op.square,
    "trunc.default": op.trunc,
}
"""Operators whose result is no less exact in half precision, and has the argument's type."""

SMOOTH: dict[str, Callable[[Any], Any]] = {
    "acos.default": op.acos,
    "acosh.default": op.acosh,
    "asin.default": op.asin,
    "asinh.default": op.asinh,
    "atan.default": op.atan,
    "atanh.default": op.atanh,
    "cos.default": op.cos,
    "cosh.default": op.cosh,
    "erf.default": op.erf,
    "exp.default": op.exp,
    "log.default": op.log,
    "rsqrt.default": op.rsqrt,
    "sigmoid.default": op.sigmoid,
    "silu.default": op.nn.silu,
    "sin.default": op.sin,
    "sinh.default": op.sinh,
    "sqrt.default": op.sqrt,
    "tan.default": op.tan,
    "tanh.default": op.tanh,
}
"""Operators that are computed in float32 for half precision and for whole numbers."""


def _exact(make: Callable[[Any], Any]) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any) -> Any:
        if dtype_of(x) == "bool" or (make in (op.ceil, op.floor, op.trunc) and not is_float(dtype_of(x))):
            return x
        return to.emit(make(to.cast(x, to.dtype)))

    return convert


def smooth(to: Emitter, make: Callable[..., Any], *arguments: Any) -> Any:
    """make of tensors or numbers in the type that PyTorch computes in, in the type that it gives."""
    dtype = to.working(*arguments)
    return to.cast(to.emit(make(*(to.tensor(argument, dtype) for argument in arguments))), to.dtype)


def _smooth(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda to, x: smooth(to, make, x)


for _name, _make in EXACT.items():
    converter(_name)(_exact(_make))
for _name, _make in SMOOTH.items():
    converter(_name)(_smooth(_make))


@converter("alias.default", "clone.default", "detach.default", "contiguous.default", "lift_fresh_copy.default")
@converter("positive.default", "copy_to.default", "view_of.default", "_conj.default", "conj_physical.default")
@converter("resolve_conj.default", "resolve_neg.default", "real.default")
def same(_to: Emitter, x: Any, **_: Any) -> Any:
    return x


@converter("_to_copy.default", "convert_element_type.default")
def to_copy(to: Emitter, x: Any = None, a: Any = None, **_: Any) -> Any:
    x = a if x is None else x
    target = to.dtype
    if is_float(dtype_of(x)) and target == "uint8":  # negative numbers wrap
        return to.cast(to.cast(x, "int64"), target)
    return to.cast(x, target)


@converter("type_as.default")
def type_as(to: Emitter, x: Any, **_: Any) -> Any:
    return to.cast(x, to.dtype)


@converter("copy.default")
def copy(to: Emitter, src: Any, **_: Any) -> Any:
    return to.broadcast(to.cast(src, to.dtype), to.shape)


@converter("reciprocal.default")
def reciprocal(to: Emitter, x: Any) -> Any:
    x = to.cast(x, to.dtype)
    return to.emit(op.divide(to.const(1.0, to.dtype), x))


@converter("log2.default")
def log2(to: Emitter, x: Any) -> Any:
    return _log_of_base(to, x, 0.6931471805599453)


@converter("log10.default")
def log10(to: Emitter, x: Any) -> Any:
    return _log_of_base(to, x, 2.302585092994046)


def _log_of_base(to: Emitter, x: Any, log_base: float) -> Any:
    x = to.cast(x, wide(to.dtype))
    return to.cast(to.emit(op.divide(op.log(x), to.const(log_base, dtype_of(x)))), to.dtype)


@converter("log1p.default")
def log1p(to: Emitter, x: Any) -> Any:
    return elementwise(to, "log1p", log1p_of, wide(to.dtype), x)


def log1p_of(value: Any) -> Any:
    """log(1 + x): below 1/2 by the series of 2 artanh(x / (2 + x)), whose argument is at most 1/3.

    W. Kahan's correction for the rounding of 1 + x cannot be written: TVM takes (1 + x) - 1 for x.
    """
    dtype = str(value.ty.dtype)

    def number(one: float) -> Any:
        return tirx.const(one, dtype)

    near = value / (number(2) + value)
    square = near * near
    last = 17 if dtype == "float64" else 8  # the next term is below a ninth to that power
    series = number(2 / (2 * last + 1))
    for power in range(last - 1, -1, -1):
        series = number(2 / (2 * power + 1)) + square * series
    return tirx.if_then_else(tirx.abs(value) < number(0.5), near * series, tirx.log(number(1) + value))


@converter("expm1.default")
def expm1(to: Emitter, x: Any) -> Any:
    return elementwise(to, "expm1", expm1_of, wide(to.dtype), x)


def expm1_of(value: Any) -> Any:
    """exp(x) - 1: near zero the series, whose first term left out is below x^7 / 5040."""
    dtype = str(value.ty.dtype)

    def number(one: float) -> Any:
        return tirx.const(one, dtype)

    series = number(1 / 720)
    for divisor in (120, 24, 6, 2, 1):
        series = number(1 / divisor) + value * series
    bound = 0.35 if dtype != "float64" else 1e-3
    return tirx.if_then_else(tirx.abs(value) < number(bound), value * series, tirx.exp(value) - number(1))


@converter("exp2.default")
def exp2(to: Emitter, x: Any) -> Any:
    return elementwise(to, "exp2", lambda value: tirx.exp2(value), wide(to.dtype), x)


@converter("round.default")
def round_(to: Emitter, x: Any) -> Any:
    if not is_float(dtype_of(x)):
        return x
    return elementwise(to, "round", lambda value: tirx.nearbyint(value), wide(to.dtype), x)


@converter("round.decimals")
def round_decimals(to: Emitter, x: Any, decimals: int) -> Any:
    if not is_float(dtype_of(x)):
        if decimals >= 0:
            return x
        raise NotImplementedError("whole numbers to powers of ten")
    dtype = wide(to.dtype)
    ten = tirx.const(float(10 ** abs(decimals)), dtype)

    def body(value: Any) -> Any:
        if decimals >= 0:
            return tirx.nearbyint(value * ten) / ten
        return tirx.nearbyint(value / ten) * ten

    return elementwise(to, "round", body, dtype, x)


@converter("isnan.default")
def isnan(to: Emitter, x: Any) -> Any:
    return to.emit(op.isnan(_as_float(to, x)))


@converter("isinf.default")
def isinf(to: Emitter, x: Any) -> Any:
    return to.emit(op.isinf(_as_float(to, x)))


@converter("isfinite.default")
def isfinite(to: Emitter, x: Any) -> Any:
    return to.emit(op.isfinite(_as_float(to, x)))


@converter("isposinf.default")
def isposinf(to: Emitter, x: Any) -> Any:
    return to.emit(op.equal(_as_float(to, x), to.const(math.inf, "float32")))


@converter("isneginf.default")
def isneginf(to: Emitter, x: Any) -> Any:
    return to.emit(op.equal(_as_float(to, x), to.const(-math.inf, "float32")))


def _as_float(to: Emitter, x: Any) -> Any:
    """Whole numbers and half precision as float32, which is infinite where they are."""
    return x if dtype_of(x) in ("float32",) else to.cast(x, "float32") if dtype_of(x) != "float64" else x


@converter("signbit.default")
def signbit(to: Emitter, x: Any) -> Any:
    dtype = dtype_of(x)
    if not is_float(dtype):
        return (
            to.emit(op.less(x, to.const(0, dtype)))
            if dtype != "bool"
            else to.emit(op.logical_and(x, op.logical_not(x)))
        )
    work = "float32" if dtype in HALF else dtype
    bits = "int64" if work == "float64" else "int32"
    return elementwise(to, "signbit", lambda value: tirx.reinterpret(bits, value) < tirx.const(0, bits), work, x)


@converter("bitwise_not.default")
def bitwise_not(to: Emitter, x: Any) -> Any:
    return to.emit(op.logical_not(x) if dtype_of(x) == "bool" else op.bitwise_not(x))


@converter("logical_not.default")
def logical_not(to: Emitter, x: Any) -> Any:
    return to.emit(op.logical_not(to.cast(x, "bool")))
