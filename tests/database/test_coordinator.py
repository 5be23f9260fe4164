"""The coordinator: its role is held by one at a time, and what fails around a job does not fail the job."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from pitchpipe.errors import IntegrityError, StepDied, StepTimeout, Unreachable
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState, JobView
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.miss import MissCount, MissReport, MissStage
from pitchpipe.wire.record import Origin
from pitchpipe.wire.task import Signature, Workload
from service.blobs import Blobs
from service.coordination import job_run
from service.coordination.coordinator import Coordinator
from service.coordination.job_run import MAX_CRASHES
from service.coordination.predictor import REFIT_MIN_SAMPLES, ProjectPredictor
from service.db import Database
from service.settings import Settings
from service.store import batches, coordination, job_tasks, jobs, misses, models, records, workers, workloads
from service.wake import Wake
from tests.scene import OTHER_TARGET, TARGET, WORKLOAD, Scene, best, candidates, record, roofline, task, timed
from tuner.search.requests import Proposal, ProposeRequest, TrainedModel

SIGNATURE = Signature(operators="matmul", anchor="SSR products", extents=(8, 8, 8), arguments=(), flops=1024.0)


class Steps(Executor):
    """An executor whose steps end when the test says so."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Future[Any]]] = []
        self.asked: list[ProposeRequest] = []
        self.away = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.away:
            raise Unreachable("no scheduler answers")
        future: Future[Any] = Future()
        self.given.append((fn.__name__, future))
        self.asked += [argument for argument in args if isinstance(argument, ProposeRequest)]
        return future


def make(database: Database, executor: Executor | None = None) -> Coordinator:
    settings, blobs = Settings(blob_url="memory:///"), Blobs("memory:///")
    return Coordinator(settings, database, blobs, Wake(), executor or ThreadPoolExecutor(1))


def shown(scene: Scene, job: str | None = None) -> JobView:
    with scene.database.reading() as session:
        return jobs.get(session, scene.project, job or scene.job)


def end(scene: Scene) -> None:
    with scene.database.transaction() as session:
        jobs.cancel(session, scene.project, scene.job)


def free(database: Database) -> bool:
    with database.transaction() as session:
        return coordination.hold(session, "somebody", 0.0)


def test_a_coordinator_that_is_stopped_gives_its_role_back(database: Database) -> None:
    coordinator = make(database)
    coordinator.tick()
    assert not free(database)
    coordinator.start()
    coordinator.stop()
    assert free(database)


def test_a_coordinator_that_waits_gives_back_nothing_of_anothers(database: Database) -> None:
    active, waiting = make(database), make(database)
    active.tick()
    waiting.tick()
    waiting.start()
    waiting.stop()
    assert not free(database)
    active.stop()


def test_a_process_that_is_alone_waits_for_no_dead_one(database: Database) -> None:
    make(database).tick()
    assert not free(database)
    with database.transaction() as session:
        coordination.vacate(session)
    assert free(database)


def test_a_coordinator_that_was_replaced_takes_no_results_from_its_successor(database: Database) -> None:
    scene, replaced = Scene(database), make(database, Steps())
    scene.issue(candidates(0, 4))
    replaced.tick()
    grant = scene.granted()
    scene.report(grant, [timed(c.digest) for c in grant.candidates], final=True)
    with database.transaction() as session:
        coordination.vacate(session)
        assert coordination.hold(session, "its successor", 10.0)
    with pytest.raises(coordination.RoleLost):
        replaced._step(scene.job)
    with database.reading() as session:
        assert len(batches.finished(session, scene.job)) == 1


