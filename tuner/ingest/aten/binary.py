"""Operators that compute element by element of several tensors or numbers, in the type that PyTorch promotes them to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tuner.ingest.aten.emitter import (
    Emitter,
    converter,
    dtype_name,
    dtype_of,
    elementwise,
    is_float,
    is_tensor,
    wide,
)
from tuner.ingest.aten.iteration import Iteration, iterated
from tuner.ingest.aten.unary import smooth
from tuner.tvm_compat import relax, tirx

op = relax.op


def promoted(to: Emitter) -> str:
    """The type to which PyTorch promotes the node's first two arguments."""
    first, second = (fx.node.map_arg(argument, lambda node: node.meta["val"]) for argument in to.node.args[:2])
    return dtype_name(torch.result_type(first, second))


def arithmetic(to: Emitter, make: Callable[..., Any], x: Any, other: Any) -> Any:
    """make of both in the result's type, whose numbers PyTorch does not round to half precision."""
    dtype = to.working(x, other)
    return to.cast(to.emit(make(to.tensor(x, dtype), to.tensor(other, dtype))), to.dtype)


@converter("add.Tensor", "add.Scalar")
def add(to: Emitter, x: Any, other: Any, alpha: Any = 1) -> Any:
    if to.dtype == "bool":
        return to.emit(op.logical_or(to.tensor(x, "bool"), to.tensor(other, "bool")))
    return arithmetic(to, op.add, x, _times(to, other, alpha))


@converter("sub.Tensor", "sub.Scalar")
def subtract(to: Emitter, x: Any, other: Any, alpha: Any = 1) -> Any:
    return arithmetic(to, op.subtract, x, _times(to, other, alpha))


@converter("rsub.Tensor", "rsub.Scalar")
def reverse_subtract(to: Emitter, x: Any, other: Any, alpha: Any = 1) -> Any:
    return arithmetic(to, op.subtract, other, _times(to, x, alpha))


def _times(to: Emitter, x: Any, factor: Any) -> Any:
    if factor == 1:
        return x
    return to.emit(op.multiply(to.tensor(x, to.dtype), to.const(factor, to.dtype))) if is_tensor(x) else x * factor


@converter("mul.Tensor", "mul.Scalar")
def multiply(to: Emitter, x: Any, other: Any) -> Any:
    if to.dtype == "bool":
        return to.emit(op.logical_and(to.tensor(x, "bool"), to.tensor(other, "bool")))
    if is_float(to.dtype) and not is_tensor(other) and other == 0:
        return _times_zero(to, x)
    return arithmetic(to, op.multiply, x, other)


def _times_zero(to: Emitter, x: Any) -> Any:
    """Zero but where x is infinite or no number; TVM takes such a product for zero everywhere."""
    dtype = wide(to.dtype)

    def body(value: Any) -> Any:
        none, infinity = tirx.const(math.nan, dtype), tirx.const(math.inf, dtype)
        return tirx.Select(tirx.abs(value) < infinity, tirx.const(0, dtype), none)

    return elementwise(to, "times_zero", body, dtype, x)


@converter("div.Tensor", "div.Scalar", "div.default")
def divide(to: Emitter, x: Any, other: Any) -> Any:
    return arithmetic(to, op.divide, x, other)


