"""The budget of a job: which task gets the next batch, when a task gets no more trials, and how long the job will take.

Notation, for task i: w_i weight (occurrences in the model), g_i(t) best median seconds after t trials, C_i FLOPs,
N(i) the tasks of its similarity group, V_k = C_k / g_k the speed reached on task k. The model's latency is
f = sum_i w_i g_i, and the next batch goes where the estimate of df/dt_i is most negative:

    df/dt_i ~ w_i (alpha (g_i(t_i) - g_i(t_i - dt)) / dt
                   + (1 - alpha) min(-g_i(t_i) / t_i, beta C_i / max_{k in N(i)} V_k - g_i(t_i)))

The first term is the recent slope. The second is an optimistic guess: either the task keeps improving in proportion to its
trials, or it can reach a multiple (beta) of the highest speed in its group. Zheng et al., "Ansor: Generating
High-Performance Tensor Programs for Deep Learning" (OSDI 2020), section 6 and appendix A; alpha, beta and dt as there.

Where the lower bound b_i of the task's time is known (tuner/workload/bound.py), the guess is -(g_i(t_i) - b_i) / t_i
instead. The speed of the group may be one that this task's memory traffic rules out; the guess that it can be reached does
not shrink as trials fail to reach it, so the task would take the whole budget.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import BASELINE_TRACE, Failed, Measurement, Timed
from pitchpipe.wire.task import Task, TaskKind

ALPHA = 0.2
BETA = 2.0
WINDOW_BATCHES = 3
"""dt of the notation, in batches."""
STALE_TRIALS = 192
"""A task whose best improved by less than STALE_GAIN over this many trials gets no more trials."""
STALE_GAIN = 0.01
"""As a share of the best time."""
AT_BOUND = 0.03
"""A task whose best is within this share of its bound, and whose last batch improved it by less than STALE_GAIN, gets no
more trials (tuner/workload/bound.py). The bound is too high where other load slowed the measuring of the device: then
the best passes it with the next batch, as a rule."""
ABOVE_BOUND = 2.0
"""A task's time over its bound, as long as no task of the job has a time: a guess, for the first seconds."""
TRIALS_PER_SEC = 8.0
"""Trials that one second of budget counts for when efforts are compared: about what the engine does with a single program
(benchmarks/throughput.py); with many tasks the preparation of each is added. It is a constant, not the rate of a job, so
that the same budget always offers the same effort."""
FIRST_SHARE = 0.25
"""Share of a task's even part of the budget that its first batch takes."""
BATCH_SHARE = 0.5
"""The same for later batches: also a small budget has to be spent in several steps, so that results can redirect it."""
FEWEST = 4
"""Candidates of a batch, at least, unless the budget has fewer left."""
MINOR = 0.01
"""Share of the model's time below which a task's first batch is FEWEST: the default schedule and the best seeds. Of nine
tasks of a ViT-B/16 three have as little, and a tenth of a minute's trials went to them."""
CONFIRMING_SHARE = 0.15
"""Of a budget in seconds, for confirming runs, at most. Where that is not enough for all tasks, those whose best saves most
have it, and the others keep what they are served."""
GRACE_SECS, GRACE_SHARE = 1.5, 0.03
"""After the seconds of a job, whichever is more: for what workers are measuring then, mostly a confirming run."""
RECENT_BATCHES = 8
"""Batches from whose rate follows how many trials fit into the seconds left."""
AHEAD = 2
"""Batches of one task in flight, at most: the next one is searched for while one is measured, and uses all results before
that one. A task without any result gets one batch at a time."""


