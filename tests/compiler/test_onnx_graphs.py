"""Whole ONNX graphs as exporters write them, beside ONNX Runtime or onnx's reference; and hostile ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.comparison import difference
from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.job import ModelFormat
from tests.compiler.models import model, node, small_network
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.ingest import IngestLimits, ingest
from tuner.ingest.onnx.survey import survey
from tuner.ingest.onnx_reader import read_onnx
from tuner.tvm_compat import load_ir, relax, tvm
from workers.device import detect_target

pytestmark = pytest.mark.usefixtures("unoptimised")
LIMITS = IngestLimits()


def ours(proto: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The model's outputs, built without schedules."""
    stripped = strip_onnx(proto.SerializeToString())
    found = read_onnx(stripped.data, LIMITS)
    machine = relax.VirtualMachine(compile_scheduled(schedule_model(found, detect_target("llvm"), {})), tvm.cpu())
    weights = [tvm.runtime.tensor(stripped.weights[spec.name]) for spec in found.params]
    params = machine["main_transform_params"](weights)
    answer = machine["main"](*map(tvm.runtime.tensor, inputs), *params)
    return [answer.numpy()] if hasattr(answer, "numpy") else [part.numpy() for part in answer]


def theirs(proto: Any, inputs: Sequence[np.ndarray], *, literally: bool = False) -> list[np.ndarray]:
    """literally: nodes one by one. Where some were fused, sums of products of bytes saturate on processors without
    instructions for them."""
    feed = {value.name: array for value, array in zip(proto.graph.input, inputs, strict=True)}
    try:
        import onnxruntime
    except ImportError:
        return [np.asarray(array) for array in ReferenceEvaluator(proto).run(None, feed)]
    options = onnxruntime.SessionOptions()
    if literally:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feed)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(0, 0.5, shape).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def agree(proto: Any, *inputs: np.ndarray) -> None:
    assert difference(ours(proto, inputs), theirs(proto, inputs)) is None


def recurrent_classifier(cell: str) -> Any:
    """What torch.onnx.export writes for a batch-first layer and a dense one on its last step."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell]
    attributes = {"hidden_size": 8} | ({"linear_before_reset": 1} if cell == "GRU" else {})
    states = ["h0", "c0"] if cell == "LSTM" else ["h0"]
    nodes = [
        node("Transpose", ["x"], ["time_first"], perm=[1, 0, 2]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "first"], ["batch_vector"]),
        node("Concat", ["one", "batch_vector", "eight"], ["state_shape"], axis=0),
        *[node("ConstantOfShape", ["state_shape"], [state]) for state in states],
        node(cell, ["time_first", "w", "r", "b", "", *states], ["all", "last"], **attributes),
        node("Squeeze", ["all", "one"], ["steps"]),
        node("Transpose", ["steps"], ["batch_first"], perm=[1, 0, 2]),
        node("Gather", ["batch_first", "minus_one"], ["end"], axis=1),
        node("Gemm", ["end", "dense", "bias"], ["y"], transB=1),
    ]
    weights = {
        "w": normal(1, gates * 8, 5),
        "r": normal(1, gates * 8, 8),
        "b": normal(1, gates * 16),
        "dense": normal(3, 8),
        "bias": normal(3),
        "zero": np.array(0, np.int64),
        "first": integers(0),
        "one": integers(1),
        "eight": integers(8),
        "minus_one": np.array(-1, np.int64),
    }
    return model(nodes, {"x": [2, 7, 5]}, ["y"], weights)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_classifier_as_torch_exports_it_is_right(cell: str) -> None:
    agree(recurrent_classifier(cell), normal(2, 7, 5))


def test_a_recurrent_layer_in_its_usual_form_is_one_kernel() -> None:
    found = load_ir(read_onnx(recurrent_classifier("LSTM").SerializeToString(), LIMITS).ir)
    assert "lstm_layer" in {variable.name_hint for variable in found.functions}


def test_a_bidirectional_layer_with_lengths_is_right() -> None:
    nodes = [node("LSTM", ["x", "w", "r", "b", "lengths"], ["y", "h", "c"], hidden_size=4, direction="bidirectional")]
    weights = {"w": normal(2, 16, 3), "r": normal(2, 16, 4), "b": normal(2, 32), "lengths": np.array([5, 2], np.int32)}
    agree(model(nodes, {"x": [5, 2, 3]}, ["y", "h", "c"], weights), normal(5, 2, 3))


def test_shapes_computed_by_any_operator_are_constants() -> None:
    """Shape, Cast, Slice, Concat, Mul, Where and Reshape, as tf2onnx and older exporters of torch write them."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["shape32"], to=TensorProto.INT32),
        node("Slice", ["shape32", "one", "three"], ["middle"]),
        node("ReduceProd", ["middle"], ["product"], keepdims=1),
        node("Cast", ["product"], ["product64"], to=TensorProto.INT64),
        node("Concat", ["minus", "product64"], ["wanted"], axis=0),
        node("Equal", ["wanted", "minus"], ["is_open"]),
        node("Where", ["is_open", "two", "wanted"], ["chosen"]),
        node("Identity", ["chosen"], ["same"]),
        node("Reshape", ["x", "same"], ["flat"]),
        node("Expand", ["scale", "same"], ["scales"]),
        node("Mul", ["flat", "scales"], ["y"]),
    ]
    weights = {
        "one": integers(1),
        "three": integers(3),
        "minus": integers(-1),
        "two": integers(2),
        "scale": np.array([[3.0]], np.float32),
    }
    agree(model(nodes, {"x": [2, 3, 4]}, ["y"], weights), normal(2, 3, 4))


