"""When a version of the cost model may serve in the place of another."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pitchpipe.wire.cost_model import TaskMarks
from pitchpipe.wire.ids import sha256
from service.coordination.succession import FEWEST, Verdict, judge

LOOKS = 8
"""Times that a version in the shadow is judged before the next one comes."""


def marks(differences: Sequence[float], workloads: int = 1000) -> list[TaskMarks]:
    """Tasks on which a version is better than its rival by these pairwise accuracies."""
    return [
        TaskMarks(
            workload=sha256(str(n % workloads).encode()),
            candidates=8,
            pairwise=min(max(0.5 + difference / 2, 0), 1),
            peak_1=1,
            peak_5=1,
            rival_pairwise=min(max(0.5 - difference / 2, 0), 1),
        )
        for n, difference in enumerate(differences)
    ]


def test_few_tasks_decide_nothing_however_clear_they_are() -> None:
    assert judge([]).verdict is Verdict.UNDECIDED
    assert judge(marks([0.9] * (FEWEST - 1))).verdict is Verdict.UNDECIDED
    assert "7 tasks were compared, 8 decide" in judge(marks([0.9] * (FEWEST - 1))).told(3)


def test_tasks_without_a_rivals_marks_decide_nothing() -> None:
    alone = [task.model_copy(update={"rival_pairwise": None}) for task in marks([0.9] * FEWEST)]
    assert judge(alone).tasks == 0


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0] * FEWEST, Verdict.NOT_WORSE),
        ([0.1, 0.2] * FEWEST, Verdict.NOT_WORSE),
        ([-0.1, -0.2] * FEWEST, Verdict.WORSE),
        ([-0.4, 0.4] * FEWEST, Verdict.UNDECIDED),
    ],
)
def test_the_verdict_follows_the_differences(differences: list[float], verdict: Verdict) -> None:
    found = judge(marks(differences))
    assert found.verdict is verdict
    assert found == judge(marks(differences))
    assert verdict.value in found.told(1)


def test_many_groups_of_one_workload_do_not_outvote_the_others() -> None:
    one, others = marks([0.5] * 50, workloads=1), marks([-0.1] * (2 * FEWEST))[1:]
    assert judge([*one, *others]).tasks == 2 * FEWEST
    assert judge([*one, *others]).verdict is not Verdict.NOT_WORSE


def served(better_by: float, workloads: int, runs: int = 100) -> float:
    """Share of versions that serve in the end, better than the rival by this much on average; on each task by that with a
    standard deviation of 0.12."""
    rng, found = random.Random(1), 0
    for _ in range(runs):
        differences: list[float] = []
        for _ in range(LOOKS):
            differences += [rng.gauss(better_by, 0.12) for _ in range(4)]
            verdict = judge(marks(differences, workloads)).verdict
            if verdict is not Verdict.UNDECIDED:
                break
        found += verdict is Verdict.NOT_WORSE
    return found / runs


@pytest.mark.parametrize("workloads", [3, 1000])
def test_a_worse_version_rarely_serves_and_a_better_one_nearly_always(workloads: int) -> None:
    assert served(-0.05, workloads) <= 0.1
    assert served(-0.1, workloads) <= 0.02
    assert served(0.05, workloads) >= 0.9
