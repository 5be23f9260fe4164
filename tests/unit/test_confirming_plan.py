"""Which tasks are confirmed first, from made-up ledgers."""

from __future__ import annotations

import pytest

from tuner.tuning.budget import BudgetLedger
from tuner.tuning.confirming_cost import NAIVE_FLOPS_PER_SEC, ConfirmingCost
from tuner.tuning.confirming_plan import by_value
from tuner.tuning.testing import fake_task


def order(*saved: tuple[float, float]) -> list[int]:
    """Of tasks with (seconds saved, FLOPs), the first to be confirmed first."""
    tasks = [fake_task(str(index), flops=flops) for index, (_, flops) in enumerate(saved)]
    ledger = BudgetLedger(tasks, trials=100, seconds=None, batch_size=16)
    for index, (secs, _) in enumerate(saved):
        ledger.restore(index, trials=10, failed=0, best_secs=1e-3, default_secs=1e-3 + secs)
    key = by_value(tasks, ledger.tasks, ConfirmingCost())
    return sorted(range(len(tasks)), key=key, reverse=True)


@pytest.mark.parametrize(
    ("saved", "first"),
    [
        ([(1e-4, 0.0), (2e-4, 0.0), (0.0, 0.0)], [1, 0, 2]),
        ([(2e-4, 2 * NAIVE_FLOPS_PER_SEC), (1e-4, 0.0)], [1, 0]),
        ([(8e-3, 2 * NAIVE_FLOPS_PER_SEC), (1e-4, 0.0)], [0, 1]),
        ([(0.0, 1e6), (0.0, 1e9)], [1, 0]),
    ],
    ids=["what saves more", "for the seconds of its naive baseline", "unless it saves more for these", "size"],
)
def test_tasks_are_confirmed_in_the_order_of_what_a_second_of_confirming_saves(
    saved: list[tuple[float, float]], first: list[int]
) -> None:
    assert order(*saved) == first
