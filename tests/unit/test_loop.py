"""The tuning loop over fakes: which batches go out, what is confirmed, what survives a crash of a search."""

import json
from concurrent.futures import Executor, Future

import pytest

from pitchpipe.errors import StepDied, StepTimeout
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind
from pitchpipe.wire.record import Best
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import TaskKind
from pitchpipe.wire.upgrade import REPLAYED
from tuner.search.requests import Proposal
from tuner.tuning.budget import CONFIRMING_SHARE, TRIALS_PER_SEC, BudgetLedger
from tuner.tuning.confirming_cost import ConfirmingCost
from tuner.tuning.confirming_plan import CONFIRMED
from tuner.tuning.loop import CHARGED, IDLE_PART, MAX_CONFIRMATIONS, MAX_SEARCH_CRASHES, MAX_SEARCH_DEATHS, TuningLoop
from tuner.tuning.records import InMemoryRecordStore
from tuner.tuning.replay import ReplayStage
from tuner.tuning.testing import TARGET, CannedExecutor, MemoryMeasurer, NoPredictor, fake_task

TRACES = [json.dumps([["i", n], []]) for n in range(100)]


def secs(task: int, trace: str) -> float:
    """The baseline takes a second; candidate n takes (n + 1) ms."""
    if trace == BASELINE_TRACE:
        return 1.0
    if "fixed" in trace:
        return 0.5
    return (json.loads(trace)[0][1] + 1) * 1e-3


class Waiting(Executor):
    """Starts nothing."""

    def __init__(self):
        self.futures = []

    def submit(self, fn, /, *args, **kwargs):
        self.futures.append(Future())
        return self.futures[-1]


class Scene:
    def __init__(self, *tasks, trials=64, secs_of=secs, reused=frozenset(), traces=TRACES, **options):
        self.store = InMemoryRecordStore()
        self.measurer = MemoryMeasurer(tasks, self.store, secs_of)
        self.executor = CannedExecutor(traces)
        self.ledger = BudgetLedger(tasks, trials=trials, seconds=None, batch_size=16)
        self.bests: dict[int, Best] = {}
        self.kinds: list[str] = []
        self.loop = TuningLoop(
            tasks,
            reused,
            self.ledger,
            self.measurer,
            self.store,
            self.predictor,
            self.executor,
            seed=0,
            on_confirmed=self.bests.__setitem__,
            **options,
        )

    def predictor(self, kind):
        self.kinds.append(kind)
        return NoPredictor()

    def run(self, steps=200):
        for step in range(steps):
            if self.loop.step(float(step)):
                return self
        raise AssertionError("the loop did not end")

    def count(self, purpose):
        return sum(n for _, p, n in self.measurer.submitted if p is purpose)


def test_the_budget_is_spent_and_the_fastest_candidate_is_served():
    scene = Scene(fake_task("a"), fake_task("b")).run()
    assert scene.count(Purpose.SEARCH) == 64
    assert scene.bests[0].trace == TRACES[0]
    assert scene.bests[0].baseline_secs == pytest.approx(1.0, rel=0.01)
    assert scene.bests[0].record is not None


def test_the_baseline_is_served_when_nothing_beats_it():
    scene = Scene(fake_task("a"), secs_of=lambda task, trace: 1.0 if trace == BASELINE_TRACE else 2.0).run()
    assert scene.bests[0].trace == BASELINE_TRACE
    assert scene.bests[0].record is None


def test_nothing_is_served_when_the_baseline_is_broken():
    failed = Failed(candidate="0" * 64, kind=FailureKind.RUN_ERROR)
    scene = Scene(fake_task("a"), secs_of=lambda task, trace: failed if trace == BASELINE_TRACE else 1.0).run()
    assert scene.bests == {}


def test_a_fixed_task_gets_a_confirming_run_and_no_trial():
    scene = Scene(fake_task("move", kind=TaskKind.FIXED)).run()
    assert scene.measurer.submitted == [(0, Purpose.CONFIRM, 2)]
    assert scene.bests[0].secs == pytest.approx(0.5, rel=0.01)


