"""Sorts of a CPU give the order of a stable sort, whatever the type, the axis and the way."""

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

op = relax.op
NAN, INF = float("nan"), float("inf")


def results(sort: Any, x: np.ndarray) -> list[np.ndarray]:
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [given], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(sort(given)))
        builder.emit_func_output(y)
    model = IngestedModel(ir=b"", inputs=(), params=())
    found = run(finish(prepare(builder.get(), TARGET), TARGET), model, {}, [x])
    return [np.asarray(each) for each in found]


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """With ties; of floating-point numbers some that are infinite, zero of either sign and none."""
    rng = np.random.default_rng(0)
    if dtype.startswith("float"):
        found = rng.normal(0, 1e3, shape).round(-2).astype(dtype)
        some = rng.integers(0, 12, shape)
        for at, value in enumerate((NAN, INF, -INF, 0.0, -0.0)):
            found[some == at] = value
        return found
    limits = np.iinfo(dtype)
    wide = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return np.where(rng.integers(0, 3, shape) == 0, wide, rng.integers(0, 5, shape)).astype(dtype)


def order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Places of a stable sort; what is no number is the largest."""
    ranks = np.unique(np.where(x == 0, np.zeros_like(x), x), return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, axis, kind="stable")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "uint64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 50), 1), ((3, 300), 1), ((200, 3), 0), ((5000,), 0), ((64, 300, 2), 1)]
)
def test_places_are_those_of_a_stable_sort(shape: tuple[int, ...], axis: int, dtype: str, descending: bool) -> None:
    x = numbers(dtype, *shape)
    (places,) = results(lambda x: op.argsort(x, axis, descending, dtype="int64"), x)
    np.testing.assert_array_equal(places, order(x, axis, descending))
    (values,) = results(lambda x: op.sort(x, axis, descending), x)
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, axis))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("count", [1, 7, 60, 400])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_first_of_many_are_those_of_a_sort(dtype: str, count: int, largest: bool) -> None:
    x = numbers(dtype, 3, 1003)
    values, places = results(lambda x: op.topk(x, count, 1, "both", largest, "int32"), x)
    expected = order(x, 1, largest)[:, :count]
    np.testing.assert_array_equal(places, expected)
    assert places.dtype == np.int32
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))
