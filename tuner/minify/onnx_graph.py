"""An ONNX model as a source: its nodes, their values from ONNX Runtime or from onnx's own interpreter, and parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper

from pitchpipe.errors import InvalidModel, UnsupportedShape
from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import DEFAULT_LIMITS, TensorSpec
from tuner.ingest.child import reader
from tuner.minify import Converted, Node, Part, Source
from tuner.minify.onnx_code import code_of

_SHAPES = ("Shape", "Size")
"""Operators whose result depends on no value."""


class OnnxSource(Source):
    """A model with its weights, run once on `inputs`, by name."""

    def __init__(self, model: Any, inputs: Mapping[str, np.ndarray]) -> None:
        self._whole = model
        self._model = onnx.inliner.inline_local_functions(model) if model.functions else model
        graph = self._model.graph
        self._nodes = {f"#{index}": node for index, node in enumerate(graph.node)}
        self._weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._inputs = {name: np.asarray(array) for name, array in inputs.items()}
        self.outputs = [value.name for value in graph.output]
        self.nodes = [
            Node(
                name=key,
                label=str(node.name or f"number {key[1:]}, output {node.output[0] if node.output else ''}"),
                operator=f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type,
                reads=tuple(dict.fromkeys(_reads(node))),
                gives=tuple(filter(None, node.output)),
            )
            for key, node in self._nodes.items()
        ]
        self.framework, self.values = self._recorded()
        self.constant = self._constants()

    def model(self) -> Part:
        """The whole model, as it came."""
        data = self._whole.SerializeToString()
        return Part(
            nodes=tuple(self.nodes),
            convert=lambda: _converted(data),
            inputs=tuple(self._inputs.values()),
            expected=tuple(self.values[name] for name in self.outputs),
            operands=((),) * len(self.outputs),
            weights={},
        )

    def part(self, nodes: Sequence[Node], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]) -> Part:
        """The part of `nodes`, in order, that takes and gives these values and has `constants` as initializers."""
        weights = {name: self.values[name] for name in constants}
        protos = [self._nodes[node.name] for node in nodes]
        graph = helper.make_graph(
            protos,
            "part",
            [_info(name, self.values[name]) for name in takes],
            [_info(name, self.values[name]) for name in gives],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        data = model.SerializeToString()
        return Part(
            nodes=tuple(nodes),
            convert=lambda: _converted(data),
            inputs=tuple(self.values[name] for name in takes),
            expected=tuple(self.values[name] for name in gives),
            operands=tuple(self.operands_of(name) for name in gives),
            code=lambda: code_of(model),
            weights=weights,
        )

    def _recorded(self) -> tuple[str, dict[str, np.ndarray]]:
        """What ran the model, and every tensor in it by name."""
        names = [name for node in self.nodes for name in node.gives]
        extended = onnx.ModelProto()
        extended.CopyFrom(self._model)
        have = {value.name for value in extended.graph.output}
        extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
        framework, run = runner(extended)
        wanted = [value.name for value in extended.graph.output]
        found = dict(zip(wanted, run(wanted, self._inputs), strict=True))
        found = {name: array for name, array in found.items() if isinstance(array, np.ndarray)}
        return framework, {**self._weights, **self._inputs, **found}

    def _constants(self) -> frozenset[str]:
        known = set(self._weights)
        for node in self.nodes:
            if node.operator in _SHAPES or all(name in known for name in node.reads):
                known.update(node.gives)
        return frozenset(known)


def specs_of(model: Any) -> list[TensorSpec]:
    """The inputs of a model, in order; raises UnsupportedShape for one that is open, InvalidModel for one without a type."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [_spec(value) for value in model.graph.input if value.name not in stored]


def _spec(value: Any) -> TensorSpec:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.elem_type:
        raise InvalidModel(f"input {value.name!r} is no tensor of a known type")
    tensor = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    if not tensor.HasField("shape") or None in shape:
        raise UnsupportedShape(f"tensor {value.name!r} has a dynamic dimension: shapes are static")
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return TensorSpec(name=value.name, shape=tuple(extent for extent in shape if extent is not None), dtype=dtype)


def runner(model: Any) -> tuple[str, Any]:
    """What runs ONNX models here, by name, and run(names of outputs, inputs by name) -> arrays."""
    data = model.SerializeToString()
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # no thread of its own: this process forks
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001 - an operator or a type that it lacks: onnx's own has all
            pass
        else:
            return "ONNX Runtime", lambda names, inputs: [np.asarray(each) for each in session.run(names, dict(inputs))]
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(model)
    except Exception as error:
        raise InvalidModel(f"neither ONNX Runtime nor onnx runs the model: {str(error)[:300]}") from error
    return "onnx.reference", lambda names, inputs: evaluator.run(names, dict(inputs))


def _reads(node: Any) -> list[str]:
    """Tensors that a node reads, those that its subgraphs take from outside included."""
    found = [name for name in node.input if name]
    for entry in node.attribute:
        for graph in [entry.g] if entry.HasField("g") else entry.graphs:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {name for inner in graph.node for name in inner.output}
            found += [name for inner in graph.node for name in _reads(inner) if name not in own]
            found += [value.name for value in graph.output if value.name not in own]
    return found


def _info(name: str, array: np.ndarray) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))


def _converted(data: bytes) -> Converted:
    stripped = strip_onnx(data)
    return reader(ModelFormat.ONNX)(stripped.data, DEFAULT_LIMITS), stripped.weights
