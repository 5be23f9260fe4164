"""TFLite files become models that compute what TFLite's own interpreter computes; their weights stay with the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidModel, PitchpipeError, UnsupportedOperator
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.graph import finish, prepare
from tuner.ingest import IngestLimits, convert, ingest
from tuner.tvm_compat import load_ir

pytest.importorskip("tflite")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
flatbuffers = pytest.importorskip("flatbuffers")

FLOAT, INT32 = 0, 2
SAME, RELU6 = 0, 3


class Graph:
    """Writes a TFLite file operator by operator, as TensorFlow's converter would."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.operatorCodes = []
        self.model.buffers = [schema.BufferT()]
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs = [self.graph]

    def tensor(self, name: str, shape: tuple[int, ...], values: np.ndarray | None = None) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape = name, list(shape)
        tensor.type = INT32 if values is not None and values.dtype == np.int32 else FLOAT
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def weight(self, name: str, values: np.ndarray) -> int:
        return self.tensor(name, values.shape, values)

    def add(self, kind: str, inputs: list[int], shape: tuple[int, ...], **fields: Any) -> int:
        """One operator of the schema's name `kind`; the fields are those of its options."""
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        self.model.operatorCodes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = inputs, [self.tensor(f"{kind}:{len(self.graph.operators)}", shape)]
        options = fields.pop("options", None)
        if options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for name, value in fields.items():
                setattr(operator.builtinOptions, name, value)
        self.graph.operators.append(operator)
        return int(operator.outputs[0])

    def bytes(self, inputs: list[int], outputs: list[int]) -> bytes:
        self.graph.inputs, self.graph.outputs = inputs, outputs
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def network(seed: int = 0) -> bytes:
    """A strided convolution, a depthwise one beside it, pooling, a head: what mobile networks are made of."""
    rng = np.random.default_rng(seed)

    def values(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    g = Graph()
    x = g.tensor("x", (1, 12, 12, 3))
    strided = {"padding": SAME, "strideW": 2, "strideH": 2, "dilationWFactor": 1, "dilationHFactor": 1}
    a = g.add(
        "CONV_2D",
        [x, g.weight("stem/kernel", values(16, 3, 3, 3)), g.weight("stem/bias", values(16))],
        (1, 6, 6, 16),
        **strided,
        options="Conv2DOptions",
        fusedActivationFunction=RELU6,
    )
    b = g.add(
        "DEPTHWISE_CONV_2D",
        [a, g.weight("deep/kernel", values(1, 3, 3, 16)), g.weight("deep/bias", values(16))],
        (1, 6, 6, 16),
        **(strided | {"strideW": 1, "strideH": 1}),
        options="DepthwiseConv2DOptions",
        depthMultiplier=1,
    )
    c = g.add("ADD", [a, b], (1, 6, 6, 16), options="AddOptions")
    pooled = {"padding": SAME, "strideW": 2, "strideH": 2, "filterWidth": 3, "filterHeight": 3}
    d = g.add("MAX_POOL_2D", [c], (1, 3, 3, 16), **pooled, options="Pool2DOptions")
    e = g.add("MEAN", [d, g.weight("axes", np.array([1, 2], np.int32))], (1, 16), options="ReducerOptions")
    f = g.add(
        "FULLY_CONNECTED",
        [e, g.weight("head/kernel", values(10, 16)), g.weight("head/bias", values(10))],
        (1, 10),
        options="FullyConnectedOptions",
    )
    return g.bytes([x], [g.add("SOFTMAX", [f], (1, 10), options="SoftmaxOptions", beta=1.0), c])


def interpreted(data: bytes, x: np.ndarray) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]


def test_a_network_computes_what_the_interpreter_computes() -> None:
    data = network()
    relax, weights = convert(data, ModelFormat.TFLITE)
    ingested = ingest(relax, ModelFormat.RELAX)  # as the service reads it
    assert [(spec.name, spec.shape) for spec in ingested.inputs] == [("x", (1, 12, 12, 3))]
    assert {"stem/kernel", "deep/kernel", "head/kernel", "head/bias"} <= set(weights)
    x = np.random.default_rng(1).normal(0, 1, (1, 12, 12, 3)).astype(np.float32)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET)), ingested, weights, [x])
    for ours, theirs in zip(found, interpreted(data, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_weights_are_not_in_what_is_sent() -> None:
    assert convert(network(0), ModelFormat.TFLITE)[0] == convert(network(1), ModelFormat.TFLITE)[0]


def skip_gram() -> bytes:
    g = Graph()
    x = g.tensor("x", (1, 4))
    return g.bytes([x], [g.add("SKIP_GRAM", [x], (1, 4))])


def misshapen() -> bytes:
    g = Graph()
    x = g.tensor("x", (1, 4))
    w = g.weight("w", np.ones((3, 5), np.float32))
    return g.bytes([x], [g.add("FULLY_CONNECTED", [x, w], (1, 3), options="FullyConnectedOptions")])


def draws() -> bytes:
    g = Graph()
    shape = g.weight("shape", np.array([2, 3], np.int32))
    return g.bytes([], [g.add("RANDOM_UNIFORM", [shape], (2, 3), options="RandomOptions", seed=1, seed2=2)])


HOSTILE: dict[str, tuple[Callable[[], bytes], type[PitchpipeError], str]] = {
    "not one": (lambda: b"PK and more", InvalidModel, "is not a TFLite file"),
    "cut off": (lambda: network()[:600], InvalidModel, "truncated or malformed"),
    "an operator without a conversion": (skip_gram, UnsupportedOperator, "SKIP_GRAM"),
    "an operator that calls out": (draws, UnsupportedOperator, "RANDOM_UNIFORM|call_dps_packed"),
    "shapes that do not fit": (misshapen, InvalidModel, "FULLY_CONNECTED"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_tuned_is_refused_by_name(case: str) -> None:
    from tuner.ingest.tflite_reader import read_tflite

    make, kind, message = HOSTILE[case]
    with pytest.raises(kind, match=message):
        read_tflite(make(), IngestLimits())


def test_without_its_library_a_file_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.ingest.find_spec", lambda name: None)
    with pytest.raises(InvalidModel, match=r"needs tflite: install pitchpipe\[tflite\]"):
        convert(b"", ModelFormat.TFLITE)