def test_an_axis_may_be_a_number() -> None:
    """As torch.onnx.export writes it for attention of grouped queries; the standard wants a vector."""
    nodes = [node("Unsqueeze", ["x", "two"], ["y"]), node("Squeeze", ["y", "two"], ["z"])]
    x = normal(2, 3)
    y, z = ours(model(nodes, {"x": [2, 3]}, ["y", "z"], {"two": np.array(2)}), [x])
    np.testing.assert_array_equal(y, x[..., None])
    np.testing.assert_array_equal(z, x)


def test_the_confined_child_folds_as_the_process_itself_does() -> None:
    data = recurrent_classifier("LSTM").SerializeToString()
    assert ingest(data, ModelFormat.ONNX) == read_onnx(data, LIMITS)


def _branch(value: str, name: str) -> Any:
    return helper.make_graph([node(name, ["x"], [value])], name, [], [helper.make_tensor_value_info(value, 1, [2, 3])])


def test_a_condition_that_is_known_takes_its_branch_and_another_takes_both() -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Size", ["shape"], ["rank"]),
        node("Equal", ["rank", "two"], ["is_matrix"]),
        node("If", ["is_matrix"], ["a"], then_branch=_branch("t", "Relu"), else_branch=_branch("e", "Warp")),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["b"], then_branch=_branch("t2", "Exp"), else_branch=_branch("e2", "Neg")),
        node("Add", ["a", "b"], ["y"]),
    ]
    weights = {"two": np.array(2, np.int64), "zero": np.array(0.0, np.float32)}
    proto = model(nodes, {"x": [2, 3]}, ["y"], weights)
    for x in (np.abs(normal(2, 3)), -np.abs(normal(2, 3))):
        other = np.exp(x) if x.sum() > 0 else -x
        assert difference(ours(proto, [x]), [np.maximum(x, 0) + other]) is None


def _loop(rounds: int) -> Any:
    body = helper.make_graph(
        [
            node("Add", ["state", "x"], ["next"]),
            node("Identity", ["go"], ["going"]),
            node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [2]),
        ],
    )
    weights = {"rounds": np.array(rounds, np.int64), "go": np.array(True), "start": np.zeros(2, np.float32)}
    return model(
        [node("Loop", ["rounds", "go", "start"], ["last", "all"], name="loop", body=body)],
        {"x": [2]},
        ["last", "all"],
        weights,
    )


def test_a_loop_of_known_length_is_written_out() -> None:
    agree(_loop(4), normal(2))


def test_a_loop_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises((UnsupportedOperator, TooLarge), match="loop"):
        read_onnx(_loop(1 << 40).SerializeToString(), LIMITS)


def test_steps_that_a_loop_makes_count_as_nodes() -> None:
    with pytest.raises(TooLarge, match="more than 100 nodes once loops"):
        read_onnx(_loop(1000).SerializeToString(), IngestLimits(nodes=100))


def test_shortened_integers_and_their_products_are_right() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("MatMulInteger", ["q", "w", "zero"], ["total"]),
        node("Cast", ["total"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "scale"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).integers(-100, 100, (40, 40)).astype(np.int8)}
    proto, x = model(nodes, {"x": [3, 40]}, ["y"], weights), normal(3, 40)
    # Not ONNX Runtime, whose sums of two products saturate at 16 bits on processors with AVX2 and without VNNI.
    assert difference(ours(proto, [x]), [np.asarray(a) for a in ReferenceEvaluator(proto).run(None, {"x": x})]) is None


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("place", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_resizing_is_right_for_whole_and_broken_scales(mode: str, place: str) -> None:
    for extents in ((1, 2, 10, 14), (1, 2, 3, 4)):
        attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
        if mode == "nearest":
            attributes["nearest_mode"] = "round_prefer_floor"
        nodes = [node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)]
        agree(model(nodes, {"x": [1, 2, 5, 7]}, ["y"], {"sizes": integers(*extents)}), normal(1, 2, 5, 7))