def test_a_reused_task_is_neither_searched_nor_confirmed():
    scene = Scene(fake_task("a"), fake_task("b"), reused=frozenset({0})).run()
    assert {task for task, _, _ in scene.measurer.submitted} == {1}


def test_a_search_that_crashes_costs_its_batch_and_not_the_job():
    scene = Scene(fake_task("a"))
    scene.executor.error = RuntimeError("the child died")
    scene.loop.step(0.0)
    scene.executor.error = None
    scene.run()
    assert scene.count(Purpose.SEARCH) == 64


def test_a_task_that_got_no_trial_is_served_its_default_schedule():
    task = fake_task("a").model_copy(update={"fixed": '[["fixed"],[]]'})
    scene = Scene(task)
    scene.executor.error = RuntimeError("the child died")
    scene.run()
    assert scene.count(Purpose.SEARCH) == 0
    assert scene.bests[0].trace == task.fixed


def with_default(*names):
    return [fake_task(name).model_copy(update={"fixed": '[["fixed"],[]]'}) for name in names]


def test_the_default_schedule_is_among_the_first_trials_and_replaces_one_of_them():
    scene = Scene(*with_default("a"), trials=8)
    scene.run()
    assert [n for _, purpose, n in scene.measurer.submitted if purpose is Purpose.SEARCH] == [4, 4]
    measured = [record.trace for record in scene.store.for_task(scene.loop.tasks[0].workload.digest, TARGET)]
    assert measured[:8] == ['[["fixed"],[]]', *TRACES[:7]]


@pytest.mark.parametrize(("default_secs", "confirmed"), [(1.1e-2, True), (1.3e-2, False), (9e-3, True)])
def test_the_default_schedule_is_confirmed_where_it_may_be_the_fastest(default_secs, confirmed):
    def close(task, trace):
        return default_secs if "fixed" in trace else 1.0 if trace == BASELINE_TRACE else 1e-2 + secs(task, trace) / 100

    scene = Scene(*with_default("a"), secs_of=close).run()
    assert submitted(scene)[-1] == (Purpose.CONFIRM, 1 + CONFIRMED + (confirmed and default_secs > 1e-2))
    assert (scene.bests[0].trace == '[["fixed"],[]]') == (default_secs < 1e-2)


def test_a_search_that_always_crashes_ends_the_task():
    scene = Scene(fake_task("a"))
    scene.executor.error = RuntimeError("the child died")
    scene.run()
    assert len(scene.executor.requests) == MAX_SEARCH_CRASHES
    assert scene.count(Purpose.SEARCH) == 0
    assert scene.bests[0].trace == BASELINE_TRACE


@pytest.mark.parametrize("error", [StepDied("the child was ended by SIGSEGV"), StepTimeout("300 s")])
def test_a_job_whose_searches_die_one_and_all_fails_with_what_they_died_of(error):
    scene = Scene(*(fake_task(name) for name in "abcd"))
    scene.executor.error = error
    with pytest.raises(type(error), match=error.detail):
        scene.run()
    assert len(scene.executor.requests) >= MAX_SEARCH_CRASHES


def test_a_search_that_took_its_whole_time_is_not_repeated_and_the_other_tasks_are_tuned():
    scene = Scene(fake_task("a"), fake_task("b"))
    scene.loop.step(0.0)
    scene.loop._searches[0].future = failed = Future()
    failed.set_exception(StepTimeout("300 s"))
    hung = scene.loop._searches[0].task
    scene.run()
    assert scene.ledger.tasks[hung].exhausted
    assert scene.ledger.tasks[hung].trials == 0
    assert scene.ledger.tasks[1 - hung].trials == 64


def test_a_job_of_which_many_searches_died_fails_whatever_else_succeeded():
    scene = Scene(*(fake_task(str(name)) for name in range(MAX_SEARCH_DEATHS + 1)), trials=10_000)
    scene.loop.step(0.0)
    scene.executor.error = StepDied("the child was ended by SIGSEGV")
    scene.loop.step(1.0)
    with pytest.raises(StepDied):
        scene.run()
    assert len(scene.executor.requests) > MAX_SEARCH_DEATHS


def test_an_exhausted_space_ends_the_task():
    scene = Scene(fake_task("a"), traces=TRACES[:5], trials=1000).run()
    assert scene.count(Purpose.SEARCH) == 5


