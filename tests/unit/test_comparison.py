"""How far outputs may be off, which inputs are tried, and what is told of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pydantic import ValidationError

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.model.comparison import TOLERANCE, agreement, difference, edges_like, input_sets, largest_error
from pitchpipe.model.reference import CannotRun, Expected
from pitchpipe.model.reference.expected import expect
from pitchpipe.wire.comparison import MAX_REASON, Comparison, not_compared

ROOT = Path(__file__).parents[2]
R = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.mark.parametrize("dtype", sorted(TOLERANCE.keys() - {"tf32"}))
def test_rounding_agrees_and_ten_tolerances_do_not(dtype: str) -> None:
    r = R.astype(dtype)
    wide = r.astype(np.float64)
    assert difference([(wide * (1 + TOLERANCE[dtype] / 2)).astype(dtype)], [r]) is None
    assert "differs" in str(difference([(wide + 10 * TOLERANCE[dtype]).astype(dtype)], [r]))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([R, R], "there are 2 outputs, not 1"),
        ([R[:2]], r"is float32\[2, 8\], not float32\[4, 8\]"),
        ([R.astype(np.float64)], r"is float64\[4, 8\], not float32"),
        ([np.where(R > 0, np.inf, R)], "infinities"),
        ([np.where(R > 0, np.nan, R)], "infinities"),
    ],
)
def test_shapes_types_and_places_of_infinities_must_be_the_same(found: list[Any], told: str) -> None:
    assert re.search(told, str(difference(found, [R])))
    assert largest_error(found, [R]) == float("inf")


def test_the_same_values_that_are_not_numbers_agree_and_their_signs_count() -> None:
    r = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert difference([r.copy()], [r]) is None
    assert difference([-r], [r]) is not None


def test_whole_numbers_and_booleans_must_be_equal() -> None:
    r = np.arange(6)
    assert difference([r.copy(), r > 2], [r, r > 2]) is None
    assert "1 of 6" in str(difference([np.where(r == 3, 4, r)], [r]))


def test_of_many_outputs_the_smallest_is_measured_by_the_largest() -> None:
    """An output that is zero but for rounding."""
    assert difference([R, R * 0 + 1e-6], [R, R * 0]) is None


def test_an_agreement_tells_the_error_nearest_to_its_tolerance() -> None:
    half = R.astype(np.float16)
    found = agreement([[R + 4e-4, half]], [[R, half]])
    assert found.difference is None
    assert found.tolerance == TOLERANCE["float32"]
    assert 0 < found.error < found.tolerance
    assert agreement([[half]], [[half]]).tolerance in (0.0, TOLERANCE["float16"])
    assert agreement([[np.arange(3)]], [[np.arange(3)]]) == agreement([], [])
    wrong = agreement([[R], [R + 1], [R + 2]], [[R], [R], [R]])
    assert wrong.differs_at == 1
    assert wrong.difference is not None


def test_input_sets_are_the_examples_inputs_like_them_and_edges() -> None:
    examples = [R * 3 + 5, np.array([[2, 9]], np.int64), np.array([True, False]), np.zeros((), np.float32)]
    first, second, third = input_sets(examples)
    for sets in (first, second, third):
        assert [(one.shape, one.dtype) for one in sets] == [(one.shape, one.dtype) for one in examples]
    assert all((ours == theirs).all() for ours, theirs in zip(first, examples, strict=True))
    assert 2 <= second[1].min() <= second[1].max() <= 9
    assert set(third[1].flat) <= {2, 9}
    assert not np.isinf(third[0]).any()
    assert abs(second[0].mean() - 5) < 3


def test_offsets_are_drawn_in_their_order_and_no_other_whole_numbers_are() -> None:
    """Of offsets in another order PyTorch's own kernels make different things."""
    offsets, tokens = np.array([0, 3, 3, 10, 20, 24], np.uint8), np.arange(64)[::-1]
    rows, columns = np.arange(64).reshape(2, 32), np.arange(64).reshape(64, 1)
    _, drawn, edges = input_sets([offsets, tokens, rows, columns])
    for ascending in (drawn[0], edges[0]):
        assert (np.diff(ascending.astype(int)) >= 0).all()
        assert ascending[0] == 0
        assert ascending.max() <= 24
    for one in (drawn, edges):
        assert (np.diff(one[1]) < 0).any()
        assert (np.diff(one[2], axis=1) < 0).any()
        assert (np.diff(one[3], axis=0) < 0).any()


