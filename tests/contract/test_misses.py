"""What deployments missed: counted once, ranked by what it costs, and worked on within the project's budget."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from pitchpipe.errors import IdempotencyConflict, NotFound
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import JobOrigin, JobState, ModelFormat
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.miss import HALF_LIFE_SECS, MissCount, MissReceipt, MissReport, MissStage, MissView
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from service.db import Database
from service.store import job_tasks, jobs, misses, models, workers
from service.store.misses import TRANSFER_TRIALS, TUNE_TRIALS
from tests.scene import OTHER_TARGET, TARGET, WORKLOAD, Scene, candidates, task, timed

NEVER_SEEN = sha256(b"never seen")
DAY_SECS = 86400.0


def of(n: int) -> str:
    return sha256(b"workload %d" % n)


class World(Scene):
    """A scene whose own job is over: its workers are idle."""

    def __init__(self, database: Database, budget: int = 1000) -> None:
        super().__init__(database)
        self.end(self.job)
        with database.transaction() as session:
            misses.set_budget(session, self.project, budget)

    def end(self, job: str | None, *, failed: bool = False) -> None:
        """Lets a job end, and its misses move on."""
        assert job is not None
        path = [JobState.INGESTING, JobState.TUNING, JobState.CONFIRMING, JobState.DONE]
        with self.database.transaction() as session:
            state = jobs.get(session, self.project, job).state
            for to in [JobState.FAILED] if failed else path[path.index(state) + 1 if state in path else 0 :]:
                jobs.transition(session, job, to)
            misses.close_ended(session)

    def tell(
        self,
        told: dict[str, int],
        *,
        secs: float | None = 1e-3,
        key: str | None = None,
        named: bool = True,
        model: str | None = None,
        target: Target = TARGET,
    ) -> MissReceipt:
        counts = tuple(MissCount(workload=w, runs=runs, default_secs=secs) for w, runs in told.items())
        body = MissReport(target=target, model=model or (self.model if named else None), misses=counts)
        with self.database.transaction() as session:
            return misses.report(session, self.project, body, key)

    def listed(self, limit: int = 100) -> list[MissView]:
        with self.database.reading() as session:
            return misses.list_(session, self.project, limit=limit)

    def stages(self) -> dict[str, MissStage]:
        return {view.workload: view.stage for view in self.listed()}

    def take(self) -> str | None:
        with self.database.transaction() as session:
            return misses.take(session, self.project, TARGET)

    def due(self) -> bool:
        with self.database.reading() as session:
            return (self.project, TARGET) in misses.due(session)

    def only(self, job: str | None) -> Sequence[str]:
        assert job is not None
        with self.database.reading() as session:
            return sorted(jobs.only(session, job) or ())

    def spent(self) -> int:
        with self.database.reading() as session:
            return misses.budget(session, self.project).spent_today


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


class TestReports:
    def test_what_costs_deployments_most_comes_first(self, world: World) -> None:
        world.tell({of(1): 10, of(2): 1000, of(3): 100})
        world.tell({of(1): 5000})
        assert [view.workload for view in world.listed()] == [of(1), of(2), of(3)]
        assert [view.runs for view in world.listed()] == [5010, 1000, 100]
        assert world.listed()[0].value_secs == pytest.approx(5.01, rel=1e-4)
        assert len(world.listed(limit=2)) == 2

    def test_what_is_no_longer_missed_counts_less_and_less(self, world: World) -> None:
        world.tell({of(1): 1000})
        world.pass_time(HALF_LIFE_SECS)
        assert world.listed()[0].value_secs == pytest.approx(0.5, rel=1e-4)
        world.tell({of(2): 600})
        assert [view.workload for view in world.listed()] == [of(2), of(1)]

    def test_a_repeated_report_counts_once(self, world: World) -> None:
        first = world.tell({of(1): 10}, key="key")
        assert world.tell({of(1): 10}, key="key") == first == MissReceipt(counted=1)
        assert world.listed()[0].runs == 10
        with pytest.raises(IdempotencyConflict):
            world.tell({of(1): 11}, key="key")
        world.pass_time(DAY_SECS + 1)
        world.tell({of(1): 11}, key="key")
        assert world.listed()[0].runs == 21

    def test_without_a_model_only_known_workloads_are_counted(self, world: World) -> None:
        receipt = world.tell({WORKLOAD.digest: 3, NEVER_SEEN: 5}, named=False, key="key")
        assert receipt == MissReceipt(counted=1, unknown=(NEVER_SEEN,))
        assert world.tell({WORKLOAD.digest: 3, NEVER_SEEN: 5}, named=False, key="key") == receipt
        assert [(view.workload, view.model) for view in world.listed()] == [(WORKLOAD.digest, world.model)]

    def test_a_model_that_is_not_there_is_no_carrier(self, world: World) -> None:
        with pytest.raises(NotFound):
            world.tell({of(1): 1}, model=new_id("mdl"))
        assert world.listed() == []

    def test_projects_and_targets_do_not_see_each_other(self, world: World) -> None:
        theirs = World(world.database)
        world.tell({of(1): 1})
        world.tell({of(2): 1}, target=OTHER_TARGET)
        assert theirs.listed() == []
        with world.database.reading() as session:
            assert [view.workload for view in misses.list_(session, world.project, OTHER_TARGET)] == [of(2)]

    def test_only_the_most_valuable_are_kept(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(misses, "MAX_KEPT", 5)
        world.tell({of(n): n + 1 for n in range(8)})
        assert [view.workload for view in world.listed()] == [of(n) for n in (7, 6, 5, 4, 3)]

    def test_reports_at_the_same_time_lose_nothing(self, world: World) -> None:
        orders = [list(range(6)), list(range(5, -1, -1))]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: world.tell({of(i): 1 for i in orders[n % 2]}), range(12)))
        assert [view.runs for view in world.listed()] == [12] * 6


class TestJobs:
    def test_a_miss_is_first_transferred_then_tuned(self, world: World) -> None:
        world.tell({of(1): 10, of(2): 20})
        assert world.due()
        first = world.take()
        assert world.only(first) == sorted([of(1), of(2)])
        assert not world.due(), "its workers have a job"
        assert set(world.stages().values()) == {MissStage.TRANSFERRING}
        world.tell({of(3): 1})
        world.end(first)
        assert world.stages() == {of(1): MissStage.TRANSFERRED, of(2): MissStage.TRANSFERRED, of(3): MissStage.WAITING}
        third = world.take()
        assert world.only(third) == [of(3)], "every miss gets its first look before any is searched for"
        world.end(third)
        search = world.take()
        assert len(world.only(search)) == 3
        with world.database.reading() as session:
            origins = [jobs.get(session, world.project, job or "").origin for job in (first, search)]
        assert origins == [JobOrigin.TRANSFER, JobOrigin.MISSES]
        world.end(search)
        assert set(world.stages().values()) == {MissStage.TUNED}
        assert world.take() is None
        assert not world.due()

    def test_a_day_costs_no_more_than_the_budget(self, database: Database) -> None:
        world = World(database, budget=TRANSFER_TRIALS + TUNE_TRIALS + 1)
        world.tell({of(1): 10, of(2): 5})
        first = world.take()
        assert len(world.only(first)) == 2
        world.end(first)
        assert world.spent() == 2 * TRANSFER_TRIALS
        assert world.take() is None, "too little is left for a search"
        world.pass_time(DAY_SECS)
        assert world.spent() == 0
        assert world.only(world.take()) == [of(1)], "the more valuable one"
        assert world.spent() == TUNE_TRIALS

    def test_without_a_budget_nothing_is_done(self, database: Database) -> None:
        world = World(database, budget=0)
        world.tell({of(1): 10})
        assert not world.due()
        assert world.take() is None
        assert world.stages() == {of(1): MissStage.WAITING}

    @pytest.mark.parametrize("jobs_a_day", [1, 8])
    def test_two_that_take_at_once_share_neither_misses_nor_budget(self, database: Database, jobs_a_day: int) -> None:
        world = World(database, budget=jobs_a_day * TRANSFER_TRIALS)
        with ThreadPoolExecutor(2) as pool:
            for n in range(4):
                world.tell({of(n): 10})
                taken = [job for job in pool.map(lambda _: world.take(), range(2)) if job is not None]
                assert len(taken) == (n < jobs_a_day)
                assert world.spent() == min(n + 1, jobs_a_day) * TRANSFER_TRIALS

    def test_workers_that_a_user_waits_for_are_not_idle(self, world: World) -> None:
        world.tell({of(1): 10})
        users = world.submit()
        assert not world.due()
        world.end(users)
        assert world.due()
        world.database.clock_offset_secs += 1e6
        with world.database.transaction() as session:
            workers.lost(session, 60)
        assert not world.due(), "no worker answers"

    def test_a_miss_whose_job_failed_waits_for_another_model(self, world: World) -> None:
        world.tell({of(1): 10})
        world.end(world.take(), failed=True)
        assert world.stages() == {of(1): MissStage.REFUSED}
        assert world.take() is None
        world.tell({of(1): 10})
        assert world.stages() == {of(1): MissStage.REFUSED}
        with world.database.transaction() as session:
            other = models.create(
                session, world.project, name="m", format=ModelFormat.ONNX, digest=sha256(b"other"), size_bytes=1
            )
        world.tell({of(1): 10}, model=other.id)
        assert world.stages() == {of(1): MissStage.WAITING}

    def test_what_no_user_waits_for_is_leased_last(self, world: World) -> None:
        world.tell({WORKLOAD.digest: 10})
        idle = world.take() or ""
        with world.database.transaction() as session:
            jobs.transition(session, idle, JobState.INGESTING)
            job_tasks.set_tasks(session, idle, [task(Workload(digest=WORKLOAD.digest, ir="{}"))])
            jobs.transition(session, idle, JobState.TUNING)
        world.issue(candidates(0, 4), job=idle)
        world.issue(candidates(0, 2), Purpose.CONFIRM, job=idle)
        users = world.submit()
        world.issue(candidates(4, 6), job=users)
        world.issue(candidates(4, 6), Purpose.CONFIRM, job=users)
        order = []
        for _ in range(4):
            grant = world.granted(2)
            order.append((grant.purpose, grant.candidates[0].digest in {c.digest for c in candidates(4, 6)}))
            world.report(grant, [timed(c.digest) for c in grant.candidates], final=True)
        assert order == [
            (Purpose.CONFIRM, True),
            (Purpose.SEARCH, True),
            (Purpose.CONFIRM, False),
            (Purpose.SEARCH, False),
        ]