def test_no_candidate_is_proposed_that_was_issued_before():
    scene = Scene(fake_task("a")).run()
    measured = [record.trace for record in scene.store.for_task(fake_task("a").workload.digest, fake_task("a").target)]
    searched = [trace for trace in measured if trace != BASELINE_TRACE]
    assert len(set(searched)) == 64


def test_a_confirming_run_that_was_torn_apart_is_repeated_and_never_believed():
    scene = Scene(fake_task("a"))
    scene.measurer.whole = False
    scene.run()
    confirmations = [p for _, p, _ in scene.measurer.submitted if p is Purpose.CONFIRM]
    assert len(confirmations) == MAX_CONFIRMATIONS
    assert scene.bests == {}


def test_a_confirming_run_that_was_disturbed_is_repeated_until_a_candidate_wins():
    runs = {BASELINE_TRACE: 0}

    def disturbed_once(task, trace):
        runs[trace] = runs.get(trace, 0) + 1
        starved = trace != BASELINE_TRACE and runs[BASELINE_TRACE] == 1
        return Failed(candidate="0" * 64, kind=FailureKind.RUN_TIMEOUT) if starved else secs(task, trace)

    scene = Scene(fake_task("a"), secs_of=disturbed_once).run()
    assert runs[BASELINE_TRACE] == 2
    assert scene.bests[0].trace == TRACES[0]


def test_a_device_that_stays_busy_is_served_the_baseline_after_the_last_run():
    def starved(task, trace):
        return 1.0 if trace == BASELINE_TRACE else Failed(candidate="0" * 64, kind=FailureKind.RUN_TIMEOUT)

    scene = Scene(fake_task("a").model_copy(update={"seeds": (TRACES[40],)}), trials=0, secs_of=starved).run()
    assert [p for _, p, _ in scene.measurer.submitted] == [Purpose.CONFIRM] * MAX_CONFIRMATIONS
    assert scene.bests[0].trace == BASELINE_TRACE


def test_imported_traces_join_the_confirming_run():
    task = fake_task("a").model_copy(update={"seeds": (TRACES[40],)})
    scene = Scene(task, trials=0).run()
    assert scene.count(Purpose.SEARCH) == 0
    assert scene.bests[0].trace == TRACES[40]


def test_a_confirming_run_holds_different_candidates_although_an_earlier_one_timed_them_again():
    first = Scene(fake_task("a")).run()
    again = Scene(fake_task("a"), trials=0)
    again.loop.records = first.store
    again.run()
    assert again.measurer.submitted == [(0, Purpose.CONFIRM, 2)]


def test_only_candidates_that_may_be_the_fastest_are_confirmed():
    close = Scene(fake_task("a"), secs_of=lambda task, trace: secs(task, trace) / 100 + 1e-2).run()
    assert submitted(close)[-1] == (Purpose.CONFIRM, 1 + CONFIRMED)
    apart = Scene(fake_task("a")).run()
    assert submitted(apart)[-1] == (Purpose.CONFIRM, 2)


def test_what_failed_for_good_or_was_far_slower_is_not_confirmed_again():
    runs = dict.fromkeys(TRACES, 0)

    def disturbed_once(task, trace):
        if trace == BASELINE_TRACE:
            return 0.04
        runs[trace] += 1
        if trace == TRACES[40]:
            return Failed(candidate="0" * 64, kind=FailureKind.WRONG_OUTPUT)
        if trace == TRACES[41] and runs[trace] == 1:
            return Failed(candidate="0" * 64, kind=FailureKind.RUN_TIMEOUT)
        return secs(task, trace)

    task = fake_task("a").model_copy(update={"seeds": (*TRACES[40:44], TRACES[99])})
    scene = Scene(task, trials=0, secs_of=disturbed_once).run()
    assert submitted(scene) == [(Purpose.CONFIRM, 6), (Purpose.CONFIRM, 4)]
    assert [runs[trace] for trace in (*TRACES[40:44], TRACES[99])] == [1, 2, 2, 2, 1]
    assert scene.bests[0].trace == BASELINE_TRACE


