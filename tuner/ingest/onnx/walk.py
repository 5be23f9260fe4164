"""From the nodes of an ONNX graph, in order, to Relax.

For each node the first of these that applies decides:

1. What it is made of is known: it is computed now (folding.py).
2. It is control flow, or works on sequences and optionals: it vanishes (control.py, sequences.py).
3. We have a reader for it (readers/); one of ONNX Runtime's fused operators may write its definition (definition.py).
4. TVM's frontend has one. Its result must be of the shape and type that ONNX's inference gives.
5. The standard defines the operator by a function body: the body is read in its place (expansion.py).

Otherwise it is refused, with its name and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge, UnsupportedOperator, UnsupportedShape
from tuner.ingest import IngestLimits
from tuner.ingest.finalize import check_static
from tuner.ingest.onnx import control, sequences
from tuner.ingest.onnx.expansion import body_of
from tuner.ingest.onnx.folding import DATA_DEPENDENT, evaluate, foldable
from tuner.ingest.onnx.frontend import MICROSOFT, convert, has_converter
from tuner.ingest.onnx.inference import infer, merged, reason
from tuner.ingest.onnx.node import CONSTANT_TYPES, Node, decimal
from tuner.ingest.onnx.readers import READERS
from tuner.ingest.onnx.registry import BODY
from tuner.ingest.onnx.scope import MAIN_DOMAINS, Scope, domain_of, resolved
from tuner.ingest.onnx.values import (
    Value,
    declared_dtype,
    declared_shape,
    dtype_of,
    is_known,
    is_tensor,
    shape_of,
    static_shape,
)
from tuner.tvm_compat import ir, relax, tvm

FLOATS = frozenset(("bfloat16", "float16", "float32", "float64"))
MAX_DEPTH = 40
"""Of subgraphs and function bodies in each other."""


class Unread:
    """Stands for a value whose type is not known, made by a node that was refused while refusals are collected."""


UNREAD = Unread()


class Walker:
    """Reads nodes into a block builder. With `refusals`, a refused node is noted there and the walk goes on."""

    def __init__(
        self, builder: Any, limits: IngestLimits, refusals: list[tuple[Any, PitchpipeError]] | None = None
    ) -> None:
        self.builder = builder
        self.limits = limits
        self.refusals = refusals
        self.count = 0
        self.infinite: set[Any] = set()
        """Variables that are computed from constants with infinities."""
        self.dequantised: dict[int, tuple[Value, Node]] = {}
        """Identity of a value -> the value, and the DequantizeLinear that made it."""

    def run(self, nodes: Iterable[Any], scope: Scope) -> None:
        """Reads nodes, in the order of their data, and leaves their outputs in the scope.

        Raises UnsupportedOperator, UnsupportedShape, InvalidModel or TooLarge, naming the node.
        """
        if scope.depth > MAX_DEPTH:
            raise InvalidModel("the model nests too deeply")
        for proto in nodes:
            self.count += 1
            if self.count > self.limits.nodes:
                raise TooLarge(
                    f"the graph has more than {self.limits.nodes} nodes once loops and functions are written out"
                )
            try:
                found = self._node(proto, scope)
            except PitchpipeError as error:
                if self.refusals is None:
                    raise
                self.refusals.append((proto, error))
                found = self._placeholders(proto, scope)
            for name, value in zip(proto.output, found, strict=False):
                if name:
                    scope.values[name] = value

    def _node(self, proto: Any, scope: Scope) -> Sequence[Value | None]:
        inputs = [scope.find(name) if name else None for name in proto.input]
        opset = scope.opsets.get(domain_of(proto), 1)
        if any(value is UNREAD for value in inputs):
            if not _is_known(proto, opset):
                raise UnsupportedOperator(f"operator {domain_of(proto)}::{proto.op_type} is not supported")
            return [UNREAD] * len(proto.output)
        proto = resolved(proto, scope)
        title = f"operator {proto.op_type} (node {proto.name!r})"
        try:
            return self._read(proto, inputs, opset, scope)
        except MemoryError as error:
            raise TooLarge(f"{title} needs more than {self.limits.memory_bytes} bytes of memory") from error
        except PitchpipeError:
            raise
        except (NotImplementedError, tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented) as error:
            raise UnsupportedOperator(f"{title} is not supported: {reason(error)}") from error
        except Exception as error:  # converters raise whatever they met: ValueError, AttributeError, InternalError, ...
            raise InvalidModel(f"{title} cannot be converted: {reason(error)}") from error

    def _read(self, proto: Any, inputs: list[Value | None], opset: int, scope: Scope) -> Sequence[Value | None]:
        main = proto.domain in MAIN_DOMAINS
        if main and proto.op_type == "Constant":
            return [_constant(proto, opset)]
        if main and proto.op_type == "Identity":
            return inputs
        if main and proto.op_type in control.OPERATORS:
            return control.OPERATORS[proto.op_type](self, proto, inputs, scope)
        expected = self._expected(proto, inputs, opset, scope)
        node = Node(proto, opset, inputs, _attributes(proto), expected, self.builder)
        if main and proto.op_type == "DequantizeLinear":
            found = self._found(node, scope)
            self.dequantised.update((id(value), (value, node)) for value in found)
            return found
        node.sources = [self.dequantised.get(id(value), (None, None))[1] for value in inputs]
        return self._found(node, scope)

    def _found(self, node: Node, scope: Scope) -> Sequence[Value | None]:
        proto, inputs, expected = node.proto, node.inputs, node.expected
        main = proto.domain in MAIN_DOMAINS
        if main and proto.op_type in sequences.OPERATORS:
            found = sequences.OPERATORS[proto.op_type](node)
            if found is not None:
                return found
        empty = self._empty(node)
        if empty is not None:
            return empty
        known = all(value is None or is_known(value) for value in inputs)
        if main and proto.op_type in DATA_DEPENDENT and not known:
            raise UnsupportedShape(
                f"{node.title} has results whose shape depends on values: shapes are static;"
                " give it a fixed size in the model (a mask, TopK), or leave it to the caller"
            )
        if known and foldable(proto, inputs, expected):
            folded = evaluate(proto, inputs, node.opset, expected)
            if folded is not None:
                return folded
        return self._converted(node, scope)

    def _converted(self, node: Node, scope: Scope) -> Sequence[Value | None]:
        proto = node.proto
        node.may_be_infinite = any(map(self._may_be_infinite, node.inputs))
        own = READERS.get((domain_of(proto), proto.op_type))
        found = own(node) if own is not None else None
        if found is BODY:
            body = body_of(node, scope.opsets)
            if body is None:
                node.refuse("this form of it is not")
            return self._expanded(node, body, scope)
        if isinstance(found, onnx.FunctionProto):
            return self._expanded(node, found, scope)
        if found is None and has_converter(node) and all(value is None or is_tensor(value) for value in node.inputs):
            found = convert(node)
        if found is None:
            body = body_of(node, scope.opsets)
            if body is not None:
                return self._expanded(node, body, scope)
            if own is None:
                raise UnsupportedOperator(f"{node.title} is not supported")
            node.refuse("this form of it is not")
        return self._checked_outputs(node, found)

    def _checked_outputs(self, node: Node, found: Any) -> Sequence[Value | None]:
        """One value for each output, of the type that was expected."""
        values: list[Value | None]
        if isinstance(found, (list, tuple)):
            values = list(found)
        else:
            found = self.builder.normalize(found) if isinstance(found, relax.Expr) else found
            values = _fields(self.builder, found)
        if len(values) < node.outputs:
            node.refuse(f"output {len(values)} of it is not")
        outputs: list[Value | None] = []
        for position, value in enumerate(values[: node.outputs]):
            if isinstance(value, relax.Expr):
                value = self._named(value)
            if value is not None and is_tensor(value):
                self._agrees(node, position, value)
            if node.may_be_infinite and isinstance(value, relax.Var):
                self.infinite.add(value)
            outputs.append(value)
        return outputs

    def _may_be_infinite(self, value: Value | None) -> bool:
        if isinstance(value, np.ndarray):
            return value.dtype.name in FLOATS and bool(np.isinf(value).any())
        return isinstance(value, relax.Var) and value in self.infinite

    def _named(self, value: Any) -> Any:
        value = self.builder.normalize(value)
        if isinstance(value.ty, relax.TensorType) and 0 in (shape := static_shape(value) or ()):
            return np.zeros(shape, np.dtype(dtype_of(value)))
        if isinstance(value.ty, relax.ShapeType):  # TVM's own word for a vector of extents
            return np.array([int(extent) for extent in value.values], np.int64)
        return value if isinstance(value, (relax.Var, ir.GenericConst)) else self.builder.emit(value)

    def _agrees(self, node: Node, position: int, value: Any) -> None:
        name = node.proto.output[position]
        if isinstance(value, relax.Expr):
            check_static(name, static_shape(value), self.limits)
        expected = node.expected[position] if position < len(node.expected) else None
        shape, dtype = declared_shape(expected), declared_dtype(expected)
        found = shape_of(value)
        if dtype is not None and dtype_of(value) != dtype:
            raise UnsupportedOperator(f"{node.title} is not supported: it gives {dtype_of(value)}, not {dtype}")
        if shape is not None and (
            len(shape) != len(found) or any(e is not None and e != f for e, f in zip(shape, found, strict=True))
        ):
            raise UnsupportedOperator(f"{node.title} is not supported: it gives shape {list(found)}, not {list(shape)}")

    def _empty(self, node: Node) -> list[Value] | None:
        """The outputs of a node that are all empty tensors, which are known whatever the node computes."""
        found = []
        for name, each in zip(node.proto.output, node.expected, strict=True):
            shape, dtype = declared_shape(each), declared_dtype(each)
            if name and (shape is None or 0 not in shape or None in shape or dtype is None):
                return None
            found.append(np.zeros([int(extent or 0) for extent in shape or ()], np.dtype(dtype)) if name else None)
        return found

    def _expected(self, proto: Any, inputs: Sequence[Value | None], opset: int, scope: Scope) -> list[Any]:
        """A TypeProto for each output, or None."""
        found = infer(proto, inputs, opset, scope)
        expected = []
        for name in proto.output:
            one = found.get(name)
            declared = scope.declared.get(name)
            shape = declared_shape(one)
            if declared is not None and (shape is None or None in shape):
                one = merged(one, declared)
            if one is not None and None not in (shape := declared_shape(one) or (None,)):
                extents = [int(extent or 0) for extent in shape]
                if 0 not in extents:
                    check_static(name, extents, self.limits)
            expected.append(one)
        return expected

    def _expanded(self, node: Node, body: Any, scope: Scope) -> Sequence[Value | None]:
        """The outputs of a function body, read with the node's operands."""
        opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in body.opset_import}
        attributes = {entry.name: entry for entry in body.attribute_proto}
        attributes |= {entry.name: entry for entry in node.proto.attribute}
        declared = {name: one for name, one in zip(body.output, node.expected, strict=False) if one is not None}
        inner = Scope({**scope.opsets, **opsets}, None, declared, attributes)
        inner.depth = scope.depth + 1
        for position, name in enumerate(body.input):
            inner.values[name] = node.inputs[position] if position < len(node.inputs) else None
        nodes = []
        for each in body.node:
            copy = onnx.NodeProto.FromString(each.SerializeToString())
            copy.name = node.proto.name
            nodes.append(copy)
        refusals, self.refusals = self.refusals, None
        try:
            self.run(nodes, inner)
        except PitchpipeError as error:
            raise type(error)(f"{node.title}, in its definition: {error.detail}") from error
        finally:
            self.refusals = refusals
        return self._checked_outputs(node, [inner.values.get(name) for name in body.output])

    def _placeholders(self, proto: Any, scope: Scope) -> list[Value]:
        """Values that stand for the outputs of a refused node, so that others are read."""
        opset = scope.opsets.get(domain_of(proto), 1)
        try:
            inputs = [scope.find(name) if name else None for name in proto.input]
            expected = self._expected(resolved(proto, scope), inputs, opset, scope)
        except PitchpipeError:
            return [UNREAD] * len(proto.output)
        found: list[Value] = []
        for name, each in zip(proto.output, expected, strict=True):
            shape, dtype = declared_shape(each), declared_dtype(each)
            usable = shape is not None and None not in shape and 0 not in shape and dtype in CONSTANT_TYPES
            ty = relax.TensorType([int(extent or 0) for extent in shape or ()], dtype) if usable else None
            found.append(relax.Var(name or "unused", ty) if usable else UNREAD)
        return found


