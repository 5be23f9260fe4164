"""What confirming is expected to cost, from made-up leases."""

from __future__ import annotations

import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.lease import Purpose
from tests.scene import OTHER_TARGET
from tuner.tuning.confirm import MeasuredBatch
from tuner.tuning.confirming_cost import CALLS, NAIVE_FLOPS_PER_SEC, PRIOR_RUNS, ConfirmingCost
from tuner.tuning.testing import fake_task

SMALL = fake_task("small", flops=0.0)
TASK_SECS = kind_of(SMALL.target).confirming_secs


def batch(
    granted_at: float, ended_at: float, purpose: Purpose = Purpose.CONFIRM, *, whole: bool = True, worker: str = "wrk_1"
) -> MeasuredBatch:
    return MeasuredBatch(
        task=0,
        purpose=purpose,
        candidates=(),
        results=(),
        records=(),
        whole=whole,
        device_class=None,
        toolchain=None,
        worker=worker,
        granted_at=granted_at,
        ended_at=ended_at,
    )


def of_a_second(runs: int, secs: float = 1.0) -> ConfirmingCost:
    """After so many confirming runs, one after another."""
    cost = started()
    for n in range(runs):
        cost.observe(SMALL, batch(n * secs, (n + 1) * secs))
    return cost


def started() -> ConfirmingCost:
    """After the first trials of four workers."""
    cost = ConfirmingCost()
    for n in range(1, 5):
        cost.observe(SMALL, batch(-50.0, 0.0, Purpose.SEARCH, worker=f"wrk_{n}"))
    return cost


def test_at_first_a_task_costs_what_is_usual_and_a_naive_baseline_its_calls() -> None:
    cost = ConfirmingCost()
    assert cost.secs([SMALL, SMALL], 1) == pytest.approx(2 * TASK_SECS)
    large = fake_task("large", flops=NAIVE_FLOPS_PER_SEC)
    assert cost.secs([large], 1) == pytest.approx(TASK_SECS + CALLS)
    scheduled = large.model_copy(update={"baseline": '[["scheduled"],[]]'})
    assert cost.secs([scheduled], 1) == pytest.approx(TASK_SECS), "a schedule's calls are short"
    assert cost.secs([], 1) == 0
    on_a_gpu = SMALL.model_copy(update={"target": OTHER_TARGET})
    assert cost.secs([on_a_gpu], 1) == pytest.approx(kind_of(OTHER_TARGET).confirming_secs)


def test_what_runs_took_decides_what_is_expected_of_the_next_ones() -> None:
    assert of_a_second(100).secs([SMALL], 1) == pytest.approx(1.0, rel=0.05)
    assert of_a_second(100, 0.1).secs([SMALL], 1) == pytest.approx(0.1, rel=0.2)
    of_one = (PRIOR_RUNS * TASK_SECS + 1.0) / ((PRIOR_RUNS + 1) * TASK_SECS) * TASK_SECS
    assert of_a_second(1).secs([SMALL], 1) == pytest.approx(of_one)


def test_a_device_that_is_slow_at_trials_is_expected_to_be_slow_at_confirming_until_runs_tell() -> None:
    assert ConfirmingCost().secs([SMALL], 1, slowness=4.0) == pytest.approx(4 * TASK_SECS)
    assert of_a_second(100).secs([SMALL], 1, slowness=4.0) == pytest.approx(1.0, rel=0.05)


def test_what_runs_took_on_one_kind_of_target_tells_nothing_of_another() -> None:
    on_a_gpu = SMALL.model_copy(update={"target": OTHER_TARGET})
    assert of_a_second(100).secs([on_a_gpu], 1) == pytest.approx(kind_of(OTHER_TARGET).confirming_secs)


def test_workers_that_take_turns_on_one_device_confirm_no_sooner_together() -> None:
    on_a_gpu = SMALL.model_copy(update={"target": OTHER_TARGET})
    cost = started()
    assert cost.secs([SMALL], 4) == pytest.approx(TASK_SECS / 4)
    assert cost.secs([on_a_gpu], 4) == pytest.approx(kind_of(OTHER_TARGET).confirming_secs)
    for n in range(100):  # Four at a time, which take four seconds each: one a second.
        for worker in range(1, 5):
            cost.observe(on_a_gpu, batch(4.0 * n, 4.0 * (n + 1), worker=f"wrk_{worker}"))
    assert cost.secs([on_a_gpu], 4) == pytest.approx(1.0, rel=0.05)
    assert cost.spent_secs == pytest.approx(1600.0)


def test_the_first_batch_of_a_worker_tells_nothing_since_its_processes_start_in_it() -> None:
    cost = ConfirmingCost()
    cost.observe(SMALL, batch(0.0, 50.0))
    assert cost.secs([SMALL], 1) == pytest.approx(TASK_SECS)
    assert cost.spent_secs == 0
    cost.observe(SMALL, batch(50.0, 51.0))
    assert cost.spent_secs == 1


def test_a_lease_that_was_granted_ahead_costs_from_the_end_of_the_one_before() -> None:
    ahead = started()
    for n in range(100):
        ahead.observe(SMALL, batch(n - 1.0, n + 1.0))
    assert ahead.secs([SMALL], 1) == pytest.approx(of_a_second(100).secs([SMALL], 1), rel=0.02)


@pytest.mark.parametrize("purpose", [Purpose.SEARCH, Purpose.REPLAY])
def test_trials_tell_how_long_the_worker_was_busy_and_nothing_else(purpose: Purpose) -> None:
    cost = started()
    cost.observe(SMALL, batch(0.0, 50.0, purpose))
    assert cost.secs([SMALL], 1) == pytest.approx(TASK_SECS)
    cost.observe(SMALL, batch(0.0, 50.0 + TASK_SECS))
    assert cost.secs([SMALL], 1) == pytest.approx(TASK_SECS)


def test_a_run_torn_over_two_leases_or_of_an_unknown_worker_tells_nothing() -> None:
    cost = started()
    cost.observe(SMALL, batch(0.0, 50.0, whole=False))
    unknown = MeasuredBatch(**{**vars(batch(0.0, 50.0)), "worker": None})
    cost.observe(SMALL, unknown)
    assert cost.secs([SMALL], 1) == pytest.approx(TASK_SECS)
