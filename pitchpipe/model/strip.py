"""Takes the weights out of an ONNX file: tuning needs their shapes, not their values.

Every large tensor becomes a graph input of the same name, shape and type, and its name is noted, in order, under the
metadata key `pitchpipe.params`. What stays inside is what decides the program rather than its data:

* operands that the standard defines as shapes, axes, sizes, bounds or quantisation parameters (`SHAPE_OPERANDS`), and
  whatever such an operand is computed from;
* tensors of one element: scalars of the arithmetic, folded into the kernels;
* integers and booleans of at most `KEPT_INTEGERS` elements: indices, masks, position tables.

So every floating-point tensor of two or more elements (a bias, a batch norm's statistics, a kernel) becomes a
parameter, and stripping what is stripped already changes nothing. Needs onnx and NumPy, imported on first use.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitchpipe.errors import InvalidModel
from pitchpipe.model.onnx_params import PARAMS_KEY, param_names
from pitchpipe.model.onnx_shapes import fix_shapes

if TYPE_CHECKING:
    import numpy as np

__all__ = ["StrippedModel", "parse_onnx", "strip_onnx", "strip_proto"]

KEPT_INTEGERS = 1024
"""Largest integer or boolean tensor, in elements, that stays in the graph."""

SHAPE_OPERANDS: Mapping[str, frozenset[int]] = {
    operator: frozenset(operands)
    for operator, operands in {
        "Clip": (1, 2),
        "ConstantOfShape": (0,),
        "CumSum": (1,),
        "DequantizeLinear": (1, 2),
        "Expand": (1,),
        "OneHot": (1, 2),
        "Pad": (1, 2, 3),
        "QuantizeLinear": (1, 2),
        "Range": (0, 1, 2),
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "Squeeze": (1,),
        "Tile": (1,),
        "TopK": (1,),
        "Unsqueeze": (1,),
        "Upsample": (1,),
    }.items()
} | {
    f"Reduce{kind}": frozenset((1,))
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}
"""ONNX operator -> positions of the inputs whose values the compiler must know."""


@dataclass(frozen=True, kw_only=True)
class StrippedModel:
    data: bytes
    """The ONNX file without its weights."""
    weights: dict[str, np.ndarray]
    """Parameter name -> values; empty for what had been stripped before."""


def strip_onnx(
    data: bytes, *, external_dir: Path | None = None, examples: Sequence[Any] | None = None
) -> StrippedModel:
    """Strips the weights of an ONNX file, and gives inputs of open shape those of `examples` (see onnx_shapes.py).

    `external_dir` is the folder of the user's own file: weights stored beside it are then read from there. Without it
    external data is refused by name, as it must be for a file from anyone else. Raises InvalidModel, and InvalidInput for
    examples that contradict the file.
    """
    model = parse_onnx(data)
    if examples:
        fix_shapes(model, examples)
    try:
        weights = strip_proto(model, external_dir=external_dir)
    except UnicodeDecodeError as error:  # told by whichever name is looked at first
        raise InvalidModel(f"a name in the ONNX file is not UTF-8: {error}") from error
    return StrippedModel(data=model.SerializeToString(deterministic=True), weights=weights)


def parse_onnx(data: bytes) -> Any:
    """The ModelProto of an ONNX file; raises InvalidModel for bytes that are not one."""
    import onnx

    # By name, as protobuf has no type stubs here.
    decode_error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except decode_error as error:
        raise InvalidModel("the ONNX file is truncated or is not an ONNX file") from error
    if not model.HasField("graph") or not model.graph.output:
        raise InvalidModel("the ONNX file holds no graph with outputs: it is truncated or is not an ONNX file")
    return model


def strip_proto(model: Any, *, external_dir: Path | None = None, keep_values: bool = True) -> dict[str, np.ndarray]:
    """Strips a ModelProto in place and returns the weights by name, none without `keep_values`; see `strip_onnx`."""
    import onnx

    graph = model.graph
    params = param_names(model)
    _refuse_odd_tensors(model, external_dir is not None)
    _widen(graph, external_dir)
    kept = _known_to_the_compiler(graph)
    weights: dict[str, np.ndarray] = {}
    taken = len(params)
    inputs = {value.name: value for value in graph.input}

    def take(name: str, tensor: Any) -> bool:
        if name in kept or not _is_weight(tensor):
            return False
        if keep_values:
            weights[name] = _values(name, tensor, external_dir)
        if name not in inputs:
            value = onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            graph.input.append(value)
            inputs[name] = value
        params.append(name)
        return True

    initializers = [tensor for tensor in graph.initializer if not take(tensor.name, tensor)]
    nodes = [node for node in graph.node if not (_constant(node) and take(node.output[0], _constant(node)))]
    for tensor in initializers:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(_values(tensor.name, tensor, external_dir), tensor.name))
    if len(params) > taken:
        _replace(graph.initializer, initializers)
        _replace(graph.node, nodes)
    # IR version 3 lists every initializer among the inputs as well; one that stayed is a constant, not an input.
    constants = {tensor.name for tensor in graph.initializer}
    if not constants.isdisjoint(inputs):
        _replace(graph.input, [value for value in graph.input if value.name not in constants])
    if params:
        rest = [entry for entry in model.metadata_props if entry.key != PARAMS_KEY]
        _replace(model.metadata_props, rest)
        model.metadata_props.add(key=PARAMS_KEY, value=json.dumps(params))
    model.ir_version = max(model.ir_version, 4)
    return weights


def _replace(field: Any, values: list[Any]) -> None:
    copies = []
    for value in values:
        copy = type(value)()
        copy.CopyFrom(value)
        copies.append(copy)
    del field[:]
    field.extend(copies)


def _constant(node: Any) -> Any | None:
    """The tensor of a Constant node that holds one."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    return next((entry.t for entry in node.attribute if entry.name == "value" and entry.HasField("t")), None)


