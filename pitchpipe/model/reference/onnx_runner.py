"""ONNX files: ONNX Runtime where it is installed, else ONNX's own reference evaluator. Needs onnx.

Files do not say which whole numbers their inputs may be. What indexes an axis may be anything up to its extent, found by
following the input through operators that move data; others are zeros and ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference

from pitchpipe.model.comparison import INTEGERS
from pitchpipe.model.onnx_params import param_names
from pitchpipe.model.onnx_shapes import fix_shapes
from pitchpipe.model.reference.expected import CannotRun, ModelFile, rounded

MOVES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose first input's elements are their output's."""
QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators between which ONNX Runtime's fusions may round otherwise than the file: by 4-bit weights it multiplies in 8
bits."""
SEED = 0
_SKIP_ROUNDINGS = (
    "QDQSelectorActionTransformer",
    "QDQPropagationTransformer",
    "DoubleQDQPairsRemover",
    "WeightBiasQuantization",
    "DynamicQuantizeMatMulFusion",
    "MatMulIntegerToFloatFusion",
)
"""Rewrites of ONNX Runtime's that leave out roundings which a file asks for, or add others."""


class OnnxRunner:
    """A file. Weights that were stripped from it are those given by name, or else drawn.

    Examples are arrays in the order of the inputs; they say what the file leaves open of its shapes. One of zeros alone
    says no more than that, as `--input` of a command does: its values are drawn.
    """

    def __init__(self, path: Path, weights: Mapping[str, np.ndarray], examples: Sequence[np.ndarray] = ()) -> None:
        model = onnx.load(path, load_external_data=False)
        rng = np.random.default_rng(SEED)
        if examples:
            fix_shapes(model, examples)
        kept = {tensor.name for tensor in model.graph.initializer}
        params = [name for name in param_names(model) if name not in kept]
        values = {value.name: value for value in model.graph.input if value.name not in kept}
        self.weights = {name: _weight(values[name], rng) for name in params if name not in weights}
        self._bound = {name: weights[name] for name in params if name in weights} | self.weights
        self._names = [name for name in values if name not in params]
        ranges = index_ranges(model)
        drawn = [_example(values[name], ranges.get(name), rng) for name in self._names]
        self.examples = [g if g.any() else d for g, d in zip(examples, drawn, strict=True)] if examples else drawn
        self.steps = output_steps(model)
        self.computed = _least_precise(model)
        self._path, self._rng = path, rng
        self._quantises = any(node.op_type in QUANTISING for node in model.graph.node)
        self._floats = _floats_inside(model) if self._quantises else {}
        try:
            import onnxruntime

            self._by_definition = False
            self._run = self._started({})
            self.name = f"ONNX Runtime {onnxruntime.__version__}"
        except Exception:  # noqa: BLE001 - its own errors, none exported; the reference may know what it does not
            self._by_definition = True
            self._run = self._started({})
            self.name = f"onnx.reference {onnx.__version__}"
        self.rounded, self.widened = (self._rounded if self._quantises else None), None

    def _started(self, weights: Mapping[str, np.ndarray]) -> Any:
        """The file, ready to run, with these weights in place of those inside it.

        ONNX Runtime takes a file that quantises literally: nodes one by one, where fusing some would skip a rounding that
        the file asks for, or on processors whose sums of products of bytes saturate with the one rewrite that avoids it,
        which needs a level.
        """
        if self._by_definition:
            model = onnx.load(self._path)
            for one in model.graph.initializer:
                if one.name in weights:
                    one.CopyFrom(onnx.numpy_helper.from_array(weights[one.name], one.name))
            return onnx.reference.ReferenceEvaluator(model).run
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.x64quantprecision", "1")  # Or sums of two products saturate.
        left_out: list[str] = []
        if self._quantises and _sums_saturate():
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            left_out = [*_SKIP_ROUNDINGS]
        elif self._quantises:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in weights.items()}
        for name, value in self._held.items():
            options.add_initializer(name, value)  # which keeps no reference
        return onnxruntime.InferenceSession(
            str(self._path), options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
        ).run

    def _rounded(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        names = [*self._floats, *self._bound]
        values = dict(zip(names, rounded([*self._floats.values(), *self._bound.values()], self._rng), strict=True))
        bound = {name: values.pop(name) for name in self._bound}
        return _flat(self._started(values)(None, {**bound, **dict(zip(self._names, arrays, strict=True))}))

    def peer(self, arrays: Sequence[np.ndarray], threads: int) -> tuple[str, Callable[[], object]]:
        """ONNX Runtime with all its optimisations, inputs and outputs bound. Raises ImportError without it."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in {**self._bound, **dict(zip(self._names, arrays, strict=True))}.items():
            binding.bind_cpu_input(name, np.asarray(array, order="C"))
        for output in session.get_outputs():
            binding.bind_output(output.name)
        return f"ONNX Runtime {onnxruntime.__version__}", lambda: session.run_with_iobinding(binding)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        feed = {**self._bound, **dict(zip(self._names, arrays, strict=True))}
        found = _flat(self._run(None, feed))
        if not self._by_definition and _finite(arrays) and not _finite(found) and self._doubtful(feed, found):
            raise ArithmeticError("it gives no finite number where ONNX's definition does")
        return found

    def _doubtful(self, feed: Mapping[str, np.ndarray], found: Sequence[np.ndarray]) -> bool:
        """Whether ONNX's reference has more numbers. ONNX Runtime's sigmoid is zero below -18; its logarithm is infinite."""
        try:
            by_definition = _flat(onnx.reference.ReferenceEvaluator(str(self._path)).run(None, feed))
        except Exception:  # noqa: BLE001 - whatever it lacks or meets; ONNX Runtime is taken at its word
            return False
        return any(np.isfinite(a).sum() > np.isfinite(b).sum() for a, b in _floats(by_definition, found))


def _flat(found: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(part) for one in found for part in (one if isinstance(one, list) else [one])]


def _finite(arrays: Sequence[np.ndarray]) -> bool:
    return all(bool(np.isfinite(array).all()) for array, _ in _floats(arrays, arrays))


def _floats(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of arrays of float types."""
    return [(a, b) for a, b in zip(some, others, strict=True) if a.dtype.kind == "f" and b.dtype.kind == "f"]


def from_file(file: ModelFile) -> OnnxRunner:
    """The framework with the file."""
    return OnnxRunner(file.path, file.weights, file.examples)


def _least_precise(model: Any) -> str | None:
    """The least precise floating-point type among inputs, weights and casts; float32 for a file that names none."""
    kinds = {value.type.tensor_type.elem_type for value in model.graph.input}
    kinds |= {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {
        each.i for node in model.graph.node if node.op_type == "Cast" for each in node.attribute if each.name == "to"
    }
    names = {onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds}
    found = {"bfloat16": "bfloat16", "float16": "float16", "float": "float32", "double": "float64"}
    return next((found[each] for each in found if each in names), None)


def output_steps(model: Any) -> tuple[float, ...]:
    """Of each output the step of the grid that it lies on, absolutely; 0 for one that lies on none."""
    graph = model.graph
    inside = onnx.TensorProto.DEFAULT
    known = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == inside}
    made_by = {name: node for node in graph.node for name in node.output}
    found = []
    for value in graph.output:
        node = made_by.get(value.name)
        while node is not None and node.op_type in MOVES - {"Cast"}:
            node = made_by.get(node.input[0])
        step = 0.0
        if node is not None and node.op_type == "DequantizeLinear" and node.input[1] in known:
            step = float(onnx.numpy_helper.to_array(known[node.input[1]]).astype(np.float64).max())
        elif node is not None and (node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear")):
            step = 1.0
        found.append(step)
    return tuple(found)


def _floats_inside(model: Any) -> dict[str, np.ndarray]:
    """Initialisers of floating-point numbers whose values are in the file, by name."""
    inside = (one for one in model.graph.initializer if one.data_location == onnx.TensorProto.DEFAULT)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in inside}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _sums_saturate() -> bool:
    """Whether ONNX Runtime adds products of unsigned and signed bytes in 16 bits here, which saturates: on x86 without the
    instructions that add them in 32 (VNNI)."""
    try:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return False
    return flags is not None and not {"avx512_vnni", "avx_vnni"} & set(flags[1].split())


def index_ranges(model: Any) -> dict[str, int]:
    """Largest index that each graph input may hold, of those that index an axis of a tensor of known shape."""
    graph = model.graph
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in [*graph.input, *graph.value_info]:
        dims = value.type.tensor_type.shape.dim
        if dims and all(dim.HasField("dim_value") for dim in dims):
            shapes.setdefault(value.name, [dim.dim_value for dim in dims])
    for node in graph.node:
        tensor = next((entry.t for entry in node.attribute if entry.name == "value" and entry.HasField("t")), None)
        if node.op_type == "Constant" and tensor is not None:
            shapes.setdefault(node.output[0], list(tensor.dims))
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in MOVES and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type in ("Gather", "GatherElements") and len(node.input) > 1 and node.input[1] in origin:
            shape = shapes.get(node.input[0])
            axis = next((int(entry.i) for entry in node.attribute if entry.name == "axis"), 0)
            if shape and -len(shape) <= axis < len(shape):
                name = origin[node.input[1]]
                found[name] = min(found.get(name, shape[axis] - 1), shape[axis] - 1)
    return found


def _example(value: Any, largest: int | None, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = _tensor(value)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = INTEGERS
        if largest is not None:
            high = largest
        elif dtype.itemsize == 1:  # pixels and quantised values; indices are of 32 or 64 bits
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        array: np.ndarray = rng.integers(low, high, shape, endpoint=True).astype(dtype)
        if array.size > 1:
            array.flat[0], array.flat[-1] = low, high  # ranges are read off examples
        return array
    return rng.standard_normal(shape).astype(dtype)


def _weight(value: Any, rng: np.random.Generator) -> np.ndarray:
    """Values that neither vanish nor explode, and none that a variance cannot have."""
    shape, dtype = _tensor(value)
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    if len(shape) < 2:
        return rng.uniform(0.5, 1.5, shape).astype(dtype)
    values: np.ndarray = rng.standard_normal(shape) / np.sqrt(np.prod(shape) / max(shape))
    return values.astype(dtype)


def _tensor(value: Any) -> tuple[list[int], np.dtype[Any]]:
    tensor = value.type.tensor_type
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise CannotRun(f"input {value.name!r} has no static shape")
    return [dim.dim_value for dim in tensor.shape.dim], onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
