"""Which task gets the next batch, when a task has had enough, and how long the rest will take.

Notation, for task i: w_i weight (occurrences in the model), g_i(t) best median seconds after t trials, C_i FLOPs,
N(i) the tasks of its similarity group, V_k = C_k / g_k the speed reached on task k. The model's latency is
f = sum_i w_i g_i, and the next batch goes where the estimate of df/dt_i is most negative:

    df/dt_i ~ w_i (alpha (g_i(t_i) - g_i(t_i - dt)) / dt
                   + (1 - alpha) min(-g_i(t_i) / t_i, beta C_i / max_{k in N(i)} V_k - g_i(t_i)))

The first term is the recent slope, the second bets either that the task keeps improving in proportion to what it has cost,
or that it can reach a multiple of the speed its group has reached. Zheng et al., "Ansor: Generating High-Performance Tensor
Programs for Deep Learning" (OSDI 2020), section 6 and appendix A; alpha, beta and dt as there.

Where the least time b_i that the task can take on its device is known, the bet is on what is left of it,
-(g_i(t_i) - b_i) / t_i: a group's fastest may have reached a speed that this task's memory traffic forbids, and a bet on
that speed, which no trial makes smaller, would take the whole budget.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pitchpipe.wire.measure import Failed, Measurement, Timed
from pitchpipe.wire.task import Task, TaskKind

ALPHA = 0.2
BETA = 2.0
WINDOW_BATCHES = 3
"""dt, in batches."""
STALE_TRIALS = 192
"""A task that improved by less than STALE_GAIN over this many trials gets no more."""
STALE_GAIN = 0.01
AT_BOUND = 0.03
"""A task whose best is this near to the least time it can take gets no more trials (tuner/workload/bound.py)."""
TRIALS_PER_SEC = 8.0
"""What one second of budget counts for when efforts are compared. Alone with one program the engine does 9.7 to 15 on two
cores and 7.1 on a GPU (benchmarks/throughput.py); with many tasks each is prepared once more. A constant, not what a job
happened to reach: the same budget must offer the same effort when it is given again."""
FIRST_SHARE = 0.25
"""Share of a task's fair part of the budget that its first batch takes."""
BATCH_SHARE = 0.5
"""The same of later batches: a small budget must be able to change its mind."""
FEWEST = 4
"""Candidates of a batch, unless less is left."""
AHEAD = 2
"""Batches of one task in flight at most: the next is searched for while one is measured, and learns from all before it.
A task without any result gets one."""


