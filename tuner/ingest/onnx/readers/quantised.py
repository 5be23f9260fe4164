"""Quantised operators: whole numbers multiplied and summed in int32, scaled and rounded to even as the standard says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.readers.casting import EIGHT_BITS, decoded, encoded
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.ingest.onnx.words import (
    LONGEST,
    Bytes,
    Window,
    convolution_of_bytes,
    has_scales,
    product_of_bytes,
    product_of_dequantised,
    product_of_scales,
    spread,
)
from tuner.tvm_compat import relax, te, tirx

FLOATS = ("float32", "float16", "bfloat16", "float64")


def _centred(node: Node, position: int, zero: int, axis: int | None) -> Any:
    """An operand in int32 without its zero point, which is one number or one for each index along an axis."""
    wide = node.cast(node.tensor(position), "int32")
    if not node.given(zero):
        return wide
    point = node.cast(node.tensor(zero), "int32")
    return node.emit(relax.op.subtract(wide, spread(node, point, len(node.shape(position)), axis)))


def _requantised(node: Node, total: Any, factor: Any, zero: int, dtype: str) -> Any:
    """round(total * factor) + zero point, to even, within the type."""
    real = node.emit(relax.op.multiply(node.cast(total, "float32"), factor))
    found = node.emit(relax.op.round(real))
    if node.given(zero):
        found = node.emit(relax.op.add(found, node.reshape(node.cast(node.tensor(zero), "float32"), [1])))
    limits = np.iinfo(dtype)
    found = node.emit(relax.op.maximum(found, relax.const(float(limits.min), "float32")))
    found = node.emit(relax.op.minimum(found, relax.const(float(limits.max), "float32")))
    return relax.op.astype(found, dtype)


def _factor(node: Node, first: int, second: int, third: int, rank: int, axis: int) -> Any:
    """Scale times scale by scale."""
    a, b, c = (node.cast(node.tensor(position), "float32") for position in (first, second, third))
    product = node.emit(relax.op.multiply(spread(node, a, rank, -2), spread(node, b, rank, axis)))
    return node.emit(relax.op.divide(product, spread(node, c, rank, axis)))


@reader("MatMulInteger")
def matmul_integer(node: Node) -> Any:
    """TVM's for products of two tensors of more dimensions, but for zero points of more than one element."""
    if (product := product_of_bytes(node, Bytes(node, 0, 2), Bytes(node, 1, 3))) is not None:
        return product
    if all(not node.given(position) or int(np.prod(node.shape(position))) == 1 for position in (2, 3)):
        return None
    a, b = _centred(node, 0, 2, -2), _centred(node, 1, 3, -1)
    return relax.op.matmul(a, b, out_dtype="int32")


@reader("MatMul")
def matmul(node: Node) -> Any:
    """TVM's, but for products of what was quantised."""
    return product_of_dequantised(node)


@reader("Gemm")
def affine(node: Node) -> Any:
    """The same."""
    if node.attribute("transA", 0) or node.attribute("alpha", 1.0) != 1.0 or node.attribute("beta", 1.0) != 1.0:
        return None
    found = product_of_dequantised(node, turned=bool(node.attribute("transB", 0)))
    return relax.op.add(found, node.tensor(2)) if found is not None and node.given(2) else found


@reader("Conv")
def convolution(node: Node) -> Any:
    """The same, of one image-like tensor and weights of one scale or one a channel."""
    left, right = node.dequantised(0), node.dequantised(1)
    if left is None or right is None or node.result_dtype() != "float32" or int(node.attribute("group", 1)) != 1:
        return None
    if not has_scales(left, right, axis=0) or int(np.prod(right.shape(0)[1:])) > LONGEST:
        return None
    x, w = Bytes(left, 0, 2), Bytes(right, 0, 2)
    total = convolution_of_bytes(node, x, w, _window(node, x.shape, w.shape))
    if total is None:
        return None
    rank = len(shape_of(total))
    found = node.emit(relax.op.multiply(node.cast(total, "float32"), product_of_scales(node, left, right, rank, 1)))
    if not node.given(2):
        return found
    return relax.op.add(found, node.reshape(node.tensor(2), [1, w.shape[0], *[1] * (rank - 2)]))


@reader("QLinearMatMul")
def quantised_matmul(node: Node) -> Any:
    total = product_of_bytes(node, Bytes(node, 0, 2), Bytes(node, 3, 5))
    if total is None:
        a, b = _centred(node, 0, 2, -2), _centred(node, 3, 5, -1)
        total = node.emit(relax.op.matmul(a, b, out_dtype="int32"))
    factor = _factor(node, 1, 4, 6, len(shape_of(total)), -1)
    return _requantised(node, total, factor, 7, node.result_dtype())


def _convolved(node: Node, x: Bytes, w: Bytes) -> Any:
    """A convolution less its zero points in int32; where it is not one of words, by plain loops: TVM's operators are made
    for floating point."""
    window = _window(node, x.shape, w.shape)
    found = convolution_of_bytes(node, x, w, window) if int(node.attribute("group", 1)) == 1 else None
    if found is not None:
        return found
    weights = w.shape
    each, outputs = weights[1], weights[0] // int(node.attribute("group", 1))

    def make(data_in: Any, weights_in: Any) -> Any:
        c = te.reduce_axis((0, each), "c")
        taps = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(weights[2:])]

        def element(n: Any, o: Any, *at: Any) -> Any:
            where, inside = window.read(at, taps)
            channel = tirx.indexdiv(o, outputs) * each + c
            value = tirx.if_then_else(inside, data_in(n, channel, *where), tirx.const(0, "int32"))
            return te.sum(value * weights_in(o, c, *taps), axis=[c, *taps])

        return compute(window.result, element)

    centred = (_centred(x.node, x.position, x.zero, None), _centred(w.node, w.position, w.zero, 0))
    return node.te(make, *centred, name="convolution_of_integers")


