"""Cast, CastLike and BitCast, and the 8-bit floating-point types, which are decoded and encoded by tables.

An 8-bit type has at most 127 positive values, in the order of their codes. So a value's code is the number of thresholds
between neighbours that it reaches, and the value of a code is an entry of a table of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from tuner.ingest.onnx.node import CONSTANT_TYPES, Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import dtype_of, shape_of
from tuner.tvm_compat import relax, te, tirx

EIGHT_BITS = frozenset(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"))
"""NumPy's names of the floating-point types of a byte."""


@reader("Cast", "CastLike")
def cast(node: Node) -> Any:
    if node.operator == "Cast":
        target = str(helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])).name)
    else:
        target = node.dtype(1)
    source = node.dtype(0)
    if source == target:
        return node.tensor(0)
    saturate, rounding = bool(node.attribute("saturate", 1)), str(node.attribute("round_mode", "up"))
    if source in EIGHT_BITS or target in EIGHT_BITS:
        wide = decoded(node, node.tensor(0)) if source in EIGHT_BITS else node.tensor(0)
        if target not in EIGHT_BITS:
            return wide if target == "float32" else node.cast(wide, target)
        return encoded(node, wide, target, saturate=saturate, rounding=rounding)
    if source not in CONSTANT_TYPES or target not in CONSTANT_TYPES:
        node.refuse(f"casts from {source} to {target}")
    if target == "bool":
        return relax.op.not_equal(node.tensor(0), node.constant(np.zeros((), np.dtype(source))))
    if node.operator == "CastLike":
        return relax.op.astype(node.tensor(0), target) if _plain(source, target) else None
    return None


def _plain(source: str, target: str) -> bool:
    return "float" in target or "float" not in source


def decoded(node: Node, value: Any) -> Any:
    """A tensor of a type of EIGHT_BITS as float32."""
    table = np.arange(256, dtype=np.uint8).view(np.dtype(dtype_of(value))).astype(np.float32)

    def look_up(x: Any, values: Any) -> Any:
        return compute(shape_of(value), lambda *at: values(tirx.reinterpret("uint8", x(*at)).astype("int32")))

    return node.te(look_up, value, node.constant(table), name="decode_float8")


def encoded(node: Node, value: Any, target: str, *, saturate: bool = True, rounding: str = "up") -> Any:
    """A tensor of a wider floating-point type, rounded to nearest, as a type of EIGHT_BITS.

    saturate: values beyond the largest become it; else they become infinite, or no number where there is no infinity.
    rounding: `up`, `down` or `nearest`, of FLOAT8E8M0, which has powers of two only.
    """
    wide = "float64" if dtype_of(value) == "float64" else "float32"
    value = node.cast(value, wide)
    if target == "float8_e8m0fnu":
        return _power_of_two(node, value, wide, target, saturate, rounding)
    codes = np.arange(128, dtype=np.uint8).view(np.dtype(target)).astype(np.float64)
    largest = int(np.flatnonzero(np.isfinite(codes))[-1])
    finite = codes[: largest + 1]
    beyond = 2 * finite[-1] - finite[-2] if largest > 1 else np.inf
    middles = (finite + np.append(finite[1:], beyond)) / 2
    # Halfway goes to the even code: included in the upper one where that is even.
    thresholds = np.array(
        [
            middle if (code + 1) % 2 == 0 else np.nextafter(middle.astype(wide), np.dtype(wide).type(np.inf))
            for code, middle in enumerate(middles)
        ]
    ).astype(wide)
    unsigned_zero = target.endswith("fnuz")
    not_a_number = 0x80 if unsigned_zero else 0x7F
    infinite = 0x7C if target == "float8_e5m2" else not_a_number
    over = largest if saturate else infinite

    def encode(x: Any, limits: Any) -> Any:
        count = _passed(shape_of(value), x, limits, len(thresholds))

        def element(*at: Any) -> Any:
            v, code = x(*at), count(*at)
            magnitude = tirx.Select(code > largest, tirx.const(over, "int32"), code)
            negative = tirx.reinterpret("int64" if wide == "float64" else "int32", v) < 0
            sign = tirx.Select(negative, tirx.const(0x80, "int32"), tirx.const(0, "int32"))
            if unsigned_zero:
                sign = tirx.Select(magnitude.equal(0), tirx.const(0, "int32"), sign)
            signed = tirx.bitwise_or(magnitude, sign)
            found = tirx.Select(tirx.isnan(v), tirx.const(not_a_number, "int32"), signed)
            return tirx.reinterpret(target, found.astype("uint8"))

        return compute(shape_of(value), element)

    return node.te(encode, value, node.constant(thresholds), name="encode_float8")


def _passed(shape: Sequence[int], x: Any, thresholds: Any, count: int) -> Any:
    """How many of `count` thresholds an element's magnitude reaches: the number of its code, which has no sign yet."""
    step = te.reduce_axis((0, count), "step")

    def element(*at: Any) -> Any:
        return te.sum(tirx.Select(te.abs(x(*at)) >= thresholds(step), 1, 0).astype("int32"), axis=step)

    return compute(shape, element, "count")


def _power_of_two(node: Node, value: Any, wide: str, target: str, saturate: bool, rounding: str) -> Any:
    powers = np.arange(255, dtype=np.uint8).view(np.dtype(target)).astype(np.float64)
    lower = powers.astype(wide)
    if rounding == "down":
        thresholds = lower[1:]
    elif rounding == "up":
        thresholds = np.nextafter(lower[:-1], np.dtype(wide).type(np.inf))
    else:
        thresholds = (1.5 * powers[:-1]).astype(wide)

    def encode(x: Any, limits: Any) -> Any:
        count = _passed(shape_of(value), x, limits, len(thresholds))
        largest = tirx.const(float(powers[-1]), wide)

        def element(*at: Any) -> Any:
            v, code = x(*at), count(*at)
            over = tirx.const(254 if saturate else 255, "int32")
            code = tirx.Select(te.abs(v) > largest, over, code)
            return tirx.reinterpret(target, tirx.Select(tirx.isnan(v), tirx.const(255, "int32"), code).astype("uint8"))

        return compute(shape_of(value), element)

    return node.te(encode, value, node.constant(thresholds), name="encode_float8")


@reader("BitCast")
def bit_cast(node: Node) -> Any:
    target, source = node.result_dtype(), node.dtype(0)
    usable = CONSTANT_TYPES | EIGHT_BITS
    if source not in usable or target not in usable or np.dtype(source).itemsize != np.dtype(target).itemsize:
        node.refuse(f"{source} as {target}")
    if target == "bool":
        node.refuse("a byte other than zero and one is no boolean")
    if source == "bool":
        return relax.op.astype(node.cast(node.tensor(0), "uint8"), target)
    return node.te(lambda x: compute(node.shape(0), lambda *at: tirx.reinterpret(target, x(*at))), node.tensor(0))