@dataclass(kw_only=True)
class TaskLedger:
    """What was spent on one task, what is in flight for it, and its best time so far."""

    weight: int
    flops: float
    group: str
    trials: int = 0
    failed: int = 0
    in_flight: int = 0
    """Candidates in flight: searched for, queued or being measured."""
    batches_in_flight: int = 0
    """Batches in flight."""
    searching: bool = False
    """Whether a search for one of them is running. A second one beside it would propose the same candidates."""
    batches: int = 0
    best_secs: float | None = None
    searched_secs: float | None = None
    """Its best before it was confirmed, of a task that is; then best_secs is what was confirmed."""
    default: str | None = None
    """Digest of the candidate that is its default schedule; None where that is the naive program, or nobody knows."""
    default_secs: float | None = None
    """The least that the interval of its time allows; None while it has none."""
    bound_secs: float | None = None
    """The lower bound of its time on the job's devices; None while none is known."""
    exhausted: bool = False
    replaying: bool = False
    """Whether it is not searched yet, because schedules found under other circumstances are replayed first."""
    history: list[tuple[int, float | None]] = field(default_factory=list)
    """(trials, best_secs) after each batch."""

    @property
    def open(self) -> bool:
        """Whether a search for another batch may start."""
        ahead = AHEAD if self.trials else 1
        return not (self.finished or self.replaying or self.searching or self.batches_in_flight >= ahead)

    @property
    def finished(self) -> bool:
        """Whether it gets no more trials."""
        return self.exhausted or self.stale or self.at_bound

    @property
    def idle(self) -> bool:
        """Whether no trial is in flight or about to be."""
        return not (self.in_flight or self.replaying or self.searching)

    @property
    def settled(self) -> bool:
        """Whether it gets no more trials and none is in flight or about to be."""
        return self.finished and self.idle

    @property
    def at_bound(self) -> bool:
        """Whether the best is within AT_BOUND of the bound and stays there. A best far below the bound disproves it."""
        if self.best_secs is None or self.bound_secs is None or len(self.history) < 2:
            return False
        before = self.history[-2][1]
        stays = before is not None and self.best_secs > (1 - STALE_GAIN) * before
        return stays and abs(self.best_secs / self.bound_secs - 1) <= AT_BOUND

    @property
    def above_bound_secs(self) -> float | None:
        """How much faster the task could become at most; None while no bound is known, or where the best disproves it."""
        if self.best_secs is None or self.bound_secs is None or self.best_secs < self.bound_secs:
            return None
        return self.best_secs - self.bound_secs

    @property
    def saved_secs(self) -> float | None:
        """What its best saves of a run of the model that has its default schedule; None where one of them has no time."""
        if self.best_secs is None or self.default_secs is None:
            return None
        return self.weight * max(0.0, self.default_secs - self.best_secs)

    @property
    def stale(self) -> bool:
        """Whether the last STALE_TRIALS trials improved the best by less than STALE_GAIN."""
        if self.best_secs is None:
            return self.trials >= STALE_TRIALS
        before = [best for trials, best in self.history if trials <= self.trials - STALE_TRIALS and best is not None]
        return bool(before) and self.best_secs > (1 - STALE_GAIN) * before[-1]


@dataclass(frozen=True, kw_only=True)
class Eta:
    """The estimated time until the job ends, in seconds, with a 95 % interval; None while nothing was measured."""

    secs: float | None
    low_secs: float | None
    high_secs: float | None


@dataclass(frozen=True, kw_only=True)
class Latency:
    """What a run of the model takes, as far as its tasks are known."""

    secs: float
    estimated: int
    """Tasks of the sum that have no time yet."""


