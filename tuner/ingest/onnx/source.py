"""An ONNX file before its nodes are read: what can be refused by looking at the graph, and the walk's beginning and end.

The order of checks matters: what can be said of the graph by reading it (external data, domains, types, cycles) is said
first, with the names of the file; what only the conversion finds is told with its node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.onnx_params import param_names
from pitchpipe.model.strip import parse_onnx, strip_proto
from tuner.graph.precision import TF32
from tuner.ingest import IngestLimits, TensorSpec
from tuner.ingest.finalize import check_static
from tuner.ingest.onnx.gelu import assemble_gelu
from tuner.ingest.onnx.node import CONSTANT_TYPES
from tuner.ingest.onnx.readers.casting import EIGHT_BITS
from tuner.ingest.onnx.scope import Scope
from tuner.ingest.onnx.walk import Walker
from tuner.ingest.precision import tf32_of_onnx
from tuner.tvm_compat import relax, te, tirx


class Source:
    """A parsed file: its graph sorted, without weights, and what main takes."""

    def __init__(self, data: bytes, limits: IngestLimits) -> None:
        model = parse_onnx(data)
        if model.functions:
            model = _inlined(model)
        if len(model.graph.node) > limits.nodes:
            raise TooLarge(f"the graph has {len(model.graph.node)} nodes; the limit is {limits.nodes}")
        strip_proto(model, keep_values=False)
        self.tf32 = tf32_of_onnx(model)
        params = param_names(model)
        self.graph = graph = model.graph
        for index, node in enumerate(graph.node):
            node.name = node.name or f"number {index}, output {node.output[0] if node.output else ''}"
        self.opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
        _sort(graph)
        specs = {value.name: _spec(value, limits) for value in graph.input}
        if len(specs) < len(graph.input):
            raise InvalidModel("two inputs of the graph have the same name")
        inputs = [name for name in specs if name not in set(params)]
        self.specs = [specs[name] for name in (*inputs, *params)]
        self.num_input = len(inputs)

    def convert(self, limits: IngestLimits, refusals: list[tuple[Any, PitchpipeError]] | None = None) -> Any:
        """The module; with `refusals`, nodes that are refused are noted there and the module is of no use."""
        builder = relax.BlockBuilder()
        declared = {value.name: value.type for value in (*self.graph.value_info, *self.graph.output)}
        scope = Scope(self.opsets, None, declared)
        for tensor in self.graph.initializer:
            scope.values[tensor.name] = numpy_helper.to_array(tensor)
        variables = []
        for value in self.graph.input:
            spec = next(spec for spec in self.specs if spec.name == value.name)
            variables.append(relax.Var(spec.name, relax.TensorType(list(spec.shape), spec.dtype)))
            scope.values[spec.name] = np.zeros(spec.shape, spec.dtype) if 0 in spec.shape else variables[-1]
        attrs = {"num_input": self.num_input} | ({TF32: self.tf32} if self.tf32 else {})
        with builder.function("main", variables, attrs=attrs):
            with builder.dataflow():
                Walker(builder, limits, refusals).run(self.graph.node, scope)
                outputs = [_output(builder, scope, value.name) for value in self.graph.output if refusals is None]
                result = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
            builder.emit_func_output(result)
        return assemble_gelu(builder.get()) if refusals is None else builder.get()


def _output(builder: Any, scope: Scope, name: str) -> Any:
    value = scope.find(name)
    if isinstance(value, np.ndarray) and value.dtype.name in CONSTANT_TYPES:
        return _constant(builder, value)
    if not isinstance(value, relax.Expr):
        raise UnsupportedOperator(
            f"the graph's output {name!r} is a sequence, an optional, or of a type without arithmetic"
        )
    return value


def _constant(builder: Any, value: Any) -> Any:
    """An output that is known now."""
    dtype = value.dtype.name
    if value.size == 0:  # TVM can store no constant without elements.
        shape = [tirx.IntImm("int64", extent) for extent in value.shape]
        return builder.emit_te(lambda: te.compute(shape, lambda *_at: tirx.const(0, dtype), name="empty"))
    return relax.const(np.ascontiguousarray(value).reshape(value.shape), dtype)


def _inlined(model: Any) -> Any:
    """Model-local functions written out at their call sites."""
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # onnx raises its own C++ errors: ValueError, RuntimeError, InferenceError
        raise InvalidModel(f"the model's own functions cannot be inlined: {str(error)[:300]}") from error


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
        sources = {made[name] for name in _captured(node) if name in made}
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


def _captured(node: Any) -> set[str]:
    """Names that a node's subgraphs read from the graphs around them."""
    found: set[str] = set()
    for entry in node.attribute:
        for graph in (*([entry.g] if entry.HasField("g") else []), *entry.graphs):
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            used = {value.name for value in graph.output}
            for inner in graph.node:
                own.update(inner.output)
                used.update(inner.input)
                used |= _captured(inner)
            found |= used - own - {""}
    return found


def _is_sorted(graph: Any, given: set[str]) -> bool:
    seen = set(given)
    for node in graph.node:
        if any(name and name not in seen for name in node.input) or not _captured(node) <= seen:
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
        raise UnsupportedShape(f"tensor {name!r} has no shape: example inputs give it one")
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        if not dim.HasField("dim_value"):
            symbol = repr(dim.dim_param) if dim.dim_param else "unknown"
            raise UnsupportedShape(
                f"tensor {name!r} has a dynamic dimension ({symbol}, axis {axis}): shapes are static;"
                " example inputs fix them"
            )
        shape.append(dim.dim_value)
    check_static(name, shape, limits, empty=True)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"tensor {name!r} has an unknown element type {tensor.elem_type}") from error
    if dtype in ("object", "str"):
        raise InvalidModel(f"tensor {name!r} holds strings")
    if dtype not in CONSTANT_TYPES | EIGHT_BITS:
        raise UnsupportedOperator(
            f"tensor {name!r} holds elements of type {dtype}, smaller than a byte or not arithmetic"
        )
    return TensorSpec(name=name, shape=tuple(shape), dtype=dtype)
