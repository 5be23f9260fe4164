"""What more trials of a job are expected to gain: the model's latency at a later time, with an interval.

Notation, for task i: w_i weight, g_i best median seconds after t_i trials, b_i the lower bound of its time (0 where none is
known), e_i = g_i - b_i. The latency is f = sum_i w_i g_i. After n_i more trials

    e_i(n_i) = e_i (t_i / (t_i + n_i))^p

The least of t draws from a distribution whose lower tail is F(x) ~ (x - b)^(1/p) lies c t^-p above b on average:
B. Gnedenko, "Sur la distribution limite du terme maximum d'une serie aleatoire", Annals of Mathematics 44 (1943), the limit
of the third type. A search is no sequence of equal draws, so p is not derived but fitted to the job: between two batches of
a task, after t and t' trials, y = ln(e / e') is expected to be p x with x = ln(t' / t), and

    p = (PRIOR P + sum q x y) / (PRIOR + sum q x^2)

with q the share of the latency that lies in e_i before, so that tasks which matter decide. The interval is that of p within
two standard deviations, its variance being SPREAD^2 / (PRIOR + sum q x^2).

The n trials that there is time for go to the tasks in proportion to w_i e_i / t_i, the slope of f. The budget gives each
batch to the steepest task (tuner/tuning/budget.py), which comes to nearly the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.tuning.budget import BudgetLedger

P = 0.15
"""p before anything is known of the job, and ..."""
SPREAD = 0.14
"""... its standard deviation then. Of five models that were tuned for 200 to 600 s (benchmarks/results/latency.json) p was
0.01 to 0.36 from where they were within 35 % of their end on, with half of that end as the bound."""
PRIOR = 1.0
"""Weight of P: that of the whole model's tasks, each followed until its trials are 2.7 times as many."""
DEVIATIONS = 2.0
MINUTE_SECS = 60.0


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What is known of one task."""

    weight: int
    secs: float
    """Its best, or an estimate."""
    trials: int = 0
    bound_secs: float = 0.0
    history: Sequence[tuple[int, float | None]] = ()
    """(trials, best seconds) after each batch."""
    open: bool = True
    """Whether it may get more trials."""

    @property
    def excess_secs(self) -> float:
        """e of the notation."""
        return max(0.0, self.secs - self.bound_secs)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds of a run of the model at a later time, with the ends of the interval."""

    secs: float
    low_secs: float
    high_secs: float


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a job has gained, and what it may still gain. None is what cannot be told yet."""

    gain: float | None = None
    """Share of the time of the model with default schedules that the best so far saves."""
    end: Forecast | None = None
    """The latency when the budget is spent."""
    minute_gain: float | None = None
    """Share of the latency so far that another minute of trials is expected to save."""


def outlook(ledger: BudgetLedger, elapsed_secs: float) -> Outlook:
    """Of a job after so many seconds. Another minute is worth something unknown while a task waits for its first trials."""
    latency, estimates = ledger.latency(), ledger.estimates()
    if latency is None or estimates is None or not latency.secs:
        return Outlook()
    saved_secs = sum(task.saved_secs or 0.0 for task in ledger.tasks)
    curves = [
        Curve(
            weight=task.weight,
            secs=secs,
            trials=task.trials,
            bound_secs=min(secs, task.bound_secs or 0.0),
            history=task.history,
            open=not task.finished,
        )
        for task, secs in zip(ledger.tasks, estimates, strict=True)
    ]
    in_flight = sum(task.in_flight for task in ledger.tasks)
    waiting = any(curve.open and not curve.trials for curve in curves)
    minute = forecast(curves, MINUTE_SECS / ledger.secs_per_trial)
    return Outlook(
        gain=saved_secs / (latency.secs + saved_secs),
        end=forecast(curves, ledger.left(elapsed_secs) + in_flight),
        minute_gain=None if waiting else 1 - minute.secs / latency.secs,
    )


def forecast(curves: Sequence[Curve], trials: float) -> Forecast:
    """The latency after so many more trials of the job."""
    p, deviation = exponent(curves)
    fastest, slowest = p + DEVIATIONS * deviation, max(0.0, p - DEVIATIONS * deviation)
    secs, low_secs, high_secs = (_after(curves, trials, max(0.0, each)) for each in (p, fastest, slowest))
    return Forecast(secs=secs, low_secs=low_secs, high_secs=high_secs)


def exponent(curves: Sequence[Curve]) -> tuple[float, float]:
    """(p, its standard deviation)."""
    total = sum(curve.weight * curve.secs for curve in curves)
    known, weighed = PRIOR, PRIOR * P
    for curve in curves:
        seen = [(trials, secs - curve.bound_secs) for trials, secs in curve.history if secs is not None and trials]
        for (trials, before), (later, after) in itertools.pairwise(seen):
            if later > trials and after > 0:
                x, y = math.log(later / trials), math.log(before / after)
                share = curve.weight * before / total
                known, weighed = known + share * x * x, weighed + share * x * y
    return weighed / known, SPREAD / math.sqrt(known)


def _after(curves: Sequence[Curve], trials: float, p: float) -> float:
    slopes = [
        curve.weight * curve.excess_secs / curve.trials if curve.open and curve.trials else 0.0 for curve in curves
    ]
    total = sum(slopes)
    secs = 0.0
    for curve, slope in zip(curves, slopes, strict=True):
        kept = (curve.trials / (curve.trials + trials * slope / total)) ** p if slope else 1.0
        secs += curve.weight * (curve.secs - (1 - kept) * curve.excess_secs)
    return secs
