"""The budget: pure, so every rule is checked without a clock."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.wire.measure import CheckVerdict, Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload
from tuner.tuning.budget import ABOVE_BOUND, AHEAD, FEWEST, MINOR, STALE_TRIALS, BudgetLedger, Latency, effort

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
PASSED = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=1)


def task(name: str, *, weight: int = 1, flops: float = 1e9, group: str = "g") -> Task:
    workload = Workload(digest=f"{abs(hash(name)):064x}"[:64], ir="{}")
    return Task(workload=workload, target=TARGET, name=name, weight=weight, flops=flops, bytes=1.0, group=group)


def times(n: int, secs: float) -> list[Measurement]:
    return [Timed(candidate=f"{i:064x}", run_secs=(secs,), check=PASSED, build_secs=0.1) for i in range(n)]


def failures(n: int) -> list[Measurement]:
    return [Failed(candidate=f"{i:064x}", kind=FailureKind.BUILD_ERROR) for i in range(n)]


def ledger(*tasks: Task, trials: int | None = 10_000, seconds: float | None = None) -> BudgetLedger:
    return BudgetLedger(tasks, trials=trials, seconds=seconds, batch_size=16)


def measured(book: BudgetLedger, elapsed: float = 1.0) -> tuple[int, int] | None:
    """The next batch, its search over."""
    due = book.next_batch(elapsed)
    if due is not None:
        book.searched(due[0], due[1], due[1])
    return due


def run_batch(book: BudgetLedger, secs: float, elapsed: float = 1.0) -> int:
    due = measured(book, elapsed)
    assert due is not None
    index, n = due
    book.charge(index, n, times(n, secs), elapsed)
    return index


def test_every_task_gets_a_first_batch_heaviest_first():
    book = ledger(task("light", flops=1e6), task("heavy", flops=1e9), task("often", weight=8, flops=1e9))
    assert [run_batch(book, 1.0) for _ in range(3)] == [2, 1, 0]


def test_the_first_batch_of_a_task_that_hardly_matters_is_small():
    book = ledger(task("costly", flops=1e9), task("small", flops=1e6), task("minor", flops=1e5), trials=192)
    for each, bound_secs in zip(book.tasks, (1.0, 2 * MINOR, MINOR / 2), strict=True):
        each.bound_secs = bound_secs
    first = [measured(book) for _ in range(3)]
    assert first == [(0, book.first_batch_size), (1, book.first_batch_size), (2, FEWEST)]
    assert book.first_batch_size == 4 * FEWEST


def test_the_next_batch_goes_where_the_weighted_latency_is_largest_when_nothing_else_is_known():
    book = ledger(task("a", group="a"), task("b", group="b"))
    book.restore(0, trials=64, failed=0, best_secs=1.0)
    book.restore(1, trials=64, failed=0, best_secs=0.1)
    assert book.next_batch(0.0) == (0, 16)


def test_a_task_far_below_the_speed_of_its_group_is_preferred():
    def choice(group_of_slow: str) -> int:
        book = ledger(
            task("fast", flops=1e9, group="conv"),
            task("slow", flops=1e8, group=group_of_slow),
            task("other", flops=1e8, group="dense"),
        )
        book.restore(0, trials=640, failed=0, best_secs=1e-3)
        book.restore(1, trials=640, failed=0, best_secs=4e-3)
        book.restore(2, trials=640, failed=0, best_secs=5e-3)
        for entry in book.tasks:
            entry.history = [(630, entry.best_secs)]
        due = book.next_batch(0.0)
        assert due is not None
        return due[0]

    assert choice(group_of_slow="alone") == 2
    assert choice(group_of_slow="conv") == 1


def test_a_task_that_stopped_improving_stops():
    book = ledger(task("a"))
    while (due := measured(book)) is not None:
        book.charge(due[0], due[1], times(due[1], 1.0), 1.0)
    assert STALE_TRIALS <= book.trials <= STALE_TRIALS + 2 * 16
    assert book.finished(1.0)


def spend(book: BudgetLedger, *secs: float) -> list[int]:
    """Trials of each task after the budget was spent, with the same time for all candidates of a task."""
    while (due := measured(book)) is not None:
        book.charge(due[0], due[1], times(due[1], secs[due[0]]), 1.0)
    return [entry.trials for entry in book.tasks]


def test_a_task_at_its_bound_stops_and_its_trials_go_to_the_others():
    book = ledger(task("a"), task("b", group="h"), trials=160)
    book.tasks[0].bound_secs = 1.0
    assert spend(book, 1.029, 1.0) == [16, 144]
    assert book.finished(1.0)


def test_a_task_that_passes_through_its_bound_goes_on():
    book = ledger(task("a"))
    book.tasks[0].bound_secs = 1.0
    for secs in (1.2, 1.01):
        run_batch(book, secs)
    assert not book.tasks[0].finished
    run_batch(book, 0.9)
    assert not book.tasks[0].finished, "the bound is disproved"


@pytest.mark.parametrize("bound", [None, 1.04], ids=["unknown", "passed: no bound"])
def test_a_bound_that_says_nothing_changes_nothing(bound):
    book, without = (ledger(task("a"), task("b", group="h"), trials=160) for _ in range(2))
    book.tasks[0].bound_secs = bound
    assert spend(book, 1.0, 1.0) == spend(without, 1.0, 1.0)


def test_a_task_just_above_its_bound_goes_on_until_it_is_stale():
    book = ledger(task("a"))
    book.tasks[0].bound_secs = 1 / 1.04
    (spent,) = spend(book, 1.0)
    assert spent >= STALE_TRIALS


def test_trials_go_where_most_is_left_above_the_bound_and_not_to_a_speed_that_the_bound_forbids():
    book = ledger(task("memory", flops=1e8), task("fast", flops=1e9), task("slow", flops=1e9))
    for index, (best, bound) in enumerate([(1.0, 0.9), (0.5, 0.45), (1.0, 0.5)]):
        book.restore(index, trials=64, failed=0, best_secs=best)
        book.tasks[index].bound_secs = bound
    found = Counter(run_batch(book, 1.0) for _ in range(8))
    assert found[2] > found[0] + found[1]
    book.tasks[2].bound_secs = None
    book.tasks[0].bound_secs = None
    assert book.gradient(0) < book.gradient(2), "without bounds the speed of the group counts"


def test_a_task_that_only_fails_stops():
    book = ledger(task("a"))
    while (due := measured(book)) is not None:
        book.charge(due[0], due[1], failures(due[1]), 1.0)
    assert book.tasks[0].failed == book.trials
    assert book.latency() is None


def test_the_next_batch_of_the_only_task_is_searched_for_while_one_is_measured():
    book = ledger(task("a"))
    first = measured(book)
    assert first is not None
    assert book.next_batch(1.0) is None, "nothing is known of the task yet"
    book.charge(*first, times(first[1], 1.0), 1.0)
    assert measured(book) is not None
    ahead = book.next_batch(1.0)
    assert ahead is not None
    assert book.next_batch(1.0) is None, "that search still runs, and two are in flight"
    book.searched(*ahead, 0)
    assert book.next_batch(1.0) is not None, "a search that crashed holds no place"


def test_a_task_with_nothing_in_flight_goes_before_one_that_is_being_measured():
    book = ledger(task("a"), task("b"))
    for index in (0, 1):
        book.restore(index, trials=16, failed=0, best_secs=1.0)
    first = measured(book)
    second = measured(book)
    assert first is not None
    assert second is not None
    assert {first[0], second[0]} == {0, 1}


def test_an_empty_batch_marks_the_task_exhausted():
    book = ledger(task("a"))
    due = book.next_batch(0.0)
    assert due is not None
    book.charge(due[0], due[1], [], 1.0)
    assert book.finished(1.0)


def test_seconds_end_the_job_whatever_is_left_of_the_trials():
    book = ledger(task("a"), trials=None, seconds=10.0)
    assert book.next_batch(9.0) is not None
    assert book.next_batch(10.0) is None
    assert not book.time_up(9.0)
    assert book.time_up(10.0)


def test_what_is_held_back_of_the_seconds_is_not_spent_on_trials():
    book = ledger(task("a"), trials=None, seconds=10.0)
    book.held_secs = 1.0
    assert book.time_up(9.0)
    assert not book.time_up(8.9)


def test_a_batch_is_as_large_as_the_seconds_left_have_room_for_at_the_recent_rate():
    book = ledger(task("a"), trials=None, seconds=100.0)
    for at in (10.0, 26.0, 42.0):  # The first tells nothing: before it the job was split.
        index, n = book.next_batch(at) or (0, 0)
        book.searched(index, n, n)
        book.charge(index, n, times(n, 1.0), at)
    assert book.secs_per_trial == pytest.approx(1.0)
    assert book.left(90.5) == pytest.approx(9.5)
    index, n = book.next_batch(94.0) or (0, 0)
    assert n == 6
    book.searched(index, n, n)
    assert book.next_batch(94.5) is None, "those in flight take the rest"
    assert not book.finished(94.5)


def test_a_small_budget_reaches_every_task():
    tasks = [task(str(i)) for i in range(10)]
    book = ledger(*tasks, trials=80)
    while (due := measured(book)) is not None:
        book.charge(due[0], due[1], times(due[1], 1.0), 1.0)
    assert all(entry.trials >= 4 for entry in book.tasks)
    assert book.trials == 80


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(1e-6, 1.0), st.booleans()), max_size=60), st.integers(0, 300))
def test_trials_are_never_overspent_and_each_is_charged_once(batches, limit):
    book = ledger(task("a"), task("b", group="h"), task("c"), trials=limit)
    charged = 0
    open_: list[tuple[int, int]] = []
    for _, secs, keep_open in batches:
        if (due := measured(book)) is not None:
            open_.append(due)
        assert book.trials + sum(n for _, n in open_) <= limit
        if open_ and not keep_open:
            index, n = open_.pop(0)
            book.charge(index, n, times(n, secs), 1.0)
            charged += n
        assert book.trials == charged
        assert max(Counter(index for index, _ in open_).values(), default=0) <= AHEAD


@given(st.integers(1, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=30))
def test_the_eta_lies_within_its_interval(limit, gaps):
    book = ledger(task("a"), task("b"), trials=limit)
    elapsed = 0.0
    for gap in gaps:
        elapsed += gap
        if (due := measured(book, elapsed)) is None:
            break
        book.charge(due[0], due[1], times(due[1], 1.0), elapsed)
        book.held_secs = 2.0
        eta = book.eta(elapsed)
        assert eta.secs is not None
        assert 2.0 <= eta.low_secs <= eta.secs <= eta.high_secs


def test_latency_weighs_each_task_by_its_occurrences():
    book = ledger(task("a", weight=3), task("b", weight=2))
    book.restore(0, trials=1, failed=0, best_secs=0.5)
    assert book.latency() is None
    book.restore(1, trials=1, failed=0, best_secs=0.25)
    assert book.latency() == Latency(secs=2.0, estimated=0)


def test_a_task_without_a_time_counts_with_its_bound_and_what_the_others_are_above_theirs():
    book = ledger(task("a", weight=3), task("b", weight=2))
    for one, secs in zip(book.tasks, (0.25, 0.125), strict=True):
        one.bound_secs = secs
    assert book.latency() == Latency(secs=ABOVE_BOUND * (3 * 0.25 + 2 * 0.125), estimated=2)
    book.tasks[0].best_secs = 1.0
    assert book.latency() == Latency(secs=3 * 1.0 + 2 * 4 * 0.125, estimated=1)
    book.tasks[1].bound_secs = None
    assert book.latency() is None


def test_effort_compares_budgets_in_trials_and_seconds():
    assert effort(10, 100, None) == 10.0
    assert effort(10, None, 100.0) > effort(10, 100, None)
    assert effort(10, 100, 1e6) == 10.0
    assert effort(0, 100, None) == 100.0
    assert math.isfinite(effort(1, 0, None))
