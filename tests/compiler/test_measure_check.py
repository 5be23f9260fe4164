"""The output check: which outputs pass, and which inputs they are computed from."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.programs import conv, dense
from tests.hostile import program
from tuner.measure import parts
from tuner.measure.check import SETS, ReferenceOutputs, poison, verdict
from tuner.measure.input_sets import RANGES, make_inputs
from tuner.measure.properties import WorkloadProperties, inspect
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import IRModule, load_ir, te, tvm


def properties(dtype: str = "float32", reduction: int = 4608, **changes: object) -> WorkloadProperties:
    bits = {"float32": 24, "float16": 11, "int32": 53}[dtype]
    values: dict[str, object] = {
        "params": (TensorType(shape=(8, reduction), dtype=dtype), TensorType(shape=(reduction, 8), dtype=dtype)),
        "outputs": (),
        "reduction": reduction,
        "bits": bits,
        "reduction_bits": bits,
        "exact": True,
        "steep": False,
        "shrinks": False,
        "floats": dtype != "int32",
        "index_bound": None,
    }
    return WorkloadProperties(**(values | changes))  # type: ignore[arg-type]


def product(found: WorkloadProperties, name: str, order: np.ndarray | None = None) -> np.ndarray:
    """A matrix product in the workload's type, terms summed in `order`."""
    a, b = make_inputs(found, name, 0)
    terms = a[:, :, None] * b[None, :, :]
    terms = terms if order is None else terms[:, order, :]
    return np.add.accumulate(terms, axis=1, dtype=a.dtype)[:, -1, :]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", SETS)
