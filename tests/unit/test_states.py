"""The state machines, as data: every state is there, ends end, and a refusal tells the history."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from pitchpipe.errors import InvalidTransition
from pitchpipe.wire.job import JobState
from pitchpipe.wire.lease import WorkerState
from service import states
from service.states import CandidateState, LeaseState


@pytest.mark.parametrize(
    ("machine", "kind", "start"),
    [
        (states.JOB, JobState, JobState.QUEUED),
        (states.WORKER, WorkerState, WorkerState.ACTIVE),
        (states.CANDIDATE, CandidateState, CandidateState.QUEUED),
        (states.LEASE, LeaseState, LeaseState.OPEN),
    ],
)
def test_every_state_is_drawn_and_reached_from_the_first(
    machine: Mapping[StrEnum, frozenset[StrEnum]], kind: type[StrEnum], start: StrEnum
) -> None:
    assert set(machine) == set(kind)
    reached, left = set(), {start}
    while left:
        state = left.pop()
        reached.add(state)
        left |= machine[state] - reached
    assert reached == set(kind)


def test_a_job_has_ended_exactly_when_it_has_nowhere_to_go() -> None:
    assert {state for state in JobState if not states.JOB[state]} == {state for state in JobState if state.ended}


def test_a_candidate_is_terminal_exactly_when_it_is_neither_queued_nor_leased() -> None:
    open_ = {CandidateState.QUEUED, CandidateState.LEASED}
    assert {state for state in CandidateState if not state.terminal} == open_


@pytest.mark.parametrize("state", [state for state in JobState if not state.ended])
def test_any_job_that_has_not_ended_can_fail_and_be_cancelled(state: JobState) -> None:
    states.job_transition("job_1", [state], JobState.FAILED)
    states.job_transition("job_1", [state], JobState.CANCELLED)


def test_an_invalid_transition_tells_the_history() -> None:
    history = [JobState.QUEUED, JobState.INGESTING, JobState.FAILED]
    with pytest.raises(InvalidTransition) as caught:
        states.job_transition("job_1", history, JobState.TUNING)
    assert caught.value.detail == "job job_1 went queued -> ingesting -> failed; it cannot become tuning"
