"""From the nodes of an ONNX graph, in order, to Relax.

For each node the first of these that applies decides:

1. What it is made of is known: it is computed now (folding.py).
2. It is control flow, or works on sequences and optionals: it vanishes (control.py, sequences.py).
3. We have a reader for it (readers/).
4. TVM's frontend has one. Its result must be of the shape and type that ONNX's inference gives.
5. The standard defines the operator by a function body: the body is read in its place (expansion.py).

Otherwise it is refused, with its name and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge, UnsupportedOperator, UnsupportedShape
from tuner.ingest import IngestLimits
from tuner.ingest.onnx import control, sequences
from tuner.ingest.onnx.expansion import body_of
from tuner.ingest.onnx.folding import DATA_DEPENDENT, evaluate, foldable
from tuner.ingest.onnx.frontend import MICROSOFT, convert, has_converter
from tuner.ingest.onnx.node import CONSTANT_TYPES, Node
from tuner.ingest.onnx.readers import READERS
from tuner.ingest.onnx.registry import BODY
from tuner.ingest.onnx.values import (
    Value,
    declared_dtype,
    declared_shape,
    dtype_of,
    is_known,
    is_tensor,
    shape_of,
    type_of,
)
from tuner.ingest.settle import check_static
from tuner.tvm_compat import ir, relax, tvm

MAIN_DOMAINS = ("", "ai.onnx")
MAX_INFERENCE_ELEMENTS = 4096
"""Largest known operand, in elements, that is shown to ONNX's inference: operands that shapes are made of are small."""
FLOATS = frozenset(("bfloat16", "float16", "float32", "float64"))
MAX_DEPTH = 40
"""Of subgraphs and function bodies in each other."""


