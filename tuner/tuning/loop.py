"""The tuning loop of one job, over three protocols: the measurer, the record store and the cost model's predictor.

It is driven by `step()`, which never blocks: searches run in an executor and measurements on workers, and a step passes
finished ones on. Batches are started as long as the measurer has capacity. All state of the loop can be rebuilt from the
record store and the measurer, so that no work is lost when a coordinator dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import structlog

from pitchpipe.errors import StepDied, StepTimeout
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task, TaskKind
from pitchpipe.wire.upgrade import REPLAYED
from tuner.execution.steps import propose_on
from tuner.search.requests import Donor, Proposal, ProposeRequest
from tuner.tuning.budget import CONFIRMING_SHARE, TRIALS_PER_SEC, BudgetLedger
from tuner.tuning.confirm import MeasuredBatch, choose_best, left_in, undecided
from tuner.tuning.confirming_cost import ConfirmingCost
from tuner.tuning.confirming_plan import by_value, compared
from tuner.tuning.forecast import outlook
from tuner.tuning.protocols import Measurer, Predictor
from tuner.tuning.records import RecordStore
from tuner.tuning.replay import NoReplays, Replays, ReplayStage
from tuner.tuning.undoubted import undoubted

log = structlog.get_logger("pitchpipe.loop")

MEASURED_SHOWN = 256
"""Measured candidates given to a search: the fastest ones. The others influence it through the cost model only."""
SEEDS_CONFIRMED = 8
"""Imported traces that join the confirming run."""
MAX_CONFIRMATIONS = 3
"""Confirming runs of a task, at most; the last one's verdict stands. Workers may keep dying, or the device stay busy."""
IDLE_PART = 1 / 3
"""Of confirming's share of a budget, what tasks that gain nothing may have while workers would wait and the share is not
enough for all. On a busy machine four of them took four fifths of it, and no task that had gained was confirmed."""
CHARGED = tuple(purpose for purpose in Purpose if purpose.charged)
"""The purposes of trials."""
MAX_SEARCH_CRASHES = 3
"""A task whose search crashed this often in a row gets no more batches. A job without any successful search fails when this
many children have died or were killed in searches ..."""
MAX_SEARCH_DEATHS = 10
"""... and any other job when this many have."""


@dataclass(kw_only=True)
class _Search:
    task: int
    reserved: int
    future: Future[list[Proposal]]


