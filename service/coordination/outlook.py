"""What a job's progress tells of its ledger."""

from __future__ import annotations

from pitchpipe.wire.job import Progress
from tuner.tuning.budget import BudgetLedger
from tuner.tuning.forecast import outlook


def progress_of(ledger: BudgetLedger, elapsed_secs: float, charged: Progress) -> Progress:
    """The ledger's latency, forecasts and time left, with the trials and reused tasks of `charged`, which reports count."""
    latency, eta, ahead = ledger.latency(), ledger.eta(elapsed_secs), outlook(ledger, elapsed_secs)
    return Progress(
        trials=charged.trials,
        failed_trials=charged.failed_trials,
        reused_tasks=charged.reused_tasks,
        best_secs=None if latency is None else latency.secs,
        estimated_tasks=0 if latency is None else latency.estimated,
        gain=ahead.gain,
        forecast_secs=None if ahead.end is None else ahead.end.secs,
        forecast_low_secs=None if ahead.end is None else ahead.end.low_secs,
        forecast_high_secs=None if ahead.end is None else ahead.end.high_secs,
        minute_gain=ahead.minute_gain,
        eta_secs=eta.secs,
        eta_low_secs=eta.low_secs,
        eta_high_secs=eta.high_secs,
    )


def known_of(ledger: BudgetLedger) -> tuple[int, int, int]:
    """(trials, tasks that have a time, tasks that have a bound): when one of them changes, so does what a view shows."""
    timed = sum(task.best_secs is not None for task in ledger.tasks)
    return ledger.trials, timed, sum(task.bound_secs is not None for task in ledger.tasks)
