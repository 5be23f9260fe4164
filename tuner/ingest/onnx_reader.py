"""ONNX to Relax. Runs in the child (child.py): the bytes are untrusted.

The order of checks matters: what can be said of the graph by reading it (external data, operators, shapes, cycles) is
said before TVM's frontend sees it, with the names of the file; what only the conversion finds is told with its node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedOperator, UnsupportedShape
from pitchpipe.strip import param_names, parse_onnx, strip_proto
from tuner.constants import constant_value
from tuner.ingest import IngestedModel, IngestLimits, TensorSpec
from tuner.ingest.settle import check_shapes, check_static, settle
from tuner.tvm_compat import onnx_frontend, relax, tvm

FRONTEND = onnx_frontend()
_TvmImporter: Any = FRONTEND.ONNXGraphImporter
DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Operator sets that the frontend's names are of; it looks at no domain itself."""


def read_onnx(data: bytes, limits: IngestLimits) -> IngestedModel:
    """The model of an ONNX file; see tuner.ingest.ingest for the errors."""
    model = parse_onnx(data)
    if model.functions:
        model = _inlined(model)
    if len(model.graph.node) > limits.nodes:
        raise TooLarge(f"the graph has {len(model.graph.node)} nodes; the limit is {limits.nodes}")
    strip_proto(model, keep_values=False)
    params = param_names(model)
    graph = model.graph
    for index, node in enumerate(graph.node):
        node.name = node.name or f"number {index}, output {node.output[0] if node.output else ''}"
    _check_operators(graph)
    _sort(graph)
    specs = {value.name: _spec(value, limits) for value in graph.input}
    if len(specs) < len(graph.input):
        raise InvalidModel("two inputs of the graph have the same name")
    inputs = [name for name in specs if name not in set(params)]
    importer = _Importer()
    module = importer.convert(model, limits)
    order = [*inputs, *params]
    by_name = {variable.name: variable for variable in module["main"].params}
    return settle(module, [by_name[name] for name in order], [specs[name] for name in order], len(inputs), limits)


def _inlined(model: Any) -> Any:
    """Model-local functions written out at their call sites."""
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # onnx raises its own C++ errors: ValueError, RuntimeError, InferenceError
        raise InvalidModel(f"the model's own functions cannot be inlined: {str(error)[:300]}") from error


def _check_operators(graph: Any) -> None:
    known = set(FRONTEND._get_convert_map()) | {"Constant"}
    for node in graph.node:
        if any(entry.HasField("g") or len(entry.graphs) for entry in node.attribute):
            raise UnsupportedOperator(f"operator {node.op_type} (node {node.name!r}) has subgraphs: control flow")
        if node.domain not in DOMAINS or node.op_type not in known:
            operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise UnsupportedOperator(f"operator {operator} (node {node.name!r}) is not supported")


def _sort(graph: Any) -> None:
    """Puts the nodes into the order of their data; raises InvalidModel for a cycle or a tensor that nothing makes."""
    made: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in made:
                raise InvalidModel(f"tensor {name!r} is made by two nodes")
            made[name] = index
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    waits_for: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(graph.node):
        sources = set()
        for name in filter(None, node.input):
            if name in made:
                sources.add(made[name])
            elif name not in given:
                raise InvalidModel(f"node {node.name!r} reads tensor {name!r}, which nothing makes")
        waits_for.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(index)
    for value in graph.output:
        if value.name not in made and value.name not in given:
            raise InvalidModel(f"the graph's output {value.name!r} is made by no node")
    ready = [index for index, count in enumerate(waits_for) if count == 0]
    order = []
    for index in ready:
        order.append(index)
        for reader in readers.get(index, ()):
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                ready.append(reader)
    if len(order) < len(waits_for):
        stuck = next(index for index, count in enumerate(waits_for) if count > 0)
        raise InvalidModel(f"the graph is cyclic: node {graph.node[stuck].name!r} waits for its own output")
    if order != sorted(order) and not _is_sorted(graph, given):
        nodes = [onnx.NodeProto.FromString(graph.node[index].SerializeToString()) for index in order]
        del graph.node[:]
        graph.node.extend(nodes)


def _is_sorted(graph: Any, given: set[str]) -> bool:
    seen = set(given)
    for node in graph.node:
        if any(name and name not in seen for name in node.input):
            return False
        seen.update(node.output)
    return True


def _spec(value: Any, limits: IngestLimits) -> TensorSpec:
    """Name, shape and type of a graph input; raises UnsupportedShape unless every dimension is a positive number."""
    name = value.name
    if not value.type.HasField("tensor_type"):
        raise InvalidModel(
            f"input {name!r} is a {value.type.WhichOneof('value') or 'thing without type'}, not a tensor"
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise UnsupportedShape(f"tensor {name!r} has no shape; fix one before tuning")
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        if not dim.HasField("dim_value"):
            symbol = repr(dim.dim_param) if dim.dim_param else "unknown"
            raise UnsupportedShape(
                f"tensor {name!r} has a dynamic dimension ({symbol}, axis {axis}): shapes are static"
            )
        shape.append(dim.dim_value)
    check_static(name, shape, limits)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"tensor {name!r} has an unknown element type {tensor.elem_type}") from error
    if dtype in ("object", "str"):
        raise InvalidModel(f"tensor {name!r} holds strings")
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype)


