"""Element-wise operators that TVM's frontend lacks or has wrong for some types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import relax, te, tirx


def elementwise(node: Node, function: Callable[..., Any], *operands: Any, name: str | None = None) -> Any:
    """A function of elements on tensors that broadcast to the shape of the node's first output."""
    shape = tuple(np.broadcast_shapes(*(shape_of(operand) for operand in operands)))

    def make(*tensors: Any) -> Any:
        def element(*at: Any) -> Any:
            return function(
                *(_at(tensor, shape_of(operand), at) for tensor, operand in zip(tensors, operands, strict=True))
            )

        return compute(shape, element)

    return node.te(make, *operands, name=name)


def _at(tensor: Any, shape: tuple[int, ...], at: tuple[Any, ...]) -> Any:
    """The element of a tensor that broadcasts, at an index of the result."""
    lead = len(at) - len(shape)
    return tensor(*(0 if extent == 1 else i for extent, i in zip(shape, at[lead:], strict=True)))


@reader("Mod")
def remainder(node: Node) -> Any:
    """Of the divisor's sign, for floating-point numbers; TVM's for whole ones and for that of the dividend's sign.

    TVM's own has no answer for an infinite divisor. Quotients are rounded in double precision, so single ones are exact
    while the quotient is below 2^29.
    """
    dtype = node.dtype(0)
    if node.attribute("fmod", 0) or "float" not in dtype:
        return None

    def rest(a: Any, b: Any) -> Any:
        a, b = a.astype("float64"), b.astype("float64")
        zero = tirx.const(0, "float64")
        finite = tirx.isfinite(a)
        found = tirx.Select(tirx.And(tirx.isinf(b), finite), a, a - te.trunc(a / b) * b)
        other = tirx.Or(tirx.And(found < zero, b > zero), tirx.And(found > zero, b < zero))
        # A remainder of zero has the divisor's sign, as NumPy's.
        zeroed = tirx.Select(found.equal(zero), tirx.Select(b < zero, -zero, zero), found)
        return tirx.Select(other, found + b, zeroed).astype(dtype)

    return elementwise(node, rest, node.tensor(0), node.tensor(1))


@reader("BitShift")
def bit_shift(node: Node) -> Any:
    """By the width of the type or more, all bits are shifted out."""
    dtype = node.dtype(0)
    if dtype.startswith("uint") and (known := node.known(1)) is not None and known.size and known.max() < 8:
        return None
    bits = np.dtype(dtype).itemsize * 8
    left = str(node.attribute("direction")) == "LEFT"
    signed = not dtype.startswith("uint")

    def shifted(a: Any, b: Any) -> Any:
        width = tirx.const(bits, dtype)
        inside = b < width
        if signed:
            inside = tirx.And(inside, b >= tirx.const(0, dtype))
        # Masked, not chosen: the compiler reads a shift of nothing by a chosen constant where there is none.
        safe = tirx.bitwise_and(b, tirx.const(bits - 1, dtype))
        found = tirx.shift_left(a, safe) if left else tirx.shift_right(a, safe)
        beyond = tirx.const(0, dtype)
        if signed and not left:
            beyond = tirx.Select(a < tirx.const(0, dtype), tirx.const(-1, dtype), beyond)
        return tirx.Select(inside, found, beyond)

    return elementwise(node, shifted, node.tensor(0), node.tensor(1))


@reader("IsInf")
def is_infinite(node: Node) -> Any:
    positive, negative = bool(node.attribute("detect_positive", 1)), bool(node.attribute("detect_negative", 1))
    x = node.tensor(0)
    if positive and negative and node.dtype(0) in ("float32", "float64", "float16"):
        return None
    wide = node.cast(x, "float32") if node.dtype(0) in ("float16", "bfloat16") else x
    kind = str(wide.ty.dtype)

    def found(a: Any) -> Any:
        infinity = tirx.infinity(kind)
        signs = [a.equal(infinity)] if positive else []
        signs += [a.equal(-infinity)] if negative else []
        return tirx.any(*signs) if signs else tirx.const(False, "bool")

    return elementwise(node, found, wide)