@converter("div.Tensor_mode", "div.Scalar_mode")
def divide_rounded(to: Emitter, x: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return divide(to, x, other)
    if not is_float(to.dtype):
        return _whole(to, "divide", tirx.floordiv if rounding_mode == "floor" else tirx.truncdiv, x, other)
    if rounding_mode == "floor":
        return floor_divide(to, x, other)
    return elementwise(to, "divide", lambda a, b: tirx.trunc(a / b), wide(to.dtype), x, other)


@converter("floor_divide.default", "floor_divide.Scalar")
def floor_divide(to: Emitter, x: Any, other: Any) -> Any:
    if not is_float(to.dtype):
        return _whole(to, "floor_divide", tirx.floordiv, x, other)

    def body(a: Any, b: Any) -> Any:
        """As Python divides: the remainder is taken off before the division, so that no quotient is rounded up."""
        zero = tirx.const(0, str(a.ty.dtype))
        rest = _fmod_of(a, b)
        quotient = (a - rest) / b
        quotient = tirx.if_then_else(_apart(rest, b), quotient - tirx.const(1, str(a.ty.dtype)), quotient)
        whole = tirx.floor(quotient)
        half, one = (tirx.const(value, str(a.ty.dtype)) for value in (0.5, 1))
        whole = tirx.if_then_else(quotient - whole > half, whole + one, whole)
        return tirx.if_then_else(b == zero, a / b, whole)

    return elementwise(to, "floor_divide", body, wide(to.dtype), x, other)


def _whole(to: Emitter, name: str, make: Callable[..., Any], x: Any, other: Any) -> Any:
    """make of whole numbers. For a divisor of zero, where PyTorch raises, it is that by 1: the processor would end the
    process. A divisor that is a number is part of the function, which then divides by a multiplication, and cannot be
    called with zero."""
    if not is_tensor(other) and 0 < other <= int(tirx.max_value(to.dtype)):
        return elementwise(to, name, lambda a: make(a, tirx.const(int(other), to.dtype)), to.dtype, x)

    def body(a: Any, b: Any) -> Any:
        zero, one = (tirx.const(value, str(b.ty.dtype)) for value in (0, 1))
        return make(a, tirx.Select(b == zero, one, b))

    return elementwise(to, name, body, to.dtype, x, other)


def _apart(rest: Any, divisor: Any) -> Any:
    """Whether a remainder is not zero and has another sign than the divisor."""
    zero = tirx.const(0, str(rest.ty.dtype))
    return tirx.Or(tirx.And(rest > zero, divisor < zero), tirx.And(rest < zero, divisor > zero))


def _fmod_of(a: Any, b: Any) -> Any:
    """The remainder with the dividend's sign. In float64, where the quotient of float32 numbers times b is exact."""
    dtype = str(a.ty.dtype)
    x, y = a.astype("float64"), b.astype("float64")
    zero = tirx.const(0.0, "float64")
    rest = x - tirx.trunc(x / y) * y
    rest = tirx.if_then_else(tirx.Or(tirx.And(rest > zero, x < zero), tirx.And(rest < zero, x > zero)), zero, rest)
    rest = tirx.if_then_else(tirx.And(tirx.isinf(y), tirx.Not(tirx.isinf(x))), x, rest)
    return rest.astype(dtype)


@converter("fmod.Tensor", "fmod.Scalar")
def fmod(to: Emitter, x: Any, other: Any) -> Any:
    if not is_float(to.dtype):
        return _whole(to, "fmod", tirx.truncmod, x, other)
    return elementwise(to, "fmod", _fmod_of, wide(to.dtype), x, other)


@converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(to: Emitter, x: Any, other: Any) -> Any:
    if not is_float(to.dtype):
        return _whole(to, "remainder", tirx.floormod, x, other)

    def body(a: Any, b: Any) -> Any:
        rest = _fmod_of(a, b)
        return tirx.if_then_else(_apart(rest, b), rest + b, rest)

    return elementwise(to, "remainder", body, wide(to.dtype), x, other)


@converter("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(to: Emitter, x: Any, exponent: Any) -> Any:
    dtype = to.dtype
    if is_float(dtype):
        if not is_tensor(exponent) and exponent == 0:
            return to.emit(op.full(relax.ShapeExpr(to.shape), to.const(1, dtype), dtype))
        if dtype == "float64":
            return elementwise(to, "power", tirx.pow, dtype, x, exponent)
        return smooth(to, op.power, x, exponent)
    if not is_tensor(exponent) and int(exponent) >= 0:
        return _repeated_product(to, to.tensor(x, dtype), int(exponent))
    return elementwise(to, "power", _integer_power, dtype, x, exponent)


def _repeated_product(to: Emitter, x: Any, exponent: int) -> Any:
    """x to a power of a whole number that is not negative, by squaring."""
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else to.emit(op.multiply(result, square))
        exponent >>= 1
        if exponent:
            square = to.emit(op.multiply(square, square))
    return result if result is not None else to.emit(op.full_like(x, to.const(1, to.dtype)))


def _integer_power(base: Any, exponent: Any) -> Any:
    """By squaring, for exponents below 64; larger ones overflow for all bases but 0, 1 and -1, as those below wrap to."""
    dtype = str(base.ty.dtype)
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
    result, square = one, base
    for bit in range(6):
        result = tirx.if_then_else((exponent >> tirx.const(bit, dtype)) & one != zero, result * square, result)
        square = square * square
    odd = exponent & one
    negative = tirx.if_then_else(
        base == one, one, tirx.if_then_else(base == -one, tirx.if_then_else(odd != zero, -one, one), zero)
    )
    return tirx.if_then_else(exponent < zero, negative, result)


EUCLID_STEPS = 93
"""Most divisions of Euclid's algorithm for whole numbers of 64 bits: neighbours in Fibonacci's sequence take so many."""


@converter("gcd.default")
def gcd(to: Emitter, x: Any, other: Any) -> Any:
    zero = tirx.const(0, to.dtype)

    def body(a: Any, b: Any) -> Iteration:
        return Iteration(
            states=[tirx.abs(a), tirx.abs(b)],
            steps=tirx.const(EUCLID_STEPS, "int64"),
            goes_on=lambda a, _: a != zero,
            step=lambda _, a, b: (tirx.truncmod(b, a), a),
            result=lambda _, b: b,
        )

    return iterated(to, "gcd", body, to.dtype, x, other)


COMPARISONS = {
    "eq": op.equal,
    "ne": op.not_equal,
    "lt": op.less,
    "le": op.less_equal,
    "gt": op.greater,
    "ge": op.greater_equal,
}


def _comparison(make: Callable[..., Any]) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, other: Any) -> Any:
        dtype = promoted(to)
        if dtype == "bool":
            dtype = "int8"
        if x is other and is_float(dtype):  # which TVM takes to be equal, numbers or not
            nothing = to.emit(op.isnan(to.cast(x, wide(dtype))))
            return to.emit(op.where(nothing, to.const(make is op.not_equal, "bool"), make(x, x)))
        return to.emit(make(to.tensor(x, dtype), to.tensor(other, dtype)))

    return convert


for _name, _make in COMPARISONS.items():
    converter(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_make))


