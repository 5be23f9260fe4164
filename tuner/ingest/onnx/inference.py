"""The types that a node's results must have: ONNX's inference, and what the file declares where that cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pitchpipe.errors import InvalidModel
from tuner.ingest.onnx.scope import Scope, domain_of
from tuner.ingest.onnx.values import Value, declared_shape, type_of

MAX_INFERENCE_ELEMENTS = 4096
"""Largest known operand, in elements, that is shown to ONNX's inference: operands that shapes are made of are small."""


SHORT = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)


def infer(proto: Any, inputs: Sequence[Value | None], opset: int, scope: Scope) -> dict[str, Any]:
    """Name of an output -> TypeProto, by ONNX's inference; empty where the operator has no schema.

    Raises InvalidModel where the node contradicts the standard.
    """
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, domain_of(proto))
    except onnx.defs.SchemaError:
        return {}
    types, data = {}, {}
    for name, value in zip(proto.input, inputs, strict=True):
        one = type_of(value) if name and value is not None else None
        if one is None:
            continue
        types[name] = one
        if isinstance(value, np.ndarray) and value.size <= MAX_INFERENCE_ELEMENTS and value.dtype.kind in "biuf":
            data[name] = numpy_helper.from_array(value, name)
    if any(name and name not in types for name in proto.input):
        return {}
    opsets = [helper.make_opsetid(domain, version) for domain, version in scope.opsets.items()]

    def inferred(given: dict[str, Any]) -> dict[str, Any]:
        return dict(onnx.shape_inference.infer_node_outputs(schema, proto, given, data, opset_imports=opsets))

    try:
        if _takes_bfloat16(schema) or not any(_elements(one) == onnx.TensorProto.BFLOAT16 for one in types.values()):
            return inferred(types)
        # Exporters write bfloat16 into operators that got it only in a later version of the standard.
        found = inferred({name: _with_elements(one, *SHORT) for name, one in types.items()})
        return {name: _with_elements(one, *SHORT[::-1]) for name, one in found.items()}
    except Exception as error:  # onnx raises its own C++ errors: InferenceError, RuntimeError, ValueError
        title = f"operator {proto.op_type} (node {proto.name!r})"
        raise InvalidModel(f"{title} cannot be converted: {reason(error)}") from error


def _takes_bfloat16(schema: Any) -> bool:
    return any("tensor(bfloat16)" in each.allowed_type_strs for each in schema.type_constraints)


def _elements(one: Any) -> int:
    return int(one.tensor_type.elem_type)


def _with_elements(one: Any, old: int, new: int) -> Any:
    """The type with elements of another type where it has those."""
    if _elements(one) != old:
        return one
    copy = onnx.TypeProto.FromString(one.SerializeToString())
    copy.tensor_type.elem_type = new
    return copy


def merged(inferred: Any, declared: Any) -> Any:
    """A declared type where it says more than the inferred one and does not contradict it."""
    if inferred is None or not inferred.HasField("tensor_type") or not declared.HasField("tensor_type"):
        return declared if inferred is None else inferred
    known, told = declared_shape(inferred), declared_shape(declared)
    if told is None or (known is not None and len(known) != len(told)):
        return inferred
    extents = told if known is None else [t if k is None else k for k, t in zip(known, told, strict=True)]
    kind = inferred.tensor_type.elem_type or declared.tensor_type.elem_type
    return helper.make_tensor_type_proto(kind, list(extents))


def reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
