"""What a job is expected to gain, from made-up tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.tuning.budget import BudgetLedger
from tuner.tuning.forecast import ABOVE, SPREAD, Curve, P, exponent, forecast, outlook
from tuner.tuning.testing import fake_task


def searched(p: float, batches: int = 6, *, bound_secs: float = 0.5) -> Curve:
    """A task whose excess over the bound falls with its trials to the power -p, from 1 s after 8 trials on."""
    history = [(8 * 2**n, bound_secs + 2.0 ** (-p * n)) for n in range(batches)]
    trials, secs = history[-1]
    return Curve(weight=3, secs=secs, trials=trials, bound_secs=bound_secs, history=history)


@pytest.mark.parametrize("p", [0.02, 0.15, 0.5])
def test_a_job_that_follows_the_law_is_forecast_by_it(p: float) -> None:
    curve = searched(p, 20)
    found, deviation = exponent([curve])
    assert found == pytest.approx(p, abs=0.15)
    assert abs(found - P) < abs(p - P) or p == P
    assert deviation < SPREAD
    (later, after), trials = searched(p, 21).history[-1], curve.trials
    ahead = forecast([curve], later - trials)
    assert ahead.low_secs <= 3 * after <= ahead.high_secs
    assert ahead.secs == pytest.approx(3 * after, rel=0.1)


def test_before_anything_was_found_the_prior_tells_and_its_interval_is_wide() -> None:
    curve = Curve(weight=1, secs=1.0, trials=8, history=[(8, 1.0)])
    assert exponent([curve]) == (P, SPREAD)
    ahead = forecast([curve], 8)
    assert ahead.secs == pytest.approx(2**-P)
    assert ahead.low_secs < 0.9 * ahead.secs
    assert ahead.high_secs > 1.0, "what trials told is off"
    sure = forecast([replace(curve, off=0.0)], 8)
    assert sure.high_secs == 1.0, "no more trials make it slower"
    assert ahead.low_secs < sure.low_secs


def test_trials_go_where_they_gain_most_and_nothing_is_expected_of_tasks_that_get_none() -> None:
    heavy, light = Curve(weight=9, secs=1.0, trials=8, off=0.0), Curve(weight=1, secs=1.0, trials=8)
    closed = Curve(weight=90, secs=1.0, trials=8, open=False)
    ahead = forecast([heavy, light, closed], 40)
    assert ahead.secs == pytest.approx(9 * (8 / (8 + 36)) ** P + (8 / (8 + 4)) ** P + 90)
    assert forecast([closed], 1000).secs == 90
    assert forecast([heavy], 0).low_secs == 9


def test_nothing_is_faster_than_its_bound() -> None:
    ahead = forecast([Curve(weight=2, secs=1.0, trials=8, bound_secs=0.75)], 1e12)
    assert 1.5 <= ahead.low_secs <= ahead.secs <= ahead.high_secs


def test_what_is_not_confirmed_is_expected_to_be_as_much_slower_as_what_was() -> None:
    ledger = BudgetLedger([fake_task("a"), fake_task("b")], trials=100, seconds=None, batch_size=8)
    for index in (0, 1):
        ledger.restore(index, trials=8, failed=0, best_secs=0.1)
        ledger.tasks[index].exhausted = True
    before = outlook(ledger, 1.0).end
    assert before is not None
    assert before.secs == pytest.approx(ABOVE * 0.2)
    ledger.confirmed(0, 0.11)
    after = outlook(ledger, 2.0).end
    assert after is not None
    assert 0.11 + 0.1 * ABOVE < after.secs < 0.11 + 0.1 * 1.1
    assert after.high_secs - after.low_secs < before.high_secs - before.low_secs
    ledger.confirmed(1, 0.1)
    ended = outlook(ledger, 3.0).end
    assert ended is not None
    assert ended.low_secs == ended.secs == ended.high_secs == pytest.approx(0.21)


def test_another_minute_is_worth_something_unknown_while_a_task_waits_for_its_first_trials() -> None:
    ledger = BudgetLedger([fake_task("a"), fake_task("b")], trials=100, seconds=None, batch_size=8)
    assert outlook(ledger, 1.0).end is None
    ledger.restore(0, trials=8, failed=0, best_secs=0.1, default_secs=0.15)
    ledger.tasks[1].bound_secs = 0.05
    found = outlook(ledger, 1.0)
    assert found.minute_gain is None
    assert found.end is not None
    ledger.restore(1, trials=8, failed=0, best_secs=0.1)
    found = outlook(ledger, 1.0)
    assert found.gain == pytest.approx(0.05 / 0.25), "of tasks whose default has a time"
    assert found.minute_gain is not None
    assert 0 < found.minute_gain < 1
    for task in ledger.tasks:
        task.exhausted = True
    assert outlook(ledger, 1.0).minute_gain == 0
