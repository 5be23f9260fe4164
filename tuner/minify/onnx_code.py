"""Python text that makes a small ONNX model again and runs it: the framework's half of a script.

No text of the model becomes code: names are written as literals, tensors come from the script's arrays.
"""

from __future__ import annotations

import base64
from typing import Any

from onnx import AttributeProto, helper

_PLAIN = {AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS, AttributeProto.FLOATS}
_TEXT = {AttributeProto.STRING, AttributeProto.STRINGS}

_RUN = '''
def reference(inputs, weights):
    """What ONNX Runtime, or onnx's own interpreter where that is not installed, computes."""
    feed = dict(zip(TAKES, inputs, strict=True))
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(make(weights).SerializeToString(), providers=["CPUExecutionProvider"])
        return [np.asarray(each) for each in session.run(None, feed)]
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(make(weights)).run(None, feed)


def ours(inputs, weights):
    """What pitchpipe makes of it."""
    import pitchpipe

    found = pitchpipe.load(make(weights).SerializeToString())(*inputs)
    return list(found) if isinstance(found, tuple) else [found]
'''


def code_of(model: Any) -> str:
    """Text that defines `make(weights) -> ModelProto`, `reference(inputs, weights)` and `ours(inputs, weights)`."""
    graph = model.graph
    lines = ["import base64", "", "import onnx", "from onnx import helper, numpy_helper", ""]
    lines += [f"TAKES = {[value.name for value in graph.input]!r}", "", "", "def make(weights):", "    nodes = ["]
    for node in graph.node:
        attributes = [_attribute(entry) for entry in node.attribute]
        if any(text is None for text in attributes):  # a tensor or a subgraph: as its bytes
            text = base64.b64encode(node.SerializeToString()).decode()
            lines += ["        onnx.NodeProto.FromString(", "            base64.b64decode("]
            lines += [f"                {text[at : at + 80]!r}" for at in range(0, len(text), 80)]
            lines += ["            )", f"        ),  # {_comment(node.op_type)}"]
            continue
        domain = f", domain={node.domain!r}" if node.domain else ""
        rest = "".join(f", {text}" for text in attributes)
        lines.append(
            f"        helper.make_node({node.op_type!r}, {list(node.input)!r}, {list(node.output)!r}{domain}{rest}),"
        )
    lines.append("    ]")
    for group, values in (("takes", graph.input), ("gives", graph.output)):
        lines.append(f"    {group} = [")
        for value in values:
            tensor = value.type.tensor_type
            shape = [dim.dim_value for dim in tensor.shape.dim]
            lines.append(f"        helper.make_tensor_value_info({value.name!r}, {tensor.elem_type}, {shape}),")
        lines.append("    ]")
    opsets = ", ".join(f"helper.make_opsetid({each.domain!r}, {each.version})" for each in model.opset_import)
    lines += [
        "    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]",
        '    graph = helper.make_graph(nodes, "part", takes, gives, stored)',
        f"    return helper.make_model(graph, opset_imports=[{opsets}], ir_version={model.ir_version})",
        "",
    ]
    return "\n".join(lines) + _RUN


def _attribute(entry: Any) -> str | None:
    """A keyword argument of helper.make_node; None for what is no number and no text."""
    if not entry.name.isidentifier() or entry.type not in _PLAIN | _TEXT:
        return None
    return f"**{{{entry.name!r}: {helper.get_attribute_value(entry)!r}}}"


def _comment(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "_.:")
