"""A search in parts, and what a step may answer with."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from pitchpipe.errors import StepDied
from pitchpipe.wire.measure import Candidate
from tuner.execution import step_child
from tuner.execution.steps import FEWEST_PER_PART, propose_on
from tuner.search.requests import Proposal, ProposeRequest, TrainedModel
from tuner.tuning.testing import TARGET, fake_task


class Held(Executor):
    """Keeps what it is given until the test answers it."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.requests: list[ProposeRequest] = []
        self.futures: list[Future[list[Proposal]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.requests.append(args[0])
        self.futures.append(Future())
        return self.futures[-1]


def request(n: int) -> ProposeRequest:
    task = fake_task("a")
    return ProposeRequest(workload=task.workload, target=TARGET, measured=(), seen=frozenset(), model=None, n=n, seed=5)


def proposal(name: int, predicted: float | None) -> Proposal:
    return Proposal(candidate=Candidate.of("0" * 64, f"[[{name}],[]]", predicted), features=None)


def test_an_executor_of_one_process_gets_the_request_as_it_is() -> None:
    executor = Held(1)
    assert propose_on(executor, request(64)) is executor.futures[0]
    assert executor.requests == [request(64)]
    few = Held(8)
    assert propose_on(few, request(FEWEST_PER_PART)) is few.futures[0], "too few to share"


def test_parts_share_the_number_and_have_seeds_of_their_own() -> None:
    executor = Held(3)
    propose_on(executor, request(32))
    assert [part.n for part in executor.requests] == [11, 11, 10]
    assert len({part.seed for part in executor.requests}) == 3
    again = Held(3)
    propose_on(again, request(32))
    assert again.requests == executor.requests


def test_the_answer_is_that_of_all_parts_best_first_each_once() -> None:
    executor = Held(2)
    future = propose_on(executor, request(16))
    executor.futures[1].set_result([proposal(1, 0.5), proposal(2, 0.9)])
    assert not future.done()
    executor.futures[0].set_result([proposal(1, 0.5), proposal(3, 0.7)])
    assert [found.candidate.predicted for found in future.result(0)] == [0.9, 0.7, 0.5]


def test_without_predictions_the_first_of_each_part_come_first() -> None:
    """A job whose seconds end early measures these alone."""
    executor = Held(2)
    future = propose_on(executor, request(16))
    first, second, third, fourth = (proposal(name, None) for name in (4, 3, 2, 1))
    executor.futures[0].set_result([first, third])
    executor.futures[1].set_result([first, second, fourth])
    assert future.result(0) == [first, third, second, fourth]


def test_a_part_that_fails_costs_its_share_only() -> None:
    executor = Held(2)
    future = propose_on(executor, request(16))
    executor.futures[0].set_exception(RuntimeError("a compiler crashed"))
    executor.futures[1].set_result([proposal(1, 0.5)])
    assert len(future.result(0)) == 1


def test_when_all_parts_fail_so_does_the_search() -> None:
    executor = Held(2)
    future = propose_on(executor, request(16))
    for part in executor.futures:
        part.set_exception(RuntimeError("a compiler crashed"))
    with pytest.raises(RuntimeError, match="crashed"):
        future.result(0)


def test_cancelling_cancels_every_part() -> None:
    executor = Held(2)
    future = propose_on(executor, request(16))
    assert future.cancel()
    assert all(part.cancelled() for part in executor.futures)
    assert future.cancelled()


def test_proposals_models_and_tasks_are_answers_and_types_of_other_modules_are_not() -> None:
    answers = [[proposal(1, 0.5)], TrainedModel(data=b"model", metrics={"error": 0.5}, samples=7), [fake_task("a")]]
    for answer in answers:
        assert step_child._unpickled(pickle.dumps(answer), "propose") == answer
    with pytest.raises(StepDied, match="nothing that a step may answer with"):
        step_child._unpickled(pickle.dumps(step_child.StepChild), "propose")