def test_an_engine_that_is_away_delays_a_job_and_does_not_fail_it(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    coordinator = make(database, steps)
    steps.away = True
    for _ in range(10):
        coordinator.tick()
    assert shown(scene).state is JobState.TUNING
    steps.away = False
    coordinator.tick()
    assert [name for name, _ in steps.given][:1] == ["propose"]


@pytest.mark.parametrize("at_bound", [True, False])
def test_a_task_at_the_bound_of_its_device_gets_no_more_trials(database: Database, at_bound: bool) -> None:
    scene, steps = Scene(database), Steps()
    end(scene)
    bounded = task().model_copy(update={"flops": 3e6, "least_flops": 1e6, "bytes": 2e6})
    job = scene.submit(tasks=[bounded])
    coordinator = make(database, steps)
    coordinator.tick()
    assert shown(scene, job).tasks[0].bound_secs is None, "the worker's device is not known"
    scene.register("worker-a", roofline=roofline(1e9))
    secs = 1.02e-3 if at_bound else 2e-3
    for first in (0, 16, 32):  # The last is searched for while the second is measured.
        steps.given.pop()[1].set_result([Proposal(candidate=c, features=None) for c in candidates(first, first + 16)])
        coordinator.tick()
        grant = scene.granted()
        scene.report(grant, [timed(c.digest, secs) for c in grant.candidates], final=True)
        coordinator.tick()
        coordinator.tick()
    (view,) = shown(scene, job).tasks
    assert view.bound_secs == 1e-3
    if not at_bound:
        assert [name for name, _ in steps.given] == ["propose"]
        return
    assert steps.given == []
    grant = scene.granted()
    assert grant.purpose is Purpose.CONFIRM
    scene.report(grant, [timed(c.digest, (2e-3, 1e-3)[i > 0]) for i, c in enumerate(grant.candidates)], final=True)
    coordinator.tick()
    (view,) = shown(scene, job).tasks
    assert (view.bound_share, view.flops_per_sec, view.bytes_per_sec) == (1.0, 3e9, 2e9)


@pytest.mark.parametrize("crashes", [MAX_CRASHES - 1, MAX_CRASHES])
def test_a_split_whose_child_died_is_repeated_before_the_job_fails(database: Database, crashes: int) -> None:
    scene, steps = Scene(database), Steps()
    end(scene)
    coordinator = make(database, steps)
    request = JobRequest(model=scene.model, targets=(TARGET,), budget=Budget(trials=8))
    with database.transaction() as session:
        models.accept(session, scene.model, coordinator.blobs.put(b"ingested"))
        job = jobs.submit(session, scene.project, request)[0].id
    for _ in range(crashes):
        coordinator.tick()
        steps.given.pop()[1].set_exception(StepDied("a child died"))
        coordinator.tick()
    if crashes == MAX_CRASHES:
        assert shown(scene, job).error_code == "step-died"
        return
    coordinator.tick()
    name, split = steps.given.pop()
    assert name == "split_ingested"
    split.set_result([task()])
    coordinator.tick()
    assert shown(scene, job).state is JobState.TUNING


def test_the_workloads_of_a_new_job_are_stored_once_each(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    end(scene)
    coordinator = make(database, steps)
    request = JobRequest(model=scene.model, targets=(TARGET, OTHER_TARGET), budget=Budget(trials=8))
    with database.transaction() as session:
        models.accept(session, scene.model, coordinator.blobs.put(b"ingested"))
        job = jobs.submit(session, scene.project, request)[0].id
    coordinator.tick()
    second = Workload(digest=sha256(b"second"), ir='{"b": 2}')
    steps.given.pop()[1].set_result([task(), task(second), task(second, OTHER_TARGET)])
    stored = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        stored.extend([statement] if statement.startswith("INSERT INTO workloads") else [])

    event.listen(database.engine, "before_cursor_execute", note)
    coordinator.tick()
    event.remove(database.engine, "before_cursor_execute", note)
    assert shown(scene, job).state is JobState.TUNING
    assert len(stored) == 2
    with database.reading() as session:
        assert [one.workload for one in job_tasks.tasks(session, job)] == [WORKLOAD, second, second]


def test_a_split_that_took_its_whole_time_fails_its_job_at_once(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    end(scene)
    coordinator = make(database, steps)
    request = JobRequest(model=scene.model, targets=(TARGET,), budget=Budget(trials=8))
    with database.transaction() as session:
        models.accept(session, scene.model, coordinator.blobs.put(b"ingested"))
        job = jobs.submit(session, scene.project, request)[0].id
    coordinator.tick()
    steps.given.pop()[1].set_exception(StepTimeout("the step split_ingested took longer than 600 s"))
    coordinator.tick()
    view = shown(scene, job)
    assert (view.state, view.error_code) == (JobState.FAILED, "step-timeout")
    assert "600 s" in (view.error or "")
    assert steps.given == []


def test_a_job_that_was_cancelled_leaves_no_search_and_no_memory_behind(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    coordinator = make(database, steps)
    coordinator.tick()
    coordinator._faults[scene.job] = 1
    end(scene)
    coordinator.tick()
    assert steps.given
    assert all(future.cancelled() for _, future in steps.given)
    for remembered in (coordinator._runs, coordinator._faults, coordinator._predictors):
        assert not remembered


def test_a_coordinator_that_comes_to_a_confirming_job_spends_no_trial(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    with database.transaction() as session:
        jobs.transition(session, scene.job, JobState.CONFIRMING)
    make(database, steps).tick()
    with database.reading() as session:
        assert [batch.purpose for batch in batches.open_(session, scene.job)] == [Purpose.CONFIRM]
    assert steps.given == []


def test_the_clock_of_a_job_stands_while_no_worker_is_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(database)
    coordinator = make(database, Steps())
    now = time.monotonic()
    monkeypatch.setattr(job_run.time, "monotonic", lambda: now)

    def spent_after(secs: float) -> float:
        nonlocal now
        now += secs
        coordinator.tick()
        return coordinator._runs[scene.job]._spent_secs

    assert spent_after(0.0) == 0.0
    assert spent_after(10.0) == pytest.approx(10.0)
    with database.transaction() as session:
        workers.set_state(session, scene.project, scene.worker, WorkerState.GONE)
    assert spent_after(100.0) == pytest.approx(10.0)
    assert spent_after(100.0) == pytest.approx(10.0)
    scene.register("worker-a")
    assert spent_after(5.0) == pytest.approx(15.0)


def test_a_paused_job_is_left_and_goes_on_with_the_seconds_that_it_had_spent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, steps = Scene(database), Steps()
    coordinator = make(database, steps)
    now = time.monotonic()
    monkeypatch.setattr(job_run.time, "monotonic", lambda: now)

    def tick_after(secs: float, coordinator: Coordinator = coordinator) -> None:
        nonlocal now
        now += secs
        coordinator.tick()

    def pause(*, paused: bool) -> None:
        with database.transaction() as session:
            jobs.set_paused(session, scene.project, scene.job, paused=paused)

    tick_after(0.0)
    tick_after(10.0)
    pause(paused=True)
    tick_after(1.0)
    assert coordinator._runs == {}
    assert all(future.cancelled() for _, future in steps.given)
    tick_after(100.0)
    with database.transaction() as session:
        coordination.vacate(session)
    later = make(database, steps)
    tick_after(100.0, later)
    pause(paused=False)
    tick_after(0.0, later)
    tick_after(5.0, later)
    assert later._runs[scene.job]._spent_secs == pytest.approx(15.0)
    assert len(steps.given) == 2


@pytest.mark.parametrize("used_up", [False, True])
def test_a_raised_budget_is_spent_also_where_the_old_one_is_just_used_up(database: Database, used_up: bool) -> None:
    scene = Scene(database, trials=5)
    coordinator = make(database, Steps())
    coordinator.tick()
    run = coordinator._runs[scene.job]
    with database.transaction() as session:
        jobs.extend(session, scene.project, scene.job, Budget(trials=25))
    assert run._loop is not None
    if used_up:
        run._loop._to_confirm.clear()  # what is next is the state confirming
    else:
        run._ledger.tasks[0].trials += 1  # as when a batch was reported
    coordinator.tick()
    assert shown(scene).state is JobState.TUNING
    coordinator.tick()
    assert coordinator._runs[scene.job]._ledger.trials_limit == 25
    with database.reading() as session:
        assert jobs.history(session, scene.job).count(JobState.TUNING) == 1


def test_a_cost_model_that_cannot_be_stored_or_trained_stops_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, steps, blobs = Scene(database), Steps(), Blobs("memory:///")
    predictor = ProjectPredictor(scene.project, "llvm", database, blobs, Wake(), steps)

    def refuse(_data: bytes) -> str:
        raise IntegrityError("the disk is full")

    monkeypatch.setattr(blobs, "put", refuse)
    steps.away = True
    predictor.observe(REFIT_MIN_SAMPLES)
    assert predictor.latest() is None
    steps.away = False
    predictor.observe(1)
    steps.given.pop()[1].set_result(TrainedModel(data=b"model", metrics={}, samples=1))
    assert predictor.latest() == b"model"
    assert not predictor.busy


def served_wide(scene: Scene) -> Workload:
    """A workload of the scene's kind, with a best for its target."""
    wide = Workload(digest=sha256(b"wide"), ir="{}")
    (candidate,) = candidates(0, 1, wide.digest)
    found = record(candidate, workload=wide.digest)
    with scene.database.transaction() as session:
        workloads.put(session, scene.project, wide, SIGNATURE)
        records.add(session, scene.project, [found])
        records.set_best(session, scene.project, wide.digest, TARGET, best(found))
    return wide


def test_the_first_search_of_a_task_begins_with_what_similar_workloads_are_served(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    wide = served_wide(scene)
    end(scene)
    job = scene.submit(tasks=[task().model_copy(update={"signature": SIGNATURE})])
    coordinator = make(database, steps)
    coordinator.tick()
    (asked,) = steps.asked
    assert [donor.workload for donor in asked.donors] == [wide.digest]
    assert not asked.donors_only
    steps.given.pop()[1].set_result([Proposal(candidate=c, features=None) for c in candidates(0, 16)])
    coordinator.tick()
    grant = scene.granted()
    scene.report(grant, [timed(c.digest) for c in grant.candidates], final=True)
    coordinator.tick()
    assert [request.donors for request in steps.asked[1:]] == [()]
    with database.transaction() as session:
        jobs.cancel(session, scene.project, job)


def test_idle_workers_look_at_a_miss_with_what_was_refitted_until_a_user_comes(database: Database) -> None:
    scene, steps = Scene(database), Steps()
    wide = served_wide(scene)
    end(scene)
    missed = task(Workload(digest=sha256(b"missed"), ir="{}")).model_copy(update={"signature": SIGNATURE})
    unasked = task(Workload(digest=sha256(b"unasked"), ir="{}"))
    coordinator = make(database, steps)
    with database.transaction() as session:
        models.accept(session, scene.model, coordinator.blobs.put(b"ingested"))
        misses.set_budget(session, scene.project, 100)
        counts = (MissCount(workload=missed.workload.digest, runs=100),)
        misses.report(session, scene.project, MissReport(target=TARGET, model=scene.model, misses=counts))

    def look() -> None:
        coordinator.idle._looked_at = -1e9
        coordinator.tick()

    look()
    look()
    steps.given.pop()[1].set_result([missed, unasked])
    users = scene.submit()
    look()
    (idle,) = [job for _, job, _ in _active(database) if job != users]
    assert [view.workload for view in shown(scene, idle).tasks] == [missed.workload.digest]
    assert {request.workload.digest for request in steps.asked} == {WORKLOAD.digest}, "its workers are wanted"
    steps.asked.clear()
    with database.transaction() as session:
        jobs.cancel(session, scene.project, users)
    look()
    (asked,) = steps.asked
    assert (asked.n, asked.donors_only, [d.workload for d in asked.donors]) == (4, True, [wide.digest])

    (refitted,) = candidates(7, 8, missed.workload.digest)
    steps.given.pop()[1].set_result([Proposal(candidate=refitted, features=None, source=wide.digest)])
    look()
    grant = scene.granted()
    scene.report(grant, [timed(c.digest) for c in grant.candidates], final=True)
    look()
    steps.given.pop()[1].set_result([])
    look()
    grant = scene.granted()
    assert grant.purpose is Purpose.CONFIRM
    scene.report(grant, [timed(c.digest, (2e-3, 1e-3)[i > 0]) for i, c in enumerate(grant.candidates)], final=True)
    look()
    look()
    with database.reading() as session:
        found = records.best(session, scene.project, missed.workload.digest, TARGET)
        (miss,) = misses.list_(session, scene.project)
    assert found is not None
    assert (found.origin, found.source, found.trace) == (Origin.TRANSFERRED, wide.digest, refitted.trace)
    assert shown(scene, idle).progress.trials == 1
    assert miss.stage is MissStage.TUNING, "and now a search"


def _active(database: Database) -> list[tuple[str, str, JobState]]:
    with database.reading() as session:
        return jobs.active(session)