def test_a_norms_mean_and_deviation_are_its_own() -> None:
    proto = model(
        [node("LayerNormalization", ["x", "g", "b"], ["y", "mean", "deviation"], axis=1)],
        {"x": [2, 3, 4]},
        ["y", "mean", "deviation"],
        {"g": normal(3, 4), "b": normal(3, 4)},
    )
    x = normal(2, 3, 4)
    assert difference(ours(proto, [x]), [np.asarray(a) for a in ReferenceEvaluator(proto).run(None, {"x": x})]) is None


@pytest.mark.parametrize("operator", ["NonZero", "Unique", "Compress"])
def test_results_whose_size_depends_on_values_are_refused_whatever_the_file_declares(operator: str) -> None:
    inputs = ["x", "c"] if operator == "Compress" else ["x"]
    proto = model(
        [node(operator, inputs, ["y"], name="n")],
        {"x": [4], **({"c": [4]} if operator == "Compress" else {})},
        ["y"],
        types={"c": TensorProto.BOOL},
    )
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    with pytest.raises(UnsupportedShape, match=rf"{operator} \(node 'n'\)"):
        read_onnx(proto.SerializeToString(), LIMITS)


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"])
def test_what_draws_is_refused_by_name(operator: str) -> None:
    proto = model([node(operator, ["x"], ["y"], name="draw")], {"x": [2, 3]}, ["y"])
    with pytest.raises(UnsupportedOperator, match=rf"{operator} \(node 'draw'\)"):
        read_onnx(proto.SerializeToString(), LIMITS)


def _bomb(operator: str) -> Any:
    """A constant that one more operator would make far larger."""
    huge = integers(1 << 20, 1 << 20)
    shapes = {"Expand": ["c", "huge"], "Tile": ["c", "huge"], "ConstantOfShape": ["huge"]}
    nodes = [
        node(operator, shapes[operator], ["z"], name="bomb"),
        node("Cast", ["z"], ["w"], to=1),
        node("ReduceSum", ["w"], ["s"]),
        node("Add", ["s", "x"], ["y"]),
    ]
    return model(nodes, {"x": [1]}, ["y"], {"c": np.ones((1, 1), np.float32), "huge": huge})


@pytest.mark.parametrize("operator", ["Expand", "Tile", "ConstantOfShape"])
def test_constants_that_would_fill_the_memory_are_refused_before_they_are_made(operator: str) -> None:
    with pytest.raises((UnsupportedShape, TooLarge, InvalidModel)):
        read_onnx(_bomb(operator).SerializeToString(), LIMITS)


def test_a_survey_names_every_node_that_would_be_refused_and_nothing_else() -> None:
    nodes = [
        node("Warp", ["x"], ["a"], name="first"),
        node("Relu", ["x"], ["b"]),
        node("NonZero", ["b"], ["c"], name="second"),
        node("Cast", ["c"], ["d"], to=1),
        node("Bernoulli", ["b"], ["e"], name="third"),
        node("Exp", ["e"], ["f"]),
        node("Twist", ["f"], ["g"], name="fourth"),
    ]
    found = survey(model(nodes, {"x": [2, 3]}, ["d", "g"]).SerializeToString(), LIMITS)
    assert [(refusal.node, refusal.operator) for refusal in found] == [
        ("first", "Warp"),
        ("second", "NonZero"),
        ("third", "Bernoulli"),
        ("fourth", "Twist"),
    ]
    assert all(refusal.node in refusal.reason and refusal.code.startswith("unsupported") for refusal in found)
    assert survey(small_network().SerializeToString(), LIMITS) == ()


def test_a_survey_of_a_file_that_cannot_be_read_has_one_reason() -> None:
    (found,) = survey(b"not a model", LIMITS)
    assert (found.node, found.operator) == ("", "")


def test_an_empty_input_and_an_empty_output_are_tensors_like_others() -> None:
    proto = model(
        [node("Relu", ["e"], ["z"]), node("Concat", ["x", "e"], ["y"], axis=0)], {"x": [2, 3], "e": [0, 3]}, ["y", "z"]
    )
    x, e = normal(2, 3), np.zeros((0, 3), np.float32)
    assert difference(ours(proto, [x, e]), [x, e]) is None


def test_a_function_of_the_standard_is_read_where_there_is_no_reader() -> None:
    proto = model([node("Celu", ["x"], ["y"], alpha=0.7)], {"x": [2, 3]}, ["y"])
    agree(proto, normal(2, 3))