def _is_known(proto: Any, opset: int) -> bool:
    """Whether anybody has heard of a node's operator: the standard, ONNX Runtime, or a reader of ours."""
    domain = domain_of(proto)
    return domain == MICROSOFT or (domain, proto.op_type) in READERS or onnx.defs.has(proto.op_type, opset, domain)


def _attributes(proto: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in proto.attribute:
        value = helper.get_attribute_value(entry)
        if entry.type == onnx.AttributeProto.FLOAT:
            value = decimal(value)
        elif entry.type == onnx.AttributeProto.STRING:
            value = value.decode(errors="replace")
        elif entry.type == onnx.AttributeProto.STRINGS:
            value = [each.decode(errors="replace") for each in value]
        elif entry.type == onnx.AttributeProto.TENSOR:
            value = numpy_helper.to_array(value)
        found[entry.name] = value
    return found


def _constant(proto: Any, opset: int) -> Value:
    for entry in proto.attribute:
        if entry.name == "value" and entry.HasField("t"):
            return numpy_helper.to_array(entry.t)
    found = evaluate(proto, [], opset, [None])
    if found is None or found[0] is None:
        raise InvalidModel(f"operator Constant (node {proto.name!r}) holds no tensor that can be read")
    return found[0]


def _fields(builder: Any, found: Any) -> list[Any]:
    """The parts of a Relax tuple, or the one value itself."""
    if isinstance(found, relax.Tuple):
        return list(found.fields)
    if isinstance(found.ty, ir.TupleType):
        bound = builder.emit(found)
        return [builder.emit(relax.TupleGetItem(bound, index)) for index in range(len(found.ty.fields))]
    return [found]
