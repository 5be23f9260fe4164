"""Whose step is next."""

from __future__ import annotations

import pytest

from tuner.execution.turns import Owner, Turns


def run(turns: Turns[str], secs: dict[str, float], steps: int) -> list[str]:
    """Projects of the next steps, run one after another, each taking its project's seconds."""
    now, order = 0.0, []
    for _ in range(steps):
        taken = turns.take(now)
        assert taken is not None
        owner, _ = taken
        turns.done(owner, now, now + secs[owner[0]])
        now += secs[owner[0]]
        order.append(owner[0])
    return order


def filled(owners: dict[Owner, int], most: int = 4) -> Turns[str]:
    turns: Turns[str] = Turns(most)
    for owner, count in owners.items():
        for number in range(count):
            turns.put(owner, f"{owner} {number}", 0.0)
    return turns


def test_one_owners_steps_come_in_the_order_they_were_queued() -> None:
    turns = filled({("a", "job"): 3})
    taken = [turns.take(0.0) for _ in range(3)]
    assert [step and step[1] for step in taken] == [f"('a', 'job') {number}" for number in range(3)]
    assert turns.take(0.0) is None


def test_a_project_with_a_hundred_steps_takes_turns_with_one_of_two() -> None:
    assert sorted(run(filled({("a", "job"): 100, ("b", "job"): 2}), {"a": 1.0, "b": 1.0}, 4)) == ["a", "a", "b", "b"]


def test_a_project_of_many_jobs_gets_no_more_than_one_of_one_job() -> None:
    owners = {("a", f"job {number}"): 4 for number in range(10)} | {("b", "job"): 5}
    assert run(filled(owners), {"a": 1.0, "b": 1.0}, 10).count("b") == 5


def test_whose_steps_take_long_has_fewer_of_them() -> None:
    order = run(filled({("slow", "job"): 20, ("fast", "job"): 20}), {"slow": 10.0, "fast": 1.0}, 12)
    assert order.count("slow") <= 2


def test_what_runs_now_counts_before_it_has_ended() -> None:
    turns = filled({("hangs", "job"): 2, ("other", "job"): 3})
    assert turns.take(0.0) == (("hangs", "job"), "('hangs', 'job') 0")
    for _ in range(3):
        taken = turns.take(100.0)
        assert taken is not None
        assert taken[0][0] == "other"
        turns.done(taken[0], 100.0, 110.0)


def test_a_project_runs_no_more_steps_at_once_than_it_may() -> None:
    turns = filled({("a", "one"): 3, ("a", "two"): 3}, most=2)
    assert [turns.take(0.0) is not None for _ in range(3)] == [True, True, False]
    turns.put(("b", "job"), "b", 0.0)
    assert turns.take(0.0) == (("b", "job"), "b")
    turns.done(("a", "one"), 0.0, 1.0)
    assert turns.take(1.0) is not None


def test_who_comes_back_after_a_pause_does_not_catch_up_at_the_others_cost() -> None:
    turns = filled({("busy", "job"): 50, ("rare", "job"): 1})
    run(turns, {"busy": 1.0, "rare": 1.0}, 21)
    for number in range(10):
        turns.put(("rare", "job"), str(number), 21.0)
    assert run(turns, {"busy": 1.0, "rare": 1.0}, 10).count("busy") >= 4


def test_who_used_more_than_the_others_is_not_forgiven_for_a_pause() -> None:
    turns = filled({("hog", "job"): 1, ("good", "job"): 20})
    run(turns, {"hog": 300.0, "good": 1.0}, 3)
    turns.put(("hog", "job"), "again", 302.0)
    assert "hog" not in run(turns, {"hog": 300.0, "good": 1.0}, 15)


def test_what_is_drained_is_queued_no_more() -> None:
    turns = filled({("a", "job"): 2, ("b", "job"): 1})
    assert turns.take(0.0) is not None
    assert len(turns.drain()) == 2
    assert len(turns) == 0
    assert turns.take(0.0) is None


def test_owners_that_are_gone_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.execution.turns.REMEMBERED", 64)
    turns: Turns[int] = Turns(1)
    for number in range(1000):
        turns.put((f"project {number}", "job"), number, float(number))
        taken = turns.take(float(number))
        assert taken is not None
        turns.done(taken[0], float(number), number + 0.5)
    assert len(turns._accounts) <= 64 + 2
