"""Operators that TVM converts in ways that later passes cannot see through, survive, or that are wrong: as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.registry import reader
from tuner.tvm_compat import relax

_PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {
    "Max": relax.op.maximum,
    "Mean": relax.op.add,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}


@reader(*_PAIRWISE)
def pairwise(node: Node) -> Any:
    """Two operands at a time, broadcast as they need; TVM would stack all of them and reduce."""
    found = node.tensor(0)
    for position in range(1, len(node.inputs)):
        found = node.emit(_PAIRWISE[node.operator](found, node.tensor(position)))
    if node.operator == "Mean":
        return relax.op.divide(found, relax.const(len(node.inputs), str(found.ty.dtype)))
    return found


@reader("Dropout")
def dropout(node: Node) -> Any:
    """What it is when nothing is trained: its input, and a mask of ones for whoever asks, of the input's type before 10."""
    training = node.known(2)
    if (node.given(2) and (training is None or bool(training.any()))) or (
        node.opset < 7 and not node.attribute("is_test", 0)
    ):
        node.refuse("it draws, in training mode")
    if not node.wants(1):
        return [node.inputs[0]]
    return [node.inputs[0], np.ones(node.shape(0), bool if node.opset >= 10 else node.dtype(0))]


@reader("PRelu")
def prelu(node: Node) -> Any:
    """Arithmetic, so that a slope of any shape that broadcasts will do."""
    found, slope = node.tensor(0), node.tensor(1)
    rank = len(node.shape(0))
    if node.opset < 7 and len(node.shape(1)) == 1:  # a slope per channel, before broadcasting was the rule
        slope = node.emit(relax.op.reshape(slope, [-1, *[1] * (rank - 2)]))
    zero = relax.const(0, node.dtype(0))
    negative = node.emit(relax.op.multiply(slope, node.emit(relax.op.minimum(found, zero))))
    return relax.op.add(node.emit(relax.op.maximum(found, zero)), negative)


@reader("Clip")
def clip(node: Node) -> Any:
    """Constant bounds as minimum and maximum; others are left to the standard's definition."""
    if node.opset < 11:
        return None
    bounds = [node.known(position) for position in (1, 2)]
    given = [value for position, value in zip((1, 2), bounds, strict=True) if node.given(position)]
    if not given or any(value is None or value.size != 1 or np.isnan(value).any() for value in given):
        return None
    found, dtype = node.tensor(0), node.dtype(0)
    for value, make in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
        if value is not None:
            found = node.emit(make(found, relax.const(value.reshape(()).astype(dtype), dtype)))
    return found
