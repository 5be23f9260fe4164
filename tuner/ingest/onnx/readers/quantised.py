"""Quantised operators: whole numbers multiplied and summed in int32, scaled and rounded to even as the standard says."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.readers.casting import EIGHT_BITS, decoded, encoded
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import relax, te, tirx

FLOATS = ("float32", "float16", "bfloat16", "float64")


def _centred(node: Node, position: int, zero: int, axis: int | None) -> Any:
    """An operand in int32 without its zero point, which is one number or one for each index along an axis."""
    wide = node.cast(node.tensor(position), "int32")
    if not node.given(zero):
        return wide
    point = node.cast(node.tensor(zero), "int32")
    return node.emit(relax.op.subtract(wide, _spread(node, point, len(node.shape(position)), axis)))


def _spread(node: Node, value: Any, rank: int, axis: int | None) -> Any:
    """A scale or zero point in a shape that broadcasts to a tensor of a rank."""
    shape = shape_of(value)
    if int(np.prod(shape)) == 1:
        return node.reshape(value, [1])
    if len(shape) > 1:
        return value
    extents = [1] * rank
    extents[(-1 if axis is None else axis) % rank] = shape[0]
    return node.reshape(value, extents)


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
    product = node.emit(relax.op.multiply(_spread(node, a, rank, -2), _spread(node, b, rank, axis)))
    return node.emit(relax.op.divide(product, _spread(node, c, rank, axis)))


@reader("MatMulInteger")
def matmul_integer(node: Node) -> Any:
    """TVM's, but for zero points of more than one element."""
    if all(not node.given(position) or int(np.prod(node.shape(position))) == 1 for position in (2, 3)):
        return None
    a, b = _centred(node, 0, 2, -2), _centred(node, 1, 3, -1)
    return relax.op.matmul(a, b, out_dtype="int32")


@reader("QLinearMatMul")
def quantised_matmul(node: Node) -> Any:
    a, b = _centred(node, 0, 2, -2), _centred(node, 3, 5, -1)
    total = node.emit(relax.op.matmul(a, b, out_dtype="int32"))
    factor = _factor(node, 1, 4, 6, len(shape_of(total)), -1)
    return _requantised(node, total, factor, 7, node.result_dtype())


def _convolved(node: Node, x: Any, w: Any) -> Any:
    """A convolution of int32 tensors by plain loops: TVM's operators are made for floating point."""
    data, weight, result = shape_of(x), shape_of(w), node.result_shape()
    spatial = len(data) - 2
    strides = list(node.attribute("strides") or [1] * spatial)
    dilations = list(node.attribute("dilations") or [1] * spatial)
    groups, kernel = int(node.attribute("group", 1)), weight[2:]
    pads = list(node.attribute("pads") or [0] * (2 * spatial))
    same = str(node.attribute("auto_pad", "NOTSET"))
    if same.startswith("SAME"):
        for d in range(spatial):
            need = max((result[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - data[2 + d], 0)
            pads[d] = need // 2 if same == "SAME_UPPER" else need - need // 2
    each, outputs = weight[1], weight[0] // groups

    def make(data_in: Any, weights: Any) -> Any:
        c = te.reduce_axis((0, each), "c")
        taps = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(kernel)]

        def element(n: Any, o: Any, *at: Any) -> Any:
            where, inside = [], tirx.const(True, "bool")
            for d in range(spatial):
                i = at[d] * strides[d] + taps[d] * dilations[d] - pads[d]
                inside = tirx.And(inside, tirx.And(i >= 0, i < data[2 + d]))
                where.append(i)
            channel = tirx.indexdiv(o, outputs) * each + c
            value = tirx.if_then_else(inside, data_in(n, channel, *where), tirx.const(0, "int32"))
            return te.sum(value * weights(o, c, *taps), axis=[c, *taps])

        return compute(result, element)

    return node.te(make, x, w, name="convolution_of_integers")


@reader("ConvInteger")
def convolution_of_integers(node: Node) -> Any:
    return _convolved(node, _centred(node, 0, 2, None), _centred(node, 1, 3, 0))


@reader("QLinearConv")
def quantised_convolution(node: Node) -> Any:
    total = _convolved(node, _centred(node, 0, 2, None), _centred(node, 3, 5, 0))
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
