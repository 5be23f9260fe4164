"""ONNX files that leave shapes open, and example inputs that fix them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import local_model
from pitchpipe.model.reference.onnx_runner import OnnxRunner


def open_model() -> Any:
    """y = x + mean(w[ids]), of a batch and a width that are open."""
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["words"]),
        helper.make_node("ReduceMean", ["words"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Add", ["x", "mean"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "open",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 5]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(np.ones((20, 8), np.float32), "w")],
        value_info=[helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


IDS, X = np.array([[1, 2, 3, 4, 19]] * 3), np.full((3, 8), 2, np.float32)


def shapes(values: Any) -> dict[str, list[Any]]:
    return {value.name: [dim.dim_value or None for dim in value.type.tensor_type.shape.dim] for value in values}


def test_example_inputs_give_every_extent_of_their_names_a_number() -> None:
    graph = onnx.load_from_string(local_model(open_model().SerializeToString(), [IDS, X]).data).graph
    assert shapes(graph.input) == {"ids": [3, 5], "x": [3, 8], "w": [20, 8]}
    assert shapes([*graph.output, *graph.value_info]) == {"y": [3, 8], "mean": [3, 8]}


def test_a_model_without_example_inputs_stays_open() -> None:
    graph = onnx.load_from_string(local_model(open_model().SerializeToString()).data).graph
    assert shapes(graph.input)["x"] == [None, None]


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        ([IDS], "1 example inputs are given; the model takes 2: ids, x"),
        ([IDS, X[:2]], "where batch is 3"),
        ([IDS[:, :4], X], r"has shape \[3, 4\]; the model takes \['batch', 5\]"),
        ([IDS, X[0]], "has shape"),
        ([IDS.astype(np.int32), X], "is of type int32; the model takes int64"),
    ],
)
def test_example_inputs_that_contradict_the_file_are_refused(examples: list[np.ndarray], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        local_model(open_model().SerializeToString(), examples)


def test_the_framework_is_asked_on_the_examples_and_on_drawn_values_where_they_are_zeros_alone(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(open_model(), path)
    given = OnnxRunner(path, {}, [IDS, X])
    assert [np.array_equal(one, other) for one, other in zip(given.examples, (IDS, X), strict=True)] == [True, True]
    np.testing.assert_allclose(given(given.examples)[0], X + 1)
    drawn = OnnxRunner(path, {}, [np.zeros_like(IDS), np.zeros_like(X)]).examples
    assert [one.shape for one in drawn] == [(3, 5), (3, 8)]
    assert drawn[0].max() == 19
    assert drawn[1].std() > 0