def _is_weight(tensor: Any) -> bool:
    import onnx

    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModel(f"tensor {tensor.name!r} has a negative dimension")
    count = math.prod(tensor.dims)
    floating = {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.DOUBLE,
    }
    limit = 1 if tensor.data_type in floating else KEPT_INTEGERS
    return bool(count > limit)


def _values(name: str, tensor: Any, external_dir: Path | None) -> np.ndarray:
    import onnx

    try:
        base = str(external_dir) if external_dir is not None else ""
        values: np.ndarray = onnx.numpy_helper.to_array(tensor, base)
    except Exception as error:  # onnx raises ValueError, TypeError, OSError and its own
        raise InvalidModel(f"tensor {name!r} cannot be read: {str(error)[:300]}") from error
    return values


def _widen(graph: Any, external_dir: Path | None) -> None:
    """Gives quantised weights of less than a byte one byte each, where they are dequantised and nothing else."""
    import onnx

    kinds = {
        getattr(onnx.TensorProto, name): "int8" if name.startswith("INT") else "uint8"
        for name in ("INT2", "UINT2", "INT4", "UINT4")
        if hasattr(onnx.TensorProto, name)
    }
    narrow = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type in kinds}
    if not narrow:
        return
    stays = {value.name for value in graph.output}
    for node in graph.node:
        pair = [name for position, name in enumerate(node.input) if position in (0, 2) and name]
        if node.op_type != "DequantizeLinear" or not all(name in narrow for name in pair):
            stays.update(node.input)
        stays.update(node.input[1:2])
    for name, tensor in narrow.items():
        if name not in stays:
            values = _values(name, tensor, external_dir).astype(kinds[tensor.data_type])
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
    _replace(graph.value_info, [value for value in graph.value_info if value.name not in narrow])


def _known_to_the_compiler(graph: Any) -> set[str]:
    """Names of tensors that shapes are made of: the shape operands, and what they are computed from.

    Only operands that depend on no graph input count: one that does is data, as the scale of a dynamic quantisation is,
    and following it upwards would keep every weight of the layers above.
    """
    producers = {output: node for node in graph.node for output in node.output}
    static = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        # The shape of a tensor is known without its values.
        if node.op_type in ("Shape", "Size") or all(not name or name in static for name in node.input):
            static.update(node.output)
    found: set[str] = set()
    waiting = [
        name
        for node in graph.node
        for position, name in enumerate(node.input)
        if name and position in SHAPE_OPERANDS.get(node.op_type, ())
    ]
    while waiting:
        name = waiting.pop()
        if name in found or name not in static:
            continue
        found.add(name)
        node = producers.get(name)
        if node is not None and node.op_type not in ("Shape", "Size"):
            waiting.extend(filter(None, node.input))
    return found


def _refuse_odd_tensors(model: Any, external_allowed: bool) -> None:
    import onnx

    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL and not external_allowed:
            location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            where = f"tensor {tensor.name!r} is stored outside the file, in {location[:200]!r}"
            raise InvalidModel(f"{where}: external data is not accepted")
    for sparse in model.graph.sparse_initializer:
        raise InvalidModel(f"tensor {sparse.values.name!r} is sparse; sparse initializers are not supported")


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor stored in a graph and its subgraphs."""
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        yield from current.initializer
        for node in current.node:
            for entry in node.attribute:
                if entry.HasField("t"):
                    yield entry.t
                yield from entry.tensors
                if entry.HasField("g"):
                    graphs.append(entry.g)
                graphs.extend(entry.graphs)
