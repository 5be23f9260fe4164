"""Marks of cost models on candidates that they were not trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pitchpipe.errors import IntegrityError
from tests.unit.test_cost_model import HELD_OUT, WORKLOADS, samples
from tuner.execution.steps import score, train
from tuner.search.cost_model import FEATURES, CostModel, pack_features, unpack_features
from tuner.search.marks import GROUP
from tuner.search.requests import Rival, Sample, TrainedModel


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    trained = train(samples(), 0)
    assert trained is not None
    return trained


@pytest.fixture(scope="module")
def ignorant() -> TrainedModel:
    """A model whose training told nothing: the seconds of its samples are shuffled."""
    given = samples()
    order = np.random.default_rng(0).permutation(len(given))
    trained = train([replace(sample, secs=given[i].secs) for sample, i in zip(given, order, strict=True)], 0)
    assert trained is not None
    return trained


def rival(of: TrainedModel) -> Rival:
    return Rival(data=of.data, judge=of.judge)


def test_both_judges_are_marked_on_the_same_held_out_workloads(model: TrainedModel, ignorant: TrainedModel) -> None:
    trained = train(samples(), 0, rival(ignorant))
    assert trained is not None
    assert [task.workload for task in trained.marks] == HELD_OUT[:1]
    (task,) = trained.marks
    assert task.candidates == 60
    assert task.pairwise == pytest.approx(trained.metrics["pairwise"], abs=0.02)
    assert task.rival_pairwise is not None
    assert task.rival_pairwise < 0.65 < task.pairwise
    assert model.marks[0].rival_pairwise is None


def test_a_rival_without_a_judge_has_no_marks_and_one_that_is_damaged_is_refused(model: TrainedModel) -> None:
    for given, refused in ((Rival(data=model.data, judge=None), False), (Rival(data=b"none", judge=None), True)):
        trained = train(samples(), 0, given)
        assert trained is not None
        assert trained.rival_refused is refused
        assert [task.rival_pairwise for task in trained.marks] == [None]


def test_what_was_measured_later_is_scored_in_groups_of_a_workload(model: TrainedModel, ignorant: TrainedModel) -> None:
    later = samples(workloads=2, each=GROUP * 2 + 3, seed=5)
    found = score(later, model.data, ignorant.data)
    assert [task.workload for task in found] == [WORKLOADS[0]] * 2 + [WORKLOADS[1]] * 2
    assert {task.candidates for task in found} == {GROUP}
    mine, theirs = (np.mean([getattr(task, name) for task in found]) for name in ("pairwise", "rival_pairwise"))
    assert theirs < 0.7 < mine
    scores = CostModel.load(model.data).predict([unpack_features(sample.features) for sample in later[:GROUP]])
    assert [score for _, score in found[0].points] == pytest.approx(list(scores), abs=1e-3)


def test_a_model_beside_itself_is_as_good(model: TrainedModel) -> None:
    found = score(samples(seed=5), model.data, model.data)
    assert found
    assert all(task.pairwise == task.rival_pairwise for task in found)


def test_what_tells_nothing_is_left_out(model: TrainedModel) -> None:
    same = pack_features(np.ones((2, FEATURES), dtype=np.float32))
    equal = [Sample(workload=WORKLOADS[0], features=same, secs=1e-3)] * GROUP
    failed = [Sample(workload=WORKLOADS[1], features=same, secs=None)] * GROUP
    unreadable = [Sample(workload=WORKLOADS[2], features=b"?", secs=1e-3 * n) for n in range(1, GROUP + 1)]
    assert score([*equal, *failed, *unreadable], model.data, model.data) == ()


def test_equal_scores_are_half_right(model: TrainedModel) -> None:
    same = pack_features(np.ones((2, FEATURES), dtype=np.float32))
    (task,) = score(
        [Sample(workload=WORKLOADS[0], features=same, secs=1e-3 * n) for n in range(1, GROUP + 1)],
        model.data,
        model.data,
    )
    assert task.pairwise == 0.5


def test_a_damaged_model_is_not_scored(model: TrainedModel) -> None:
    with pytest.raises(IntegrityError):
        score(samples(), b"none", model.data)