def test_a_task_is_confirmed_as_soon_as_it_gets_no_more_trials():
    scene = Scene(fake_task("a"), fake_task("move", kind=TaskKind.FIXED))
    scene.executor = scene.loop.executor = Waiting()
    scene.loop.step(0.0)
    assert scene.measurer.submitted == [(1, Purpose.CONFIRM, 2)], "while the other is searched"
    scene.loop.step(1.0)
    assert scene.bests.keys() == {1}
    assert scene.loop.searching


class Queued(MemoryMeasurer):
    """Measures nothing for `slow` purposes; what waits can be withdrawn."""

    def __init__(self, *arguments, slow=(Purpose.SEARCH,)):
        super().__init__(*arguments)
        self.slow, self.waiting, self.withdrawals = slow, [], []

    def submit(self, task, purpose, proposals, incumbent_secs):
        n = super().submit(task, purpose, proposals, incumbent_secs)
        if purpose in self.slow:
            self.waiting.append(self.queued.pop())
        return n

    def withdraw(self, purposes):
        self.withdrawals.append(purposes)
        for batch in [batch for batch in self.waiting if batch.purpose in purposes]:
            nothing = {"device_class": None, "toolchain": None, "whole": False}
            empty = {"candidates": (), "results": (), "records": (), "withdrawn": len(batch.candidates)}
            self.queued.append(type(batch)(**{**vars(batch), **empty, **nothing}))
            self.waiting.remove(batch)

    def has_capacity(self, waiting):
        return len(self.waiting) + waiting < 2


def in_time(seconds, *tasks, **options):
    scene = Scene(*tasks, trials=10_000)
    options.setdefault("secs_of", secs)
    scene.measurer = scene.loop.measurer = Queued(tasks, scene.store, options.pop("secs_of"), **options)
    scene.ledger.seconds_limit = seconds
    return scene


def test_trials_that_nobody_measures_when_the_seconds_are_spent_are_withdrawn_and_the_tasks_confirmed():
    scene = in_time(20.0, fake_task("a", flops=0.0), fake_task("b", flops=0.0))
    assert not scene.loop.step(1.0)
    assert not scene.loop.step(1.1)
    assert scene.measurer.waiting
    assert not scene.loop.step(18.5)
    assert scene.measurer.withdrawals == []
    scene.loop.step(19.5)
    assert scene.measurer.withdrawals == [CHARGED]
    scene.loop.step(19.6)
    assert [purpose for _, purpose, _ in scene.measurer.submitted][-2:] == [Purpose.CONFIRM] * 2
    assert scene.loop.step(19.7)
    assert scene.bests.keys() == {0, 1}
    assert scene.measurer.withdrawals == [CHARGED]


def test_when_the_trials_have_ended_what_saves_most_is_confirmed_before_what_was_to_get_none() -> None:
    def close(task, trace):
        return 1.0 if trace == BASELINE_TRACE else 0.5 if "fixed" in trace else secs(task, trace)

    fixed = [fake_task(name, kind=TaskKind.FIXED, flops=0.0) for name in ("move", "look up")]
    scene = in_time(20.0, *with_default("a"), *fixed, slow=(Purpose.SEARCH, Purpose.CONFIRM), secs_of=close)
    waiting = scene.measurer.waiting

    def confirmed():
        return [task for task, purpose, _ in scene.measurer.submitted if purpose is Purpose.CONFIRM]

    def ends(purpose):
        ended = next(batch for batch in waiting if batch.purpose is purpose)
        waiting.remove(ended)
        scene.measurer.queued.append(ended)

    scene.loop.step(1.0)
    scene.loop.step(1.1)
    assert confirmed() == [1]
    ends(Purpose.SEARCH)
    scene.loop.step(10.0)
    scene.loop.step(10.1)
    ends(Purpose.CONFIRM)
    scene.loop.step(19.9)
    assert confirmed() == [1], "nothing begins while the last trials are measured"
    scene.loop.step(19.95)
    assert confirmed() == [1, 0, 2]


