"""ONNX Runtime's fused operators but for attention and quantised ones: products, norms, embeddings and activations.

As its transformer optimiser writes them, and `SessionOptions.optimized_model_filepath` at the level `extended`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuner.ingest.onnx.definition import SHORT, Definition
from tuner.ingest.onnx.frontend import MICROSOFT
from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.registry import reader

NORM_EPSILON = 1e-12
"""Default of SkipLayerNormalization and EmbedLayerNormalization."""
CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def activated(write: Definition, value: str, name: str, parameters: Sequence[float]) -> str:
    """An activation by the name that ONNX Runtime's fused operators know it by."""
    if name in ("Relu", "Sigmoid", "Tanh", "HardSwish"):
        return write(name, value)
    if name == "LeakyRelu":
        return write(name, value, alpha=_at(parameters, 0, 0.01))
    if name == "HardSigmoid":
        return write(name, value, alpha=_at(parameters, 0, 0.2), beta=_at(parameters, 1, 0.5))
    if name == "Clip" and len(parameters) == 2:
        low, high = (write.constant(bound) for bound in parameters)
        return write(name, value, low, high)
    return write.node.refuse(f"the activation {name!r}")


def _at(parameters: Sequence[float], place: int, default: float) -> float:
    return float(parameters[place]) if len(parameters) > place else default