def test_another_order_of_summation_passes(dtype: str, name: str) -> None:
    found = properties(dtype)
    order = np.random.default_rng(1).permutation(found.reduction)
    assert ReferenceOutputs(found, name, [product(found, name)]).compare([product(found, name, order)])[0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_missing_term_in_thousands_fails(dtype: str) -> None:
    found = properties(dtype)
    references = [ReferenceOutputs(found, name, [product(found, name)]) for name in SETS]
    missing = np.arange(found.reduction - 1)
    passed = [
        reference.compare([product(found, name, missing)])[0] for name, reference in zip(SETS, references, strict=True)
    ]
    assert not all(passed)


def test_a_large_output_is_compared_part_by_part_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_SMALL", 16)
    monkeypatch.setattr(parts, "_LARGE", 16)
    found = properties(reduction=1)
    expected = np.random.default_rng(0).standard_normal((7, 9)).astype(np.float32)
    wrong = expected.copy()
    wrong[4, 5] += 1.0
    for many in (1 << 22, 8):
        monkeypatch.setattr(parts, "_MANY", many)
        reference = ReferenceOutputs(found, "random", [expected])
        assert reference.compare([expected]) == (True, 0.0, pytest.approx(reference.compare([expected])[2]))
        right, error, tolerance = reference.compare([wrong])
        assert (right, error) == (False, pytest.approx(1.0))
        scale = np.sqrt(np.mean(np.square(expected, dtype=np.float64)))
        assert tolerance == pytest.approx(16 * found.relative_error * (abs(expected[4, 5]) + scale), rel=1e-5)


def test_nan_never_passes_where_the_reference_is_finite() -> None:
    expected = np.ones(4, np.float32)
    right, error, _ = ReferenceOutputs(properties(), "random", [expected]).compare(
        [np.array([1, 1, np.nan, 1], np.float32)]
    )
    assert not right
    assert error == 1e308


def test_where_the_reference_is_not_finite_the_candidate_must_be_the_same() -> None:
    reference = ReferenceOutputs(properties(), "random", [np.array([np.nan, np.inf, 1, 2], np.float32)])
    assert reference.compare([np.array([np.nan, np.inf, 1, 2], np.float32)])[0]
    assert not reference.compare([np.array([0, np.inf, 1, 2], np.float32)])[0]
    assert not reference.compare([np.array([np.nan, -np.inf, 1, 2], np.float32)])[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
def test_an_element_nobody_wrote_fails(dtype: str) -> None:
    expected = np.arange(100).astype(dtype)
    output = np.empty_like(expected)
    poison(output)
    output[:-1] = expected[:-1]
    found = properties("int32" if "int" in dtype else dtype)
    assert not ReferenceOutputs(found, "random", [expected]).compare([output])[0]


def test_integers_must_be_equal_unless_floats_took_part() -> None:
    expected = np.arange(2000, dtype=np.int32)
    off_by_one = expected.copy()
    off_by_one[5] += 1
    assert not ReferenceOutputs(properties("int32"), "random", [expected]).compare([off_by_one])[0]
    rounding = properties("int32", floats=True)
    assert ReferenceOutputs(rounding, "random", [expected]).compare([off_by_one])[0]
    assert not ReferenceOutputs(rounding, "random", [expected]).compare([expected + 1])[0]


def test_the_verdict_tells_the_error_that_is_closest_to_its_tolerance() -> None:
    found = verdict([(True, 5.0, 100.0), (True, 0.9, 1.0), (True, 0.0, 1e-9)])
    assert (found.passed, found.max_abs_error, found.tolerance, found.input_sets) == (True, 0.9, 1.0, 3)
    assert not verdict([(True, 1.0, 2.0), (False, 3.0, 2.0)]).passed


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    first, again, other = (make_inputs(properties(), "random", seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_where_outputs_are_not_finite_other_numbers_are_drawn() -> None:
    """As for a mask of whole numbers that is multiplied by the largest number."""
    found = {within: make_inputs(properties(), "edges", 1, within)[0] for within in RANGES}
    assert (found["positive"] > 0).all()
    assert ((found["unit"] > 0) & (found["unit"] < 1)).all()
    whole = make_inputs(properties("int32"), "edges", 1, "unit")[0]
    assert set(whole.reshape(-1).tolist()) == {0, 1}


def test_the_facts_of_a_convolution_are_read_from_its_program() -> None:
    found = inspect(load_ir(conv(14, 16, 16).ir))
    assert found.outputs == (3,)
    assert found.reduction == 3 * 3 * 16
    assert found.reduction_bits == 24
    assert found.exact, "sums, products, padding and relu"


def test_a_call_makes_a_program_inexact() -> None:
    assert inspect(load_ir(dense().ir)).exact
    assert not inspect(load_ir(program('T.call_extern("int32", "getpid")').ir)).exact


def test_places_of_a_scatter_are_those_of_its_result() -> None:
    values, rows = te.placeholder((40,), name="values"), te.placeholder((40,), dtype="int32", name="rows")
    k = te.reduce_axis((0, 40), "k")
    lowest = te.min_value("float32")
    most = te.compute(
        (30,),
        lambda i: te.max(te.if_then_else(rows[k].equal(i), values[k], lowest), axis=k),
        name="most",
    )
    found = inspect(IRModule({"main": te.create_prim_func([values, rows, most])}))
    assert found.index_bound == 30
    assert make_inputs(found, "random", 0)[1].max() > 8


def test_indices_stay_inside_what_they_index() -> None:
    table, rows = te.placeholder((5, 8), name="table"), te.placeholder((64,), dtype="int64", name="rows")
    taken = te.compute((64, 8), lambda i, j: table[rows[i], j], name="taken")
    found = inspect(IRModule({"main": te.create_prim_func([table, rows, taken])}))
    assert found.index_bound == 5
    for name in SETS:
        indices = make_inputs(found, name, 0)[1]
        assert indices.min() >= 0
        assert indices.max() < 5


def test_a_symbolic_shape_is_refused_with_a_reason() -> None:
    n = tvm.tirx.Var("n", "int64")
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="b")
    with pytest.raises((ValueError, TypeError)):
        inspect(IRModule({"main": te.create_prim_func([a, b])}))
