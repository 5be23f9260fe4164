"""TVM's converters, called one node at a time, for the operators that they read rightly."""

from __future__ import annotations

from typing import Any

from tuner.ingest.onnx.node import Node, decimal
from tuner.ingest.onnx.values import is_tensor
from tuner.tvm_compat import onnx_frontend, relax

FRONTEND = onnx_frontend()
CONVERTERS: dict[str, Any] = FRONTEND._get_convert_map()
MICROSOFT = "com.microsoft"
LEFT_TO_US = frozenset(("Attention",))
"""Operators whose converters are wrong or refuse what the standard allows; ours and the standard's definitions serve."""
MICROSOFTS = frozenset(("BiasGelu", "FastGelu", "Gelu", "MatMulInteger16", "SkipLayerNormalization"))
"""Operators of ONNX Runtime's own domain; the converters look at no domain themselves."""
ONLY_MICROSOFTS = (MICROSOFTS - {"Gelu"}) | {"AllClassNMS", "EmbedLayerNormalization"}


def has_converter(node: Node) -> bool:
    """Whether TVM reads the node's operator."""
    if node.proto.domain == MICROSOFT:
        return node.operator in MICROSOFTS
    if node.proto.domain not in ("", "ai.onnx") or node.operator in ONLY_MICROSOFTS:
        return False
    return node.operator in CONVERTERS and node.operator not in LEFT_TO_US


def convert(node: Node) -> Any:
    """What TVM's converter makes of the node; raises whatever it meets."""
    inputs = FRONTEND.onnx_input()
    for position, value in enumerate(node.inputs):
        inputs.append(node.tensor(position) if value is not None and is_tensor(value) else None)
    importer = FRONTEND.ONNXGraphImporter
    attributes = importer._parse_attr(None, node.proto.attribute)
    attributes |= {name: decimal(value) for name, value in attributes.items() if isinstance(value, float)}
    attributes["tvm_custom"] = {"name": node.proto.name, "num_outputs": node.outputs}
    converter = CONVERTERS[node.operator].get_converter(node.opset)
    names = {name: value for name, value in zip(node.proto.input, inputs, strict=True) if name}
    found = converter(node.builder, inputs, attributes, [names, {}])
    return node.builder.normalize(found) if isinstance(found, relax.Expr) else found
