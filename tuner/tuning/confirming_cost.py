"""What confirming the tasks that are left will cost, from what confirming has cost so far.

Of a task t in seconds, with C_t its FLOPs, W the number of workers that confirm tasks side by side, and r what the
confirming runs of this job took over what was expected of them:

    cost(t) = r (T + CALLS C_t / NAIVE_FLOPS_PER_SEC) / W

W is 1 where the workers of a kind of target take turns on one device: they do not confirm sooner together than one alone.

T is what a run takes on the kind of target (`TargetKind.confirming_secs`). The second term is the baseline's, where that is
the unscheduled program; a schedule's calls are short. r is that of the kind of target; it begins at what trials have
taken over what is usual, 1 at least, which weighs as much as PRIOR_RUNS runs: a busy device is as slow at confirming.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pitchpipe.target_kind import kind_named, kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import KindName
from pitchpipe.wire.task import Task
from tuner.tuning.confirm import MeasuredBatch

CALLS = 1.5
"""Of a baseline that has lost: one, or one in each of three processes where it is not far behind."""
NAIVE_FLOPS_PER_SEC = 1.5e9
"""An unscheduled convolution or product on one core, whose sums wait for each other."""
PRIOR_RUNS = 4
"""Few runs tell little: those before the last trials have a GPU for themselves, whose workers wait in turns later."""


class ConfirmingCost:
    """The expected cost of confirming runs; learns from each that ends."""

    def __init__(self) -> None:
        self._taken = defaultdict[KindName, float](float)
        self._expected = defaultdict[KindName, float](float)
        """Seconds by kind of target, of the runs that have ended."""
        self.spent_secs = 0.0
        """Of workers, for confirming runs so far."""
        self._busy_until: dict[str, float] = {}
        """When the last batch of a worker ended, and the last confirming run of a kind whose workers take turns."""

    def secs(self, tasks: Iterable[Task], workers: int, slowness: float = 1.0) -> float:
        """Seconds in which so many workers confirm these tasks. slowness: what r begins at."""
        ratios = ((task, self._ratio(task, slowness)) for task in tasks)
        return sum(ratio * _expected(task) / _side_by_side(task.target.kind, workers) for task, ratio in ratios)

    def _ratio(self, task: Task, slowness: float) -> float:
        kind = task.target.kind
        prior_secs = PRIOR_RUNS * kind_of(task.target).confirming_secs
        return (slowness * prior_secs + self._taken[kind]) / (prior_secs + self._expected[kind])

    def observe(self, task: Task, batch: MeasuredBatch) -> None:
        """Learns from a batch that has ended, of whatever purpose.

        A lease may be granted while its worker still measures the one before: the run began when that ended. The first
        batch of a worker tells nothing: its processes started within it.
        """
        if batch.worker is None or batch.granted_at is None or batch.ended_at is None:
            return
        before = self._busy_until.get(batch.worker)
        self._busy_until[batch.worker] = max(before or 0.0, batch.ended_at)
        if before is None or batch.purpose.charged or not batch.whole:
            return
        kind, began = task.target.kind, max(before, batch.granted_at)
        self.spent_secs += max(0.0, batch.ended_at - began)
        if kind_of(task.target).times_in_turns:
            began = max(began, self._busy_until.get(kind, began))
            self._busy_until[kind] = max(began, batch.ended_at)
        self._taken[kind] += max(0.0, batch.ended_at - began)
        self._expected[kind] += _expected(task)


def _side_by_side(kind: KindName, workers: int) -> int:
    return 1 if kind_named(kind).times_in_turns else workers


def _expected(task: Task) -> float:
    naive = task.flops / NAIVE_FLOPS_PER_SEC if task.baseline == BASELINE_TRACE else 0.0
    return kind_of(task.target).confirming_secs + CALLS * naive
