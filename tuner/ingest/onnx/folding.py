"""Nodes whose operands are all known, computed now by ONNX's own reference implementation.

It runs on untrusted graphs, in the child: only operators of ONNX's main domain that are plain functions of tensors, and
only where both what goes in and what comes out is bounded. Whatever a node takes beyond that, the child's limits end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference.ops  # here, as the child may read no file once it is confined
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tuner.ingest.onnx.values import Sequence as OnnxSequence
from tuner.ingest.onnx.values import Value, declared_dtype, declared_shape

MAX_ELEMENTS = 1 << 22
"""Of any operand or result of a node that is folded."""
MAX_SLOW_ELEMENTS = 1 << 14
"""The same for operators that the reference implements with loops in Python."""

DATA_DEPENDENT = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
"""Operators whose results' extents depend on values, and are never larger than a few times their operands."""
SLOW = DATA_DEPENDENT | frozenset(
    (
        *("AveragePool", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GRU", "GridSample", "LSTM"),
        *(
            "LpPool",
            "MaxPool",
            "MaxRoiPool",
            "MaxUnpool",
            "QLinearConv",
            "RNN",
            "Resize",
            "RoiAlign",
            "STFT",
            "Scatter",
        ),
        *("ScatterElements", "ScatterND", "GatherElements", "GatherND", "Upsample"),
    )
)
NEVER = frozenset(
    (
        *("Bernoulli", "Dropout", "ImageDecoder", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        *("RandomUniformLike", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
    )
)
"""Operators that draw, or that parse text and images."""


def foldable(proto: Any, inputs: Sequence[Value | None], expected: Sequence[Any]) -> bool:
    """Whether a node, all of whose operands are known, may be computed now."""
    if proto.domain not in ("", "ai.onnx") or proto.op_type in NEVER:
        return False
    if any(entry.HasField("g") or len(entry.graphs) for entry in proto.attribute):
        return False
    limit = MAX_SLOW_ELEMENTS if proto.op_type in SLOW else MAX_ELEMENTS
    if any(_elements(value) > limit for value in inputs):
        return False
    if proto.op_type in DATA_DEPENDENT:
        return True
    for each in expected:
        shape = declared_shape(each)
        if each is not None and each.HasField("sequence_type"):
            continue
        if shape is None or any(extent is None for extent in shape):
            return False
        if math.prod(int(extent or 0) for extent in shape) > limit:
            return False
    return True


def _elements(value: Value | None) -> int:
    if isinstance(value, OnnxSequence):
        return sum(map(_elements, value.items))
    return 0 if value is None else int(value.size)


def evaluate(proto: Any, inputs: Sequence[Value | None], opset: int, expected: Sequence[Any]) -> list[Value] | None:
    """The outputs of a node; None where the reference cannot compute them, or gives another type than the standard."""
    names = list(dict.fromkeys(name for name in proto.input if name))
    outputs = [name for name in proto.output if name]
    graph = helper.make_graph(
        [proto],
        "node",
        [helper.make_value_info(name, onnx.TypeProto()) for name in names],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
    )
    feed = {name: _fed(value) for name, value in zip(proto.input, inputs, strict=False) if name}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(graph, opsets={"": opset}).run(None, feed)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # the reference raises whatever it met; the node's reader says what is wrong
        return None
    by_name = dict(zip(outputs, found, strict=True))
    values = []
    for name, type_proto in zip(proto.output, expected, strict=True):
        value = by_name.get(name) if name else None
        if isinstance(value, list):
            value = OnnxSequence(tuple(np.asarray(item) for item in value), type_proto.sequence_type.elem_type)
        elif value is not None:
            value = np.asarray(value)
            dtype, shape = declared_dtype(type_proto), declared_shape(type_proto)
            if dtype is not None and value.dtype.name != dtype:
                return None
            if shape is not None and (len(shape) != value.ndim or _differ(shape, value.shape)):
                return None
        values.append(value)
    return values


def _fed(value: Value) -> Any:
    return list(value.items) if isinstance(value, OnnxSequence) else value


def _differ(shape: Sequence[int | None], found: Sequence[int]) -> bool:
    return any(extent is not None and extent != other for extent, other in zip(shape, found, strict=True))
