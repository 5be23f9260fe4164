"""Prepared and compiled graphs compute what NumPy does, for any small graph and for values at the ends of their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.fold_constants import folded
from tuner.graph.prepare import prepare
from tuner.ingest import IngestedModel, TensorSpec
from tuner.lowering.fastmath import expand_intrinsics
from tuner.tvm_compat import relax

ENDS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 6.0, -88.0, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan])
ROWS, COLUMNS = 4, 6

Step = tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]
"""An operator in Relax, and in NumPy."""
op = relax.op


def scalar(value: float, dtype: str) -> Any:
    return relax.const(np.array(value, dtype), dtype)


def steps(dtype: str) -> dict[str, Step]:
    """Operators on a matrix of ROWS x COLUMNS that give another such."""
    found: dict[str, Step] = {
        "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
        "clip": (lambda x: op.clip(x, 0, 6), lambda x: np.clip(x, 0, 6)),
        "clip beneath zero": (lambda x: op.clip(x, -2, -1), lambda x: np.clip(x, -2, -1)),
        "abs": (op.abs, np.abs),
        "negative": (op.negative, np.negative),
        "times one": (lambda x: op.multiply(x, scalar(1, dtype)), lambda x: x),
        "plus zero": (lambda x: op.add(scalar(0, dtype), x), lambda x: x),
        "over two": (lambda x: op.divide(x, scalar(2, dtype)), lambda x: x / 2),
        "from one": (lambda x: op.subtract(scalar(1, dtype), x), lambda x: 1 - x),
        "its double": (lambda x: op.add(x, x), lambda x: x + x),
        "square": (lambda x: op.multiply(x, x), lambda x: x * x),
        "there and back": (lambda x: op.permute_dims(op.nn.relu(op.permute_dims(x))), lambda x: np.maximum(x, 0)),
        "turned, seen flat": (
            lambda x: op.reshape(op.permute_dims(x), (ROWS, COLUMNS)),
            lambda x: x.T.reshape(ROWS, COLUMNS),
        ),
        "with units": (lambda x: op.reshape(op.abs(op.reshape(x, (1, 1, ROWS, COLUMNS))), (ROWS, COLUMNS)), np.abs),
        "its halves swapped": (
            lambda x: op.concat([op.strided_slice(x, [1], [3], [6]), op.strided_slice(x, [1], [0], [-3])], 1),
            lambda x: np.concatenate([x[:, 3:], x[:, :3]], 1),
        ),
        "backwards": (lambda x: op.strided_slice(x, [0], [-1], [-ROWS - 1], [-1]), lambda x: x[::-1]),
        "its last row to all": (
            lambda x: op.broadcast_to(op.take(x, relax.const(np.array([-1])), axis=0), (ROWS, COLUMNS)),
            lambda x: np.broadcast_to(x[[-1]], x.shape),
        ),
        "chosen": (
            lambda x: op.where(op.greater(x, scalar(0.25, dtype)), x, scalar(-1, dtype)),
            lambda x: np.where(x > 0.25, x, np.array(-1, x.dtype)),
        ),
    }
    if dtype == "float32":
        found["tanh"] = (op.tanh, np.tanh)
        found["sigmoid"] = (op.sigmoid, lambda x: 1 / (1 + np.exp(-x)))
        found["softmax"] = (lambda x: op.nn.softmax(x, 0), _softmax)
        found["mean to all"] = (
            lambda x: op.broadcast_to(op.mean(x, [-1], keepdims=True), (ROWS, COLUMNS)),
            lambda x: np.broadcast_to(x.mean(-1, keepdims=True), x.shape),
        )
    return found


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(0))
    found: np.ndarray = e / e.sum(0)
    return found


def compiled_result(chain: list[Step], x: np.ndarray) -> np.ndarray:
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [variable], attrs={"num_input": 1}):
        with builder.dataflow():
            value: Any = variable
            for make, _ in chain:
                value = builder.emit(make(value))
            y = builder.emit_output(value)
        builder.emit_func_output(y)
    model = IngestedModel(ir=b"", inputs=(TensorSpec(name="x", shape=x.shape, dtype=str(x.dtype)),), params=())
    (found,) = run(expand_intrinsics(finish(prepare(builder.get(), TARGET), TARGET)), model, {}, [x])
    return np.asarray(found)


def compare(dtype: str, names: list[str], x: np.ndarray) -> None:
    chain = [steps(dtype)[name] for name in names]
    expected = x
    with np.errstate(all="ignore"):
        for _, step in chain:
            expected = step(expected)
    found = compiled_result(chain, x)
    assert found.dtype == expected.dtype == np.dtype(dtype)
    tolerance = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=str(names))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_every_operator_takes_the_ends_of_its_range(dtype: str) -> None:
    # One after another in as few graphs as keep NaN from covering everything.
    with np.errstate(over="ignore"):
        x = np.resize(ENDS.astype(dtype), (ROWS, COLUMNS))
    for name in steps(dtype):
        if name not in ("relu", "clip", "abs", "negative", "backwards", "there and back", "its halves swapped"):
            compare(dtype, [name], x)
    compare(dtype, ["negative", "its halves swapped", "clip", "backwards"], x)
    compare(dtype, ["relu"], x)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from(sorted(steps("float32"))), min_size=2, max_size=6),
    picks=st.lists(st.integers(0, len(ENDS) - 1), min_size=ROWS * COLUMNS, max_size=ROWS * COLUMNS),
)
def test_any_chain_of_operators_gives_what_numpy_gives(names: list[str], picks: list[int]) -> None:
    compare("float32", names, ENDS[picks].reshape(ROWS, COLUMNS).astype(np.float32))


def test_a_constant_range_of_fractions_is_folded() -> None:
    call = relax.op.arange(relax.prim_value(0), relax.prim_value(4), relax.prim_value(1), "float32")
    assert folded(call, [4], "float32").value.numpy().tolist() == [0, 1, 2, 3]
    call = relax.op.full((), relax.const(2.5, "float32"), "float32")
    assert folded(call, [], "float32").value.numpy().shape == ()


def test_constant_remainders_have_the_sign_that_their_operator_gives_them() -> None:
    dividends, divisors = (relax.const(np.array(values), "int64") for values in ([7, -7, 7, -7], [3, 3, -3, -3]))
    assert folded(op.mod(dividends, divisors), [4], "int64").value.numpy().tolist() == [1, -1, 1, -1]
    assert folded(op.floor_mod(dividends, divisors), [4], "int64").value.numpy().tolist() == [1, 2, -2, -1]
    assert folded(op.mod(dividends, relax.const(np.array([1, 1, 1, 0]), "int64")), [4], "int64") is None


@pytest.mark.parametrize(("indices", "expected"), [([[2, 0], [1, 1]], [[2, 0], [4, 4]]), ([[3, 0], [1, 1]], None)])
def test_constant_elements_are_gathered_where_all_are_within_bounds(indices: list[Any], expected: list[Any]) -> None:
    table = relax.const(np.arange(6).reshape(2, 3), "int64")
    found = folded(op.gather_elements(table, relax.const(np.array(indices), "int64"), axis=1), [2, 2], "int64")
    assert (None if found is None else found.value.numpy().tolist()) == expected


def test_weights_in_half_precision_are_not_multiplied_out_of_range() -> None:
    x = np.array([[0.01, 0.5]], np.float16)
    weights = {name: np.array([300.0, 300.0], np.float16) for name in "pq"}
    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType((1, 2), "float16"))]
    params += [relax.Var(name, relax.TensorType((2,), "float16")) for name in "pq"]
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(op.multiply(builder.emit(op.multiply(params[0], params[1])), params[2]))
        builder.emit_func_output(y)
    specs = [
        TensorSpec(name=name, shape=tuple(map(int, p.ty.shape)), dtype="float16")
        for name, p in zip("xpq", params, strict=True)
    ]
    model = IngestedModel(ir=b"", inputs=tuple(specs[:1]), params=tuple(specs[1:]))
    (found,) = run(finish(prepare(builder.get(), TARGET), TARGET), model, weights, [x])
    np.testing.assert_allclose(found, x * weights["p"] * weights["q"], rtol=1e-2)