class _Importer(_TvmImporter):  # type: ignore[misc]  # TVM has no types
    """TVM's importer, which knows at which node it is when it fails."""

    def __init__(self) -> None:
        super().__init__(None, None, keep_params_in_input=False, sanitize=False)
        self.at = "the graph's inputs"
        pairwise = {"Max": relax.op.maximum, "Mean": relax.op.add, "Min": relax.op.minimum, "Sum": relax.op.add}
        self._ours: dict[str, Callable[[Any, Any], Any]] = {
            **{name: partial(self._pairwise, combine, name == "Mean") for name, combine in pairwise.items()},
            "Clip": self._clip,
            "Dropout": self._dropout,
            "PRelu": self._prelu,
            "Pad": self._pad,
            "SequenceInsert": self._sequence_insert,
        }

    def convert(self, model: Any, limits: IngestLimits) -> Any:
        opsets = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
        try:
            module = self.from_onnx(model.graph, opsets[0] if opsets else 1)
        except MemoryError as error:
            raise TooLarge(f"{self.at} needs more than {limits.memory_bytes} bytes of memory") from error
        except (NotImplementedError, tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented) as error:
            raise UnsupportedOperator(f"{self.at} is not supported: {_reason(error)}") from error
        except Exception as error:  # converters raise whatever they met: ValueError, AttributeError, InternalError, ...
            self._check_shapes(limits)
            raise InvalidModel(f"{self.at} cannot be converted: {_reason(error)}") from error
        self._check_shapes(limits)
        return module

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        self.at = f"operator {op_name} (node {attrs['tvm_custom']['name']!r})"
        ours = self._ours.get(op_name)
        found = ours(inputs, attrs) if ours is not None else None
        if found is not None:
            return self.bb.normalize(found)
        return super()._convert_operator(op_name, inputs, attrs, opset)

    # TVM converts clip and pad straight to tensor functions, which no graph pass can see through; sums, dropout and
    # prelu to operators that its own layout pass does not survive; and takes an insertion's position -1 for the end.

    def _pairwise(self, combine: Any, mean: bool, inputs: Any, _attrs: Any) -> Any:
        """Two operands at a time, broadcast as they need; TVM would stack all of them and reduce."""
        if any(operand is None for operand in inputs):
            return None
        found = inputs[0]
        for operand in inputs[1:]:
            found = self.bb.emit(combine(found, operand))
        return relax.op.divide(found, relax.const(len(inputs), str(found.ty.dtype))) if mean else found

    def _dropout(self, inputs: Any, attrs: Any) -> Any:
        """What it is when nothing is trained: its input, and a mask of ones for whoever asks."""
        if attrs["tvm_custom"]["num_outputs"] < 2:
            return inputs[0]
        return relax.Tuple([inputs[0], self.bb.emit(relax.op.ones(inputs[0].ty.shape, "bool"))])

    def _prelu(self, inputs: Any, _attrs: Any) -> Any:
        """Arithmetic, so that a slope of any shape that broadcasts will do."""
        found, slope = inputs[:2]
        rank = len(found.ty.shape.values)
        if self.opset < 7 and len(slope.ty.shape.values) == 1:  # a slope per channel, before broadcasting was the rule
            slope = self.bb.emit(relax.op.reshape(slope, [-1, *[1] * (rank - 2)]))
        zero = relax.const(0, str(found.ty.dtype))
        negative = self.bb.emit(relax.op.multiply(slope, self.bb.emit(relax.op.minimum(found, zero))))
        return relax.op.add(self.bb.emit(relax.op.maximum(found, zero)), negative)

    def _clip(self, inputs: Any, _attrs: Any) -> Any:
        """Constant bounds as minimum and maximum; None for others, such as those of the first opsets."""
        bounds = [None if bound is None else constant_value(bound) for bound in inputs[1:3]]
        given = [value for bound, value in zip(inputs[1:3], bounds, strict=True) if bound is not None]
        if not given or any(value is None or value.size != 1 or np.isnan(value).any() for value in given):
            return None
        found, dtype = inputs[0], str(inputs[0].ty.dtype)
        for value, make in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=False):
            if value is not None:
                found = self.bb.emit(make(found, relax.const(value.reshape(()).astype(dtype), dtype)))
        return found

    def _pad(self, inputs: Any, attrs: Any) -> Any:
        """Constant padding by constant widths along all axes; None for other kinds."""
        mode = attrs.get("mode", b"constant")
        if mode not in (b"constant", "constant") or len(inputs) < 2 or inputs[1] is None:
            return None
        widths = constant_value(inputs[1])
        fill = constant_value(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else np.zeros(())
        axes_given = len(inputs) > 3 and inputs[3] is not None
        if widths is None or fill is None or axes_given or widths.min() < 0 or np.any(fill != 0):
            return None
        rank = widths.size // 2
        interleaved = [int(widths[axis + end * rank]) for axis in range(rank) for end in (0, 1)]
        return relax.op.nn.pad(inputs[0], interleaved, "constant", 0.0)

    def _sequence_insert(self, inputs: Any, _attrs: Any) -> Any:
        """Before the element that a constant position names, counted from the end when it is negative."""
        position = constant_value(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else None
        items = list(inputs[0])
        if position is None or position.size != 1 or not -len(items) <= int(position.item()) < 0:
            return None
        items.insert(int(position.item()), inputs[1])
        return relax.Tuple(items)

    def _check_shapes(self, limits: IngestLimits) -> None:
        for name, expr in self._nodes.items():
            ty = getattr(expr, "ty", None)
            if isinstance(expr, relax.Expr) and ty is not None:
                check_shapes(name, ty, limits)


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