def _logical(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda to, x, other: to.emit(make(to.tensor(x, "bool"), to.tensor(other, "bool")))


def _bitwise(logical: Callable[..., Any], bits: Callable[..., Any]) -> Callable[..., Any]:
    return lambda to, x, other: arithmetic(to, logical if to.dtype == "bool" else bits, x, other)


for _name, _logic, _bits in (
    ("and", op.logical_and, op.bitwise_and),
    ("or", op.logical_or, op.bitwise_or),
    ("xor", op.logical_xor, op.bitwise_xor),
):
    converter(f"logical_{_name}.default")(_logical(_logic))
    converter(
        *(f"bitwise_{_name}.{each}" for each in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"__{_name}__.{each}" for each in ("Tensor", "Scalar")),
    )(_bitwise(_logic, _bits))


def _shift(make: Callable[..., Any]) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, other: Any) -> Any:
        return elementwise(to, "shift", make, to.dtype, x, other)

    return convert


def _left(a: Any, b: Any) -> Any:
    dtype = str(a.ty.dtype)
    width = int("".join(filter(str.isdigit, dtype)))
    beyond = tirx.Or(b < tirx.const(0, dtype), b >= tirx.const(width, dtype))
    return tirx.if_then_else(beyond, tirx.const(0, dtype), a << b)


def _right(a: Any, b: Any) -> Any:
    dtype = str(a.ty.dtype)
    width = int("".join(filter(str.isdigit, dtype)))
    beyond = tirx.Or(b < tirx.const(0, dtype), b >= tirx.const(width, dtype))
    return a >> tirx.if_then_else(beyond, tirx.const(width - 1, dtype), b)


