"""One node of an ONNX graph as its reader sees it: its operands, its attributes, and what its results must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from pitchpipe.errors import UnsupportedOperator, UnsupportedShape
from tuner.ingest.onnx.values import Value, declared_dtype, declared_shape, dtype_of, is_tensor, shape_of
from tuner.tvm_compat import ir, relax, te, tirx

CONSTANT_TYPES = frozenset(
    (
        *("bool", "bfloat16", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)
"""Element types, by NumPy's names, that arithmetic of ours is made for."""


def decimal(number: float) -> float:
    """A float32 as the shortest decimal number that rounds to it, which is what was written in the source."""
    return float(str(np.float32(number)))


class Node:
    """A node, its operands already read. Positions are those of the operator's definition."""

    def __init__(
        self,
        proto: Any,
        opset: int,
        inputs: Sequence[Value | None],
        attributes: dict[str, Any],
        expected: Sequence[Any],
        builder: Any,
    ) -> None:
        self.proto = proto
        self.operator = str(proto.op_type)
        self.opset = opset
        """Version of the operator set of the node's domain."""
        self.inputs = list(inputs)
        self.attributes = attributes
        """Name -> int, float, string, array, subgraph, or list of such."""
        self.expected = list(expected)
        """A TypeProto for each output, by ONNX's own inference or the file's declaration; None where neither tells."""
        self.builder = builder
        self.sources: list[Node | None] = []
        """Of each operand the DequantizeLinear that made it, where one did."""
        self.may_be_infinite = False
        """Whether an operand is, or is computed from, a constant with infinities, as masks are."""

    # Operands.

    def given(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def known(self, position: int) -> np.ndarray | None:
        """The values of an operand that are known now; None for others and for one that is left out."""
        value = self.inputs[position] if self.given(position) else None
        return value if isinstance(value, np.ndarray) else None

    def integers(self, position: int) -> list[int] | None:
        """A known operand of whole numbers, flat."""
        values = self.known(position)
        return None if values is None else [int(value) for value in values.reshape(-1)]

    def tensor(self, position: int) -> Any:
        """The operand as a Relax expression."""
        value = self.inputs[position] if self.given(position) else None
        if value is None or not is_tensor(value):
            self.refuse(f"operand {position} is no tensor")
        return self.constant(value) if isinstance(value, np.ndarray) else value

    def shape(self, position: int) -> tuple[int, ...]:
        return shape_of(self.inputs[position])

    def dtype(self, position: int) -> str:
        return dtype_of(self.inputs[position])

    def dequantised(self, position: int) -> Node | None:
        """The DequantizeLinear that made an operand; None where something else did."""
        return self.sources[position] if position < len(self.sources) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise ValueError(f"axis {value} of a tensor of {rank} dimensions")
        return value % rank

    # Results.

    @property
    def outputs(self) -> int:
        """How many outputs the node names, those left empty in between included."""
        return len(self.proto.output)

    def wants(self, position: int) -> bool:
        return position < len(self.proto.output) and bool(self.proto.output[position])

    def result_shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an output; raises UnsupportedShape where only a run would tell."""
        expected = self.expected[position] if position < len(self.expected) else None
        shape = declared_shape(expected)
        if shape is None or any(extent is None for extent in shape):
            raise UnsupportedShape(f"{self.title} has an output whose shape depends on values: shapes are static")
        return tuple(int(extent or 0) for extent in shape)

    def result_dtype(self, position: int = 0) -> str:
        found = declared_dtype(self.expected[position] if position < len(self.expected) else None)
        return self.dtype(0) if found is None else found

    # Building.

    def emit(self, expr: Any) -> Any:
        """Binds an expression to a variable."""
        return self.builder.emit(expr)

    def constant(self, value: Any, dtype: str | None = None) -> Any:
        """A Relax constant."""
        array = np.asarray(value, dtype)
        if array.size == 0:  # TVM can store none
            self.refuse("an operand without elements")
        if array.dtype.name not in CONSTANT_TYPES:
            self.refuse(f"constants of type {array.dtype.name} are not supported")
        return relax.const(np.ascontiguousarray(array).reshape(array.shape), array.dtype.name)

    def te(
        self,
        function: Callable[..., Any],
        *operands: Any,
        name: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> Any:
        """Binds what a function of TVM's tensor expressions makes of operands: a tensor, or a tuple of tensors. The tensor
        function has the attributes."""
        name = name or f"onnx_{self.operator.lower()}"
        return self.emit(self.builder.call_te(function, *operands, primfunc_name_hint=name, primfunc_attrs=attributes))

    def cast(self, value: Any, dtype: str) -> Any:
        if dtype_of(value) == dtype:
            return value
        if isinstance(value, ir.GenericConst) and "float" not in dtype_of(value) + dtype:
            return self.constant(value.value.numpy().astype(np.dtype(dtype)))
        return self.emit(relax.op.astype(value, dtype))

    def reshape(self, value: Any, shape: Sequence[int]) -> Any:
        if shape_of(value) == tuple(shape):
            return value
        if isinstance(value, ir.GenericConst):
            return self.constant(value.value.numpy().reshape(tuple(shape)))
        return self.emit(relax.op.reshape(value, list(shape)))

    # Refusing.

    @property
    def title(self) -> str:
        domain = f"{self.proto.domain}::" if self.proto.domain not in ("", "ai.onnx") else ""
        return f"operator {domain}{self.operator} (node {self.proto.name!r})"

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedOperator(f"{self.title} is not supported: {reason}")


def extents(shape: Sequence[int]) -> list[Any]:
    """A shape for tensor expressions, of 64-bit integers as Relax has them."""
    return [tirx.IntImm("int64", int(extent)) for extent in shape]


def compute(shape: Sequence[int], element: Callable[..., Any], name: str = "compute") -> Any:
    """A tensor expression: `element` gives the value at an index of `shape`."""
    return te.compute(extents(shape), element, name=name)