class Scope:
    """The values that a graph's nodes may read: its own, and those of the graphs around it."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        parent: Scope | None = None,
        declared: Mapping[str, Any] | None = None,
        references: Mapping[str, Any] | None = None,
    ) -> None:
        self.opsets = opsets
        """Domain -> version; the main domain is the empty one."""
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.declared = declared or {}
        """Name -> TypeProto that the file declares, for names whose type ONNX's inference cannot tell."""
        self.references = references or {}
        """Name -> attribute of the function call whose body this is."""
        self.depth: int = 0 if parent is None else parent.depth + 1

    def find(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise InvalidModel(f"tensor {name!r} is made by no node")


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
        proto = _resolved(proto, scope)
        title = f"operator {proto.op_type} (node {proto.name!r})"
        try:
            return self._read(proto, inputs, opset, scope)
        except MemoryError as error:
            raise TooLarge(f"{title} needs more than {self.limits.memory_bytes} bytes of memory") from error
        except PitchpipeError:
            raise
        except (NotImplementedError, tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented) as error:
            raise UnsupportedOperator(f"{title} is not supported: {_reason(error)}") from error
        except Exception as error:  # converters raise whatever they met: ValueError, AttributeError, InternalError, ...
            raise InvalidModel(f"{title} cannot be converted: {_reason(error)}") from error

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
        if main and proto.op_type in sequences.OPERATORS:
            found = sequences.OPERATORS[proto.op_type](node)
            if found is not None:
                return found
        empty = self._empty(node)
        if empty is not None:
            return empty
        known = all(value is None or is_known(value) for value in inputs)
        if main and proto.op_type in DATA_DEPENDENT and not known:
            raise UnsupportedShape(f"{node.title} has results whose shape depends on values: shapes are static")
        if known and foldable(proto, inputs, expected):
            folded = evaluate(proto, inputs, opset, expected)
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
        if found is None and has_converter(node) and all(value is None or is_tensor(value) for value in node.inputs):
            found = convert(node)
        if found is None:
            body = body_of(node, scope.opsets)
            if body is not None:
                return self._expanded(node, body, scope)
            if own is None:
                raise UnsupportedOperator(f"{node.title} is not supported")
            node.refuse("this form of it is not")
        return self._settled(node, found)

    def _settled(self, node: Node, found: Any) -> Sequence[Value | None]:
        """One value for each output, of the type that was expected."""
        values: list[Value | None]
        if isinstance(found, (list, tuple)):
            values = list(found)
        else:
            found = self.builder.normalize(found) if isinstance(found, relax.Expr) else found
            values = _fields(self.builder, found)
        if len(values) < node.outputs:
            node.refuse(f"output {len(values)} of it is not")
        settled: list[Value | None] = []
        for position, value in enumerate(values[: node.outputs]):
            if isinstance(value, relax.Expr):
                value = self._named(value)
            if value is not None and is_tensor(value):
                self._agrees(node, position, value)
            if node.may_be_infinite and isinstance(value, relax.Var):
                self.infinite.add(value)
            settled.append(value)
        return settled

    def _may_be_infinite(self, value: Value | None) -> bool:
        if isinstance(value, np.ndarray):
            return value.dtype.name in FLOATS and bool(np.isinf(value).any())
        return isinstance(value, relax.Var) and value in self.infinite

    def _named(self, value: Any) -> Any:
        value = self.builder.normalize(value)
        if isinstance(value.ty, relax.ShapeType):  # TVM's own word for a vector of extents
            return np.array([int(extent) for extent in value.values], np.int64)
        return value if isinstance(value, (relax.Var, ir.GenericConst)) else self.builder.emit(value)

    def _agrees(self, node: Node, position: int, value: Any) -> None:
        name = node.proto.output[position]
        if isinstance(value, relax.Expr):
            values = getattr(value.ty.shape, "values", None)
            static = values is not None and all(isinstance(extent, tvm.tirx.IntImm) for extent in values)
            check_static(
                name, [int(extent) for extent in values] if static and values is not None else None, self.limits
            )
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
                one = _merged(one, declared)
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
        return self._settled(node, [inner.values.get(name) for name in body.output])

    def _placeholders(self, proto: Any, scope: Scope) -> list[Value]:
        """Values that stand for the outputs of a refused node, so that others are read."""
        opset = scope.opsets.get(domain_of(proto), 1)
        try:
            inputs = [scope.find(name) if name else None for name in proto.input]
            expected = self._expected(_resolved(proto, scope), inputs, opset, scope)
        except PitchpipeError:
            return [UNREAD] * len(proto.output)
        found: list[Value] = []
        for name, each in zip(proto.output, expected, strict=True):
            shape, dtype = declared_shape(each), declared_dtype(each)
            usable = shape is not None and None not in shape and 0 not in shape and dtype in CONSTANT_TYPES
            ty = relax.TensorType([int(extent or 0) for extent in shape or ()], dtype) if usable else None
            found.append(relax.Var(name or "unused", ty) if usable else UNREAD)
        return found


def domain_of(proto: Any) -> str:
    """The domain of a node; ONNX's own is the empty one, whichever of its two names is written."""
    return "" if proto.domain in MAIN_DOMAINS else str(proto.domain)


def _is_known(proto: Any, opset: int) -> bool:
    """Whether anybody has heard of a node's operator: the standard, ONNX Runtime, or a reader of ours."""
    domain = domain_of(proto)
    return domain == MICROSOFT or (domain, proto.op_type) in READERS or onnx.defs.has(proto.op_type, opset, domain)


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
    try:
        found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opsets
        )
    except Exception as error:  # onnx raises its own C++ errors: InferenceError, RuntimeError, ValueError
        title = f"operator {proto.op_type} (node {proto.name!r})"
        raise InvalidModel(f"{title} cannot be converted: {_reason(error)}") from error
    return found


def _merged(inferred: Any, declared: Any) -> Any:
    """A declared type where it says more than the inferred one and does not contradict it."""
    if inferred is None or not inferred.HasField("tensor_type") or not declared.HasField("tensor_type"):
        return declared if inferred is None else inferred
    known, told = declared_shape(inferred), declared_shape(declared)
    if told is None or (known is not None and len(known) != len(told)):
        return inferred
    extents = told if known is None else [t if k is None else k for k, t in zip(known, told, strict=True)]
    kind = inferred.tensor_type.elem_type or declared.tensor_type.elem_type
    return helper.make_tensor_type_proto(kind, list(extents))


def _resolved(proto: Any, scope: Scope) -> Any:
    """The node with attributes of the function call around it in place of references to them."""
    if not any(entry.ref_attr_name for entry in proto.attribute):
        return proto
    copy = onnx.NodeProto.FromString(proto.SerializeToString())
    kept = []
    for entry in copy.attribute:
        if not entry.ref_attr_name:
            kept.append(entry)
        elif entry.ref_attr_name in scope.references:
            value = onnx.AttributeProto.FromString(scope.references[entry.ref_attr_name].SerializeToString())
            value.name = entry.name
            kept.append(value)
    kept = [onnx.AttributeProto.FromString(entry.SerializeToString()) for entry in kept]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    return copy


def _attributes(proto: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in proto.attribute:
        value = helper.get_attribute_value(entry)
        if entry.type == onnx.AttributeProto.STRING:
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


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
