"""Weights of products in TF32 are rounded once and lie with the summed axes last; nothing else reads them so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.template_cases import nearest
from tests.scene import OTHER_TARGET
from tuner.graph.precision import TF32, multiplies_tf32
from tuner.graph.prepare import calls, prepare
from tuner.minify.attempts import run_naively
from tuner.templates.contraction import find_contraction, stride_of
from tuner.tvm_compat import IRModule, relax

op = relax.op
SHAPES = {"x": [1, 8, 8, 8], "scale": [1, 1], "kernel": [16, 8, 3, 3], "weight": [16, 32], "heads": [3, 32, 16]}
INPUTS = 2


def model(tf32: str) -> Any:
    """A convolution, products with a weight and with one in heads, and a result that reads the former as it is."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in SHAPES.items()]
    x, scale, kernel, weight, heads = variables
    with builder.function("main", variables, attrs={"num_input": INPUTS} | ({TF32: tf32} if tf32 else {})):
        with builder.dataflow():
            y = builder.emit(op.mean(builder.emit(op.nn.conv2d(x, kernel)), [2, 3]))
            y = builder.emit(op.nn.softmax(builder.emit(op.matmul(builder.emit(op.nn.softmax(y)), weight))))
            results = [builder.emit_output(op.matmul(y, heads)), builder.emit_output(op.multiply(weight, scale))]
        builder.emit_func_output(results)
    return builder.get()


def test_a_constant_that_is_multiplied_is_rounded_too() -> None:
    x, matrix = (np.random.default_rng(1).normal(size=(16, 24)).astype(np.float32) for _ in range(2))
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType([16, 16], "float32"))
    with builder.function("main", [variable], attrs={"num_input": 1, TF32: "products"}):
        with builder.dataflow():
            result = builder.emit_output(op.matmul(variable, relax.const(matrix)))
        builder.emit_func_output(result)
    (found,) = run_naively(prepare(builder.get(), OTHER_TARGET), [x[:, :16]], [])
    np.testing.assert_allclose(found, x[:, :16].astype(np.float64) @ nearest(matrix), rtol=1e-5, atol=1e-5)


def test_a_product_of_weights_alone_stays_as_it_is() -> None:
    """It is computed when weights are bound, by the same tensor function as one that main calls."""
    shapes = {"x": [16, 16], "first": [16, 16], "second": [16, 16]}
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    with builder.function("main", variables, attrs={"num_input": 1, TF32: "products"}):
        with builder.dataflow():
            weight = builder.emit(op.nn.softmax(builder.emit(op.matmul(variables[1], variables[2]))))
            result = builder.emit_output(op.matmul(variables[0], weight))
        builder.emit_func_output(result)
    x, first, second = (np.random.default_rng(2).normal(size=(3, 16, 16)) / 4).astype(np.float32)
    (found,) = run_naively(prepare(builder.get(), OTHER_TARGET), [x], [first, second])
    logits = np.exp(first.astype(np.float64) @ second)
    weight = (logits / logits.sum(axis=1, keepdims=True)).astype(np.float32)
    np.testing.assert_allclose(found, x.astype(np.float64) @ nearest(weight), atol=1e-4)


def drawn() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES.values()]


def expected(
    x: Any, scale: Any, kernel: Any, weight: Any, heads: Any, *, rounded: tuple[bool, bool]
) -> list[np.ndarray]:
    """In NumPy. rounded: the convolution's weights, and those of products."""
    conv, products = (nearest if one else np.asarray for one in rounded)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    y = np.einsum("chwyx,ocyx->o", windows, conv(kernel), dtype=np.float64) / 36
    y = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
    y = y @ products(weight)
    y = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
    return [(y @ products(heads))[:, None], weight * scale]


@pytest.mark.parametrize("tf32", ["", "products", "convolutions", "convolutions products"])
def test_products_read_rounded_weights_and_nothing_else_does(tf32: str) -> None:
    values = drawn()
    found = run_naively(prepare(model(tf32), OTHER_TARGET), values[:INPUTS], values[INPUTS:])
    wanted = expected(*values, rounded=("convolutions" in tf32, "products" in tf32))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(found[1], wanted[1])
    if tf32:
        other = expected(*values, rounded=(False, False))
        assert np.abs(found[0] - other[0]).max() > 1e-5


def test_their_summed_axes_lie_last() -> None:
    prepared = prepare(model("convolutions products"), OTHER_TARGET)
    marked = {name: prepared[name] for name in calls(prepared) if multiplies_tf32(prepared[name])}
    assert len(marked) == 3
    for function in marked.values():
        found = find_contraction(IRModule({"main": function.with_attr("global_symbol", "main")}))
        assert stride_of(found.b, found.k[-1].variable) == 1
        assert len(found.constant) == 1


def test_what_needs_no_other_form_stays_as_it_is() -> None:
    strict = prepare(model(""), OTHER_TARGET)
    assert not any("nearest" in variable.name_hint for variable in strict.functions)
