"""ONNX Runtime's quantised operators: the value is decoded, computed in float32, and quantised again where it was."""

from __future__ import annotations

import math
from typing import Any

from tuner.ingest.onnx.definition import Definition
from tuner.ingest.onnx.frontend import MICROSOFT
from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.registry import reader

POOL_ATTRIBUTES = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _decoded(write: Definition, value: int, scale: int, zero: int) -> str:
    return write("DequantizeLinear", write.operand(value), _scalar(write, scale), _scalar(write, zero))


def _encoded(write: Definition, value: str, scale: int, zero: int) -> str:
    return write("QuantizeLinear", value, _scalar(write, scale), _scalar(write, zero))


def _scalar(write: Definition, position: int) -> str:
    """A scale or zero point of a whole tensor, whichever of the two forms of one element it has."""
    if not write.node.given(position):
        return ""
    name, shape = write.operand(position), write.node.shape(position)
    return write.reshape(name) if shape and math.prod(shape) == 1 else name


@reader("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def linear(node: Node) -> Any:
    """As the standard has them since operator set 21, of 16-bit integers too."""
    write = Definition(node)
    operands = (write.operand(0), _scalar(write, 1), _scalar(write, 2))
    return write.function([write(node.operator, *operands, axis=int(node.attribute("axis", 1)))])


@reader("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def pairwise(node: Node) -> Any:
    write = Definition(node)
    found = write(node.operator.removeprefix("QLinear"), _decoded(write, 0, 1, 2), _decoded(write, 3, 4, 5))
    return write.function([_encoded(write, found, 6, 7)])


@reader("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearGlobalAveragePool", domain=MICROSOFT)
def single(node: Node) -> Any:
    write = Definition(node)
    x, rank, operator = _decoded(write, 0, 1, 2), len(node.shape(0)), node.operator.removeprefix("QLinear")
    attributes = {name: node.attribute(name) for name in ("alpha", "axis")}
    if (
        operator == "Softmax"
        and int(node.attribute("opset", 13)) < 13
        and node.attribute("axis", 1) not in (-1, rank - 1)
    ):
        node.refuse("over several axes")
    if operator == "GlobalAveragePool":
        last = bool(node.attribute("channels_last", 0))
        found = write("ReduceMean", x, write.integers(*(range(1, rank - 1) if last else range(2, rank))), keepdims=1)
    else:
        found = write(operator, x, **attributes)
    return write.function([_encoded(write, found, 3, 4)])


@reader("QLinearAveragePool", domain=MICROSOFT)
def average_pool(node: Node) -> Any:
    write = Definition(node)
    first, last = _orders(node)
    x = _decoded(write, 0, 1, 2)
    x = write("Transpose", x, perm=first) if first else x
    found = write("AveragePool", x, **{name: node.attribute(name) for name in POOL_ATTRIBUTES})
    return write.function([_encoded(write, write("Transpose", found, perm=last) if last else found, 3, 4)])


@reader("NhwcMaxPool", domain=MICROSOFT)
def max_pool(node: Node) -> Any:
    write = Definition(node)
    first, last = _orders(node, always=True)
    known = {name: node.attribute(name) for name in (*POOL_ATTRIBUTES, "dilations") if name != "count_include_pad"}
    found = write("MaxPool", write("Transpose", write.operand(0), perm=first), **known)
    return write.function([write("Transpose", found, perm=last)])


@reader("QLinearConv", domain=MICROSOFT)
def convolution(node: Node) -> Any:
    """The standard's, whose channels may come last here."""
    write = Definition(node)
    first, last = _orders(node)
    operands = [write.operand(position) for position in range(len(node.inputs))]
    if first:
        operands[0] = write("Transpose", operands[0], perm=first)
    found = write("QLinearConv", *operands, **{name: node.attribute(name) for name in CONV_ATTRIBUTES})
    return write.function([write("Transpose", found, perm=last) if last else found])


def _orders(node: Node, *, always: bool = False) -> tuple[list[int], list[int]]:
    """Permutations that bring channels to the front, and back; empty where they are there."""
    if not always and not node.attribute("channels_last", 0):
        return [], []
    rank = len(node.shape(0))
    return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]


@reader("QLinearConcat", domain=MICROSOFT)
def joined(node: Node) -> Any:
    write = Definition(node)
    parts = [_decoded(write, place, place + 1, place + 2) for place in range(2, len(node.inputs), 3)]
    return write.function([_encoded(write, write("Concat", *parts, axis=int(node.attributes["axis"])), 0, 1)])


@reader("QLinearWhere", domain=MICROSOFT)
def chosen(node: Node) -> Any:
    write = Definition(node)
    found = write("Where", write.operand(0), _decoded(write, 1, 2, 3), _decoded(write, 4, 5, 6))
    return write.function([_encoded(write, found, 7, 8)])


@reader("QGemm", domain=MICROSOFT)
def affine(node: Node) -> Any:
    """A product of whole numbers, with a bias in int32 and of the product's scale."""
    write = Definition(node)
    a, b = write("Transpose", write.operand(0)) if node.attribute("transA", 0) else write.operand(0), write.operand(3)
    # Zero points and scales of B are one number or one a column.
    b = write("Transpose", b) if node.attribute("transB", 0) else b
    found = write("MatMulInteger", a, b, _scalar(write, 2), _scalar(write, 5))
    if node.given(6):
        found = write("Add", found, write.operand(6))
    scale = write("Mul", _scalar(write, 1), _scalar(write, 4))
    alpha = float(node.attribute("alpha", 1.0))
    scale = scale if alpha == 1.0 else write("Mul", scale, write.constant(alpha))
    found = write("Mul", write.cast(found, "float32"), scale)
    return write.function([_encoded(write, found, 7, 8) if node.given(7) else found])


@reader("MatMulIntegerToFloat", domain=MICROSOFT)
def product_to_float(node: Node) -> Any:
    write = Definition(node)
    found = write("MatMulInteger", write.operand(0), write.operand(1), _scalar(write, 4), _scalar(write, 5))
    scale = write("Mul", _scalar(write, 2), _scalar(write, 3))
    return write.function([_with_bias(write, write("Mul", write.cast(found, "float32"), scale), 6)])


@reader("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_product(node: Node) -> Any:
    """The first operand is quantised when it is known, as DynamicQuantizeLinear does."""
    write = Definition(node)
    whole, scale, zero = write.results("DynamicQuantizeLinear", 3, write.operand(0))
    found = write("MatMulInteger", whole, write.operand(1), zero, _scalar(write, 3))
    found = write("Mul", write.cast(found, "float32"), write("Mul", scale, _scalar(write, 2)))
    return write.function([_with_bias(write, found, 4)])


def _with_bias(write: Definition, value: str, position: int) -> str:
    return write("Add", value, write.operand(position)) if write.node.given(position) else value


@reader("MatMulNBits", domain=MICROSOFT)
def narrow_product(node: Node) -> Any:
    """A product with weights of 4 or 8 bits, [N, blocks, bytes] of K in blocks, each block with its scale and zero."""
    write = Definition(node)
    rows, depth, bits, block = (int(node.attributes[name]) for name in ("N", "K", "bits", "block_size"))
    if bits not in (4, 8) or node.given(4):
        node.refuse(f"weights of {bits} bits" if bits not in (4, 8) else "an order of groups")
    blocks = -(-depth // block)
    weights = _unpacked(write, write.operand(1), (rows, blocks, block), bits)
    if node.given(3) and node.dtype(3) != "uint8":
        zero = write.cast(write.reshape(write.operand(3), rows, blocks, 1), "float32")
    elif node.given(3):
        across = -(-blocks * bits // 8)
        zero = _unpacked(write, write.reshape(write.operand(3), rows, across), (rows, across * 8 // bits), bits)
        zero = write.reshape(write.part(zero, 1, 0, blocks), rows, blocks, 1)
    else:
        zero = write.constant(float(1 << (bits - 1)))
    scales = write.reshape(write.wide(2), rows, blocks, 1)
    real = write.reshape(write("Mul", write("Sub", weights, zero), scales), rows, blocks * block)
    real = write("Transpose", write.part(real, 1, 0, depth), perm=[1, 0])
    found = write("MatMul", write.wide(0), real)
    if node.given(5):
        found = write("Add", found, write.wide(5))
    return write.function([write.narrow(found)])


def _unpacked(write: Definition, packed: str, shape: tuple[int, ...], bits: int) -> str:
    """Bytes as float32, the lower half of each before the upper where they hold two."""
    if bits == 8:
        return write.reshape(write.cast(packed, "float32"), *shape)
    low = write("BitwiseAnd", packed, write.constant(15, "uint8"))
    high = write("BitShift", packed, write.constant(4, "uint8"), direction="RIGHT")
    both = [write("Unsqueeze", write.cast(half, "float32"), write.integers(-1)) for half in (low, high)]
    return write.reshape(write("Concat", *both, axis=-1), *shape)
