"""Which tasks are confirmed first, and which of their candidates are compared: what a run costs, it has to decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pitchpipe.wire.task import Task
from tuner.tuning.budget import Latency, TaskLedger
from tuner.tuning.confirm import contenders
from tuner.tuning.confirming_cost import ConfirmingCost

CONFIRMED = 3
"""Measured candidates that are timed beside the baseline in a confirming run, at most: of the fastest, those that may be the
fastest in truth. The default schedule joins them where it may be."""
CHOICE = 0.03
"""Share of a task's time that may be gained by choosing among its contenders."""
UNIMPORTANT = 0.001
"""Share of the model's time below which a gain decides nothing: the contenders of a task with less to gain are not compared,
and where its best saves less of what the default schedule takes, that is served."""


def compared(
    task: Task, ledger: TaskLedger, latency: Latency | None, measured: Sequence[tuple[str, float | None]]
) -> list[str]:
    """The traces of the measured candidates that a confirming run of the task compares with the baseline.

    latency: the model's, as far as it is known. measured: (trace, median seconds), the fastest first.
    """
    traces = contenders(measured)
    least_secs = 0.0 if latency is None else UNIMPORTANT * latency.secs
    if CHOICE * ledger.weight * (ledger.best_secs or 0.0) < least_secs:
        saves_little = ledger.saved_secs is not None and ledger.saved_secs < least_secs
        return [str(task.fixed)] if saves_little else traces[:1]
    return traces[:CONFIRMED] + [trace for trace in traces[CONFIRMED:] if trace == task.fixed]


def by_value(
    tasks: Sequence[Task], ledgers: Sequence[TaskLedger], cost: ConfirmingCost
) -> Callable[[int], tuple[float, float]]:
    """A key for sorting the indices of tasks so that confirming is worth most for the last: by what their bests save of the
    model's time for a second of confirming, then by their size."""

    def value(index: int) -> tuple[float, float]:
        ledger, task = ledgers[index], tasks[index]
        saved = ledger.weight * (ledger.best_secs or 0.0) if ledger.saved_secs is None else ledger.saved_secs
        return saved / cost.secs([task], 1), task.weight * task.flops

    return value
