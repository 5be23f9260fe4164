"""Operators that the standard defines by a function body: the body for a node's operand types and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from tuner.ingest.onnx.node import Node
from tuner.ingest.onnx.values import type_of


def body_of(node: Node, opsets: Mapping[str, int]) -> Any:
    """The FunctionProto that defines the node's operator, its attributes' defaults included; None where there is none."""
    domain = "" if node.proto.domain == "ai.onnx" else node.proto.domain
    try:
        schema = onnx.defs.get_schema(node.operator, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
    version = node.opset
    body = None
    if schema.has_context_dependent_function:
        types = [
            b"" if value is None else (type_of(value) or onnx.TypeProto()).SerializeToString() for value in node.inputs
        ]
        found = _newest(schema.context_dependent_function_opset_versions, version)
        if found is not None:
            data = schema.get_context_dependent_function_with_opset_version(
                found, node.proto.SerializeToString(), types
            )
            body = onnx.FunctionProto.FromString(data)
    if (body is None or not body.node) and schema.has_function:
        found = _newest(schema.function_opset_versions, version)
        if found is not None:
            body = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(found))
    if body is None or not body.node:
        return None
    given = {entry.name for entry in body.attribute_proto}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            body.attribute_proto.append(attribute.default_value)
    return body


def _newest(versions: list[int], version: int) -> int | None:
    """The newest version of a body that is no newer than the model's operator set."""
    usable = [each for each in versions if each <= version]
    return max(usable) if usable else None
