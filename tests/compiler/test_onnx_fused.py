"""ONNX Runtime's own operators, as its optimiser and its quantiser write them, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.model.comparison import difference
from tests.compiler.test_onnx_graphs import LIMITS, ours
from tuner.ingest.onnx_reader import read_onnx

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("unoptimised")

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def whole(low: int, high: int, dtype: str, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape, endpoint=True).astype(dtype)


def u8(*shape: int) -> np.ndarray:
    return whole(0, 255, "uint8", *shape)


def i8(*shape: int) -> np.ndarray:
    return whole(-127, 127, "int8", *shape)


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array(value, dtype)


SCALES = scalar(0.02), scalar(120, "uint8")
OUT = scalar(0.05), scalar(100, "uint8")
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)


def rotary(width: int) -> list[np.ndarray]:
    """Cosines and sines of 16 positions."""
    angles = np.outer(np.arange(16), 1 / 10.0 ** np.arange(width))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


ROTARIES = {width: rotary(width) for width in (4, 8)}

Case = tuple[str, list[np.ndarray | None], int | tuple[int, ...], Mapping[str, Any]]
"""Operator, operands (those of one number are constants), how many outputs or which, attributes."""

CASES: dict[str, Case] = {
    "product": ("FusedMatMul", [f32(2, 3, 4, 5), f32(2, 3, 6, 5)], 1, {"alpha": 0.25, "transB": 1}),
    "product of a transposed operand": ("FusedMatMul", [f32(3, 5, 4), f32(3, 5, 6)], 1, {"transA": 1}),
    "product over an outer batch": ("FusedMatMul", [f32(4, 3, 5), f32(3, 5, 6)], 1, {"transBatchA": 1}),
    "affine": ("FusedGemm", [f32(3, 5), f32(5, 4), f32(4)], 1, {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    "convolution": (
        "FusedConv",
        [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4), f32(1, 4, 6, 6)],
        1,
        {"activation": "Relu"},
    ),
    "quick gelu": ("QuickGelu", [f32(3, 7)], 1, {"alpha": 1.5}),
    "bias gelu": ("BiasGelu", [f32(3, 7), f32(7)], 1, {}),
    "fast gelu": ("FastGelu", [f32(3, 7), f32(7)], 1, {}),
    "norm of a sum": ("SkipLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8), None, f32(8)], 1, {}),
    "norm and sum": ("SkipLayerNormalization", [f32(2, 3, 8), f32(3, 8), f32(8), f32(8)], 4, {"epsilon": 1e-5}),
    "root mean square": (
        "SkipSimplifiedLayerNormalization",
        [f32(2, 3, 8), f32(2, 3, 8), f32(8)],
        (0, 3),
        {"epsilon": 1e-5},
    ),
    "embeddings": (
        "EmbedLayerNormalization",
        [
            *(
                whole(0, 9, "int32", 2, 5),
                whole(0, 1, "int32", 2, 5),
                f32(10, 8),
                f32(6, 8),
                f32(2, 8),
                f32(8),
                f32(8),
                MASK,
            ),
        ],
        3,
        {"epsilon": 1e-5},
    ),
    "attention": ("Attention", [f32(2, 5, 8), f32(8, 24), f32(24), MASK], 2, {"num_heads": 2}),
    "causal attention with a past": (
        "Attention",
        [f32(2, 5, 8), f32(8, 24), f32(24), None, f32(2, 2, 2, 3, 4)],
        2,
        {"num_heads": 2, "unidirectional": 1, "scale": 0.3},
    ),
    "attention to a number of keys": (
        "Attention",
        [f32(2, 5, 8), f32(8, 20), f32(20), np.array([3, 5], np.int32)],
        1,
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
    ),
    "attention to a range of keys": (
        "Attention",
        [f32(2, 5, 8), f32(8, 24), f32(24), np.array([3, 5, 1, 0], np.int32)],
        1,
        {"num_heads": 2},
    ),
    "heads": (
        "MultiHeadAttention",
        [f32(2, 5, 8), f32(2, 7, 8), f32(2, 7, 8), f32(24), whole(0, 1, "int32", 2, 7), f32(1, 2, 5, 7)],
        1,
        {"num_heads": 2},
    ),
    "heads with a past": (
        "MultiHeadAttention",
        [f32(2, 5, 8), f32(2, 5, 8), f32(2, 5, 8), None, None, None, f32(2, 2, 3, 4), f32(2, 2, 3, 4)],
        3,
        {"num_heads": 2, "unidirectional": 1},
    ),
    "heads of keys that are split": (
        "MultiHeadAttention",
        [f32(2, 5, 8), f32(2, 2, 7, 4), f32(2, 2, 7, 4)],
        1,
        {"num_heads": 2},
    ),
    "rotary": (
        "RotaryEmbedding",
        [f32(2, 5, 16), whole(0, 15, "int64", 2, 5), *ROTARIES[4]],
        1,
        {"num_heads": 2},
    ),
    "rotary from a position": (
        "RotaryEmbedding",
        [f32(2, 2, 5, 8), np.array([3]), *ROTARIES[4]],
        1,
        {"interleaved": 1},
    ),
    "grouped": (
        "GroupQueryAttention",
        [
            f32(2, 5, 64),
            f32(2, 5, 32),
            f32(2, 5, 32),
            None,
            None,
            np.array([4, 4], np.int32),
            scalar(5, "int32"),
            *ROTARIES[8],
        ],
        3,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 3, "softcap": 5.0},
    ),
    "sum": ("QLinearAdd", [u8(2, 6), *SCALES, u8(2, 6), *SCALES, *OUT], 1, {}),
    "factor": ("QLinearMul", [u8(2, 6), *SCALES, u8(6), *SCALES, *OUT], 1, {}),
    "sigmoid": ("QLinearSigmoid", [u8(2, 6), *SCALES, scalar(1 / 256), scalar(0, "uint8")], 1, {}),
    "leak": ("QLinearLeakyRelu", [u8(2, 6), *SCALES, *OUT], 1, {"alpha": 0.1}),
    "mean": ("QLinearGlobalAveragePool", [u8(1, 3, 4, 4), *SCALES, *OUT], 1, {}),
    "pool": ("QLinearAveragePool", [u8(1, 3, 5, 5), *SCALES, *OUT], 1, {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    "parts": ("QLinearConcat", [*OUT, u8(2, 3), *SCALES, u8(2, 4), *SCALES], 1, {"axis": 1}),
    "softmax": (
        "QLinearSoftmax",
        [u8(2, 6), *SCALES, scalar(1 / 256), scalar(0, "uint8")],
        1,
        {"axis": -1, "opset": 13},
    ),
    "quantised affine": (
        "QGemm",
        [u8(3, 5), *SCALES, i8(4, 5), scalar(0.01), scalar(0, "int8"), whole(-900, 900, "int32", 4), *OUT],
        1,
        {"transB": 1},
    ),
    "product to float": (
        "MatMulIntegerToFloat",
        [u8(3, 5), i8(5, 4), scalar(0.02), f32(4), scalar(120, "uint8"), whole(-3, 3, "int8", 4), f32(4)],
        1,
        {},
    ),
    "dynamic product": ("DynamicQuantizeMatMul", [f32(3, 5), i8(5, 4), scalar(0.01), scalar(0, "int8"), f32(4)], 1, {}),
    "16 bits": ("DequantizeLinear", [whole(0, 60000, "uint16", 3, 5), scalar(0.001), scalar(30000, "uint16")], 1, {}),
    "to 16 bits": ("QuantizeLinear", [f32(3, 5), scalar(0.001), scalar(30000, "uint16")], 1, {}),
    "4 bits": (
        "MatMulNBits",
        [f32(3, 40), u8(8, 3, 8), f32(8, 3), u8(8, 2), None, f32(8)],
        1,
        {"K": 40, "N": 8, "bits": 4, "block_size": 16},
    ),
}


def model_of(
    operator: str, operands: list[np.ndarray | None], outputs: int | tuple[int, ...], attributes: Mapping[str, Any]
) -> Any:
    """A graph of one node; operands of one element are constants, as exporters have them."""
    names = ["" if each is None else f"x{at}" for at, each in enumerate(operands)]
    wanted = tuple(range(outputs)) if isinstance(outputs, int) else outputs
    results = [f"y{at}" if at in wanted else "" for at in range(max(wanted) + 1)]
    given = [(name, each) for name, each in zip(names, operands, strict=True) if each is not None]
    constants = [numpy_helper.from_array(each, name) for name, each in given if each.ndim == 0]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in given
        if each.ndim
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, names, results, domain="com.microsoft", **attributes)],
        "fused",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in results if name],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_onnx_runtime_is_right(name: str) -> None:
    operator, operands, outputs, attributes = CASES[name]
    proto = model_of(operator, operands, outputs, attributes)
    inputs = [each for each in operands if each is not None and each.ndim]
    feed = {value.name: each for value, each in zip(proto.graph.input, inputs, strict=True)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    theirs = [np.asarray(each) for each in session.run(None, feed)]
    # Quantised results may be one step off: ONNX Runtime computes some of them in whole numbers.
    steps = [1.0 if each.dtype.kind in "ui" and operator.startswith("Q") else 0.0 for each in theirs]
    assert difference(ours(proto, inputs), theirs, steps=steps) is None


@pytest.mark.parametrize(
    ("domain", "operator"),
    [
        *(("com.microsoft", each) for each in ("BeamSearch", "DynamicQuantizeLSTM", "QAttention")),
        *(("com.microsoft.nchwc", each) for each in ("Conv", "ReorderInput")),
        *(("ai.onnx.ml", each) for each in ("LinearRegressor", "SVMRegressor", "Scaler")),
    ],
)
def test_an_operator_of_another_domain_is_refused_by_its_name(domain: str, operator: str) -> None:
    proto = model_of(operator, [f32(2, 3)], 1, {})
    proto.graph.node[0].domain, proto.graph.node[0].name = domain, "here"
    proto.opset_import[1].domain = domain
    with pytest.raises(UnsupportedOperator, match=rf"{domain}::{operator} \(node 'here'\) is not supported"):
        read_onnx(proto.SerializeToString(), LIMITS)