def _window(node: Node, data: Sequence[int], weight: Sequence[int]) -> Window:
    """From the attributes of a convolution."""
    result = node.result_shape()
    spatial = len(data) - 2
    strides = list(node.attribute("strides") or [1] * spatial)
    dilations = list(node.attribute("dilations") or [1] * spatial)
    pads = list(node.attribute("pads") or [0] * (2 * spatial))
    same = str(node.attribute("auto_pad", "NOTSET"))
    if same.startswith("SAME"):
        for d in range(spatial):
            need = max((result[2 + d] - 1) * strides[d] + (weight[2 + d] - 1) * dilations[d] + 1 - data[2 + d], 0)
            pads[d] = need // 2 if same == "SAME_UPPER" else need - need // 2
    return Window(
        data=tuple(data),
        kernel=tuple(weight[2:]),
        result=tuple(result),
        strides=tuple(strides),
        dilations=tuple(dilations),
        begins=tuple(pads[:spatial]),
    )


@reader("ConvInteger")
def convolution_of_integers(node: Node) -> Any:
    return _convolved(node, Bytes(node, 0, 2), Bytes(node, 1, 3))


@reader("QLinearConv")
def quantised_convolution(node: Node) -> Any:
    total = _convolved(node, Bytes(node, 0, 2), Bytes(node, 3, 5))
    rank = len(shape_of(total))
    if node.given(8):
        bias = node.reshape(node.tensor(8), [1, node.shape(8)[0], *[1] * (rank - 2)])
        total = node.emit(relax.op.add(total, bias))
    return _requantised(node, total, _factor(node, 1, 4, 6, rank, 1), 7, node.result_dtype())


def _blocks(node: Node, value: Any, axis: int) -> Any:
    """A scale or zero point, repeated so that it broadcasts to the operand: one number, one an index, or one a block."""
    source, shape = node.shape(0), shape_of(value)
    rank = len(source)
    if int(np.prod(shape)) == 1:
        return node.reshape(value, [1])
    if len(shape) == 1:
        extents = [1] * rank
        extents[axis] = shape[0]
        return node.reshape(value, extents)
    size = int(node.attribute("block_size", 0)) or -(-source[axis] // shape[axis])
    return node.te(
        lambda v: compute(source, lambda *at: v(*at[:axis], tirx.indexdiv(at[axis], size), *at[axis + 1 :])), value
    )


def _axis(node: Node) -> int:
    rank = len(node.shape(0))
    return 0 if rank < 2 else node.axis(int(node.attribute("axis", 1)), rank)


@reader("QuantizeLinear")
def quantize(node: Node) -> Any:
    """TVM's for 8-bit integers from float32; what it refuses is computed as the standard writes it."""
    target, source = node.result_dtype(), node.dtype(0)
    blocked = bool(node.attribute("block_size", 0)) or len(node.shape(1)) > 1
    if target in ("int8", "uint8") and source == "float32" and not blocked and node.dtype(1) == "float32":
        return None
    axis = _axis(node)
    wide = "float32"
    x = node.cast(node.tensor(0), wide)
    scale = _blocks(node, node.cast(node.tensor(1), wide), axis)
    real = node.emit(relax.op.divide(x, scale))
    if target in EIGHT_BITS:
        return encoded(node, real, target, saturate=bool(node.attribute("saturate", 1)))
    if target not in ("int8", "uint8", "int16", "uint16"):
        node.refuse(f"quantisation to {target}")
    found = node.emit(relax.op.round(real))
    if node.given(2):
        found = node.emit(relax.op.add(found, _blocks(node, node.cast(node.tensor(2), wide), axis)))
    limits = np.iinfo(target)
    found = node.emit(relax.op.maximum(found, relax.const(float(limits.min), wide)))
    found = node.emit(relax.op.minimum(found, relax.const(float(limits.max), wide)))
    return relax.op.astype(found, target)


@reader("DequantizeLinear")
def dequantize(node: Node) -> Any:
    source, target = node.dtype(0), node.result_dtype()
    blocked = bool(node.attribute("block_size", 0)) or len(node.shape(1)) > 1
    if source in ("int8", "uint8") and target == "float32" and not blocked:
        return None
    if source not in EIGHT_BITS | {"int8", "uint8", "int16", "uint16", "int32"}:
        node.refuse(f"quantised values of type {source}")
    axis = _axis(node)
    scale = _blocks(node, node.cast(node.tensor(1), "float32"), axis)
    if source in EIGHT_BITS:
        wide = decoded(node, node.tensor(0))
    else:
        whole = node.cast(node.tensor(0), "int32")
        if node.given(2):
            whole = node.emit(relax.op.subtract(whole, _blocks(node, node.cast(node.tensor(2), "int32"), axis)))
        wide = node.cast(whole, "float32")
    return node.cast(node.emit(relax.op.multiply(wide, scale)), target)