@reader("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_product(node: Node) -> Any:
    """alpha times the product of operands whose last two axes, or whose first and last but one, change places."""
    write = Definition(node)
    sides = []
    for position, side in enumerate("AB"):
        value, rank = write.operand(position), len(node.shape(position))
        order = list(range(rank))
        if node.attribute(f"transBatch{side}", 0) and rank > 2:  # [M, batches, K], as attention has them
            order = [*order[1 : rank - 1], 0, rank - 1]
        if node.attribute(f"trans{side}", 0) and rank > 1:
            order = [*order[:-2], order[-1], order[-2]]
        sides.append(value if order == sorted(order) else write("Transpose", value, perm=order))
    found = write("MatMul", *sides)
    alpha = float(node.attribute("alpha", 1.0))
    return write.function([found if alpha == 1.0 else write("Mul", found, write.constant(alpha, node.dtype(0)))])


@reader("FusedGemm", domain=MICROSOFT)
def fused_affine(node: Node) -> Any:
    write = Definition(node)
    known = {name: node.attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    found = write("Gemm", *(write.operand(position) for position in range(3)), **known)
    name = str(node.attribute("activation", ""))
    parameters = [node.attribute(f"activation_{each}") for each in ("alpha", "beta", "gamma")]
    return write.function([activated(write, found, name, [each for each in parameters if each is not None])])


@reader("FusedConv", domain=MICROSOFT)
def fused_convolution(node: Node) -> Any:
    """Convolution, then its fourth operand added, then an activation."""
    write = Definition(node)
    known = {name: node.attribute(name) for name in CONV_ATTRIBUTES}
    found = write("Conv", *(write.operand(position) for position in range(3)), **known)
    if node.given(3):
        found = write("Add", found, write.operand(3))
    name = str(node.attribute("activation", ""))
    return write.function([activated(write, found, name, node.attribute("activation_params") or []) if name else found])


@reader("BiasGelu", "Gelu", "FastGelu", domain=MICROSOFT)
def gelu(node: Node) -> Any:
    """TVM's in single precision; else computed in it."""
    if node.dtype(0) not in SHORT:
        return None
    write = Definition(node)
    found = write.wide(0)
    if node.given(1):
        found = write("Add", found, write.wide(1))
    way = "tanh" if node.operator == "FastGelu" else "none"
    return write.function([write.narrow(write("Gelu", found, approximate=way))])


@reader("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: Node) -> Any:
    """x sigmoid(alpha x)."""
    write = Definition(node)
    x = write.wide(0)
    alpha = write.constant(node.attribute("alpha", 1.702), "float64" if node.dtype(0) == "float64" else "float32")
    return write.function([write.narrow(write("Mul", x, write("Sigmoid", write("Mul", x, alpha))))])


@reader("SimplifiedLayerNormalization")
def simplified_norm(node: Node) -> Any:
    """Without a mean, in ONNX's own domain though the standard calls it RMSNormalization."""
    write = Definition(node)
    rank = len(node.shape(0))
    if node.axis(int(node.attribute("axis", -1)), rank) != rank - 1:
        node.refuse("over several axes")
    found, scale = _root_mean_square(write, write.wide(0), write.wide(1), float(node.attribute("epsilon", 1e-5)))
    return write.function([write.narrow(found, 1), scale])


def _root_mean_square(write: Definition, x: str, gamma: str, epsilon: float) -> tuple[str, str]:
    """x divided by the root of its mean square along the last axis, times gamma; and the reciprocal of that root."""
    square = write("ReduceMean", write("Mul", x, x), write.integers(-1), keepdims=1)
    scale = write("Reciprocal", write("Sqrt", write("Add", square, write.constant(epsilon))))
    return write("Mul", write("Mul", x, scale), gamma), scale


@reader("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_norm(node: Node) -> Any:
    """The norm of a sum, and the sum; TVM's in the form that it has right."""
    simplified = node.operator == "SkipSimplifiedLayerNormalization"
    bias = 3 if simplified else 4
    alone = not any(node.wants(position) for position in range(1, node.outputs))
    if not simplified and alone and node.given(3) and node.given(4) and node.dtype(0) == "float32":
        return None
    write = Definition(node)
    total = write("Add", write.wide(0), write.wide(1))
    if node.given(bias):
        total = write("Add", total, write.wide(bias))
    epsilon = float(node.attribute("epsilon", NORM_EPSILON))
    gamma = write.wide(2)
    if simplified:
        found, scale = _root_mean_square(write, total, gamma, epsilon)
        mean = ""
    else:
        beta = write.wide(3) or write("Sub", gamma, gamma)
        known = {"axis": -1, "epsilon": epsilon}
        if alone or not (node.wants(1) or node.wants(2)):
            found, mean, scale = write("LayerNormalization", total, gamma, beta, **known), "", ""
        else:
            found, mean, scale = write.results("LayerNormalization", 3, total, gamma, beta, **known)
    return write.function([write.narrow(found), mean, scale, write.narrow(total)])


@reader("EmbedLayerNormalization", domain=MICROSOFT)
def embedding_norm(node: Node) -> Any:
    """The norm of words', positions' and segments' embeddings; how many words each sentence has; their sum."""
    write = Definition(node)
    batch, length = node.shape(0)
    words, positions, segments = (write.wide(position) for position in (2, 3, 4))
    total = write("Gather", words, write.operand(0))
    place = write.operand(8) or write.constant([list(range(length))], "int64")
    total = write("Add", total, write("Gather", positions, place))
    if node.given(1):
        total = write("Add", total, write("Gather", segments, write.operand(1)))
    epsilon = float(node.attribute("epsilon", NORM_EPSILON))
    found = write("LayerNormalization", total, write.wide(5), write.wide(6), axis=-1, epsilon=epsilon)
    if node.given(7):
        count = write("ReduceSum", write.cast(write.operand(7), "int32"), write.integers(1), keepdims=0)
    else:
        count = write.constant([0] * batch, "int32")
    return write.function([write.narrow(found, 2), count, write.narrow(total, 2)])


@reader("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node) -> Any:
    """The standard's, whose operands have another order; one position stands for a count from there on."""
    if float(node.attribute("scale", 1.0)) != 1.0 or node.attribute("is_packed_batching", 0):
        node.refuse("scaled or packed")
    write = Definition(node)
    return write.function([rotated(write, write.operand(0), node.shape(0), write.operand(1), node.shape(1), (2, 3))])


def rotated(
    write: Definition, x: str, shape: Sequence[int], place: str, place_shape: Sequence[int], caches: tuple[int, int]
) -> str:
    """Rotary embedding of x, [batch, length, heads * size] or [batch, heads, length, size], at places of the caches."""
    node = write.node
    width = node.shape(caches[0])[1]
    part = int(node.attribute("rotary_embedding_dim", 0))
    heads = int(node.attribute("num_heads", 0)) or None
    batch, length = shape[0], shape[-2]
    if len(shape) == 3 and not heads:
        heads = shape[-1] // (2 * width)
    if math.prod(place_shape) == 1 and (batch, length) != (1, 1):
        count = write.constant([list(range(length))] * batch, "int64")
        place = write("Add", count, write.reshape(place, 1, 1))
    cosine, sine = (write.operand(each) for each in caches)
    return write(
        "RotaryEmbedding",
        *(x, cosine, sine, write.reshape(place, batch, length)),
        interleaved=int(node.attribute("interleaved", node.attribute("rotary_interleaved", 0))),
        num_heads=heads if len(shape) == 3 else None,
        rotary_embedding_dim=part or None,
    )
