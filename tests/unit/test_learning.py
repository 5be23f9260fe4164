"""Replayed searches and what is concluded from them, on made-up workloads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from pitchpipe.wire.ids import sha256
from tuner.search.cost_model import FEATURES, CostModel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import learning
    import replay_models
    import replay_search
    from replay_search import BATCHES, Replayed, Strategy
finally:
    sys.path.remove(str(BENCHMARKS))


def workload(name: str = "w", networks: tuple[str, ...] = ("net",), candidates: int = 100) -> Replayed:
    """Seconds follow from two decisions and a feature; the first six candidates are analytic seeds, of which the fourth is the
    fastest, and one candidate failed."""
    rng = np.random.default_rng(len(name))
    tiles = rng.integers(1, 9, (candidates, 3))
    seconds = 1e-3 * (1 + tiles[:, 0] + tiles[:, 1] / 8)
    seconds[3], seconds[50] = 5e-4, np.inf
    features = [np.zeros((2, FEATURES), dtype=np.float32) for _ in range(candidates)]
    for matrix, value in zip(features, seconds, strict=True):
        matrix[0, 0] = np.log(value) if np.isfinite(value) else 9
    return Replayed(
        digest=sha256(name.encode()),
        name=name,
        networks=networks,
        seconds=seconds,
        lower=0.99 * seconds,
        upper=1.01 * seconds,
        place=np.arange(candidates),
        origin=np.array(["seed"] * 6 + ["random"] * (candidates - 6)),
        family=np.array([str(i % 2) for i in range(candidates)]),
        decisions=[[[4, [int(a), 2]], [5, [int(b), 2]], [9, int(c)]] for a, b, c in tiles],
        default=np.arange(candidates) == 1,
        features=features,
    )


def knowing(one: Replayed) -> replay_search.Scorer:
    """A model that is always right."""
    return replay_models.Fixed(one.speeds)


STRATEGIES = [
    Strategy(name="random", seeded=False, evolves=False),
    Strategy(name="no model"),
    Strategy(name="from nothing", scorer=replay_models.Learning),
    *(Strategy(name=first, scorer=knowing, first=first) for first in get_args(replay_search.First)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
@pytest.mark.parametrize("candidates", [60, 100])
def test_a_replayed_search_measures_nothing_twice_and_is_reproducible(strategy: Strategy, candidates: int) -> None:
    one = workload(candidates=candidates)
    order = replay_search.replay(one, strategy, 1)
    assert len(order) == min(candidates, sum(BATCHES))
    assert len(set(order.tolist())) == len(order)
    assert order.tolist() == replay_search.replay(one, strategy, 1).tolist()


def test_a_first_round_begins_with_the_seeds_that_the_strategy_says() -> None:
    one = workload()
    begun = {strategy.name: replay_search.replay(one, strategy, 1)[:4].tolist() for strategy in STRATEGIES}
    assert begun["no model"][:3] == [0, 1, 2]
    assert begun["analytic"][:3] == [0, 1, 2]
    assert begun["seeds by score"][0] == 3
    assert set(begun["seeds by score"][:3]) < set(range(6))
    assert begun["all by score"][0] == 3
    assert not set(range(6)).intersection(begun["random"])


def test_children_are_of_the_same_sketch_and_differ_in_at_most_two_decisions() -> None:
    one = workload()
    found = replay_search.near(one, 7).tolist()
    assert found
    for child in range(100):
        differing = sum(a != b for a, b in zip(one.decisions[child], one.decisions[7], strict=True))
        assert (child in found) == (child % 2 == 1 and child != 7 and differing <= 2)


def test_a_regret_never_grows_and_a_failure_counts_as_the_slowest() -> None:
    one = workload()
    order = np.array([50, 10, 11, 12, 3])
    regret = replay_search.best_so_far(one, order)
    assert regret[0] == pytest.approx(one.seconds[np.isfinite(one.seconds)].max() / 5e-4)
    assert (np.diff(regret) <= 0).all()
    assert regret[-1] == 1
    assert replay_search.after(regret, 64) == 1


def test_networks_are_held_out_whole() -> None:
    named = [("a",), ("b",), ("a", "c"), ("c",), ("d", "b")]
    workloads = [workload(str(i), networks) for i, networks in enumerate(named)]
    judged_once: list[str] = []
    for held_out in learning.folds(workloads, 2):
        seen, judged = learning.divided(workloads, held_out)
        assert not held_out.intersection(name for one in seen for name in one.networks)
        judged_once += [one.name for one in judged]
    assert sorted(judged_once) == [str(i) for i in range(len(named))]


def test_a_part_helps_only_where_its_whole_interval_says_so() -> None:
    rng = np.random.default_rng(0)
    without = rng.uniform(0.5, 1, (2, 20, len(replay_search.TRIALS)))
    row = learning.part_row("p", without - np.log(1.5), without)
    assert row["worth@8"] == pytest.approx(1.5)
    assert row["helps_at"] == list(replay_search.TRIALS)
    noisy: dict[str, Any] = learning.part_row("p", without, rng.permuted(without, axis=1))
    assert noisy["helps_at"] == noisy["harms_at"] == []


def test_the_first_seeds_are_those_that_the_analytic_models_rank_first() -> None:
    row = learning.seeds_row([workload()])
    one = workload()
    assert row["regret@1"] == pytest.approx(one.seconds[0] / one.best_secs)
    assert row["regret@4"] == pytest.approx(1), "the fourth seed is the fastest of all"


def test_pairs_whose_intervals_meet_do_not_count() -> None:
    one = workload()
    assert learning.distinct_pairwise(one, one.speeds) == 1
    assert learning.distinct_pairwise(one, -one.speeds) == 0


def test_a_model_trained_on_other_workloads_ranks_one() -> None:
    model = CostModel.load(replay_models.pretrained([workload("one"), workload("other", candidates=80)]))
    unseen = workload("third one")
    assert learning.marks_row("", [unseen], {unseen.digest: model.predict(unseen.features)})["pairwise"] > 0.9
