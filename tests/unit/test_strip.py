"""Weights leave an ONNX file; what decides the program stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from pitchpipe.errors import InvalidModel
from pitchpipe.model.onnx_params import PARAMS_KEY, param_names
from pitchpipe.model.strip import parse_onnx, strip_onnx
from tests.compiler.models import model, node, small_network


def test_every_weight_becomes_a_parameter_and_every_shape_stays() -> None:
    original = small_network()
    stripped = strip_onnx(original.SerializeToString())
    graph = parse_onnx(stripped.data).graph
    assert param_names(parse_onnx(stripped.data)) == ["w1", "bias1", "g", "b", "m", "v", "w2", "w3", "bias3"]
    assert {tensor.name for tensor in graph.initializer} == {"pads", "low", "high", "shape"}
    assert graph.input[0].name == "x"
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in original.graph.initializer}
    for name, value in stripped.weights.items():
        np.testing.assert_array_equal(value, values[name])


def test_stripping_what_is_stripped_changes_nothing() -> None:
    once = strip_onnx(small_network().SerializeToString())
    twice = strip_onnx(once.data)
    assert twice.data == once.data
    assert twice.weights == {}


def test_two_files_that_differ_in_weights_only_strip_to_the_same_bytes() -> None:
    first, second = (strip_onnx(small_network(seed).SerializeToString()) for seed in (1, 2))
    assert first.data == second.data


def test_weights_in_constant_nodes_are_taken_out_too() -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "whatever")
    proto = model([node("Constant", [], ["w"], value=weight), node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, ["y"])
    stripped = strip_onnx(proto.SerializeToString())
    assert list(stripped.weights) == ["w"]
    assert [n.op_type for n in parse_onnx(stripped.data).graph.node] == ["MatMul"]


def test_the_scale_of_a_dynamic_quantisation_keeps_no_weights_in_the_graph() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("ReduceMax", ["h"], ["scale"], keepdims=0),
        node("QuantizeLinear", ["h", "scale"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4]}, ["y"], {"w": np.ones((4, 4), np.float32)})
    assert list(strip_onnx(proto.SerializeToString()).weights) == ["w"]


def test_a_shape_computed_from_constants_keeps_them() -> None:
    nodes = [node("Mul", ["half", "two"], ["scales"]), node("Resize", ["x", "", "scales"], ["y"], mode="nearest")]
    weights = {"half": np.full(4, 0.5, np.float32), "two": np.array([2, 2, 4, 4], np.float32)}
    assert strip_onnx(model(nodes, {"x": [1, 1, 4, 4]}, ["y"], weights).SerializeToString()).weights == {}


def test_initializers_that_are_listed_as_inputs_are_no_inputs() -> None:
    proto = small_network()
    proto.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    proto.graph.input.append(helper.make_tensor_value_info("w3", TensorProto.FLOAT, [10, 16]))
    names = [value.name for value in parse_onnx(strip_onnx(proto.SerializeToString()).data).graph.input]
    assert "shape" not in names
    assert names.count("w3") == 1


def _external(location: str) -> bytes:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, ["y"], {"w": np.ones((4, 4), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto.SerializeToString()


def test_external_data_is_refused_by_name() -> None:
    with pytest.raises(InvalidModel, match=r"'w' is stored outside the file, in '/etc/passwd'"):
        strip_onnx(_external("/etc/passwd"))


def test_external_data_beside_the_users_own_file_is_read(tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    (tmp_path / "weights.bin").write_bytes(values.tobytes())
    stripped = strip_onnx(_external("weights.bin"), external_dir=tmp_path)
    np.testing.assert_array_equal(stripped.weights["w"], values)


def test_external_data_outside_the_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    inner = tmp_path / "model"
    inner.mkdir()
    with pytest.raises(InvalidModel, match="'w'"):
        strip_onnx(_external("../secret"), external_dir=inner)


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a model", small_network().SerializeToString()[:-40]])
def test_bytes_that_are_no_onnx_file_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidModel, match="not an ONNX file"):
        parse_onnx(data)


@pytest.mark.parametrize("value", ["[", "{}", '["nowhere"]', "[1]", "[" * 100_000])
def test_malformed_parameter_lists_are_refused(value: str) -> None:
    proto = small_network()
    proto.metadata_props.add(key=PARAMS_KEY, value=value)
    with pytest.raises(InvalidModel, match=PARAMS_KEY):
        strip_onnx(proto.SerializeToString())


def test_a_negative_dimension_is_refused_by_name() -> None:
    proto = small_network()
    proto.graph.initializer[0].dims[0] = -16
    with pytest.raises(InvalidModel, match="'w1' has a negative dimension"):
        strip_onnx(proto.SerializeToString())


def test_a_name_that_is_no_text_is_refused() -> None:
    proto = model(
        [node("MatMul", ["x", "weight"], ["y"])], {"x": [2, 4]}, ["y"], {"weight": np.ones((4, 4), np.float32)}
    )
    with pytest.raises(InvalidModel, match="UTF-8"):
        strip_onnx(proto.SerializeToString().replace(b"weight", b"we\xffght"))


def test_weights_of_four_bits_that_are_only_dequantised_have_a_byte_each() -> None:
    values = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    weights = {"w": helper.make_tensor("w", TensorProto.INT4, [2, 8], values.reshape(-1).tolist())}
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["real"], axis=0, block_size=1),
        node("MatMul", ["x", "real"], ["y"]),
    ]
    proto = model(nodes, {"x": [3, 2]}, ["y"], {"scale": np.full((2, 8), 0.5, np.float32)})
    proto.graph.initializer.append(weights["w"])
    (found,) = [
        each for each in parse_onnx(strip_onnx(proto.SerializeToString()).data).graph.initializer if each.name == "w"
    ]
    assert found.data_type == TensorProto.INT8
    np.testing.assert_array_equal(numpy_helper.to_array(found), values)
    proto.graph.node.append(node("Cast", ["w"], ["z"], to=TensorProto.FLOAT))
    (found,) = [
        each for each in parse_onnx(strip_onnx(proto.SerializeToString()).data).graph.initializer if each.name == "w"
    ]
    assert found.data_type == TensorProto.INT4
