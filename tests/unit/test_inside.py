"""The search for the schedules with which a whole model is fastest, with a timer that is made up."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.tuning.inside import ENOUGH, MOST_ROUNDS, Choice, descend, fastest, is_faster

SAMPLES = 12


class Model:
    """A model whose tasks take what their schedules take, and whatever a pair of neighbours costs beside."""

    def __init__(
        self, secs: dict[str, list[float]], pairs: dict[tuple[Any, ...], float] | None = None, noise: float = 0.0
    ) -> None:
        self.secs, self.pairs, self.noise = secs, pairs or {}, noise
        self.rng = np.random.default_rng(0)
        self.raced: list[list[dict[str, int]]] = []

    def time(self, choice: Choice) -> float:
        total = sum(secs[choice.get(task, 0)] for task, secs in self.secs.items())
        return total + sum(
            extra
            for (a, i, b, j), extra in self.pairs.items()
            if (choice.get(a, 0), choice.get(b, 0)) == (i, j)
        )  # fmt: skip

    def race(self, choices: Sequence[Choice]) -> list[list[float]]:
        self.raced.append([dict(choice) for choice in choices])
        return [list(self.time(choice) * (1 + self.noise * self.rng.standard_normal(SAMPLES))) for choice in choices]

    @property
    def tasks(self) -> dict[str, range]:
        return {task: range(1, len(secs)) for task, secs in self.secs.items()}


def test_each_task_gets_the_schedule_with_which_the_model_is_fastest() -> None:
    model = Model({"a": [5.0, 4.0, 6.0], "b": [3.0, 3.5], "c": [2.0, 1.0, 0.5]})
    found = descend(model.tasks, model.race)
    assert found.choice == {"a": 1, "c": 2}
    assert [one.changed for one in found.rounds] == [2, 0]
    assert found.rounds[0].gain == pytest.approx(2.5 / 10)
    assert found.trials == 2 * (2 + 1 + 2)


def test_a_neighbours_change_is_answered_in_the_next_round() -> None:
    """b's second schedule pays only beside a's, which comes first."""
    model = Model({"b": [3.0, 3.1], "a": [5.0, 4.0]}, {("b", 1, "a", 1): -0.5})
    found = descend(model.tasks, model.race)
    assert found.choice == {"a": 1, "b": 1}
    assert [one.changed for one in found.rounds] == [1, 1, 0]


def test_a_round_that_gains_too_little_is_the_last() -> None:
    model = Model({"a": [100.0, 100.0 * (1 - ENOUGH) + 0.1], "b": [0.0, -0.0]})
    found = descend(model.tasks, model.race)
    assert found.choice == {"a": 1}
    assert len(found.rounds) == 1


def test_there_are_never_more_rounds_than_the_most() -> None:
    names = [f"t{at}" for at in range(10)]
    chain = {(one, 1, other, 1): -2.0 for one, other in pairwise(names)}
    model = Model({name: [10.0, 11.0] for name in names} | {"t9": [10.0, 9.0]}, chain)
    found = descend(model.tasks, model.race)
    assert len(found.rounds) == MOST_ROUNDS
    assert model.time(found.choice) < model.time({})


def test_a_guess_is_where_the_search_begins_if_it_is_faster() -> None:
    model = Model({"a": [5.0, 1.0, 0.5], "b": [3.0, 2.0], "c": [2.0, 3.0]})
    found = descend(model.tasks, model.race, guess={"a": 1, "b": 1, "c": 1})
    assert model.raced[0] == [{}, {"a": 1, "b": 1, "c": 1}]
    assert found.choice == {"a": 2, "b": 1}
    assert found.trials == 1 + 2 * (2 + 1 + 1)
    assert found.rounds[0].gain == pytest.approx(1.5 / 6)
    slower = Model({"a": [5.0, 4.0], "b": [3.0, 9.0]})
    assert descend(slower.tasks, slower.race, lambda: True, {"a": 1, "b": 1}).choice == {}


def test_nothing_is_timed_once_the_time_is_up() -> None:
    model = Model({"a": [5.0, 4.0], "b": [5.0, 4.0], "c": [5.0, 4.0]})
    found = descend(model.tasks, model.race, lambda: len(model.raced) >= 2)
    assert found.choice == {"a": 1, "b": 1}
    assert descend(model.tasks, model.race, lambda: True).rounds == ()


def test_a_model_without_alternatives_is_not_timed() -> None:
    model = Model({"a": [5.0], "b": [3.0]})
    found = descend(model.tasks, model.race)
    assert found.choice == {}
    assert model.raced == []


def test_what_did_not_hold_is_taken_back() -> None:
    """A comparison that was disturbed makes a slower schedule win; the one at the round's end shows it."""
    model = Model({"a": [5.0, 5.5]})

    def race(choices: Sequence[Choice]) -> list[list[float]]:
        samples = model.race(choices)
        return samples if len(model.raced) > 1 else samples[::-1]

    found = descend(model.tasks, race)
    assert found.choice == {}
    assert [(one.changed, one.gain) for one in found.rounds] == [(1, 0.0)]


times = st.floats(1.0, 10.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(times, min_size=1, max_size=4), min_size=1, max_size=5))
def test_without_noise_and_neighbours_nothing_is_left_to_gain_by_one_task(secs: list[list[float]]) -> None:
    """As far as two times differ at all."""
    model = Model({f"t{at}": one for at, one in enumerate(secs)})
    found = descend(model.tasks, model.race)
    least = sum(min(one) for one in secs)
    assert model.time(found.choice) == pytest.approx(least)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_choice_is_slower_than_the_first_whatever_neighbours_do(data: st.DataObject) -> None:
    names = ["a", "b", "c"]
    secs = {name: data.draw(st.lists(times, min_size=2, max_size=3)) for name in names}
    pairs = {}
    for one, other in pairwise(names):
        for i, j in product(range(len(secs[one])), range(len(secs[other]))):
            pairs[one, i, other, j] = data.draw(st.floats(0.0, 5.0))
    model = Model(secs, pairs)
    assert model.time(descend(model.tasks, model.race).choice) <= model.time({})


def test_equal_schedules_seldom_take_each_others_place() -> None:
    changed = 0
    for seed in range(200):
        model = Model({"a": [5.0, 5.0, 5.0, 5.0]}, noise=0.003)
        model.rng = np.random.default_rng(seed)
        changed += bool(descend(model.tasks, model.race).choice)
    assert changed <= 20


def test_a_gain_of_two_hundredths_is_found_in_noise_of_three_thousandths() -> None:
    for seed in range(50):
        model = Model({"a": [1.0, 0.98], "b": [0.0, 0.0]}, noise=0.003)
        model.rng = np.random.default_rng(seed)
        found = descend(model.tasks, model.race).choice
        assert found.get("a") == 1


def test_the_fastest_of_those_that_are_faster_for_certain_is_chosen() -> None:
    assert fastest([[5.0] * 12, [4.0] * 12, [3.0] * 12]) == 2
    assert fastest([[5.0] * 12, [5.0] * 12]) == 0
    assert fastest([list(np.linspace(4, 6, 12)), list(np.linspace(3.9, 5.9, 12))]) == 0


def test_a_claim_needs_every_process() -> None:
    slow, fast, torn = ([*secs] * 6 for secs in ((1.0, 1.01, 1.02), (0.9, 0.91, 0.92), (0.9, 0.91, 1.02)))
    assert is_faster(fast, slow, 3)
    assert not is_faster(slow, fast, 3)
    assert statistics.median(torn) < statistics.median(slow)
    assert not is_faster(torn, slow, 3)