class BudgetLedger:
    """Divides a job's trials or seconds among its tasks. Pure: time is an argument, in seconds since the job started."""

    def __init__(self, tasks: Sequence[Task], *, trials: int | None, seconds: float | None, batch_size: int) -> None:
        self.trials_limit = trials
        self.seconds_limit = seconds
        """Of the whole job."""
        self.held_secs = 0.0
        """Of these, what is kept for what follows the last trial."""
        fair = effort(sum(task.kind is TaskKind.TUNED for task in tasks), trials, seconds)
        self.batch_size = max(FEWEST, min(batch_size, int(fair * BATCH_SHARE)))
        self.first_batch_size = max(FEWEST, min(batch_size, int(fair * FIRST_SHARE)))
        """Smaller than later ones, so that a small budget reaches every task."""
        self.tasks = [
            TaskLedger(weight=task.weight, flops=task.flops, group=task.group, default=_default(task)) for task in tasks
        ]
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
        default_secs: float | None = None,
        in_flight: int = 0,
        batches_in_flight: int = 0,
    ) -> None:
        """Sets what was spent on a task, and what is in flight for it, from before this process started."""
        task = self.tasks[index]
        task.trials, task.failed, task.best_secs, task.in_flight = trials, failed, best_secs, in_flight
        task.batches_in_flight, task.default_secs = batches_in_flight, default_secs
        task.batches = math.ceil(trials / self.batch_size)
        task.history = [(trials, best_secs)] if trials else []

    def next_batch(self, elapsed_secs: float) -> tuple[int, int] | None:
        """(task index, number of candidates) of the next batch; None when none is due.

        The batch counts as in flight from now on. Tasks without a batch in flight come first; see AHEAD.
        """
        due = self._due(elapsed_secs)
        if due is not None:
            task = self.tasks[due[0]]
            task.in_flight += due[1]
            task.batches_in_flight += 1
            task.searching = True
        return due

    def finished(self, elapsed_secs: float) -> bool:
        """Whether nothing is in flight and no batch will be due again."""
        return not any(task.in_flight or task.replaying for task in self.tasks) and self._due(elapsed_secs) is None

    def left(self, elapsed_secs: float) -> float:
        """Trials that are neither spent nor in flight: of seconds, those that fit into them at the recent rate."""
        left = math.inf if self.trials_limit is None else self.trials_limit - self.trials
        if self.seconds_limit is not None:
            left = min(left, self._search_secs_left(elapsed_secs) / self.secs_per_trial)
        return max(0, left - sum(task.in_flight for task in self.tasks))

    def time_up(self, elapsed_secs: float) -> bool:
        """Whether the seconds for trials are spent, so that even trials in flight are too many."""
        return self.seconds_limit is not None and self._search_secs_left(elapsed_secs) <= 0

    def over(self, elapsed_secs: float) -> bool:
        """Whether the seconds of the whole job are spent."""
        return self.seconds_limit is not None and elapsed_secs >= self.seconds_limit

    def overdue(self, elapsed_secs: float) -> bool:
        """Whether the job ends whatever is still measured for it."""
        if self.seconds_limit is None:
            return False
        return elapsed_secs >= self.seconds_limit + max(GRACE_SECS, GRACE_SHARE * self.seconds_limit)

    def _search_secs_left(self, elapsed_secs: float) -> float:
        assert self.seconds_limit is not None
        return max(0.0, self.seconds_limit - self.held_secs - elapsed_secs)

    @property
    def secs_per_trial(self) -> float:
        """Of the job's clock, recently; a guess before the first trials."""
        recent = self._secs_per_trial[1:][-RECENT_BATCHES:]  # Before the first batch, the job was ingested and split.
        return max(statistics.fmean(recent), 1e-3) if recent else 1 / TRIALS_PER_SEC

    def reserve(self, index: int, n: int) -> None:
        """Counts `n` candidates of the task as in flight which no search proposed."""
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
            return chosen, int(min(FEWEST if self._minor(chosen) else self.first_batch_size, left))
        return min(open_, key=self.gradient), int(min(self.batch_size, left))

    def _minor(self, index: int) -> bool:
        """Whether the task has less than MINOR of the model's time, as far as that is known."""
        latency, estimates = self.latency(), self.estimates()
        if latency is None or estimates is None:
            return False
        return self.tasks[index].weight * estimates[index] < MINOR * latency.secs

    def gradient(self, index: int) -> float:
        """The estimate of df/dt_i in seconds per trial, the more negative the more promising; -inf without a valid time."""
        task = self.tasks[index]
        if task.best_secs is None:
            return -math.inf
        trials_then, best_then = task.trials, task.best_secs
        if len(task.history) > WINDOW_BATCHES:
            trials_then, best = task.history[-1 - WINDOW_BATCHES]
            best_then = task.best_secs if best is None else best
        slope = 0.0 if task.trials == trials_then else (task.best_secs - best_then) / (task.trials - trials_then)
        if task.above_bound_secs is not None:
            guess = -task.above_bound_secs / max(task.trials, 1)
        else:
            guess = -task.best_secs / max(task.trials, 1)
            peers = [t.flops / t.best_secs for t in self.tasks if t.group == task.group and t.best_secs]
            if task.flops and len(peers) > 1:
                guess = min(guess, BETA * task.flops / max(peers) - task.best_secs)
        return task.weight * (ALPHA * slope + (1 - ALPHA) * guess)

    def charge(self, index: int, reserved: int, results: Iterable[Measurement], elapsed_secs: float) -> None:
        """Books the results of a batch of `reserved` candidates. A batch without results marks the task as exhausted."""
        task = self.tasks[index]
        task.in_flight = max(0, task.in_flight - reserved)
        task.batches_in_flight = max(0, task.batches_in_flight - 1)
        done = 0
        for result in results:
            done += 1
            if isinstance(result, Failed):
                task.failed += 1
            elif isinstance(result, Timed):
                if result.candidate == task.default:
                    # Its least: a timing that was disturbed must not make it look worth replacing.
                    task.default_secs = result.secs if result.secs_low is None else result.secs_low
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

    def confirmed(self, index: int, secs: float) -> None:
        """Books the seconds that a confirming run found for what the task is served with."""
        task = self.tasks[index]
        task.searched_secs, task.best_secs = task.best_secs or secs, secs

    def searched(self, index: int, reserved: int, queued: int) -> None:
        """Books the end of a search for `reserved` candidates: `queued` of them go on to be measured, none if it crashed."""
        task = self.tasks[index]
        task.searching = False
        task.in_flight = max(0, task.in_flight - (reserved - queued))
        if queued == 0:
            task.batches_in_flight = max(0, task.batches_in_flight - 1)

    def latency(self) -> Latency | None:
        """f of the notation: the sum of weight x seconds over the tasks' `estimates`. None while there are none."""
        if (estimates := self.estimates()) is None:
            return None
        secs = sum(task.weight * each for task, each in zip(self.tasks, estimates, strict=True))
        return Latency(secs=secs, estimated=sum(task.best_secs is None for task in self.tasks))

    def estimates(self) -> list[float] | None:
        """The best seconds of each task. None while some task has neither a time nor a bound.

        A task without a time counts with its bound, multiplied by what the best of the others are above theirs (median).
        """
        known = [task.best_secs / task.bound_secs for task in self.tasks if task.best_secs and task.bound_secs]
        above = statistics.median(known) if known else ABOVE_BOUND
        found = list[float]()
        for task in self.tasks:
            if task.best_secs is None and task.bound_secs is None:
                return None
            found.append(above * (task.bound_secs or 0.0) if task.best_secs is None else task.best_secs)
        return found

    def eta(self, elapsed_secs: float) -> Eta:
        """The time left: for the remaining trials at the recent rate and `held_secs`, or the remaining seconds, whichever is
        less.

        The interval is that of the mean seconds per trial (normal approximation over batches) times the trials left. Its
        lower end assumes that every task becomes stale as early as it can.
        """
        bounds: list[tuple[float, float, float]] = []
        recent = self._secs_per_trial[-32:]
        if self.trials_limit is not None and recent:
            left = max(0, self.trials_limit - self.trials)
            mean = statistics.fmean(recent)
            spread = 1.96 * statistics.stdev(recent) / math.sqrt(len(recent)) if len(recent) > 1 else mean
            until_stale = sum(max(0, STALE_TRIALS - t.trials) for t in self.tasks if not t.finished)
            low = min(left, until_stale) * max(0.0, mean - spread)
            held = self.held_secs
            bounds.append((left * mean + held, low + held, left * (mean + spread) + held))
        if self.seconds_limit is not None:
            left_secs = max(0.0, self.seconds_limit - elapsed_secs)
            bounds.append((left_secs, 0.0 if all(t.trials for t in self.tasks) else left_secs, left_secs))
        if not bounds:
            return Eta(secs=None, low_secs=None, high_secs=None)
        secs, low, high = (min(column) for column in zip(*bounds, strict=True))
        return Eta(secs=secs, low_secs=low, high_secs=max(secs, high))


def _default(task: Task) -> str | None:
    return None if task.fixed in (None, BASELINE_TRACE) else candidate_digest(task.workload.digest, str(task.fixed))


def effort(tunable_tasks: int, trials: int | None, seconds: float | None) -> float:
    """Trials per task that a budget offers. A stored schedule is reused without trials where its own effort was as large."""
    offers = [] if trials is None else [float(trials)]
    if seconds is not None:
        offers.append(seconds * TRIALS_PER_SEC)
    return min(offers) / max(1, tunable_tasks)