def test_eight_bit_floats_are_rounded_to_the_nearest() -> None:
    proto = model([node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)], {"x": [256]}, ["y"])
    proto.opset_import[0].version = 19
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    x = np.concatenate([normal(128) * 300, normal(126, seed=1) * 0.01, np.array([np.nan, -0.0], np.float32)])
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    (found,) = ours(proto, [x])
    np.testing.assert_array_equal(found.view(np.uint8), np.asarray(expected).view(np.uint8))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("place", ["align_corners", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"])
def test_resizing_by_scales_rounds_as_onnx_runtime_does(mode: str, place: str) -> None:
    """1.4 is no float32, and 5 * 1.4 rounds down: places at the border between two elements, and lengths that are cut."""
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        attributes["nearest_mode"] = "ceil"
    nodes = [node("Resize", ["x", "", "scales"], ["y"], **attributes)]
    scales = np.array([1, 1, 1.4, 1.9], np.float32)
    proto = model(nodes, {"x": [1, 2, 6, 7]}, ["y"], {"scales": scales})
    proto.opset_import[0].version = 19
    agree(proto, normal(1, 2, 6, 7))


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_have_any_number_of_dimensions_and_paddings(groups: int) -> None:
    attributes = {"strides": [2, 2, 2], "pads": [1, 1, 1, 1, 1, 1], "output_padding": [1, 0, 1], "group": groups}
    weights = {"w": normal(4, 3, 3, 3, 2), "b": normal(3 * groups)}
    volume = model(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)], {"x": [2, 4, 3, 4, 2]}, ["y"], weights
    )
    agree(volume, normal(2, 4, 3, 4, 2))
    dilated = {"dilations": [3, 1], "output_padding": [2, 0], "group": groups}
    plane = model(
        [node("ConvTranspose", ["x", "w"], ["y"], **dilated)], {"x": [1, 4, 3, 4]}, ["y"], {"w": normal(4, 3, 2, 2)}
    )
    torch = pytest.importorskip("torch")  # ONNX Runtime and ONNX's reference refuse as much padding
    x = normal(1, 4, 3, 4)
    kernel = torch.from_numpy(normal(4, 3, 2, 2))
    expected = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x), kernel, output_padding=(2, 0), groups=groups, dilation=(3, 1)
    )
    assert difference(ours(plane, [x]), [expected.numpy()]) is None


def test_a_batch_norm_in_training_mode_is_by_its_own_batch() -> None:
    norms = {"g": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3))}
    nodes = [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1, momentum=0.7)]
    proto = model(nodes, {"x": [4, 3, 5, 2]}, ["y", "m2", "v2"], norms)
    x = normal(4, 3, 5, 2)
    expected = [np.asarray(array) for array in ReferenceEvaluator(proto).run(None, {"x": x})]
    assert difference(ours(proto, [x]), expected) is None


def test_booleans_are_compared_and_whole_powers_have_scalar_exponents() -> None:
    same = model(
        [node("Equal", ["x", "z"], ["y"])],
        {"x": [4], "z": [4]},
        ["y"],
        types=dict.fromkeys("xyz", TensorProto.BOOL),
    )
    agree(same, np.array([True, True, False, False]), np.array([True, False, True, False]))
    power = model(
        [node("Pow", ["x", "n"], ["y"])],
        {"x": [4]},
        ["y"],
        {"n": np.array(3)},
        types=dict.fromkeys("xy", TensorProto.INT64),
    )
    agree(power, integers(-3, 0, 1, 7))


def test_slices_of_early_versions_have_their_bounds_in_attributes() -> None:
    proto = model([node("Slice", ["x"], ["y"], axes=[1], starts=[-3], ends=[1000])], {"x": [2, 6]}, ["y"])
    proto.opset_import[0].version, proto.ir_version = 9, 4
    agree(proto, normal(2, 6))


def test_a_rectifier_with_a_threshold_gives_zero_for_minus_infinity() -> None:
    x = np.array([-np.inf, -1, 0.5, 2, np.inf], np.float32)
    proto = model([node("ThresholdedRelu", ["x"], ["y"], alpha=1.0)], {"x": [5]}, ["y"])
    np.testing.assert_array_equal(ours(proto, [x])[0], np.array([0, 0, 0, 2, np.inf], np.float32))


def test_the_logarithm_of_a_sum_of_exponentials_may_be_infinite() -> None:
    x = normal(4, 6)
    x[1], x[2], x[3, 2] = -np.inf, np.inf, np.nan
    for keep in (0, 1):
        proto = model([node("ReduceLogSumExp", ["x"], ["y"], axes=[1], keepdims=keep)], {"x": [4, 6]}, ["y"])
        agree(proto, x)
