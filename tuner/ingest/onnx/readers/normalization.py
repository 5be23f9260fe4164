"""Norms. Where TVM's converter gives fewer results than the standard, or other axes, the standard's definition is read."""

from __future__ import annotations

from typing import Any

from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.registry import BODY, reader
from tuner.tvm_compat import relax


@reader("LayerNormalization")
def layer_normalization(node: Node) -> Any:
    """One operator for the usual case, the result alone; mean and deviation are the definition's."""
    rank = len(node.shape(0))
    axis = node.axis(int(node.attribute("axis", -1)), rank)
    same = node.shape(1) == node.shape(0)[axis:] and (not node.given(2) or node.shape(2) == node.shape(1))
    if node.wants(1) or node.wants(2) or not same or not node.given(2):
        return BODY
    return None


@reader("RMSNormalization")
def rms_normalization(node: Node) -> Any:
    rank = len(node.shape(0))
    axis = node.axis(int(node.attribute("axis", -1)), rank)
    return None if axis and node.shape(1) == node.shape(0)[axis:] else BODY


@reader("BatchNormalization")
def batch_normalization(node: Node) -> Any:
    """In training mode by its own batch, as modules without running statistics are exported; before version 14 only more
    results than one tell that mode, whose meaning TVM's converter does not know."""
    if node.opset >= 14 and node.attribute("training_mode", 0):
        return _by_its_batch(node)
    if node.opset < 14 and sum(map(node.wants, range(1, 5))):
        node.refuse("in training mode before version 14; export it for inference, or with a later operator set")
    if node.opset < 7 and not node.attribute("is_test", 0):
        node.refuse("in training mode before version 14; export it for inference, or with a later operator set")
    return None


def _by_its_batch(node: Node) -> list[Any]:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias with the mean and the variance over all axes but the second,
    and the running ones moved towards them by 1 - momentum. Half precision is computed in float32."""
    rank, dtype = len(node.shape(0)), node.dtype(0)
    wide = dtype if dtype == "float64" else "float32"
    channels = [1, -1, *[1] * (rank - 2)]
    x = node.cast(node.tensor(0), wide)
    scale, bias, *running = (node.cast(node.tensor(place), wide) for place in range(1, 5))
    axes = [0, *range(2, rank)]
    mean = node.emit(relax.op.mean(x, axes))
    centred = node.emit(relax.op.subtract(x, relax.op.reshape(mean, channels)))
    variance = node.emit(relax.op.mean(node.emit(relax.op.multiply(centred, centred)), axes))
    epsilon = node.constant(float(node.attribute("epsilon", 1e-5)), wide)
    factor = node.emit(relax.op.multiply(scale, relax.op.rsqrt(relax.op.add(variance, epsilon))))
    y = node.emit(relax.op.multiply(centred, relax.op.reshape(factor, channels)))
    y = node.emit(relax.op.add(y, relax.op.reshape(bias, channels)))
    kept = float(node.attribute("momentum", 0.9))
    moved = [
        relax.op.add(
            relax.op.multiply(old, node.constant(kept, wide)), relax.op.multiply(new, node.constant(1 - kept, wide))
        )
        for old, new in zip(running, (mean, variance), strict=True)
    ]
    return [node.cast(y, dtype), *(node.cast(node.emit(one), node.result_dtype(1)) for one in moved)][: node.outputs]


@reader("SpaceToDepth", "Attention", "Celu", "Swish", "SwiGLU")
def by_definition(_node: Node) -> Any:
    return BODY


@reader("Gelu")
def gelu(node: Node) -> Any:
    if node.dtype(0) == "float64":
        return BODY
    make = relax.op.nn.gelu_tanh if node.attribute("approximate", "none") == "tanh" else relax.op.nn.gelu
    return make(node.tensor(0))


@reader("Elu", "Selu", "HardSigmoid", "LeakyRelu", "Shrink", "Mish", "Softplus", "HardSwish")
def activation(node: Node) -> Any:
    """By definition for the short types, whose constants TVM's converters make float32."""
    return BODY if node.dtype(0) in ("float16", "bfloat16", "float64") else None


@reader("ThresholdedRelu")
def thresholded(node: Node) -> Any:
    """A choice: TVM's converter multiplies by zero, which leaves no number of minus infinity."""
    x, dtype = node.tensor(0), node.dtype(0)
    above = node.emit(relax.op.greater(x, node.constant(float(node.attribute("alpha", 1.0)), dtype)))
    return relax.op.where(above, x, node.constant(0.0, dtype))
