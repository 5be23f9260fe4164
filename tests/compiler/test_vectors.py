"""What TVM 0.27 makes wrong of a vectorised loop is written so that it comes out right: bindings, and booleans between
stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.programs import TARGET
from tuner.ingest.aten.reductions import arg_reducer
from tuner.measure.build import build
from tuner.measure.check import poison
from tuner.measure.reference_program import on_all_cores
from tuner.tvm_compat import IRModule, Schedule, te, tirx, to_tvm_target, tvm

ROWS, LANES = 5, 48


def module(*tensors: Any) -> Any:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def run(mod: Any, *arrays: np.ndarray[Any, Any]) -> None:
    """Calls the function with the arrays; those that it writes are changed."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    build(mod, to_tvm_target(TARGET)).main(*tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.numpy()


def places_of_maxima() -> Any:
    """(x[ROWS, LANES]) -> the largest of each column, and its place."""
    x = te.placeholder((ROWS, LANES), name="x")
    k = te.reduce_axis((0, ROWS), "k")
    place, value = te.compute(
        (LANES,), lambda i: arg_reducer(True)((k.var.astype("int64"), x[k, i]), axis=k), name="arg"
    )
    return module(x, value, place)


def test_the_places_of_extrema_are_right_in_every_lane_of_a_vector() -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, LANES)).astype(np.float32)
    x[2, 7] = np.nan
    schedule = Schedule(places_of_maxima())
    block = schedule.get_sblock("arg")
    i, k = schedule.get_loops(block)
    outer, lane = schedule.split(i, [None, 16])
    schedule.reorder(outer, k, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, k)
    for mod in (schedule.mod, on_all_cores(places_of_maxima())):
        value, place = np.empty(LANES, np.float32), np.empty(LANES, np.int64)
        run(mod, x, value, place)
        np.testing.assert_array_equal(place, x.argmax(0))
        np.testing.assert_array_equal(value, x.max(0))


def test_booleans_between_stages_are_read_as_they_were_written() -> None:
    x = te.placeholder((LANES,), "int64", name="x")
    small = te.compute((LANES,), lambda i: x[i] <= tirx.const(3, "int64"), name="small")
    large = te.compute((LANES,), lambda i: tirx.Not(small[i]), name="large")
    result = te.compute(
        (LANES,),
        lambda i: tirx.Select(large[i].astype("int64") > tirx.const(0, "int64"), tirx.const(1.0), tirx.const(2.0)),
        name="result",
    )
    given, found = np.arange(LANES) % 7, np.empty(LANES, np.float32)
    run(on_all_cores(module(x, result)), given, found)
    np.testing.assert_array_equal(found, np.where(given > 3, 1, 2))


def test_a_scalar_output_is_poisoned_like_any_other() -> None:
    scalar = np.zeros((), np.int64)
    poison(scalar)
    assert scalar.tobytes() == b"\xa5" * 8
