"""Small models for tests, written with onnx and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
    *,
    types: dict[str, int] | None = None,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """An ONNX model; inputs are name -> shape, of type float unless `types` says otherwise; outputs have no shape."""
    types = types or {}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), list(shape)) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), None) for n in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def small_network(seed: int = 0) -> onnx.ModelProto:
    """Convolution, batch norm, residual, padding by hand, clip, pooling, dense: 1x8x12x12 -> 1x10."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    def positive(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    norm = {"g": positive(16), "b": normal(16), "m": normal(16), "v": positive(16)}
    return model(
        [
            node("Conv", ["x", "w1", "bias1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"], epsilon=1e-3),
            node("Relu", ["n1"], ["r1"]),
            node("Pad", ["r1", "pads"], ["p1"]),
            node("Conv", ["p1", "w2"], ["c2"], kernel_shape=[3, 3]),
            node("Clip", ["c2", "low", "high"], ["k2"]),
            node("Add", ["k2", "r1"], ["a2"]),
            node("BatchNormalization", ["a2", "g", "b", "m", "v"], ["n2"]),
            node("MaxPool", ["n2"], ["q2"], kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", ["q2"], ["q"]),
            node("Reshape", ["q", "shape"], ["f"]),
            node("Gemm", ["f", "w3", "bias3"], ["y"], transB=1),
        ],
        {"x": [1, 8, 12, 12]},
        ["y"],
        {
            "w1": normal(16, 8, 3, 3),
            "bias1": normal(16),
            **norm,
            "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
            "w2": normal(16, 16, 3, 3),
            "low": np.array(0.0, np.float32),
            "high": np.array(0.7, np.float32),
            "shape": np.array([1, 16], np.int64),
            "w3": normal(10, 16),
            "bias3": normal(10),
        },
    )


def tiny_network(seed: int = 0) -> onnx.ModelProto:
    """Convolution, pooling, dense: three tasks, of which tuning clearly speeds up the first. 1x8x12x12 -> 1x10."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.normal(0, 0.3, (16, 8, 3, 3)).astype(np.float32),
        "bias1": rng.normal(0, 0.3, 16).astype(np.float32),
        "w2": rng.normal(0, 0.3, (10, 16)).astype(np.float32),
        "bias2": rng.normal(0, 0.3, 10).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w1", "bias1"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["q"]),
        node("Flatten", ["q"], ["f"]),
        node("Gemm", ["f", "w2", "bias2"], ["y"], transB=1),
    ]
    return model(nodes, {"x": [1, 8, 12, 12]}, ["y"], weights)


def attention(seed: int = 0) -> onnx.ModelProto:
    """One encoder block on [1, 6, 8] with two heads, indices in and two outputs out, as exporters write it."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.5, shape).astype(np.float32)

    nodes = [node("Gather", ["table", "ids"], ["e"])]
    weights = {"table": normal(20, 8), "four": np.array([1, 6, 2, 4], np.int64), "three": np.array([1, 6, 8], np.int64)}
    for name in "qkv":
        nodes += [
            node("MatMul", ["e", f"w{name}"], [f"{name}0"]),
            node("Add", [f"{name}0", f"b{name}"], [f"{name}1"]),
            node("Reshape", [f"{name}1", "four"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
        weights |= {f"w{name}": normal(8, 8), f"b{name}": normal(8)}
    nodes += [
        node("MatMul", ["q", "k"], ["s"]),
        node("Div", ["s", "scale"], ["d"]),
        node("Add", ["d", "mask"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "three"], ["h"]),
        node("MatMul", ["h", "wo"], ["ho"]),
        node("Add", ["ho", "e"], ["res"]),
        node("LayerNormalization", ["res", "gamma", "beta"], ["y"], axis=-1),
        node("ReduceMean", ["y"], ["pooled"], axes=[1], keepdims=0),
    ]
    weights |= {"scale": np.array(2.0, np.float32), "wo": normal(8, 8), "gamma": normal(8), "beta": normal(8)}
    inputs = {"ids": [1, 6], "mask": [1, 1, 1, 6]}
    return model(nodes, inputs, ["y", "pooled"], weights, types={"ids": TensorProto.INT64})
