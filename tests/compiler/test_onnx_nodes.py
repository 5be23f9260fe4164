"""ONNX's own node tests: those that had been served wrong, and a sample of all, are right or refused by name.

The whole set is `benchmarks/onnx_nodes.py`, whose result is beside it; here is what a minute holds.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import onnx_nodes
finally:
    sys.path.remove(str(BENCHMARKS))

pytestmark = pytest.mark.usefixtures("unoptimised")
RECORDED = BENCHMARKS / "results" / "onnx_nodes.json"
SEED = 13
SAMPLE = 60
"""Drawn from the recorded tests that are right."""

ONCE_WRONG = (
    *("test_batchnorm_epsilon_training_mode", "test_batchnorm_example_training_mode"),
    *("test_bitshift_left_int32_negative_shift", "test_bitshift_left_int32_shift_ge_width"),
    *("test_convtranspose_output_shape", "test_isinf_negative", "test_isinf_positive"),
    *("test_layer_normalization_2d_axis0", "test_layer_normalization_4d_axis_negative_1"),
    *("test_layer_normalization_3d_axis1_epsilon", "test_layer_normalization_default_axis"),
    *("test_mod_float_edge_cases_fmod_0_float32", "test_mod_mixed_sign_float64", "test_roialign_mode_max"),
    *("test_shape_start_greater_than_end", "test_spacetodepth_crd_mode_example", "test_split_to_sequence_nokeepdims"),
    *("test_training_dropout_default", "test_training_dropout_mask", "test_cast_FLOAT_to_FLOAT8E4M3FN"),
    *("test_reduce_max_bool_inputs", "test_rms_normalization_2d_axis0", "test_pow_types_int64_int64"),
)
"""Tests that were served wrong, some of them in kinds that came in many."""
REFUSED = frozenset(
    (
        *("test_roialign_mode_max", "test_training_dropout_default", "test_training_dropout_mask"),
        "test_split_to_sequence_nokeepdims",
    )
)
"""Those of them that are refused: what draws, a sequence as a result, and a maximum on which definitions differ."""


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return onnx_nodes.node_tests()


def _rows(cases: dict[str, Any], names: list[str]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in onnx_nodes.outcomes([cases[name] for name in names])}


@pytest.mark.long
def test_what_was_served_wrong_is_right_now_or_refused_by_name(cases: dict[str, Any]) -> None:
    rows = _rows(cases, [name for name in ONCE_WRONG if name in cases])
    found = {name: (row["status"], row["detail"]) for name, row in rows.items()}
    assert len(found) > 15
    assert {name for name, (status, _) in found.items() if status != "right"} <= REFUSED, found
    assert all(status == "refused" and name in REFUSED for name, (status, _) in found.items() if status != "right"), (
        found
    )


@pytest.mark.long
def test_a_sample_of_what_was_recorded_as_right_stays_right(cases: dict[str, Any]) -> None:
    recorded = {row["name"]: row["status"] for row in json.loads(RECORDED.read_text())["rows"]}
    assert "wrong" not in recorded.values()
    right = sorted(name for name, status in recorded.items() if status == "right" and name in cases)
    names = random.Random(SEED).sample(right, SAMPLE)
    found = _rows(cases, names)
    assert {name: row["detail"] for name, row in found.items() if row["status"] != "right"} == {}


def test_a_test_that_ends_its_process_is_a_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch, cases: dict[str, Any]
) -> None:
    def end(case: Any) -> tuple[str, str | None]:
        if case.name == "test_abs":
            faulthandler.disable()  # whose page of frames is no failure of the suite
            os.abort()
        return "right", None

    monkeypatch.setattr(onnx_nodes, "outcome", end)
    rows = _rows(cases, ["test_relu", "test_abs", "test_acos"])
    assert [row["status"] for row in rows.values()] == ["right", "raised", "right"]
    assert "SIGABRT" in rows["test_abs"]["detail"]


def test_categories_are_told_from_the_files(cases: dict[str, Any]) -> None:
    expected = {
        "test_abs": "static",
        "test_adam": "training",
        "test_nonzero_example": "dynamic",
        "test_sequence_insert_at_back": "sequences",
        "test_string_concat": "strings",
        "test_cast_FLOAT_to_INT4": "sub_byte",
    }
    assert {name: onnx_nodes.category(cases[name]) for name in expected} == expected
