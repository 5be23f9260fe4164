"""Patterns that graph rewrites could get wrong, each against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import expected, ingest_here, inputs_of, run
from tuner import tasks
from tuner.deploy.finish import finish
from tuner.graph.prepare import call_counts, prepare
from tuner.tvm_compat import load_ir


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).normal(0, 1, shape).astype(np.float32)


def depthwise_with_clip() -> Any:
    conv = node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], group=8, pads=[1, 1, 1, 1], strides=[2, 2])
    bounds = {"lo": np.array(0, np.float32), "hi": np.array(6, np.float32)}
    return model(
        [conv, node("Clip", ["c", "lo", "hi"], ["y"])], {"x": [1, 8, 9, 9]}, ["y"], {"w": normal(8, 1, 3, 3)} | bounds
    )


def squeeze_and_excite() -> Any:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[1, 1]),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Conv", ["g", "w2"], ["s"], kernel_shape=[1, 1]),
        node("Sigmoid", ["s"], ["t"]),
        node("Mul", ["c", "t"], ["y"]),
    ]
    weights = {"w": normal(8, 4, 1, 1), "b": normal(8), "w2": normal(8, 8, 1, 1)}
    return model(nodes, {"x": [2, 4, 5, 5]}, ["y"], weights)


def convolution_read_twice_before_its_norm() -> Any:
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
        node("Add", ["n", "c"], ["y"]),
    ]
    weights = {"w": normal(8, 4, 1, 1), "g": normal(8), "b": normal(8), "m": normal(8), "v": abs(normal(8)) + 0.5}
    return model(nodes, {"x": [1, 4, 5, 5]}, ["y"], weights)


def uneven_padding_and_stride() -> Any:
    pads = {"p": np.array([0, 0, 0, 1, 0, 0, 2, 1], np.int64)}
    nodes = [
        node("Pad", ["x", "p"], ["q"]),
        node("Conv", ["q", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 0, 0, 1], strides=[2, 2]),
    ]
    return model(nodes, {"x": [1, 3, 8, 7]}, ["y"], {"w": normal(4, 3, 3, 3)} | pads)


def padding_with_ones() -> Any:
    values = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "one": np.array(1, np.float32)}
    nodes = [node("Pad", ["x", "p", "one"], ["q"]), node("Conv", ["q", "w"], ["y"], kernel_shape=[3, 3])]
    return model(nodes, {"x": [1, 3, 6, 6]}, ["y"], {"w": normal(4, 3, 3, 3)} | values)


def gelu_written_out() -> Any:
    nodes = [
        node("Div", ["x", "r"], ["a"]),
        node("Erf", ["a"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["x", "p"], ["m"]),
        node("Mul", ["m", "h"], ["y"]),
    ]
    scalars = {"r": np.array(2**0.5, np.float32), "one": np.array(1, np.float32), "h": np.array(0.5, np.float32)}
    return model(nodes, {"x": [1, 6, 8]}, ["y"], scalars)


def products_with_unit_dimensions() -> Any:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Add", ["r", "b"], ["s"]),
        node("MatMul", ["s", "w2"], ["t"]),
        node("MatMul", ["t", "v"], ["y"]),
    ]
    weights = {"w": normal(5, 6), "b": normal(1, 1, 6), "w2": normal(1, 6, 2), "v": normal(2)}
    return model(nodes, {"x": [1, 1, 5]}, ["y"], weights)


def broadcasts_between_ranks() -> Any:
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Mul", ["f", "row"], ["a"]),
        node("Reshape", ["a", "tall"], ["t"]),
        node("Add", ["t", "column"], ["b"]),
        node("Softmax", ["b"], ["s"], axis=1),
        node("Transpose", ["s"], ["y"], perm=[0, 2, 1]),
    ]
    weights = {"flat": np.array([4, 6], np.int64), "tall": np.array([1, 4, 6], np.int64)}
    return model(nodes, {"x": [1, 1, 4, 6]}, ["y"], weights | {"row": normal(6), "column": normal(2, 4, 1)})


def a_shape_computed_from_a_shape() -> Any:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i"], ["g"]),
        node("Unsqueeze", ["g", "a0"], ["u"]),
        node("Concat", ["u", "rest"], ["sh"], axis=0),
        node("Reshape", ["x", "sh"], ["y"]),
    ]
    weights = {"i": np.array(0, np.int64), "a0": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    return model(nodes, {"x": [2, 3, 4]}, ["y"], weights)


def split_and_concatenation() -> Any:
    nodes = [
        node("Split", ["x"], ["a", "b"], axis=1),
        node("Relu", ["a"], ["r"]),
        node("Concat", ["r", "b", "a"], ["y"], axis=1),
    ]
    return model(nodes, {"x": [1, 8, 4, 4]}, ["y"])


def sums_and_dropout_of_old_exporters() -> Any:
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        node("Sum", ["c", "x", "row"], ["s"]),
        node("Dropout", ["s"], ["d", "mask"]),
        node("Max", ["d", "x"], ["m"]),
        node("Mean", ["m", "s", "x"], ["a"]),
        node("Conv", ["a", "w"], ["e"], kernel_shape=[1, 1]),
        node("Min", ["e", "d"], ["y"]),
    ]
    return model(nodes, {"x": [1, 4, 5, 6]}, ["y"], {"w": normal(4, 4, 1, 1), "row": normal(6)})


def slopes_per_channel_and_per_element() -> Any:
    nodes = [
        node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
        node("PRelu", ["c", "channels"], ["p"]),
        node("PRelu", ["p", "elements"], ["q"]),
        node("PRelu", ["q", "one"], ["y"]),
    ]
    slopes = {"channels": normal(4, 1, 1), "elements": normal(4, 5, 6), "one": normal(1)}
    return model(nodes, {"x": [1, 4, 5, 6]}, ["y"], {"w": normal(4, 4, 1, 1), **slopes})


def a_sequence_with_an_insertion_before_its_end() -> Any:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("SequenceConstruct", ["x", "a"], ["s"]),
        node("Neg", ["x"], ["b"]),
        node("SequenceInsert", ["s", "b", "last"], ["t"]),
        node("SequenceAt", ["t", "last"], ["y"]),
    ]
    return model(nodes, {"x": [2, 3]}, ["y"], {"last": np.array(-1, np.int64)})


PATTERNS: list[Callable[[], Any]] = [
    depthwise_with_clip,
    squeeze_and_excite,
    convolution_read_twice_before_its_norm,
    uneven_padding_and_stride,
    padding_with_ones,
    gelu_written_out,
    products_with_unit_dimensions,
    broadcasts_between_ranks,
    a_shape_computed_from_a_shape,
    split_and_concatenation,
    sums_and_dropout_of_old_exporters,
    slopes_per_channel_and_per_element,
    a_sequence_with_an_insertion_before_its_end,
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_rewritten_graph_computes_the_same(pattern: Callable[[], Any]) -> None:
    proto = pattern()
    ingested, weights = ingest_here(proto)
    inputs = inputs_of(ingested)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    for ours, theirs in zip(found, expected(proto, inputs), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_networks_of_old_exporters_are_split(name: str) -> None:
    # ONNX brings these along: graphs of real networks, with constants in place of their weights.
    path = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    ingested, _ = ingest_here(onnx.load(path))
    assert len(tasks.split(prepare(load_ir(ingested.ir), TARGET), TARGET)) > 10


def test_what_is_interpolated_is_computed_once_and_not_in_a_concatenation() -> None:
    nodes = [
        node("Resize", [name, "", "", "size"], [f"r{name}"], mode="linear", coordinate_transformation_mode="half_pixel")
        for name in "ab"
    ]
    nodes += [node("Add", ["ra", "ra"], ["s"]), node("Concat", ["s", "rb"], ["y"], axis=1)]
    found = model(nodes, {"a": [1, 4, 5, 5], "b": [1, 4, 3, 3]}, ["y"], {"size": np.array([1, 4, 12, 12])})
    ingested, weights = ingest_here(found)
    prepared = prepare(load_ir(ingested.ir), TARGET)
    resized = [name for name in call_counts(prepared) if "resize" in name]
    assert any("add" in name for name in resized)
    assert not any("concat" in name for name in resized)
    inputs = inputs_of(ingested)
    (ours,), (theirs,) = run(finish(prepared, TARGET), ingested, weights, inputs), expected(found, inputs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
