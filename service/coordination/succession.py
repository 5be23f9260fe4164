"""Whether a version of the cost model may serve in the place of another: a paired test over tasks.

Notation. For task t, d_t is the version's pairwise accuracy less that of the version that serves, on the same candidates,
which neither was trained on. The mean of d over tasks is bootstrapped: tasks are drawn with replacement RESAMPLES times
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), and [low, high] are the quantiles 1 - CONFIDENCE
and CONFIDENCE of the means. The version is

    not worse   where low > -MARGIN      (a test of non-inferiority)
    worse       where high < 0
    undecided   otherwise, and with fewer than FEWEST tasks

Candidates of one workload are alike, so tasks are workloads where there are FEWEST of them. A project with fewer has the
groups of their candidates in place of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from pitchpipe.wire.cost_model import TaskMarks

FEWEST = 8
"""Tasks that decide. With fewer a bootstrap draws too few different means for an interval."""
MARGIN = 0.02
"""Pairwise accuracy that a version may lack and still not be called worse: without it, a version as good as the one that
serves would hardly ever serve."""
CONFIDENCE = 0.9
RESAMPLES = 1000


class Verdict(Enum):
    """What the tasks say of a version."""

    NOT_WORSE = "not worse"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict and what it rests on."""

    verdict: Verdict
    tasks: int
    difference: float = 0.0
    """Mean of d; `low` and `high` are the ends of its interval."""
    low: float = 0.0
    high: float = 0.0

    def told(self, other: int) -> str:
        """The verdict in words, beside version `other`, which serves."""
        if self.tasks < FEWEST:
            return f"undecided beside version {other}: {self.tasks} tasks were compared, {FEWEST} decide"
        beside = f"{self.verdict.value} beside" if self.verdict is Verdict.UNDECIDED else f"{self.verdict.value} than"
        interval = f"{self.low:+.3f} to {self.high:+.3f}"
        return f"{beside} version {other} on {self.tasks} tasks ({self.difference:+.3f} pairwise, {interval})"


def judge(marks: Sequence[TaskMarks]) -> Judgement:
    """The judgement on a version with these marks; those without a rival's are left out. The same marks give the same."""
    found: dict[str, list[float]] = {}
    for task in marks:
        if task.rival_pairwise is not None:
            found.setdefault(task.workload, []).append(task.pairwise - task.rival_pairwise)
    differences = [fmean(each) for each in found.values()]
    if len(differences) < FEWEST:
        differences = [difference for each in found.values() for difference in each]
    if len(differences) < FEWEST:
        return Judgement(verdict=Verdict.UNDECIDED, tasks=len(differences))
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    tail = round((1 - CONFIDENCE) * RESAMPLES)
    low, high = means[tail], means[-1 - tail]
    worse = Verdict.WORSE if high < 0 else Verdict.UNDECIDED
    verdict = Verdict.NOT_WORSE if low > -MARGIN else worse
    return Judgement(verdict=verdict, tasks=len(differences), difference=fmean(differences), low=low, high=high)