@dataclass(kw_only=True)
class TaskLedger:
    """What one task has cost and brought."""

    weight: int
    flops: float
    group: str
    trials: int = 0
    failed: int = 0
    in_flight: int = 0
    """Candidates."""
    batches_in_flight: int = 0
    """Batches in flight."""
    searching: bool = False
    """One of them is being searched for: another search would find the same."""
    batches: int = 0
    best_secs: float | None = None
    bound_secs: float | None = None
    """No schedule is faster on the job's devices; None while that is not known."""
    exhausted: bool = False
    replaying: bool = False
    """What was found under other circumstances is replayed first: no search yet."""
    history: list[tuple[int, float | None]] = field(default_factory=list)
    """(trials, best_secs) after each batch."""

    @property
    def open(self) -> bool:
        """Whether another batch of it may be searched for."""
        ahead = AHEAD if self.trials else 1
        return not (self.settled or self.replaying or self.searching or self.batches_in_flight >= ahead)

    @property
    def settled(self) -> bool:
        """It gets no more trials."""
        return self.exhausted or self.stale or self.at_bound

    @property
    def at_bound(self) -> bool:
        """True when the best is within AT_BOUND of the bound. One that was passed by more is none, and stops nothing."""
        if self.best_secs is None or self.bound_secs is None:
            return False
        return abs(self.best_secs / self.bound_secs - 1) <= AT_BOUND

    @property
    def above_bound_secs(self) -> float | None:
        """What a run could save at most; None while no bound is known, or when it was passed."""
        if self.best_secs is None or self.bound_secs is None or self.best_secs < self.bound_secs:
            return None
        return self.best_secs - self.bound_secs

    @property
    def stale(self) -> bool:
        """True when the last STALE_TRIALS trials improved the best by less than STALE_GAIN."""
        if self.best_secs is None:
            return self.trials >= STALE_TRIALS
        before = [best for trials, best in self.history if trials <= self.trials - STALE_TRIALS and best is not None]
        return bool(before) and self.best_secs > (1 - STALE_GAIN) * before[-1]


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Seconds until the job ends, with a 95 % interval; None while nothing was measured."""

    secs: float | None
    low_secs: float | None
    high_secs: float | None


class BudgetLedger:
    """Hands a job's trials or seconds to its tasks. Pure: time is an argument, in seconds since the job started."""

    def __init__(self, tasks: Sequence[Task], *, trials: int | None, seconds: float | None, batch_size: int) -> None:
        self.trials_limit = trials
        self.seconds_limit = seconds
        fair = effort(sum(task.kind is TaskKind.TUNED for task in tasks), trials, seconds)
        self.batch_size = max(FEWEST, min(batch_size, int(fair * BATCH_SHARE)))
        self.first_batch_size = max(FEWEST, min(batch_size, int(fair * FIRST_SHARE)))
        """Smaller while every task still waits for its first results, so that a small budget reaches them all."""
        self.tasks = [TaskLedger(weight=task.weight, flops=task.flops, group=task.group) for task in tasks]
        self._secs_per_trial: list[float] = []
        self._last_charge_secs: float | None = None

    @property
    def trials(self) -> int:
        """Trials charged so far."""
        return sum(task.trials for task in self.tasks)

    def restore(
        self,
        index: int,
        *,
        trials: int,
        failed: int,
        best_secs: float | None,
        in_flight: int = 0,
        batches_in_flight: int = 0,
    ) -> None:
        """Sets what was already spent on a task, and is being measured for it, before this process started."""
        task = self.tasks[index]
        task.trials, task.failed, task.best_secs, task.in_flight = trials, failed, best_secs, in_flight
        task.batches_in_flight = batches_in_flight
        task.batches = math.ceil(trials / self.batch_size)
        task.history = [(trials, best_secs)] if trials else []

    def next_batch(self, elapsed_secs: float) -> tuple[int, int] | None:
        """(task index, number of candidates) of the next batch, counted as in flight from now on; None when nothing is due.

        Tasks without a batch in flight come first; see AHEAD.
        """
        due = self._due(elapsed_secs)
        if due is not None:
            task = self.tasks[due[0]]
            task.in_flight += due[1]
            task.batches_in_flight += 1
            task.searching = True
        return due

    def finished(self, elapsed_secs: float) -> bool:
        """Nothing is in flight and nothing will be due again."""
        return not any(task.in_flight or task.replaying for task in self.tasks) and self._due(elapsed_secs) is None

    def left(self, elapsed_secs: float) -> float:
        """Trials that may still be handed out; infinite while only seconds are limited and some are left."""
        if self.seconds_limit is not None and elapsed_secs >= self.seconds_limit:
            return 0
        left = math.inf if self.trials_limit is None else self.trials_limit - self.trials
        return max(0, left - sum(task.in_flight for task in self.tasks))

    def reserve(self, index: int, n: int) -> None:
        """So many candidates of the task are being measured that no search proposed."""
        task = self.tasks[index]
        task.in_flight += n
        task.batches_in_flight += 1

    def _due(self, elapsed_secs: float) -> tuple[int, int] | None:
        left = self.left(elapsed_secs)
        open_ = [i for i, task in enumerate(self.tasks) if task.open]
        if left < 1 or not open_:
            return None
        idle = [i for i in open_ if not self.tasks[i].batches_in_flight]
        open_ = idle or open_
        fresh = [i for i in open_ if not self.tasks[i].batches]
        if fresh:
            chosen = max(fresh, key=lambda i: self.tasks[i].weight * self.tasks[i].flops)
            return chosen, int(min(self.first_batch_size, left))
        return min(open_, key=self.gradient), int(min(self.batch_size, left))

    def gradient(self, index: int) -> float:
        """Estimate of df/dt_i in seconds per trial; more negative is better. -inf for a task without a valid time."""
        task = self.tasks[index]
        if task.best_secs is None:
            return -math.inf
        trials_then, best_then = task.trials, task.best_secs
        if len(task.history) > WINDOW_BATCHES:
            trials_then, best = task.history[-1 - WINDOW_BATCHES]
            best_then = task.best_secs if best is None else best
        slope = 0.0 if task.trials == trials_then else (task.best_secs - best_then) / (task.trials - trials_then)
        if task.above_bound_secs is not None:
            bet = -task.above_bound_secs / max(task.trials, 1)
        else:
            bet = -task.best_secs / max(task.trials, 1)
            peers = [t.flops / t.best_secs for t in self.tasks if t.group == task.group and t.best_secs]
            if task.flops and len(peers) > 1:
                bet = min(bet, BETA * task.flops / max(peers) - task.best_secs)
        return task.weight * (ALPHA * slope + (1 - ALPHA) * bet)

    def charge(self, index: int, reserved: int, results: Iterable[Measurement], elapsed_secs: float) -> None:
        """Books the results of a batch of `reserved` candidates. An empty batch marks the task exhausted."""
        task = self.tasks[index]
        task.in_flight = max(0, task.in_flight - reserved)
        task.batches_in_flight = max(0, task.batches_in_flight - 1)
        done = 0
        for result in results:
            done += 1
            if isinstance(result, Failed):
                task.failed += 1
            elif isinstance(result, Timed):
                task.best_secs = result.secs if task.best_secs is None else min(task.best_secs, result.secs)
        if done == 0:
            task.exhausted = True
            return
        task.trials += done
        task.batches += 1
        task.history.append((task.trials, task.best_secs))
        since = 0.0 if self._last_charge_secs is None else self._last_charge_secs
        self._secs_per_trial.append(max(0.0, elapsed_secs - since) / done)
        self._last_charge_secs = elapsed_secs

    def searched(self, index: int, reserved: int, queued: int) -> None:
        """A search for `reserved` candidates ended; so many of them are being measured now, none if it crashed."""
        task = self.tasks[index]
        task.searching = False
        task.in_flight = max(0, task.in_flight - (reserved - queued))
        if queued == 0:
            task.batches_in_flight = max(0, task.batches_in_flight - 1)

    def latency(self) -> float | None:
        """f: sum of weight x best seconds over the tasks; None until every task has a valid time."""
        if any(task.best_secs is None for task in self.tasks):
            return None
        return sum(task.weight * task.best_secs for task in self.tasks if task.best_secs is not None)

    def eta(self, elapsed_secs: float, *, tail_secs: float = 0.0) -> Eta:
        """Time left: what remains of the trials at the rate seen, or of the seconds, whichever ends first, plus `tail_secs`.

        The interval is that of the mean seconds per trial (normal approximation over batches) times the trials left; its
        lower end also admits that every task goes stale as soon as it may.
        """
        bounds: list[tuple[float, float, float]] = []
        recent = self._secs_per_trial[-32:]
        if self.trials_limit is not None and recent:
            left = max(0, self.trials_limit - self.trials)
            mean = statistics.fmean(recent)
            spread = 1.96 * statistics.stdev(recent) / math.sqrt(len(recent)) if len(recent) > 1 else mean
            until_stale = sum(max(0, STALE_TRIALS - t.trials) for t in self.tasks if not t.settled)
            low = min(left, until_stale) * max(0.0, mean - spread)
            bounds.append((left * mean, low, left * (mean + spread)))
        if self.seconds_limit is not None:
            left_secs = max(0.0, self.seconds_limit - elapsed_secs)
            bounds.append((left_secs, 0.0 if all(t.trials for t in self.tasks) else left_secs, left_secs))
        if not bounds:
            return Eta(secs=None, low_secs=None, high_secs=None)
        secs, low, high = (min(column) for column in zip(*bounds, strict=True))
        return Eta(secs=secs + tail_secs, low_secs=low + tail_secs, high_secs=max(secs, high) + tail_secs)


def effort(tunable_tasks: int, trials: int | None, seconds: float | None) -> float:
    """Trials a budget offers per task: what a stored schedule must have been given to be reused without trials."""
    offers = [] if trials is None else [float(trials)]
    if seconds is not None:
        offers.append(seconds * TRIALS_PER_SEC)
    return min(offers) / max(1, tunable_tasks)