@given(npst.arrays(st.sampled_from([np.float32, np.float16, np.int8, np.bool_]), npst.array_shapes(max_side=4)))
def test_any_example_has_edges_of_its_shape_and_type(example: np.ndarray) -> None:
    found = edges_like(example, np.random.default_rng(0))
    assert (found.shape, found.dtype) == (example.shape, example.dtype)


def test_a_model_that_computes_in_half_precision_may_be_as_far_off_as_that_allows() -> None:
    """As under autocast, whose results may be float32."""
    near = R * (1 + 5e-3)
    assert difference([near], [R]) is not None
    assert difference([near], [R], computed="float16") is None
    assert agreement([[near]], [[R]], computed="bfloat16").tolerance == TOLERANCE["bfloat16"]
    half = R.astype(np.float16)
    assert agreement([[half]], [[half * np.float16(1.01)]], computed="float32").tolerance == TOLERANCE["float16"]
    assert difference([np.array([1])], [np.array([2])], computed="bfloat16") is not None


def test_the_tolerances_are_the_documented_ones() -> None:
    page = (ROOT / "docs/comparison.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (\d+e-\d+) \|$", page, re.MULTILINE))
    assert {name: float(value) for name, value in rows.items()} == dict(TOLERANCE)


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    arrays = {"a/../b": R, "brain": R.astype(ml_dtypes.bfloat16), "": np.array(True), "none": np.zeros((0, 3), np.int8)}
    save_arrays(tmp_path / "a.npz", arrays)
    found = load_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert (found[name] == array).all()


class Framework:
    """Runs a function of arrays, and notes what it was given."""

    name = "Framework 1"
    weights: dict[str, np.ndarray] = {}
    steps: tuple[float, ...] = ()
    computed: str | None = None
    rounded: Callable[..., Any] | None = None
    widened: Callable[..., Any] | None = None

    def __init__(self, function: Callable[..., Sequence[Any]], *examples: Any) -> None:
        self.function, self.examples = function, examples
        self.given: list[list[np.ndarray]] = []

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.given.append(list(arrays))
        return [np.asarray(part) for part in self.function(*arrays)]


def test_a_framework_answers_on_three_input_sets_that_travel_in_a_file(tmp_path: Path) -> None:
    found = expect(Framework(lambda x: (x * 2, x.sum(1) > 0), R))
    assert [len(sets) for sets in (found.inputs, found.outputs)] == [3, 3]
    assert found.note is None
    found.write(tmp_path / "expected")
    back = Expected.read(tmp_path / "expected")
    assert back.reference == "Framework 1"
    for ours, theirs in zip((*back.inputs, *back.outputs), (*found.inputs, *found.outputs), strict=True):
        assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


def test_a_model_without_inputs_is_run_as_it_is(tmp_path: Path) -> None:
    expect(Framework(lambda: (R,))).write(tmp_path / "expected")
    assert Expected.read(tmp_path / "expected").inputs == ((), (), ())


def test_a_set_that_the_framework_refuses_is_left_out_and_less_than_two_are_told() -> None:
    def picky(x: np.ndarray) -> list[np.ndarray]:
        if not np.allclose(x, R, atol=1e-3):
            raise IndexError("index out of range")
        return [x]

    found = expect(Framework(picky, R))
    assert len(found.inputs) == 1
    assert "only 1 input set: Framework 1 fails: IndexError: index out of range" in str(found.note)
    assert "only 1 input set" in str(found.comparison(agreement([found.outputs[0]], [found.outputs[0]])))


def test_a_framework_that_always_fails_cannot_be_compared_with() -> None:
    def broken(x: np.ndarray) -> list[np.ndarray]:
        raise ValueError("no such kernel")

    with pytest.raises(CannotRun, match="no such kernel"):
        expect(Framework(broken, R))


def test_noise_and_ties_decide_nothing() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(CannotRun, match="differ by rounding alone"):
        expect(Framework(lambda x: (x + rng.standard_normal(x.shape).astype(np.float32),), R))
    found = expect(Framework(lambda x: (np.argsort(x, axis=None),), R))  # edge values are equal to each other
    assert len(found.inputs) == 3
    assert all(len(np.unique(inputs[0])) == inputs[0].size for inputs in found.inputs)


