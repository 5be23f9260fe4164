"""Long lines sorted for a GPU, by a network of comparisons: what is in order, thread by thread, and the code it becomes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidTrace
from tests.compiler.gpu_cases import check
from tests.compiler.graphs import GPU, Graph, run_here
from tests.compiler.test_gpu_model import here
from tuner.graph import run_sorts
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.schedule import sorting
from tuner.schedule.rewrites import NETWORK
from tuner.schedule.sorting import Sorting, find_sorting, in_kernel, workload
from tuner.tvm_compat import IRModule, relax, tirx, tvm_ffi

SORTINGS = [
    Sorting(shape=(3, 100), axis=1, count=100),
    Sorting(shape=(100, 2), axis=0, count=7),
    Sorting(shape=(2, 3, 513), axis=2, count=513),
    Sorting(shape=(2, 4500), axis=1, count=50),
    Sorting(shape=(2100,), axis=0, count=sorting.RUN),
    Sorting(shape=(5, 2), axis=1, count=2),
]


@pytest.mark.parametrize("given", SORTINGS, ids=str)
def test_a_network_sorts_runs_on_the_host_and_thread_by_thread(given: Sorting) -> None:
    mod = workload_module(workload(given))
    assert find_sorting(mod["main"]) == given
    found = check(mod, GPU)
    assert NETWORK in found.trace
    (call,) = found.lowered.calls
    lines = math.prod(given.shape) // given.shape[given.axis]
    assert call.grid[0] == lines * given.runs
    assert call.block[0] in (given.run // 8, given.run // 4, 1)
    assert found.lowered.source.count("__syncthreads()") < 9, "turns are in loops"
    if here():
        from tuner.measure.device_compiler import DeviceCompiler

        assert ".entry" in DeviceCompiler("sm_90a").ptx(found.lowered.source)


def sorted_module(make: Any, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """(module prepared for a GPU, drawn elements with many that are equal)."""
    graph = Graph()
    x = graph.tensor(*shape, dtype=dtype)
    drawn = np.random.default_rng(1).integers(-300, 300, shape)
    drawn = drawn * 3_000_000_019 if dtype == "int64" else drawn  # both halves of a key count
    graph.values[0] = (drawn if dtype.startswith("int") else np.round(drawn / 3) / 7).astype(dtype)
    return prepare(graph.module(lambda emit: emit(make(x)), 1), GPU), graph.values[0]


def in_order(x: Any, axis: int, descending: bool) -> Any:
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, axis, kind="stable")


def functions_of(prepared: Any) -> list[Any]:
    return [prepared[prepared.get_global_var(name)] for name in call_counts(prepared)]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 65), 1), ((200, 2), 0), ((4500,), 0), ((2, 2049, 1), 1)], ids=str)
def test_all_of_a_line_is_put_in_order(shape: tuple[int, ...], axis: int, dtype: str, descending: bool) -> None:
    prepared, x = sorted_module(lambda x: relax.op.argsort(x, axis, descending, "int64"), shape, dtype)
    (places,) = run_here(prepared, [x], [])
    assert places.dtype == np.int64
    np.testing.assert_array_equal(places, in_order(x, axis, descending))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("extent", "count"), [(65, 1), (65, 65), (2049, 2049), (5000, 1024), (5000, 1025), (90_000, 50), (70_000, 1000)]
)
def test_the_first_in_order_are_those_of_the_whole_line(extent: int, count: int, largest: bool) -> None:
    make = lambda x: relax.op.topk(x, count, 1, "both", largest, "int32")  # noqa: E731
    prepared, x = sorted_module(make, (2, extent), "float32")
    values, places = run_here(prepared, [x], [])
    expected = in_order(x, 1, largest)[:, :count]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))
    sortings = [found for found in map(find_sorting, functions_of(prepared)) if found is not None]
    assert sortings
    assert sum(math.prod(each.shape) // each.elements * each.runs * each.run for each in sortings) < 4 * x.size, (
        "no square of the length"
    )


def test_what_is_no_number_is_sorted_behind_all_others_in_runs() -> None:
    extent = 2 * sorting.RUN + 3
    prepared, x = sorted_module(lambda x: relax.op.argsort(x, 0, False, "int64"), (extent,), "float32")
    x[::7], x[::11], x[::13], x[::17] = np.nan, np.inf, -0.0, -np.inf
    np.testing.assert_array_equal(run_here(prepared, [x], [])[0], np.argsort(x, kind="stable"))


@pytest.mark.parametrize("extent", [100, 4500])
def test_every_function_of_a_sort_has_a_schedule_that_computes_it(extent: int) -> None:
    make = lambda x: relax.op.sort(x, 1, True)  # noqa: E731
    prepared, _ = sorted_module(make, (2, extent), "float16")
    found = [check(workload_module(function), GPU) for function in functions_of(prepared)]
    assert sum(NETWORK in each.trace for each in found) == 1
    assert all(8 * call.grid[0] * call.block[0] >= extent for each in found for call in each.lowered.calls)


def test_short_lines_have_no_network() -> None:
    prepared, _ = sorted_module(lambda x: relax.op.argsort(x, 1, False, "int64"), (2, run_sorts.SHORT), "float32")
    assert not any(map(find_sorting, functions_of(prepared)))


def test_what_compares_otherwise_is_no_such_workload() -> None:
    given = SORTINGS[0]
    function = workload(given)

    def other(found: Any) -> Any:
        return tirx.Select(found.condition, found.false_value, found.true_value)

    turned = function.with_body(tvm_ffi.structural_map(function.body, (tirx.Select, other)))
    assert find_sorting(function) == given
    assert find_sorting(turned) is None
    with pytest.raises(InvalidTrace):
        in_kernel(IRModule({"main": turned}))