converter(
    *(
        f"{name}.{each}"
        for name in ("bitwise_left_shift", "__lshift__")
        for each in ("Tensor", "Scalar", "Tensor_Scalar")
    )
)(_shift(_left))
converter(
    *(
        f"{name}.{each}"
        for name in ("bitwise_right_shift", "__rshift__")
        for each in ("Tensor", "Scalar", "Tensor_Scalar")
    )
)(_shift(_right))


@converter("maximum.default", "max.other")
def maximum(to: Emitter, x: Any, other: Any) -> Any:
    return _extremum(to, op.maximum, op.logical_or, x, other)


@converter("minimum.default", "min.other")
def minimum(to: Emitter, x: Any, other: Any) -> Any:
    return _extremum(to, op.minimum, op.logical_and, x, other)


def _extremum(to: Emitter, make: Callable[..., Any], logic: Callable[..., Any], x: Any, other: Any) -> Any:
    return arithmetic(to, logic if to.dtype == "bool" else make, x, other)


@converter("fmax.default")
def fmax(to: Emitter, x: Any, other: Any) -> Any:
    return _number_first(to, tirx.max, x, other)


@converter("fmin.default")
def fmin(to: Emitter, x: Any, other: Any) -> Any:
    return _number_first(to, tirx.min, x, other)


def _number_first(to: Emitter, make: Callable[..., Any], x: Any, other: Any) -> Any:
    if to.dtype == "bool":
        return (maximum if make is tirx.max else minimum)(to, x, other)

    def body(a: Any, b: Any) -> Any:
        if not is_float(str(a.ty.dtype)):
            return make(a, b)
        return tirx.if_then_else(tirx.isnan(a), b, tirx.if_then_else(tirx.isnan(b), a, make(a, b)))

    return elementwise(to, "extremum", body, wide(to.dtype), x, other)


@converter("clamp.default", "clamp.Tensor")
def clamp(to: Emitter, x: Any, min: Any = None, max: Any = None) -> Any:
    if not is_tensor(min) and not is_tensor(max) and is_float(to.dtype) and dtype_of(x) == to.dtype:
        low = -math.inf if min is None else min
        return to.emit(op.clip(x, low, math.inf if max is None else max))
    if min is not None:
        x = arithmetic(to, op.maximum, x, min)
    return arithmetic(to, op.minimum, x, max) if max is not None else to.cast(x, to.dtype)


@converter("clamp_min.default", "clamp_min.Tensor")
def clamp_min(to: Emitter, x: Any, min: Any) -> Any:
    return clamp(to, x, min, None)


@converter("clamp_max.default", "clamp_max.Tensor")
def clamp_max(to: Emitter, x: Any, max: Any) -> Any:
    return clamp(to, x, None, max)


@converter("atan2.default")
def atan2(to: Emitter, x: Any, other: Any) -> Any:
    return elementwise(to, "atan2", tirx.atan2, wide(to.dtype), x, other)


@converter("copysign.Tensor", "copysign.Scalar")
def copysign(to: Emitter, x: Any, other: Any) -> Any:
    return elementwise(to, "copysign", tirx.copysign, wide(to.dtype), x, other)


@converter("hypot.default")
def hypot(to: Emitter, x: Any, other: Any) -> Any:
    return elementwise(to, "hypot", tirx.hypot, wide(to.dtype), x, other)


@converter("where.self")
def where(to: Emitter, condition: Any, x: Any, other: Any) -> Any:
    chosen = [to.tensor(x, to.dtype), to.tensor(other, to.dtype)]
    return to.emit(op.where(to.cast(condition, "bool"), *chosen))


@converter("where.default")
def where_of_prims(to: Emitter, pred: Any, a: Any, b: Any) -> Any:
    return where(to, pred, a, b)


@converter("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(to: Emitter, x: Any, mask: Any, value: Any) -> Any:
    return where(to, mask, value, x)