def test_the_framework_gets_arrays_of_its_own() -> None:
    def spoil(x: np.ndarray) -> list[np.ndarray]:
        result = x * 2
        x[:] = 0
        return [result]

    found = expect(Framework(spoil, R))
    assert (found.inputs[0][0] == R).all()


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"reference": "PyTorch 2"},
        {"reference": "PyTorch 2", "input_sets": 2, "error": 0.0},
        {"input_sets": 2, "error": 0.0, "tolerance": 0.0, "reason": "x"},
        {"reference": "P" * 101, "input_sets": 2, "error": 0.0, "tolerance": 0.0},
        {"reference": "P", "input_sets": 2, "error": float("nan"), "tolerance": 0.0},
        {"reason": "x" * (MAX_REASON + 1)},
    ],
)
def test_a_comparison_says_all_of_it_or_why_there_was_none(members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Comparison(**members)


def test_a_comparison_reads_as_a_sentence() -> None:
    told = Comparison(reference="PyTorch 2.13.0", input_sets=2, error=1.5e-6, tolerance=1e-3)
    assert str(told) == "compared with PyTorch 2.13.0 on 2 input sets: largest relative error 1.5e-06, 1e-03 is allowed"
    assert str(not_compared("it has\nno framework")) == "not compared: it has no framework"
    assert len(not_compared("x" * 9000).reason or "") == MAX_REASON


def test_an_output_may_be_off_by_the_step_of_its_grid_and_no_more() -> None:
    r = np.array([0, 5, -7], np.int8)
    assert difference([r + np.int8(1)], [r]) is not None
    assert difference([r + np.int8(1)], [r], steps=[1.0]) is None
    assert difference([r + np.int8(2)], [r], steps=[1.0]) is not None
    grid = np.array([0.0, 0.5, -0.7], np.float32)
    assert difference([grid + np.float32(0.1)], [grid], steps=[0.1]) is None
    assert difference([grid + np.float32(0.2)], [grid], steps=[0.1]) is not None


def test_what_rounding_makes_of_a_quantised_model_is_allowed_and_no_more(tmp_path: Path) -> None:
    quantised = Framework(lambda x: (x,), R)
    quantised.rounded = lambda arrays: [np.asarray(arrays[0] * np.float32(1.01))]
    found = expect(quantised)
    assert len(found.inputs) == 3
    assert 0.01 < found.magnified < 0.03, "three times what 1.01 r is off, less than 0.01 of |r| + s"
    found.write(tmp_path / "expected")
    again = Expected.read(tmp_path / "expected")
    assert again.magnified == found.magnified
    assert again.agreement([[outputs[0] * np.float32(1.01)] for outputs in found.outputs]).difference is None
    assert again.agreement([[outputs[0] * np.float32(1.1)] for outputs in found.outputs]).difference is not None


def test_a_quantised_model_that_rounding_changes_altogether_is_not_compared() -> None:
    quantised = Framework(lambda x: (x,), R)
    quantised.rounded = lambda arrays: [np.asarray(-arrays[0])]
    with pytest.raises(CannotRun, match="differ by rounding alone"):
        expect(quantised)


def test_what_half_precision_makes_of_a_model_is_allowed_and_no_more() -> None:
    half = Framework(lambda x: (x.astype(np.float16),), R)
    half.widened = lambda arrays: [np.asarray(arrays[0] * np.float32(1.05))]
    found = expect(half)
    assert len(found.inputs) == 3
    assert 0.05 < found.magnified < 0.15, "three times what 1.05 r is off, less than 0.05 of |r| + s"
    assert found.agreement([[outputs[0] * np.float16(1.05)] for outputs in found.outputs]).difference is None
    assert found.agreement([[outputs[0] * np.float16(1.5)] for outputs in found.outputs]).difference is not None


@pytest.mark.parametrize("wide", [lambda x: -x, lambda x: np.full_like(x, 1e6), lambda x: np.full_like(x, np.nan)])
def test_an_input_set_whose_outputs_half_precision_changes_altogether_is_left_out(wide: Callable[[Any], Any]) -> None:
    half = Framework(lambda x: (x.astype(np.float16),), R)
    half.widened = lambda arrays: [wide(arrays[0])]
    with pytest.raises(CannotRun, match="differ by rounding alone"):
        expect(half)


def test_a_framework_that_cannot_widen_a_model_is_taken_at_its_word() -> None:
    def widened(_: Any) -> Any:
        raise RuntimeError("expected half")

    half = Framework(lambda x: (x.astype(np.float16),), R)
    half.widened = widened
    assert (expect(half).magnified, len(expect(half).inputs)) == (0.0, 3)


def test_whole_numbers_of_a_quantised_model_are_equal() -> None:
    assert difference([np.array([1])], [np.array([2])], magnified=0.2) is not None
