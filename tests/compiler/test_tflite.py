"""TFLite files become models that compute what TFLite's own interpreter computes; their weights stay with the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pitchpipe.errors import InvalidModel, PitchpipeError, UnsupportedOperator
from pitchpipe.model.comparison import difference
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.prepare import prepare
from tuner.ingest import IngestedModel, IngestLimits, convert, ingest, parse_container
from tuner.ingest.isolation import join_weights, split_weights
from tuner.tvm_compat import load_ir

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("flatbuffers")
from tuner.ingest.tflite_reader import read_tflite  # needs tflite

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from frontends.tflite_files import FILES, SAME, STEPS, Graph, example_inputs, interpreted
finally:
    sys.path.pop(0)

RELU6 = 3


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
    e = g.add("MEAN", [d, g.weight("axes", [1, 2], "int32")], (1, 16), options="ReducerOptions")
    f = g.add(
        "FULLY_CONNECTED",
        [e, g.weight("head/kernel", values(10, 16)), g.weight("head/bias", values(10))],
        (1, 10),
        options="FullyConnectedOptions",
    )
    return g.bytes([x], [g.add("SOFTMAX", [f], (1, 10), options="SoftmaxOptions", beta=1.0), c])


def test_a_network_computes_what_the_interpreter_computes() -> None:
    data = network()
    relax, weights = convert(data, ModelFormat.TFLITE)
    ingested = ingest(relax, ModelFormat.RELAX)  # as the service reads it
    assert [(spec.name, spec.shape) for spec in ingested.inputs] == [("x", (1, 12, 12, 3))]
    assert {"stem/kernel", "deep/kernel", "head/kernel", "head/bias"} <= set(weights)
    x = np.random.default_rng(1).normal(0, 1, (1, 12, 12, 3)).astype(np.float32)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [x])
    for ours, theirs in zip(found, interpreted(data, [x]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FILES)
def test_a_file_means_what_it_means_to_the_interpreter(name: str) -> None:
    data = FILES[name]()
    ingested, weights = read(data)
    finished, step = finish(prepare(load_ir(ingested.ir), TARGET), TARGET), STEPS.get(name)
    inputs = example_inputs(data, 1)
    found, expected = run(finished, ingested, weights, inputs), interpreted(data, inputs)
    steps = []
    for ours, theirs in zip(found, expected, strict=True):
        if step is None and theirs.dtype != np.int8:
            assert difference([ours], [theirs]) is None
            continue
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        steps.append(np.abs(ours.astype(float) - theirs.astype(float)).ravel() / (step or 1.0))
    if steps:
        assert np.concatenate(steps).max() <= 1.01
        assert (np.concatenate(steps) > 0.5).mean() < 0.1  # Rounding now and then, and not a bias.


def read(data: bytes) -> tuple[IngestedModel, dict[str, np.ndarray]]:
    model, raw = read_tflite(data, IngestLimits())
    return parse_container(model), split_weights(join_weights(model, raw))[1]


def rescaled() -> bytes:
    g = Graph()
    x = g.tensor("x", (2, 3), dtype="int8", scale=0.1)
    order = g.weight("order", [1, 0], "int32")
    return g.bytes([x], [g.add("TRANSPOSE", [x, order], (3, 2), dtype="int8", scale=0.2, version=2)])


def test_the_weights_are_not_in_what_is_sent() -> None:
    assert convert(network(0), ModelFormat.TFLITE)[0] == convert(network(1), ModelFormat.TFLITE)[0]


def skip_gram() -> bytes:
    g = Graph()
    x = g.tensor("x", (1, 4))
    return g.bytes([x], [g.add("SKIP_GRAM", [x], (1, 4))])


def misshapen() -> bytes:
    g = Graph()
    x = g.tensor("x", (1, 4))
    w = g.weight("w", np.ones((3, 5)))
    return g.bytes([x], [g.add("FULLY_CONNECTED", [x, w], (1, 3), options="FullyConnectedOptions")])


def draws() -> bytes:
    g = Graph()
    shape = g.weight("shape", [2, 3], "int32")
    return g.bytes([], [g.add("RANDOM_UNIFORM", [shape], (2, 3), options="RandomOptions", seed=1, seed2=2)])


HOSTILE: dict[str, tuple[Callable[[], bytes], type[PitchpipeError], str]] = {
    "not one": (lambda: b"PK and more", InvalidModel, "is not a TFLite file"),
    "cut off": (lambda: network()[:600], InvalidModel, "truncated or malformed"),
    "an operator without a conversion": (skip_gram, UnsupportedOperator, "SKIP_GRAM"),
    "an operator that calls out": (draws, UnsupportedOperator, "RANDOM_UNIFORM|call_dps_packed"),
    "a copy to another scale": (rescaled, UnsupportedOperator, "TRANSPOSE from one quantisation to another"),
    "shapes that do not fit": (misshapen, InvalidModel, "FULLY_CONNECTED"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_tuned_is_refused_by_name(case: str) -> None:
    make, kind, message = HOSTILE[case]
    with pytest.raises(kind, match=message):
        read_tflite(make(), IngestLimits())


def test_without_its_library_a_file_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.ingest.find_spec", lambda name: None)
    with pytest.raises(InvalidModel, match=r"needs tflite: install pitchpipe\[tflite\]"):
        convert(b"", ModelFormat.TFLITE)