def test_when_no_trial_fits_into_what_is_left_the_same_order_holds() -> None:
    scene = in_time(20.0, *with_default("a"), *(fake_task(n, kind=TaskKind.FIXED, flops=0.0) for n in ("b", "c")))
    scene.measurer.slow = (Purpose.CONFIRM,)
    scene.loop.step(1.0)
    scene.loop.step(1.1)
    assert [task for task, purpose, _ in scene.measurer.submitted if purpose is Purpose.CONFIRM] == [1]
    scene.ledger.trials_limit = scene.ledger.trials
    scene.measurer.queued, scene.measurer.waiting = [*scene.measurer.queued, *scene.measurer.waiting], []
    scene.loop.step(5.0)
    scene.loop.step(5.1)
    assert [task for task, purpose, _ in scene.measurer.submitted if purpose is Purpose.CONFIRM] == [1, 0, 2]


@pytest.mark.parametrize(("spent", "confirmed"), [(0.9, 1), (1.1, 0)])
def test_what_gains_nothing_has_a_part_of_the_share_while_workers_would_wait(spent: float, confirmed: int) -> None:
    scene = in_time(20.0, fake_task("a"), *(fake_task(f"fixed{i}", kind=TaskKind.FIXED) for i in range(40)))
    scene.loop._cost.spent_secs = spent * IDLE_PART * CONFIRMING_SHARE * 20.0
    scene.loop.step(1.0)
    assert [purpose for _, purpose, _ in scene.measurer.submitted].count(Purpose.CONFIRM) == confirmed


def test_the_workers_are_counted_once_a_step_however_many_tasks_there_are() -> None:
    """Counting them asks the database."""
    scene = in_time(20.0, fake_task("a"), *(fake_task(f"fixed{i}", kind=TaskKind.FIXED) for i in range(40)))
    asked: list[None] = []
    scene.measurer.parallel = lambda: asked.append(None) or 1
    for at in range(5):
        scene.loop.step(1.0 + at / 10)
    assert len(asked) == 5


def test_confirming_runs_that_nobody_has_begun_when_all_seconds_are_spent_are_withdrawn_and_the_job_ends():
    scene = in_time(20.0, fake_task("a", flops=0.0), fake_task("b", flops=0.0), slow=(Purpose.CONFIRM,))
    for elapsed in (1.0, 1.1, 1.2, 19.9):
        scene.loop.step(elapsed)
    assert {batch.purpose for batch in scene.measurer.waiting} == {Purpose.CONFIRM}
    assert not scene.loop.step(19.99)
    assert not scene.loop.step(20.0)
    assert scene.measurer.withdrawals == [CHARGED, (Purpose.CONFIRM,)]
    assert scene.loop.step(20.1)
    assert scene.bests == {}
    assert [purpose for _, purpose, _ in scene.measurer.submitted].count(Purpose.CONFIRM) == 2, "none is made again"


def test_a_job_ends_soon_after_its_seconds_whatever_is_still_measured():
    class Leased(Queued):
        def withdraw(self, purposes):
            pass

    scene = in_time(20.0, fake_task("a", flops=0.0), slow=(Purpose.CONFIRM,))
    scene.measurer = scene.loop.measurer = Leased(scene.loop.tasks, scene.store, secs, slow=(Purpose.CONFIRM,))
    for elapsed in (1.0, 1.1, 1.2, 19.9, 20.0, 21.4):
        assert not scene.loop.step(elapsed)
    assert scene.loop.step(21.6)
    assert scene.bests == {}


def test_a_replay_that_nobody_has_confirmed_when_all_seconds_are_spent_is_undecided():
    earlier = Earlier(*TRACES[:4])
    scene = replaying(earlier)
    scene.measurer = scene.loop.measurer = Queued(scene.loop.tasks, scene.store, secs, slow=(Purpose.CONFIRM,))
    scene.ledger.seconds_limit = 20.0
    for elapsed in (1.0, 1.1, 1.2):
        assert not scene.loop.step(elapsed)
    assert submitted(scene) == [(Purpose.REPLAY, 4), (Purpose.CONFIRM, 2)]
    assert not scene.loop.step(20.0)
    assert scene.loop.step(20.1)
    assert earlier.verdicts == [(0, None)]


