"""Wire types: what an older version wrote still loads, and what cannot be is refused."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter, ValidationError

from pitchpipe.wire.job import Budget, Progress
from pitchpipe.wire.lease import LeaseGrant, Report
from pitchpipe.wire.measure import Measurement, Timed
from pitchpipe.wire.miss import MissReport
from pitchpipe.wire.record import Tier

DIGEST = "0" * 64
OLD = {
    "outcome": "timed",
    "candidate": DIGEST,
    "run_secs": [0.002, 0.001, 0.004],
    "check": {"passed": True, "max_abs_error": 0.0, "tolerance": 0.001, "input_sets": 3},
    "build_secs": 0.5,
    "load": 1.5,
}
"""As the first version stored it."""


def test_a_timing_stored_before_intervals_were_kept_still_loads() -> None:
    found = TypeAdapter[Measurement](Measurement).validate_python(OLD)
    assert isinstance(found, Timed)
    assert found.secs == 0.002
    assert found.model_dump(mode="json", exclude_none=True) == OLD
    assert {found.secs_low, found.secs_high, found.rule, found.clock_hz, found.reference_ratio} == {None}


def test_a_report_from_before_workers_told_their_steadiness_and_seconds_still_loads() -> None:
    found = Report.model_validate_json(json.dumps({"fence": 1, "results": [OLD], "final": True}))
    assert found.steadiness is None
    assert found.seconds is None


def test_a_grant_from_before_jobs_had_traces_still_loads() -> None:
    old = {
        "lease": "lea",
        "fence": 1,
        "ttl_secs": 30.0,
        "purpose": "search",
        "workload": DIGEST,
        "config": {},
        "target": {"kind": "llvm", "mcpu": "znver3", "num-cores": 2},
        "candidates": [{"digest": DIGEST, "trace": "[[],[]]"}],
    }
    assert LeaseGrant.model_validate(old).traceparent is None


def test_progress_from_before_estimates_were_counted_still_loads() -> None:
    found = Progress.model_validate({"trials": 3, "best_secs": 0.5})
    assert (found.estimated_tasks, found.forecast_secs, found.minute_gain) == (0, None, None)


def test_a_budget_from_before_one_could_stop_early_still_loads() -> None:
    assert Budget.model_validate({"trials": 3, "seconds": None}).until_gain is None
    for wrong in (0, 1, -0.1):
        with pytest.raises(ValidationError):
            Budget(trials=3, until_gain=wrong)


@pytest.mark.parametrize("ends", [(0.002, 0.002), (0.001, 0.004)])
def test_an_interval_holds_the_median(ends: tuple[float, float]) -> None:
    made = Timed.model_validate({**OLD, "secs_low": ends[0], "secs_high": ends[1]})
    assert (made.secs_low, made.secs_high) == ends


@pytest.mark.parametrize(
    "wrong",
    [
        {"secs_low": 0.001},
        {"secs_high": 0.004},
        {"secs_low": 0.0021, "secs_high": 0.004},
        {"secs_low": 0.001, "secs_high": 0.0019},
        {"secs_low": 0.0, "secs_high": 0.004},
        {"secs_low": 0.001, "secs_high": float("inf")},
        {"clock_hz": 0.0},
        {"reference_ratio": float("nan")},
        {"rule": {"stop": "tired", "calls": 1}},
        {"rule": {"stop": "slow", "calls": 0}},
        {"rule": {"stop": "slow", "calls": 1, "confidence": 1.0}},
    ],
    ids=str,
)
def test_what_no_timing_can_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Timed.model_validate({**OLD, **wrong})


def test_a_report_from_before_served_runs_were_counted_still_loads() -> None:
    target = {"kind": "llvm", "mcpu": "znver5", "num-cores": 2}
    told = {"target": target, "misses": [{"workload": DIGEST, "runs": 3}]}
    found = MissReport.model_validate_json(json.dumps(told))
    assert ([miss.runs for miss in found.misses], found.served) == ([3], ())


def test_a_miss_has_no_schedule_that_was_found_for_its_workload_and_target() -> None:
    assert [tier for tier in Tier if tier.is_miss] == [Tier.COMPATIBLE_ISA, Tier.TRANSFERRED, Tier.NONE]


def test_a_tier_fits_where_it_is_as_good_as_the_least_that_is_taken_and_there_is_a_schedule() -> None:
    assert [tier for tier in Tier if tier.fits(Tier.COMPATIBLE_ISA)] == [
        Tier.EXACT,
        Tier.SAME_ARCH,
        Tier.COMPATIBLE_ISA,
    ]
    assert Tier.NONE not in [tier for tier in Tier if tier.fits(Tier.NONE)]
