"""Scatters put updates where PyTorch, ONNX and NumPy put them, in order, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.prepare import prepare
from tuner.ingest import IngestedModel
from tuner.tvm_compat import relax

DATA = np.arange(24, dtype=np.float32).reshape(4, 6)


def result(scatter: Any, *inputs: np.ndarray) -> np.ndarray:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{at}", relax.TensorType(each.shape, str(each.dtype))) for at, each in enumerate(inputs)]
    with builder.function("main", params, attrs={"num_input": len(params)}):
        with builder.dataflow():
            y = builder.emit_output(scatter(*params))
        builder.emit_func_output(y)
    model = IngestedModel(ir=b"", inputs=(), params=())
    (found,) = run(finish(prepare(builder.get(), TARGET), TARGET), model, {}, list(inputs))
    return np.asarray(found)


REDUCTIONS: dict[str, Any] = {
    "update": lambda _, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements_go_where_indices_say_one_after_another(reduction: str, axis: int) -> None:
    rng = np.random.default_rng(0)
    # Fewer than the data in every dimension, with repetitions, counted from both ends.
    indices = rng.integers(-DATA.shape[axis], DATA.shape[axis], (3, 4))
    updates = rng.normal(0, 20, indices.shape).astype(np.float32)
    updates[1, 1] = np.nan
    expected = DATA.copy()
    for at in np.ndindex(*indices.shape):
        to = (indices[at], at[1]) if axis == 0 else (at[0], indices[at])
        expected[to] = REDUCTIONS[reduction](expected[to], updates[at])
    found = result(lambda data, i, u: relax.op.scatter_elements(data, i, u, axis, reduction), DATA, indices, updates)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reduction", ["update", "add"])
def test_slices_go_where_tuples_of_indices_say(reduction: str) -> None:
    indices = np.array([[[0], [-1]], [[2], [0]]])
    updates = np.random.default_rng(1).normal(0, 1, (2, 2, 6)).astype(np.float32)
    expected = DATA.copy()
    for at in np.ndindex(2, 2):
        expected[indices[at][0]] = REDUCTIONS[reduction](expected[indices[at][0]], updates[at])
    found = result(lambda data, i, u: relax.op.scatter_nd(data, i, u, reduction), DATA, indices, updates)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_values_are_put_at_indices_that_broadcast(accumulate: bool) -> None:
    rows, columns = np.array([[0], [-1], [0]]), np.array([1, -6, 1])
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    expected = DATA.copy()
    if accumulate:
        np.add.at(expected, (rows, columns), values)
    else:
        expected[rows, columns] = values
    found = result(lambda data, i, j, v: relax.op.index_put(data, (i, j), v, accumulate), DATA, rows, columns, values)
    np.testing.assert_array_equal(found, expected)


def test_what_is_out_of_bounds_is_dropped() -> None:
    indices = np.array([[4, -5, 10**12, -1, 0, 1]])
    updates = np.full((1, 6), 100, np.float32)
    expected = DATA.copy()
    expected[3, 3], expected[0, 4], expected[1, 5] = 100, 100, 100
    found = result(lambda data, i, u: relax.op.scatter_elements(data, i, u, 0), DATA, indices, updates)
    np.testing.assert_array_equal(found, expected)


def test_a_sum_of_a_thousand_updates_to_one_element_loses_none() -> None:
    indices, updates = np.zeros(1000, np.int32), np.ones(1000, np.float32)
    found = result(
        lambda data, i, v: relax.op.index_put(data, (i,), v, True), np.zeros(3, np.float32), indices, updates
    )
    np.testing.assert_array_equal(found, [1000, 0, 0])
