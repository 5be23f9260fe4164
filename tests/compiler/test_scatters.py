"""Scatters put updates where PyTorch, ONNX and NumPy put them, in order, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph import atomic_scatters
from tuner.graph.gathered_scatters import gather_scatters
from tuner.graph.prepare import prepare
from tuner.ingest import IngestedModel
from tuner.tvm_compat import relax

FIRST: Callable[[Any], Any] = lambda mod: mod  # noqa: E731
"""The rewrite that comes before a CPU's."""
DATA = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture(params=["on a CPU", "small on a GPU", "large on a GPU"], autouse=True)
def of_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the scatters of a GPU, too, which compute the same on a CPU."""
    monkeypatch.setattr(atomic_scatters, "MOST_ASKED", 0)
    if request.param != "on a CPU":
        first = gather_scatters if request.param == "small on a GPU" else atomic_scatters.combine_scatters
        monkeypatch.setitem(globals(), "FIRST", first)


def result(scatter: Any, *inputs: np.ndarray) -> np.ndarray:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{at}", relax.TensorType(each.shape, str(each.dtype))) for at, each in enumerate(inputs)]
    with builder.function("main", params, attrs={"num_input": len(params)}):
        with builder.dataflow():
            y = builder.emit_output(scatter(*params))
        builder.emit_func_output(y)
    model = IngestedModel(ir=b"", inputs=(), params=())
    (found,) = run(finish(prepare(FIRST(builder.get()), TARGET), TARGET), model, {}, list(inputs))
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
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # a GPU's sums begin with nothing


@pytest.mark.parametrize("reduction", ["update", "add"])
def test_slices_go_where_tuples_of_indices_say(reduction: str) -> None:
    indices = np.array([[[0], [-1]], [[2], [0]]])
    updates = np.random.default_rng(1).normal(0, 1, (2, 2, 6)).astype(np.float32)
    expected = DATA.copy()
    for at in np.ndindex(2, 2):
        expected[indices[at][0]] = REDUCTIONS[reduction](expected[indices[at][0]], updates[at])
    found = result(lambda data, i, u: relax.op.scatter_nd(data, i, u, reduction), DATA, indices, updates)
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # a GPU's sums begin with nothing


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_extrema_are_no_number_where_one_is_and_may_be_infinite(reduction: str) -> None:
    values = [np.nan, -np.inf, np.inf, -1.5, -1e-40, 0, 3.5]
    data = np.array(values * len(values), np.float32)
    updates = np.repeat(np.array(values, np.float32), len(values))
    rows = np.arange(len(data))
    found = result(lambda data, i, u: relax.op.scatter_elements(data, i, u, 0, reduction), data, rows, updates)
    np.testing.assert_array_equal(found, REDUCTIONS[reduction](data, updates))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "float64"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements_of_all_types_are_combined(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    data, updates = (rng.integers(-2, 3, extent).astype(dtype) for extent in (20, 30))
    rows = rng.integers(-25, 25, 30)
    expected = data.copy()
    for row, update in zip(rows, updates, strict=True):
        if -20 <= row < 20:
            expected[row] = REDUCTIONS[reduction](expected[row], update)
    found = result(lambda data, i, u: relax.op.scatter_elements(data, i, u, 0, reduction), data, rows, updates)
    assert found.dtype == data.dtype
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


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("width", [5, 40, 3000])
def test_an_index_that_is_repeated_moves_slices(reduction: str, width: int) -> None:
    rng = np.random.default_rng(2)
    data, updates = (rng.uniform(0.5, 1.5, (extent, width)).astype(np.float32) for extent in (7, 50))
    rows = rng.integers(-9, 9, (50, 1))  # some of them are out of bounds
    expected = data.copy()
    for row, update in zip(rows[:, 0], updates, strict=True):
        if -7 <= row < 7:
            expected[row] = REDUCTIONS[reduction](expected[row], update)

    def scatter(data: Any, rows: Any, updates: Any) -> Any:
        return relax.op.scatter_elements(data, relax.op.broadcast_to(rows, updates.ty.shape), updates, 0, reduction)

    found = result(scatter, data, rows, updates)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_threads_divide_what_stays_where_it_is(axis: int) -> None:
    rng = np.random.default_rng(3)
    data, updates = np.zeros((20, 30, 50), np.float32), rng.normal(size=(20, 30, 50)).astype(np.float32)
    indices = rng.integers(0, data.shape[axis], updates.shape)
    expected = data.copy()
    places = [*np.indices(updates.shape)]
    places[axis] = indices
    np.add.at(expected, tuple(places), updates)
    found = result(lambda data, i, u: relax.op.scatter_elements(data, i, u, axis, "add"), data, indices, updates)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
