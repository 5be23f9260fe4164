"""What more trials of a job are expected to gain: the model's latency at a later time, with an interval.

Notation, for task i: w_i weight, g_i best median seconds after t_i trials, b_i the lower bound of its time (0 where none is
known), e_i = g_i - b_i. The latency is f = sum_i w_i g_i. After n_i more trials

    e_i(n_i) = e_i (t_i / (t_i + n_i))^p

The least of t draws from a distribution whose lower tail is F(x) ~ (x - b)^(1/p) lies c t^-p above b on average:
B. Gnedenko, "Sur la distribution limite du terme maximum d'une serie aleatoire", Annals of Mathematics 44 (1943), the limit
of the third type. A search is no sequence of equal draws, so p is not derived but fitted to the job. Between the first
batch of a task and its last, after t and t' trials, let y = ln(e / e') and x = ln(t' / t). In such a sequence a draw is the
least so far with probability 1 / t, independently of those before it (A. Renyi, "Theorie des elements saillants d'une suite
d'observations", 1962), and makes ln e smaller by p on average, so that y has mean p x and a variance in proportion to x.
Then the sum of all y over that of all x is the estimate with the least variance:

    p = (PRIOR P + sum q y) / (PRIOR + sum q x)

with q = w_i e_i / sum_j w_j e_j, so that tasks which can still gain decide. The interval has two parts, added in quadrature:
that of p within two standard deviations, its variance being SPREAD^2 / (1 + sum q x / PRIOR), and what a task's time is off.

A task's time is off, since the fastest of many candidates, each timed in one process, is not as fast in three others. As
long as it is not confirmed it counts r g_i, with r = (TELLS f ABOVE + sum w_i c_i) / (TELLS f + sum w_i g_i) over the tasks
that were searched and confirmed, c_i the confirmed seconds.

The n trials that there is time for go to the tasks in proportion to w_i e_i / t_i, the slope of f. The budget gives each
batch to the steepest task (tuner/tuning/budget.py), which comes to nearly the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.tuning.budget import BudgetLedger, TaskLedger

P = 0.1
"""p before anything is known of the job, and ..."""
SPREAD = 0.1
"""... its standard deviation then. Of a ResNet-18 and a BERT that were tuned on a CPU for 300 s p was 0.02 to 0.05."""
PRIOR = 0.5
"""Weight of P: that of tasks that are followed until their trials are 1.6 times as many."""
ABOVE, TELLS = 1.02, 0.25
"""r before anything is confirmed, and how much of the model's time counts as much as that."""
OFF, UNTIMED_OFF = 0.02, 0.3
"""Standard deviation of a task's time, as a share of it, until it is confirmed: of one that was timed, and of others."""
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
    off: float = OFF
    """Standard deviation of what it will be served with beside `secs`, as a share; 0 once it is confirmed."""
    above: float = 1.0
    """What it is expected to be served with over `secs`."""

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
    above = _above(ledger, latency.secs)
    curves = [_curve(task, secs, above) for task, secs in zip(ledger.tasks, estimates, strict=True)]
    in_flight = sum(task.in_flight for task in ledger.tasks)
    waiting = any(curve.open and not curve.trials for curve in curves)
    minute, now = (forecast(curves, trials) for trials in (MINUTE_SECS / ledger.secs_per_trial, 0))
    return Outlook(
        gain=saved_secs / (latency.secs + saved_secs),
        end=forecast(curves, ledger.left(elapsed_secs) + in_flight),
        minute_gain=None if waiting else 1 - minute.secs / now.secs,
    )


def _curve(task: TaskLedger, secs: float, above: float) -> Curve:
    confirmed = task.searched_secs is not None
    return Curve(
        weight=task.weight,
        secs=secs,
        trials=task.trials,
        bound_secs=min(secs, task.bound_secs or 0.0),
        history=task.history,
        open=not task.finished,
        off=0.0 if confirmed else UNTIMED_OFF if task.best_secs is None else OFF,
        above=1.0 if confirmed else above,
    )


def _above(ledger: BudgetLedger, latency_secs: float) -> float:
    """r of the notation."""
    known = [(task.weight, task.searched_secs, task.best_secs) for task in ledger.tasks if task.trials]
    confirmed = [(weight * before, weight * after) for weight, before, after in known if before and after]
    searched = TELLS * latency_secs + sum(before for before, _ in confirmed)
    return (ABOVE * TELLS * latency_secs + sum(after for _, after in confirmed)) / searched


def forecast(curves: Sequence[Curve], trials: float) -> Forecast:
    """The latency after so many more trials of the job."""
    p, deviation = exponent(curves)
    fastest, slowest = p + DEVIATIONS * deviation, max(0.0, p - DEVIATIONS * deviation)
    secs, low_secs, high_secs = (_after(curves, trials, each) for each in (p, fastest, slowest))
    bound_secs = sum(curve.weight * curve.bound_secs for curve in curves)
    off = DEVIATIONS * math.hypot(*(curve.weight * curve.secs * curve.off for curve in curves))
    return Forecast(
        secs=secs,
        low_secs=max(min(secs, bound_secs), secs - math.hypot(secs - low_secs, off)),
        high_secs=secs + math.hypot(high_secs - secs, off),
    )


def exponent(curves: Sequence[Curve]) -> tuple[float, float]:
    """(p, its standard deviation)."""
    total = sum(curve.weight * curve.excess_secs for curve in curves)
    known, weighed = PRIOR, PRIOR * P
    for curve in curves:
        seen = [(trials, secs - curve.bound_secs) for trials, secs in curve.history if secs is not None and trials]
        if len(seen) < 2 or not curve.excess_secs:
            continue
        (first, before), (last, after) = seen[0], seen[-1]
        share = curve.weight * curve.excess_secs / total
        if after > 0:
            known, weighed = known + share * math.log(last / first), weighed + share * math.log(before / after)
    return weighed / known, SPREAD * math.sqrt(PRIOR / known)


def _after(curves: Sequence[Curve], trials: float, p: float) -> float:
    slopes = [
        curve.weight * curve.excess_secs / curve.trials if curve.open and curve.trials else 0.0 for curve in curves
    ]
    total = sum(slopes)
    secs = 0.0
    for curve, slope in zip(curves, slopes, strict=True):
        kept = (curve.trials / (curve.trials + trials * slope / total)) ** p if slope else 1.0
        secs += curve.weight * curve.above * (curve.secs - (1 - kept) * curve.excess_secs)
    return secs