class TuningLoop:
    """Spends a job's budget on its tuned tasks, and confirms every task that is not reused, once it gets no more trials.

    Of a budget in seconds, what confirming the tasks that are left is expected to cost is held back, up to a share. When
    the rest is spent, trials that nobody measures yet are withdrawn; when all of it is, so are confirming runs, and those
    that are measured then are waited for a moment: the tasks keep what they were served.

    A task with candidates from other circumstances is not searched at first: the best of them are its first batch, and a
    confirming run follows as soon as they are measured. The task is searched only if the verdict is worse than the earlier
    one.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        reused: frozenset[int],
        ledger: BudgetLedger,
        measurer: Measurer,
        records: RecordStore,
        predictor: Callable[[str], Predictor],
        executor: Executor,
        *,
        seed: int,
        until_gain: float | None = None,
        confirming: frozenset[int] = frozenset(),
        on_confirmed: Callable[[int, Best], None],
        on_undoubted: Callable[[int, Best], object] = lambda _index, _best: None,
        on_searched: Callable[[], None] = lambda: None,
        donors: Callable[[Task], Sequence[Donor]] = lambda _: (),
        donors_only: bool = False,
        replays: Replays | None = None,
        replaying: Mapping[int, ReplayStage] | None = None,
        replay_only: bool = False,
    ) -> None:
        """Starts nothing yet; `step` does.

        until_gain: share of the latency; when another minute of trials is expected to save less, no more are spent.
        on_undoubted: called in the end, with what is served of a task that no confirming run came to (undoubted.py).
        on_searched: called from another thread when a search has ended, so that the next step is due.
        donors: the schedules of other workloads with which a task's first search begins.
        donors_only: whether that search proposes nothing else.
        replaying: the tasks that are replayed, and the stage of each.
        replay_only: whether no task is searched.
        """
        self.tasks, self.ledger, self.measurer, self.records = tasks, ledger, measurer, records
        # By target kind: a cost model of CPU schedules knows nothing of a GPU's.
        self.predictor, self.executor, self.seed, self.on_confirmed = predictor, executor, seed, on_confirmed
        self.on_undoubted, self.on_searched, self.donors, self.donors_only = (
            on_undoubted,
            on_searched,
            donors,
            donors_only,
        )
        self.replays: Replays = replays or NoReplays()
        self.replay_only = replay_only
        self._replaying = dict(replaying or {})
        self._searches: list[_Search] = []
        self._workers = 1
        """Counted in each step, once: counting asks the database."""
        self._crashes = [0] * len(tasks)
        self._deaths, self._answered = 0, False
        self._confirmations = [0] * len(tasks)
        self._cost = ConfirmingCost()
        self._needed_secs = 0.0
        self._until_gain, self._enough = until_gain, False
        self._withdrawn = self._over = False
        # After the confirming run of a replay a search may follow, with a confirming run of its own.
        last = confirming - self._replaying.keys()
        self._to_confirm = [i for i in range(len(tasks)) if i not in reused and i not in last]
        self._confirming = set(confirming)
        self._open = (
            {i for i, task in enumerate(tasks) if task.kind is TaskKind.TUNED} - reused - self._replaying.keys()
        )
        """Tasks that are searched, nothing but that, and have no verdict yet."""
        for index, task in enumerate(tasks):
            ledger.tasks[index].replaying = index in self._replaying
            if task.kind is TaskKind.FIXED or index in reused or index in last or replay_only:
                ledger.tasks[index].exhausted = True

    def step(self, elapsed_secs: float) -> bool:
        """Passes on everything that has finished; True when the job is complete. Raises what searches keep dying of."""
        self._workers = self.measurer.parallel()
        for batch in self.measurer.collect():
            self._cost.observe(self.tasks[batch.task], batch)
            if batch.purpose.charged:
                if self._replaying.get(batch.task) is ReplayStage.MEASURING:
                    self._replaying[batch.task] = ReplayStage.MEASURED
                issued = len(batch.candidates) + batch.withdrawn
                self.ledger.charge(batch.task, issued, batch.results, elapsed_secs)
                self.predictor(self.tasks[batch.task].target.kind).observe(len(batch.results))
            else:
                self._confirmed(batch)
        self._keep_time(elapsed_secs)
        for search in [s for s in self._searches if s.future.done()]:
            self._searches.remove(search)
            self._queue(search)
        for index, stage in self._replaying.items():
            if stage is ReplayStage.MEASURED:
                self._replaying[index] = ReplayStage.CONFIRMING
                self._confirm(index)
        self._to_confirm.sort(key=by_value(self.tasks, self.ledger.tasks, self._cost), reverse=True)
        for index in self._free(elapsed_secs):
            if self._may_confirm(index, elapsed_secs):
                self._confirm_last(index)
        while self.measurer.has_capacity(len(self._searches)) and self._begin(elapsed_secs):
            pass
        if self.ledger.overdue(elapsed_secs):
            for index in list(self._replaying):
                self._replay_confirmed(index, None)
            self._end()
            return True
        if not self.ledger.finished(elapsed_secs):
            return False
        for index in list(self._to_confirm):
            self._confirm_last(index)
        if self._confirming:
            return False
        self._end()
        return True

    def _end(self) -> None:
        """Passes on what is served of the tasks that were searched and never confirmed."""
        for index in sorted(self._open):
            task = self.tasks[index]
            best = undoubted(task, self.records.for_task(task.workload.digest, task.target))
            if best is not None:
                self.on_undoubted(index, best)

    def _free(self, elapsed_secs: float) -> list[int]:
        """The tasks whose last confirming run may begin before all trials have ended, in their order: those that get no more
        trials; once the seconds for trials are spent, all that have none in flight. None when all may begin."""
        if self.ledger.seconds_limit is not None and self.ledger.finished(elapsed_secs):
            return []
        ended, tasks = self.ledger.time_up(elapsed_secs), self.ledger.tasks
        return [i for i in self._to_confirm if tasks[i].settled or (ended and tasks[i].idle)]

    def _may_confirm(self, index: int, elapsed_secs: float) -> bool:
        """Whether a confirming run may begin while trials are still measured: it would go before them. Of a budget in
        seconds it may where workers would wait otherwise, and as long as confirming has had no more than its share. Where
        the share is not enough for all tasks, it is kept for those whose search found something, but for IDLE_PART. Once the
        seconds for trials are spent, a worker that is free takes the task that is worth most then."""
        if self.ledger.seconds_limit is None:
            return True
        workers = self._workers
        if len(self._confirming) >= workers:
            return False
        measured = sum(task.batches_in_flight for task in self.ledger.tasks) - len(self._searches)
        if self.ledger.time_up(elapsed_secs):
            return measured + len(self._confirming) < workers
        within = self._cost.spent_secs <= CONFIRMING_SHARE * workers * elapsed_secs
        enough = self._needed_secs <= self._share_secs
        worthwhile = enough or bool(self.ledger.tasks[index].saved_secs)
        if measured <= 0:  # Workers would wait.
            part_secs = IDLE_PART * CONFIRMING_SHARE * workers * self.ledger.seconds_limit
            return worthwhile or self._cost.spent_secs < part_secs
        return within and worthwhile

    @property
    def _share_secs(self) -> float:
        """What is left of the share of a budget in seconds that confirming has, in seconds of the job."""
        if self.ledger.seconds_limit is None:
            return math.inf
        spent_secs = self._cost.spent_secs / self._workers
        return max(0.0, CONFIRMING_SHARE * self.ledger.seconds_limit - spent_secs)

    def _keep_time(self, elapsed_secs: float) -> None:
        """Holds back what confirming will cost, up to its share, and withdraws what there is no time for."""
        left = {*self._to_confirm, *self._confirming}
        slowness = max(1.0, self.ledger.secs_per_trial * TRIALS_PER_SEC)
        # The first counts twice until a run has told what they take: what ends late decides nothing.
        first = [] if self._cost.spent_secs else self._to_confirm[:1]
        to_come = [self.tasks[i] for i in (*left, *first)]
        self._needed_secs = self._cost.secs(to_come, self._workers, slowness)
        self.ledger.held_secs = min(self._needed_secs, self._share_secs)
        if not (self.ledger.time_up(elapsed_secs) or self._gains_too_little(elapsed_secs)):
            return
        for search in self._searches:
            search.future.cancel()
            self.ledger.searched(search.task, search.reserved, 0)
        self._searches.clear()
        if not self._withdrawn:
            self._withdrawn = True
            self.measurer.withdraw(CHARGED)
        if self.ledger.over(elapsed_secs) and not self._over:
            self._over = True
            self._to_confirm.clear()
            self.measurer.withdraw((Purpose.CONFIRM,))

    def _gains_too_little(self, elapsed_secs: float) -> bool:
        """Whether another minute is worth less than was asked for; then no task gets more trials."""
        if self._until_gain is not None and not self._enough:
            gain = outlook(self.ledger, elapsed_secs).minute_gain
            self._enough = gain is not None and gain < self._until_gain
            for task in self.ledger.tasks:
                task.exhausted |= self._enough
        return self._enough

    def _begin(self, elapsed_secs: float) -> bool:
        """Begins the next batch, replays before searches; False when none is due."""
        due = [index for index, stage in self._replaying.items() if stage is ReplayStage.DUE]
        if due:
            self._replay(max(due, key=lambda i: self.tasks[i].weight * self.tasks[i].flops), elapsed_secs)
            return True
        if (batch := self.ledger.next_batch(elapsed_secs)) is None:
            return False
        self._searches.append(self._search(*batch))
        return True

    def _replay(self, index: int, elapsed_secs: float) -> None:
        """Begins the task's replay; without candidates or budget for it, the task is searched like any other."""
        if queued := self._submit_unreplayed(index, int(min(REPLAYED, self.ledger.left(elapsed_secs)))):
            self._replaying[index] = ReplayStage.MEASURING
            self.ledger.reserve(index, queued)
        else:
            del self._replaying[index]
            self.ledger.tasks[index].replaying = False

    def _submit_unreplayed(self, index: int, n: int) -> int:
        proposals = self.replays.unreplayed(index, n)
        return self.measurer.submit(index, Purpose.REPLAY, proposals, None) if proposals else 0

    def _replay_confirmed(self, index: int, best: Best | None) -> None:
        del self._replaying[index]
        self._confirmations[index] = 0
        ledger = self.ledger.tasks[index]
        ledger.replaying = False
        if self.replays.confirmed(index, best) or self.replay_only:
            ledger.exhausted = True
            self._to_confirm = [i for i in self._to_confirm if i != index]

    def _confirmed(self, batch: MeasuredBatch) -> None:
        """Passes on the verdict of a confirming run; a run that decided nothing is repeated."""
        task = self.tasks[batch.task]
        best = choose_best(task, batch)
        self._confirming.discard(batch.task)
        self._confirmations[batch.task] += 1
        again = undecided(task, batch, best) and self._confirmations[batch.task] < MAX_CONFIRMATIONS
        if again and not self._over:
            self._submit_confirming(batch.task, left_in(task, batch))
        elif batch.task in self._replaying:
            self._replay_confirmed(batch.task, best)
        elif best is not None:
            self._open.discard(batch.task)
            self.on_confirmed(batch.task, best)

    @property
    def searching(self) -> bool:
        """Whether trials may still be spent; False once only confirming runs are left."""
        return bool(self._to_confirm)

    def abandon(self) -> None:
        """Cancels the searches that have not started. The loop must not be used after that."""
        for search in self._searches:
            search.future.cancel()

    def _search(self, index: int, n: int) -> _Search:
        task, ledger = self.tasks[index], self.ledger.tasks[index]
        measured = self.records.fastest(task.workload.digest, task.target, MEASURED_SHOWN)
        request = ProposeRequest(
            workload=task.workload,
            target=task.target,
            measured=measured,
            seen=self.records.seen(task.workload.digest, task.target),
            model=self.predictor(task.target.kind).latest(),
            n=n,
            donors=() if ledger.trials or ledger.in_flight > n else tuple(self.donors(task)),
            donors_only=self.donors_only,
            seed=int(json_digest([self.seed, task.workload.digest, ledger.trials + ledger.in_flight])[:7], 16),
        )
        future = propose_on(self.executor, request)
        future.add_done_callback(lambda _: self.on_searched())
        return _Search(task=index, reserved=n, future=future)

    def _queue(self, search: _Search) -> None:
        ledger = self.ledger.tasks[search.task]
        try:
            proposals = search.future.result()
        except Exception as error:
            self._crashes[search.task] += 1
            self._deaths += isinstance(error, StepDied | StepTimeout)
            if self._deaths >= (MAX_SEARCH_DEATHS if self._answered else MAX_SEARCH_CRASHES):
                raise
            log.warning("search failed", task=self.tasks[search.task].name, error=f"{type(error).__name__}: {error}")
            self.ledger.searched(search.task, search.reserved, 0)
            # A search that ran into its time limit would do so again.
            ledger.exhausted |= self._crashes[search.task] >= MAX_SEARCH_CRASHES or isinstance(error, StepTimeout)
            return
        self._answered = True
        self._crashes[search.task] = 0
        proposals = self._with_default(search, proposals)
        queued = self.measurer.submit(search.task, Purpose.SEARCH, proposals, ledger.best_secs) if proposals else 0
        # The search has nothing new, but candidates from other circumstances may be left that were not replayed yet.
        queued = queued or self._submit_unreplayed(search.task, search.reserved)
        self.ledger.searched(search.task, search.reserved, queued)
        if queued == 0:
            ledger.exhausted = True

    def _with_default(self, search: _Search, proposals: list[Proposal]) -> list[Proposal]:
        """The proposals of a task's first search with the default schedule among them, in place of the last one: what a
        deployment runs without us is what a winner has to be faster than."""
        task, ledger = self.tasks[search.task], self.ledger.tasks[search.task]
        if task.fixed in (None, BASELINE_TRACE) or self.donors_only or ledger.batches or ledger.batches_in_flight > 1:
            return proposals
        default = Proposal(candidate=Candidate.of(task.workload.digest, str(task.fixed)), features=None)
        others = [each for each in proposals if each.candidate.digest != default.candidate.digest]
        return proposals if len(others) < len(proposals) else [default, *others[: search.reserved - 1]]

    def _confirm_last(self, index: int) -> None:
        """Confirms a task that gets no more trials."""
        self._to_confirm.remove(index)
        self.ledger.tasks[index].exhausted = True
        self._confirm(index)

    def _confirm(self, index: int) -> None:
        task = self.tasks[index]
        traces: list[str] = []
        if task.kind is TaskKind.TUNED:
            measured = self.records.fastest(task.workload.digest, task.target, MEASURED_SHOWN)
            traces = compared(task, self.ledger.tasks[index], self.ledger.latency(), measured)
            if (best := self.records.best(task.workload.digest, task.target)) is not None:
                traces.append(best.trace)
        if not traces and task.fixed is not None:  # Also where the budget ended before the first trial.
            traces = [task.fixed]
        self._submit_confirming(index, [*traces, *task.seeds[:SEEDS_CONFIRMED]])

    def _submit_confirming(self, index: int, traces: Sequence[str]) -> None:
        task = self.tasks[index]
        unique = dict.fromkeys([task.baseline, *traces])
        proposals = [Proposal(candidate=Candidate.of(task.workload.digest, t), features=None) for t in unique]
        self.measurer.submit(index, Purpose.CONFIRM, proposals, None)
        self._confirming.add(index)