def test_a_search_that_runs_when_the_seconds_are_spent_is_not_waited_for():
    scene = in_time(20.0, fake_task("a", flops=0.0))
    scene.executor = scene.loop.executor = Waiting()
    scene.loop.step(1.0)
    scene.loop.step(19.9)
    assert [future.cancelled() for future in scene.executor.futures] == [True]
    assert scene.loop.step(20.0)
    assert scene.measurer.submitted == [(0, Purpose.CONFIRM, 1)]


def test_what_is_held_back_follows_from_the_tasks_that_are_left_and_the_workers_that_confirm_them():
    scene = in_time(100.0, fake_task("a", flops=0.0), fake_task("b", flops=0.0), fake_task("c", flops=1e9))
    scene.loop.step(1.0)
    scene.loop.step(1.05)
    alone, first = scene.ledger.held_secs, scene.loop.tasks[2]
    expected = ConfirmingCost().secs([first, *scene.loop.tasks], 1)
    assert alone == pytest.approx(expected), "the first counts twice, as none has ended yet"
    scene.measurer.parallel = lambda: 4
    scene.loop.step(1.1)
    assert scene.ledger.held_secs == pytest.approx(alone / 4)
    scene.ledger._secs_per_trial = [0.0, 3 / TRIALS_PER_SEC]
    scene.loop.step(1.2)
    assert scene.ledger.held_secs == pytest.approx(3 * alone / 4), "trials take three times as long as usual"


def test_what_is_held_back_is_a_share_of_the_seconds_at_most_and_kept_for_tasks_whose_search_found_something():
    many = [fake_task(f"fixed{i}", kind=TaskKind.FIXED) for i in range(40)]
    for seconds, confirmed in ((20.0, 1), (1000.0, 2)):
        scene = in_time(seconds, fake_task("a", flops=0.0), *many)
        scene.loop.step(1.0)
        scene.loop.step(1.1)
        assert scene.ledger.held_secs <= CONFIRMING_SHARE * seconds
        runs = [purpose for _, purpose, _ in scene.measurer.submitted].count(Purpose.CONFIRM)
        assert runs == confirmed, "the first run has a worker that would wait; while trials are measured, time is short"


@pytest.mark.parametrize(("until_gain", "trials"), [(0.99, 8), (1e-9, 64)])
def test_no_more_trials_are_spent_when_another_minute_is_worth_less_than_was_asked_for(until_gain, trials):
    scene = Scene(fake_task("a"), fake_task("b"), until_gain=until_gain).run()
    assert trials <= scene.count(Purpose.SEARCH) <= max(32, trials)
    assert scene.bests.keys() == {0, 1}, "what was found is confirmed"


def test_searches_of_a_loop_that_is_abandoned_do_not_start():
    scene = Scene(fake_task("a"))
    scene.executor = Waiting()
    scene.loop.executor = scene.executor
    scene.loop.step(0.0)
    scene.loop.abandon()
    assert [future.cancelled() for future in scene.executor.futures] == [True]


def test_each_search_asks_the_cost_model_of_its_own_target_kind():
    cuda = Target.parse({"kind": "cuda", "arch": "sm_90"})
    scene = Scene(fake_task("a"), fake_task("b").model_copy(update={"target": cuda}), trials=8)
    scene.loop.step(0.0)
    assert sorted(scene.kinds) == ["cuda", "llvm"]


class Earlier:
    """What was found elsewhere of every task: these traces, the first of which was served; `suffices`: no search is needed."""

    def __init__(self, *traces, suffices=True):
        self.traces, self.suffices = list(traces), suffices
        self.verdicts = []

    def of(self, scene_task):
        self.task = scene_task
        return self

    def unreplayed(self, task, n):
        taken, self.traces = self.traces[:n], self.traces[n:]
        return [Proposal(candidate=Candidate.of(self.task.workload.digest, t), features=None) for t in taken]

    def confirmed(self, task, best):
        self.verdicts.append((task, best))
        return self.suffices


def replaying(earlier, trials=64, stage=ReplayStage.DUE, **options):
    task = fake_task("a")
    return Scene(task, trials=trials, replays=earlier.of(task), replaying={0: stage}, **options)


def submitted(scene):
    return [(purpose, n) for _, purpose, n in scene.measurer.submitted]


