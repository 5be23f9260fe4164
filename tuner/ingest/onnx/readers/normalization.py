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
    if node.attribute("training_mode", 0) or (node.opset < 14 and sum(map(node.wants, range(1, 5)))):
        node.refuse("in training mode, it is normalised by its own batch")
    if node.opset < 7 and not node.attribute("is_test", 0):
        node.refuse("in training mode, it is normalised by its own batch")
    return None


@reader("SpaceToDepth", "Attention", "Celu", "Swish", "SwiGLU")
def by_definition(_node: Node) -> Any:
    return BODY


@reader("Gelu")
def gelu(node: Node) -> Any:
    if node.dtype(0) == "float64":
        return BODY
    make = relax.op.nn.gelu_tanh if node.attribute("approximate", "none") == "tanh" else relax.op.nn.gelu
    return make(node.tensor(0))


@reader("Elu", "Selu", "ThresholdedRelu", "HardSigmoid", "LeakyRelu", "Shrink", "Mish", "Softplus", "HardSwish")
def activation(node: Node) -> Any:
    """By definition for the short types, whose constants TVM's converters make float32."""
    return BODY if node.dtype(0) in ("float16", "bfloat16", "float64") else None
