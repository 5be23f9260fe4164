"""Definitions of ONNX Runtime's fused operators, written in ONNX's own operators.

ONNX Runtime has no machine-readable definition of the operators of its domain `com.microsoft`, so ours stand here for
them: a reader of such a node writes what it computes as a function body, which is read in its place. Shapes and types of
the node's operands are known when it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tuner.ingest.onnx.node import Node

OPSET = 23
"""Version of ONNX's operators that definitions are written in: the first with RotaryEmbedding."""
SHORT = ("float16", "bfloat16")


class Definition:
    """A function body that is being written. Values in it are known by names; the empty one is a value left out."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._nodes: list[Any] = []

    def operand(self, position: int) -> str:
        """An operand of the node; empty where it is left out."""
        return f"operand_{position}" if self.node.given(position) else ""

    def wide(self, position: int) -> str:
        """An operand, in float32 where it is of half precision: ONNX Runtime computes in float32."""
        name = self.operand(position)
        return self("Cast", name, to=_element("float32")) if name and self.node.dtype(position) in SHORT else name

    def narrow(self, value: str, position: int = 0) -> str:
        """A value computed from wide operands, in the type of the operand at a position."""
        dtype = self.node.dtype(position)
        return self("Cast", value, to=_element(dtype)) if dtype in SHORT else value

    def cast(self, value: str, dtype: str) -> str:
        return self("Cast", value, to=_element(dtype))

    def constant(self, value: Any, dtype: str = "float32") -> str:
        tensor = numpy_helper.from_array(np.asarray(value, np.dtype(dtype)))
        return self("Constant", value=tensor)

    def integers(self, *values: int) -> str:
        """A vector of 64-bit integers: a shape, axes, bounds."""
        return self.constant(values, "int64")

    def __call__(self, operator: str, *operands: str, **attributes: Any) -> str:
        """The first result of an operator of ONNX; attributes that are None are left out."""
        return self.results(operator, 1, *operands, **attributes)[0]

    def results(self, operator: str, count: int, *operands: str, **attributes: Any) -> list[str]:
        """As many results of an operator."""
        names = [f"value_{len(self._nodes)}_{index}" for index in range(count)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self._nodes.append(helper.make_node(operator, list(operands), names, **given))
        return names

    def reshape(self, value: str, *shape: int) -> str:
        return self("Reshape", value, self.integers(*shape))

    def part(self, value: str, axis: int, begin: int, end: int) -> str:
        """Elements from begin to end along an axis."""
        return self("Slice", value, self.integers(begin), self.integers(end), self.integers(axis))

    def function(self, results: Sequence[str]) -> Any:
        """The FunctionProto with these results, of which the node may want fewer; empty ones it must not want."""
        for position, name in enumerate(results):
            if not name and self.node.wants(position):
                self.node.refuse(f"output {position} of it is not")
        wanted = results[: self.node.outputs]
        if len(wanted) < self.node.outputs:
            self.node.refuse(f"output {len(wanted)} of it is not")
        return helper.make_function(
            "definition",
            self.node.operator,
            [f"operand_{position}" for position in range(len(self.node.inputs))],
            list(wanted),
            self._nodes,
            [helper.make_opsetid("", OPSET)],
        )


def _element(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