def test_what_was_found_elsewhere_is_replayed_and_confirmed_and_that_is_all_where_it_holds():
    earlier = Earlier(*TRACES[3:9])
    scene = replaying(earlier).run()
    assert submitted(scene) == [(Purpose.REPLAY, REPLAYED), (Purpose.CONFIRM, 2)]
    ((task, best),) = earlier.verdicts
    assert (task, best.trace) == (0, TRACES[3])
    assert scene.ledger.trials == REPLAYED
    assert scene.bests == {}, "that verdict goes to whoever knows of the replay"
    assert scene.executor.requests == []


def test_where_it_does_not_hold_the_rest_of_the_budget_searches_and_the_task_is_confirmed_again():
    scene = replaying(Earlier(*TRACES[30:34], suffices=False)).run()
    assert submitted(scene)[:2] == [(Purpose.REPLAY, REPLAYED), (Purpose.CONFIRM, 1 + CONFIRMED)]
    assert scene.ledger.trials == 64
    assert scene.bests[0].trace == TRACES[0]
    assert scene.executor.requests[0].donors == ()


def test_an_upgrade_ends_with_the_replay_whatever_its_verdict():
    scene = replaying(Earlier(*TRACES[30:34], suffices=False), replay_only=True).run()
    assert submitted(scene) == [(Purpose.REPLAY, REPLAYED), (Purpose.CONFIRM, 1 + CONFIRMED)]
    assert scene.executor.requests == []


def test_a_budget_smaller_than_a_replay_bounds_it():
    scene = replaying(Earlier(*TRACES[:9], suffices=False), trials=2).run()
    assert submitted(scene) == [(Purpose.REPLAY, 2), (Purpose.CONFIRM, 2), (Purpose.CONFIRM, 2)]


def test_a_task_without_anything_to_replay_is_searched_like_any_other():
    scene = replaying(Earlier(), trials=16).run()
    assert scene.count(Purpose.SEARCH) == 16
    assert scene.count(Purpose.REPLAY) == 0


def test_a_space_that_has_run_out_still_has_what_was_found_elsewhere():
    earlier = Earlier(*TRACES[:7], suffices=False)
    scene = replaying(earlier, traces=TRACES[7:9]).run()
    assert [n for purpose, n in submitted(scene) if purpose is not Purpose.CONFIRM] == [4, 2, 3]
    assert scene.ledger.trials == 9
    assert earlier.traces == []


def test_a_verdict_on_a_replay_that_decides_nothing_is_asked_for_again():
    earlier = Earlier(*TRACES[:4])
    scene = replaying(earlier)
    scene.measurer.whole = False
    scene.run()
    assert scene.count(Purpose.CONFIRM) == MAX_CONFIRMATIONS * 2
    assert earlier.verdicts == [(0, None)]


def test_a_loop_that_begins_after_the_replay_was_measured_confirms_it():
    earlier = Earlier(*TRACES[:4])
    scene = replaying(earlier, stage=ReplayStage.MEASURED)
    scene.measurer.submit(0, Purpose.REPLAY, earlier.unreplayed(0, 4), None)
    scene.measurer.collect()
    scene.run()
    assert submitted(scene) == [(Purpose.REPLAY, 4), (Purpose.CONFIRM, 2)]
    assert [best.trace for _, best in earlier.verdicts] == [TRACES[0]]


def on_gpu(name):
    """A task whose baseline is a schedule, as on a GPU: a search times it."""
    return fake_task(name).model_copy(update={"fixed": '[["fixed"],[]]', "baseline": '[["fixed"],[]]'})


def test_what_a_search_shows_beyond_doubt_is_served_where_confirming_came_too_late():
    told: dict[int, Best] = {}
    scene = in_time(20.0, on_gpu("a"), slow=(Purpose.CONFIRM,))
    scene.loop.on_undoubted = told.__setitem__
    assert any(scene.loop.step(at / 2) for at in range(60))
    assert scene.bests == {}
    assert told[0].trace == TRACES[0]
    assert told[0].baseline_secs == pytest.approx(0.5, rel=0.01)


def test_a_task_with_a_verdict_keeps_it():
    told: dict[int, Best] = {}
    scene = Scene(on_gpu("a"), on_undoubted=told.__setitem__).run()
    assert told == {}
    assert scene.bests.keys() == {0}
