"""Products of bytes: right for all types, zero points and lengths, one instruction where a target has it, and put together
from what quantised ONNX files say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.models import model, node
from tests.compiler.test_onnx_graphs import ours, theirs
from tuner.byte_products import accumulated, dot
from tuner.graph.prepare import calls, prepare
from tuner.ingest import IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.measure.build import apply, compile_module, generate, with_packings
from tuner.measure.check import ReferenceOutputs
from tuner.measure.input_sets import make_inputs
from tuner.measure.properties import inspect
from tuner.space.contraction import find_contraction
from tuner.space.default import default_trace
from tuner.tvm_compat import IRModule, Schedule, load_ir, save_ir, structural_walk, te, tirx, to_tvm_target, tvm
from tuner.workload.digest import workload_digest
from workers.device import detect_target

INSTRUCTION = "vpdpbusd"


def words(rows: int, steps: int, columns: int) -> Any:
    """A product of words, as the reader of ONNX files makes it, with what may follow it."""
    a = te.placeholder(extents(rows, steps), "int32", "a")
    b = te.placeholder(extents(steps, columns), "int32", "b")
    k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", steps)), "k")
    total = te.compute(extents(rows, columns), lambda i, j: te.sum(dot(a[i, k], b[k, j]), axis=[k]), "total")
    real = te.compute(extents(rows, columns), lambda i, j: tirx.Cast("float32", total[i, j]), "real")
    return IRModule({"main": te.create_prim_func([a, b, real], index_dtype_override="int64")})


def extents(*shape: int) -> list[Any]:
    return [tirx.IntImm("int64", extent) for extent in shape]


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """With NumPy, in 64 bits."""
    rows, steps = a.shape
    left = a.view(np.uint8).reshape(rows, 4 * steps).astype(np.int64)
    right = b[:, :, None].copy().view(np.int8).transpose(0, 2, 1).reshape(4 * steps, -1).astype(np.int64)
    return (left @ right).astype(np.int32).astype(np.float32)


@pytest.mark.parametrize("mcpu", ["znver5", "haswell", "x86-64"])
@pytest.mark.parametrize(("rows", "steps", "columns"), [(64, 48, 96), (1, 64, 1024), (26, 33, 130)])
def test_a_scheduled_product_is_right_and_made_of_the_instruction(
    mcpu: str, rows: int, steps: int, columns: int
) -> None:
    here = detect_target("llvm")
    features = tvm.target.codegen.target_has_features
    if mcpu == "znver5" and not features("avx512vnni", to_tvm_target(here)):
        pytest.skip("this processor has no AVX-512 VNNI")
    target = Target.parse({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    mod = words(rows, steps, columns)
    workload = Workload(digest=workload_digest(mod), ir=save_ir(mod))
    main, packings = with_packings(apply(mod, default_trace(workload, target)))
    assert not packings
    code = str(generate(main, to_tvm_target(target))[1].inspect_source("asm"))
    assert (INSTRUCTION in code) == (mcpu == "znver5")
    run = compile_module(main, to_tvm_target(target))["main"]
    properties = inspect(mod)
    for name in ("random", "edges"):
        a, b = make_inputs(properties, name, 0)
        out = tvm.runtime.tensor(np.zeros((rows, columns), np.float32))
        run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        np.testing.assert_array_equal(out.numpy(), expected(a, b))


def test_inputs_of_words_have_bytes_of_all_values() -> None:
    properties = inspect(words(64, 48, 96))
    assert properties.words == {0, 1}
    a, b = make_inputs(properties, "random", 0)
    assert len(np.unique(a.view(np.uint8))) == len(np.unique(b.view(np.int8))) == 256
    assert set(np.unique(make_inputs(properties, "edges", 0)[0].view(np.uint8))) == {0, 127, 128, 255}


def test_the_sum_is_known_again_in_any_order_and_nothing_like_it_is() -> None:
    found: list[Any] = []
    structural_walk(words(16, 64, 64)["main"].body, (tirx.BufferStore, found.append))
    (store,) = [one for one in found if accumulated(one) is not None]
    a, b = accumulated(store)  # type: ignore[misc]
    total = tirx.BufferLoad(store.buffer, store.indices)
    terms = [dot(a, b).a.a.a, dot(a, b).a.a.b, dot(a, b).a.b, dot(a, b).b]
    assert accumulated(
        tirx.BufferStore(store.buffer, terms[2] + (terms[0] + total) + (terms[3] + terms[1]), store.indices)
    )
    for wrong in (
        total + terms[0] + terms[1] + terms[2],
        total + terms[0] + terms[1] + terms[2] + terms[2],
        total + total + terms[0] + terms[1] + terms[2] + terms[3],
        total + dot(a, a) + total,
        total + dot(a, b) + tirx.const(1, "int32"),
    ):
        assert accumulated(tirx.BufferStore(store.buffer, wrong, store.indices)) is None
    assert find_contraction(Schedule(words(16, 64, 64))) is not None


def drawn(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    found: np.ndarray = np.random.default_rng(sum(shape)).integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return found


ZEROS = {"none": (None, None), "ours": (3, None), "theirs": (None, 5), "both": (200, 7), "signed": (-7, 0)}


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("types", ["ui", "ii", "iu", "uu"])
@pytest.mark.parametrize("shape", [(8, 32, 48), (2, 3, 37, 20), (1, 5, 3)], ids=str)
def test_products_of_bytes_with_zero_points(zeros: str, types: str, shape: tuple[int, ...]) -> None:
    a_type, b_type = ({"u": np.uint8, "i": np.int8}[one] for one in types)
    *batch, length, columns = shape
    given = dict(zip(("a_zero", "b_zero"), ZEROS[zeros], strict=True))
    points = {
        name: np.array(value).astype(dtype)
        for (name, value), dtype in zip(given.items(), (a_type, b_type), strict=True)
        if value is not None
    }
    names = [name if name in points else "" for name in given]
    weights = {"b": drawn(b_type, length, columns), **points}
    a = drawn(a_type, *batch, length)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(a_type))
    proto = model(
        [node("MatMulInteger", ["a", "b", *names], ["y"])],
        {"a": [*batch, length]},
        ["y"],
        weights,
        types={"a": kind, "y": TensorProto.INT32},
    )
    zero = {name: int(points[name]) if name in points else 0 for name in given}
    right = (a.astype(np.int64) - zero["a_zero"]) @ (weights["b"].astype(np.int64) - zero["b_zero"])
    np.testing.assert_array_equal(ours(proto, [a])[0], right.astype(np.int32))


@pytest.mark.parametrize("way", ["MatMul", "Gemm", "Gemm transposed"])
@pytest.mark.parametrize("each", [False, True], ids=["one scale", "one a column"])
def test_a_product_of_what_was_dequantised_is_one_of_bytes(way: str, each: bool) -> None:
    rows, length, columns = 6, 40, 24
    turned = way == "Gemm transposed"
    shape = (columns, length) if turned else (length, columns)
    scale = np.linspace(0.01, 0.02, columns, dtype=np.float32) if each else np.float32(0.013)
    weights = {
        "b": drawn(np.int8, *shape),
        "a_scale": np.array(0.02, np.float32),
        "a_zero": np.array(120, np.uint8),
        "b_scale": np.asarray(scale),
        "b_zero": np.zeros(np.shape(scale), np.int8),
        "bias": np.linspace(-1, 1, columns, dtype=np.float32),
    }
    axis = {"axis": 0 if turned else 1} if each else {}
    product = (
        [node("MatMul", ["left", "right"], ["product"]), node("Add", ["product", "bias"], ["y"])]
        if way == "MatMul"
        else [node("Gemm", ["left", "right", "bias"], ["y"], transB=int(turned))]
    )
    proto = model(
        [
            node("QuantizeLinear", ["x", "a_scale", "a_zero"], ["a"]),
            node("DequantizeLinear", ["a", "a_scale", "a_zero"], ["left"]),
            node("DequantizeLinear", ["b", "b_scale", "b_zero"], ["right"], **axis),
            *product,
        ],
        {"x": [rows, length]},
        ["y"],
        weights,
    )
    x = np.random.default_rng(0).normal(0, 1, (rows, length)).astype(np.float32)
    np.testing.assert_allclose(ours(proto, [x])[0], theirs(proto, [x])[0], rtol=1e-5, atol=1e-5)
    assert "product_of_bytes" in written(proto)


def test_a_sum_that_int32_may_not_hold_stays_one_of_floats() -> None:
    nodes = [
        node("DequantizeLinear", ["a", "scale", "zero"], ["left"]),
        node("DequantizeLinear", ["b", "scale", "zero"], ["right"]),
        node("MatMul", ["left", "right"], ["y"]),
    ]
    weights = {"b": drawn(np.uint8, 34000, 2), "scale": np.array(1, np.float32), "zero": np.array(0, np.uint8)}
    proto = model(nodes, {"a": [2, 34000]}, ["y"], weights, types={"a": TensorProto.UINT8})
    assert "product_of_bytes" not in written(proto)


def written(proto: Any) -> str:
    """The graph that is read of a file, as text."""
    return str(load_ir(read_onnx(strip_onnx(proto.SerializeToString()).data, IngestLimits()).ir).script())


@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("types", ["ui", "ii", "uu"])
@pytest.mark.parametrize(
    ("data", "weight", "attributes"),
    [
        ((1, 16, 9, 10), (24, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 3, 12, 11), (8, 3, 5, 3), {"pads": [2, 0, 1, 1], "strides": [2, 3]}),
        ((1, 6, 10, 10), (16, 6, 3, 3), {"dilations": [2, 3], "auto_pad": "SAME_LOWER"}),
        ((2, 5, 30), (7, 5, 4), {"strides": [2]}),
        ((1, 4, 5, 6, 7), (8, 4, 2, 3, 2), {"pads": [1, 0, 0, 0, 1, 1]}),
        ((1, 8, 8, 8), (16, 4, 3, 3), {"group": 2}),
    ],
    ids=str,
)
def test_convolutions_of_bytes(
    operator: str, types: str, data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    x_type, w_type = ({"u": np.uint8, "i": np.int8}[one] for one in types)
    x_zero, w_zero = np.array(100, x_type), np.array(0 if types == "ui" else 128 if types == "uu" else 5, w_type)
    x, w = drawn(x_type, *data), drawn(w_type, *weight)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(x_type))
    weights: dict[str, np.ndarray] = {"w": w, "x_zero": x_zero, "w_zero": w_zero}
    inputs = ["x", "w", "x_zero", "w_zero"]
    if operator == "QLinearConv":
        weights |= {"scale": np.array(0.01, np.float32), "y_zero": np.array(7, x_type)}
        weights |= {"bias": np.arange(weight[0], dtype=np.int32)}
        inputs = ["x", "scale", "x_zero", "w", "scale", "w_zero", "scale", "y_zero", "bias"]
    given = {"y": TensorProto.INT32 if operator == "ConvInteger" else kind, "x": kind}
    proto = model([node(operator, inputs, ["y"], **attributes)], {"x": data}, ["y"], weights, types=given)
    attributes = dict(attributes)
    spatial = len(data) - 2
    before, after = attributes.pop("pads", [0] * (2 * spatial)), []
    if attributes.pop("auto_pad", None):  # as ONNX defines it, one more before than after
        needs = [(k - 1) * d for k, d in zip(weight[2:], attributes["dilations"], strict=True)]
        before = [*(need - need // 2 for need in needs), *(need // 2 for need in needs)]
    for d in reversed(range(spatial)):
        after += [before[d], before[spatial + d]]
    centred = torch.nn.functional.pad(torch.from_numpy(x.astype(np.float64) - float(x_zero)), after)
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[spatial - 1]
    ways = {"stride": attributes.get("strides", 1), "dilation": attributes.get("dilations", 1)}
    filters = torch.from_numpy(w.astype(np.float64) - float(w_zero))
    right = convolve(centred, filters, groups=attributes.get("group", 1), **ways).numpy()
    if operator == "QLinearConv":
        limits = np.iinfo(x_type)
        right = np.rint((right + np.arange(weight[0]).reshape(-1, *[1] * spatial)) * np.float32(0.01)) + 7
        right = np.clip(right, limits.min, limits.max)
    (found,) = ours(proto, [x])
    assert found.shape == right.shape
    assert np.abs(found.astype(np.int64) - right.astype(np.int64)).max() <= (operator == "QLinearConv")
    words_made = "convolution_of_bytes" in written(proto)
    assert words_made == ("group" not in attributes and types != "ii"), "w's zero point is none, or has to be known"


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "one a channel"])
def test_a_convolution_of_what_was_dequantised_is_one_of_bytes(each: bool) -> None:
    scale = np.linspace(0.01, 0.02, 12, dtype=np.float32) if each else np.float32(0.013)
    weights = {
        "w": drawn(np.int8, 12, 6, 3, 3),
        "x_scale": np.array(0.02, np.float32),
        "x_zero": np.array(120, np.uint8),
        "w_scale": np.asarray(scale),
        "w_zero": np.zeros(np.shape(scale), np.int8),
        "bias": np.linspace(-1, 1, 12, dtype=np.float32),
    }
    proto = model(
        [
            node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"]),
            node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["left"]),
            node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["right"], **({"axis": 0} if each else {})),
            node("Conv", ["left", "right", "bias"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2]),
        ],
        {"x": [1, 6, 11, 9]},
        ["y"],
        weights,
    )
    x = np.random.default_rng(0).normal(0, 1, (1, 6, 11, 9)).astype(np.float32)
    np.testing.assert_allclose(ours(proto, [x])[0], theirs(proto, [x])[0], rtol=1e-5, atol=1e-5)
    assert "convolution_of_bytes" in written(proto)


def test_elements_at_a_rounding_boundary_may_be_a_step_off() -> None:
    """One in a thousand, and no more: a step of a grid is no rounding error."""
    x = te.placeholder(extents(100, 100), "float32", "x")
    y = te.compute(extents(100, 100), lambda i, j: tirx.round(x[i, j] * 8.0) / 8.0, "y")
    properties = inspect(IRModule({"main": te.create_prim_func([x, y])}))
    assert properties.rounds
    right = np.round(make_inputs(properties, "random", 0)[0] * 8) / 8
    reference = ReferenceOutputs(properties, "random", [right])
    for count, step, passed in (
        (0, 0.125, True),
        (10, 0.125, True),
        (11, 0.125, False),
        (1, 5.0, False),
        (1, np.nan, False),
    ):
        found = right.copy()
        found.flat[:count] += np.float32(step)
        assert reference.compare([found])[0] == passed, (count, step)


def test_what_follows_a_convolution_of_bytes_is_computed_where_it_lies() -> None:
    """Two layers with a residual between Quantize- and DequantizeLinear: all that is element-wise is fused into convolutions."""
    weights: dict[str, np.ndarray] = {"scale": np.array(0.05, np.float32), "zero": np.array(128, np.uint8)}
    weights |= {"w_zero": np.array(0, np.int8), "w_scale": np.array(0.01, np.float32)}
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["q0"])]
    for at in range(2):
        weights |= {f"w{at}": drawn(np.int8, 16, 16, 3, 3), f"bias{at}": np.linspace(-1, 1, 16, dtype=np.float32)}
        nodes += [
            node("DequantizeLinear", [f"q{at}", "scale", "zero"], [f"x{at}"]),
            node("DequantizeLinear", [f"w{at}", "w_scale", "w_zero"], [f"v{at}"]),
            node("Conv", [f"x{at}", f"v{at}", f"bias{at}"], [f"y{at}"], pads=[1, 1, 1, 1]),
            node("Relu", [f"y{at}"], [f"r{at}"]),
            node("QuantizeLinear", [f"r{at}", "scale", "zero"], [f"q{at + 1}"]),
        ]
    nodes += [node("DequantizeLinear", ["q2", "scale", "zero"], ["a"]), node("Add", ["a", "x1"], ["y"])]
    proto = model(nodes, {"x": [1, 16, 9, 7]}, ["y"], weights)
    x = np.random.default_rng(0).normal(0, 1, (1, 16, 9, 7)).astype(np.float32)
    found, right = ours(proto, [x])[0], theirs(proto, [x], literally=True)[0]
    assert (np.abs(found - right) > 1e-4).mean() < 0.01, "single elements at a rounding boundary"
    stripped = strip_onnx(proto.SerializeToString())
    mod = prepare(load_ir(read_onnx(stripped.data, IngestLimits()).ir), detect_target("llvm"))
    kernels = [variable.name_hint for variable in mod.functions if "convolution_of_bytes" in variable.name_hint]
    assert len(kernels) == 2
    assert all("quantize" in name for name in kernels), kernels


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_pools_and_means_between_convolutions_of_bytes_are_taken_where_they_lie(pool: str) -> None:
    """Of two layers nothing is transposed but what the first one reads."""
    weights: dict[str, np.ndarray] = {"scale": np.array(0.05, np.float32), "zero": np.array(128, np.uint8)}
    weights |= {"w_zero": np.array(0, np.int8), "w_scale": np.array(0.01, np.float32)}
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["q0"])]
    for at in range(2):
        weights |= {f"w{at}": drawn(np.int8, 8, 8, 3, 3)}
        nodes += [
            node("DequantizeLinear", [f"q{at}", "scale", "zero"], [f"x{at}"]),
            node("DequantizeLinear", [f"w{at}", "w_scale", "w_zero"], [f"v{at}"]),
            node("Conv", [f"x{at}", f"v{at}"], [f"y{at}"], pads=[1, 1, 1, 1]),
            node(pool, [f"y{at}"], [f"r{at}"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1]),
            node("QuantizeLinear", [f"r{at}", "scale", "zero"], [f"q{at + 1}"]),
        ]
    nodes += [node("DequantizeLinear", ["q2", "scale", "zero"], ["a"]), node("GlobalAveragePool", ["a"], ["y"])]
    proto = model(nodes, {"x": [1, 8, 12, 10]}, ["y"], weights)
    x = np.random.default_rng(0).normal(0, 1, (1, 8, 12, 10)).astype(np.float32)
    found, right = ours(proto, [x])[0], theirs(proto, [x], literally=True)[0]
    np.testing.assert_allclose(found, right, atol=0.02)
    stripped = strip_onnx(proto.SerializeToString())
    mod = prepare(load_ir(read_onnx(stripped.data, IngestLimits()).ir), detect_target("llvm"))
    names = calls(mod)
    assert sum("words_of_image" in name for name in names) == 2
    assert not any("transpose" in name for name in names), names