@reader("Pow")
def power(node: Node) -> Any:
    """Of the type of the base, whatever the exponent's."""
    base, exponent = node.dtype(0), node.dtype(1)
    if base == exponent and "float" in base:
        return None
    x, y = node.tensor(0), node.tensor(1)
    if "float" in base:
        return relax.op.power(x, node.cast(y, base))
    if "float" not in exponent:
        return _whole_power(node)
    wide = elementwise(node, lambda a, b: tirx.pow(a.astype("float64"), b.astype("float64")), x, y)
    return relax.op.astype(wide, base)


def _whole_power(node: Node) -> Any:
    """By squaring, exact for every result that the type holds.

    A negative exponent gives one for a base of 1, one or minus one for -1, and else zero: the fraction's whole part.
    """
    dtype, exponent = node.dtype(0), node.dtype(1)
    shape = tuple(np.broadcast_shapes(node.shape(0), node.shape(1)))
    known = node.known(1)
    bits = np.dtype(exponent).itemsize * 8
    if known is not None and known.size:
        bits = max(1, *(abs(int(value)).bit_length() for value in known.flat))

    def make(x: Any, y: Any) -> Any:
        one = tirx.const(1, exponent)
        # Each step is a stage of its own: nested in one expression, steps would double its size each.
        square = compute(shape, lambda *at: _at(x, node.shape(0), at), "square")
        found = compute(shape, lambda *_at: tirx.const(1, dtype), "found")

        def chosen(bit: int, last: Any, factor: Any) -> Any:
            def with_bit(*at: Any) -> Any:
                power = _at(y, node.shape(1), at)
                odd = tirx.bitwise_and(tirx.shift_right(power, tirx.const(bit, exponent)), one).equal(one)
                return tirx.Select(odd, last(*at) * factor(*at), last(*at))

            return compute(shape, with_bit, "found")

        def squared(factor: Any) -> Any:
            return compute(shape, lambda *at: factor(*at) * factor(*at), "square")

        for bit in range(bits):
            found = chosen(bit, found, square)
            square = squared(square) if bit < bits - 1 else square

        def element(*at: Any) -> Any:
            a, b = _at(x, node.shape(0), at), _at(y, node.shape(1), at)
            if exponent.startswith("uint"):
                return found(*at)
            odd = tirx.bitwise_and(b, one).equal(one)
            part = tirx.Select(a.equal(tirx.const(1, dtype)), tirx.const(1, dtype), tirx.const(0, dtype))
            if not dtype.startswith("uint"):
                sign = tirx.Select(odd, tirx.const(-1, dtype), tirx.const(1, dtype))
                part = tirx.Select(a.equal(tirx.const(-1, dtype)), sign, part)
            return tirx.Select(b < tirx.const(0, exponent), part, found(*at))

        return compute(shape, element)

    return node.te(make, node.tensor(0), node.tensor(1))


@reader("Equal")
def equal(node: Node) -> Any:
    """Of booleans, which LLVM has no comparison of: neither one alone is true."""
    if node.dtype(0) != "bool":
        return None
    return relax.op.logical_not(node.emit(relax.op.logical_xor(node.tensor(0), node.tensor(1))))


@reader("Not")
def negation(node: Node) -> Any:
    return relax.op.logical_not(node.tensor(0))


@reader("Sign")
def sign(node: Node) -> Any:
    """What is no number stays so; TVM's operator for whole ones."""
    dtype = node.dtype(0)
    if dtype not in ("float16", "float32", "float64"):
        return None
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    return elementwise(
        node, lambda x: tirx.Select(x > zero, one, tirx.Select(x < zero, -one, x)), node.tensor(0), name="sign"
    )
