"""Jobs whose workloads were found under other circumstances: what is replayed, what that costs, what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobOrigin, JobRequest, JobState, JobView, Replay
from pitchpipe.wire.lease import LeaseGrant, Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind, Measurement
from pitchpipe.wire.record import Best, LookupRequest, Tier, TuningRecord
from pitchpipe.wire.target import DeviceFingerprint, Toolchain
from pitchpipe.wire.task import Task, TaskKind, Workload
from pitchpipe.wire.upgrade import REPLAYED, UpgradeRequest, UpgradeStage
from service.coordination.coordinator import Coordinator
from service.db import Database
from service.store import batches, jobs, lookups, models, records, upgrades, workloads
from tests.database.test_coordinator import Steps, make, shown
from tests.scene import (
    DEVICE,
    OTHER_DEVICE,
    TARGET,
    TOOLCHAIN,
    WORKLOAD,
    Scene,
    candidates,
    failed,
    record,
    task,
    timed,
)
from tests.scene import best as best_of_record
from tuner.search.requests import Proposal

KEY = WORKLOAD.digest
EFFORT = 64
NEWER = TOOLCHAIN.model_copy(update={"tvm": "0.28"})
SAME_CLASS = DEVICE.model_copy(update={"driver": "7.1"})
FOUND = DEVICE.model_copy(update={"driver": "7.0"})
"""Where it was found."""
SECS = {f"[[],[{n}]]": (n + 1) * 1e-3 for n in range(9)} | {BASELINE_TRACE: 20e-3}
"""Candidate n takes n + 1 ms, the baseline 20."""


def serve(scene: Scene, found: Sequence[TuningRecord], served: int = 0, workload: Workload = WORKLOAD) -> Best:
    """Serves one of the records, tuned with EFFORT."""
    best = best_of_record(found[served], secs=found[served].result.secs, baseline_secs=SECS[BASELINE_TRACE])  # type: ignore[union-attr]
    best = best.model_copy(update={"driver": found[served].device.driver})
    with scene.database.transaction() as session:
        workloads.put(session, scene.project, workload)
        records.add(session, scene.project, found)
        records.set_best(session, scene.project, workload.digest, TARGET, best, effort=EFFORT)
    return best


def timed_records(
    count: int,
    *,
    workload: str = KEY,
    device: DeviceFingerprint = FOUND,
    toolchain: Toolchain = TOOLCHAIN,
) -> list[TuningRecord]:
    return [
        record(c, timed(c.digest, SECS[c.trace]), workload=workload, device=device, toolchain=toolchain)
        for c in candidates(0, count, workload)
    ]


class World:
    """A project whose worker is another than the one that found what is served, and a coordinator that can be replaced."""

    def __init__(self, database: Database, device: DeviceFingerprint = FOUND, toolchain: Toolchain = NEWER) -> None:
        self.scene, self.steps = Scene(database), Steps()
        self.scene.register("worker-a", device=device, toolchain=toolchain)
        with database.transaction() as session:
            jobs.cancel(session, self.scene.project, self.scene.job)
        self.coordinator: Coordinator = make(database, self.steps)
        with database.transaction() as session:
            models.accept(session, self.scene.model, self.coordinator.blobs.put(b"ingested"))

    def submit(self, trials: int = EFFORT, tasks: Sequence[Task] | None = None) -> str:
        """A job that was just split into its tasks."""
        request = JobRequest(model=self.scene.model, targets=(TARGET,), budget=Budget(trials=trials))
        with self.scene.database.transaction() as session:
            job = jobs.submit(session, self.scene.project, request)[0].id
        self.coordinator.tick()
        name, split = self.steps.given.pop()
        assert name == "split_ingested"
        split.set_result(list(tasks or [task()]))
        self.coordinator.tick()
        return job

    def restart(self) -> None:
        """Another process becomes the coordinator; what the first one knew is lost."""
        self.coordinator._forget()
        self.coordinator = Coordinator(
            self.coordinator.settings,
            self.scene.database,
            self.coordinator.blobs,
            self.coordinator.wake,
            self.steps,
        )
        with self.scene.database.transaction() as session:
            session.connection().exec_driver_sql("DELETE FROM holders")

    def measure(self, result: Callable[[Candidate], Measurement] | None = None) -> LeaseGrant:
        """Measures the next batch, and lets the coordinator see it."""
        told = result or (lambda c: timed(c.digest, SECS[c.trace]))
        grant = self.scene.granted()
        self.scene.report(grant, [told(c) for c in grant.candidates], final=True)
        self.coordinator.tick()
        return grant

    def propose(self, *proposed: Candidate) -> None:
        """Answers the oldest search."""
        self.steps.given.pop(0)[1].set_result([Proposal(candidate=c, features=None) for c in proposed])
        self.coordinator.tick()

    def shown(self, job: str) -> JobView:
        return shown(self.scene, job)

    def served(self) -> Best:
        with self.scene.database.reading() as session:
            found = records.best(session, self.scene.project, KEY, TARGET)
        assert found is not None
        return found

    def purposes(self, job: str) -> set[Purpose]:
        with self.scene.database.reading() as session:
            found = batches.purposes(session, job)
        return {purpose for each in found.values() for purpose, _ in each}

    def left(self) -> list[tuple[UpgradeStage, str]]:
        with self.scene.database.reading() as session:
            return [(each.stage, each.workload) for each in upgrades.outdated(session, self.scene.project).items]

    def upgrade(self, stage: UpgradeStage, *digests: str, trials: int = 8) -> str:
        request = UpgradeRequest(target=TARGET, workloads=digests, stage=stage, trials=trials)
        with self.scene.database.transaction() as session:
            job = upgrades.submit(session, self.scene.project, request)[0].id
        self.coordinator.tick()
        return job


def test_what_was_tuned_with_the_same_device_class_toolchain_and_driver_is_reused_with_no_trial(
    database: Database,
) -> None:
    world = World(database, FOUND, TOOLCHAIN)
    serve(world.scene, timed_records(2))
    job = world.submit()
    world.coordinator.tick()
    view = world.shown(job)
    assert (view.state, view.progress.reused_tasks, view.tasks[0].replay) == (JobState.DONE, 1, None)
    assert world.purposes(job) == set()


@pytest.mark.parametrize(
    ("device", "toolchain"),
    [(FOUND, NEWER), (SAME_CLASS, TOOLCHAIN), (OTHER_DEVICE, TOOLCHAIN)],
    ids=["toolchain", "driver", "device class"],
)
def test_what_another_toolchain_driver_or_device_class_found_is_replayed_and_kept_with_both_origins(
    database: Database, device: DeviceFingerprint, toolchain: Toolchain
) -> None:
    world = World(database, device, toolchain)
    earlier = serve(world.scene, timed_records(8), served=5)
    job = world.submit()
    grant = world.measure()
    assert grant.purpose is Purpose.SEARCH, "workers know no other word for it"
    assert [c.trace for c in grant.candidates] == [f"[[],[{n}]]" for n in (5, 0, 1, 2)], "what is served comes first"
    assert len(grant.candidates) == REPLAYED
    # The one that was served is confirmed, too, though another was timed much faster.
    confirming = world.measure(lambda c: timed(c.digest, 1e-3 if c.trace == earlier.trace else SECS[c.trace] + 1e-3))
    assert [c.trace for c in confirming.candidates] == [BASELINE_TRACE, *(f"[[],[{n}]]" for n in (0, 5))]
    view = world.shown(job)
    assert (view.state, view.progress.trials, view.progress.reused_tasks) == (JobState.DONE, REPLAYED, 0)
    assert world.steps.given == [], "no search"
    (shown_task,) = view.tasks
    assert (shown_task.replay, shown_task.earlier, shown_task.tuned_secs) == (Replay.KEPT, earlier.provenance(), 1e-3)

    best = world.served()
    assert (best.trace, best.device_class, best.driver) == (earlier.trace, device.device_class, device.driver)
    assert (best.toolchain, best.secs) == (toolchain.key, 1e-3)
    assert best.replayed_from == earlier.provenance()
    request = LookupRequest(target=TARGET, workloads=(KEY,), device_class=device.device_class, toolchain=toolchain.key)
    with database.reading() as session:
        (answer,) = lookups.lookup(session, world.scene.project, request).answers
    assert answer.tier is Tier.EXACT
    assert answer.best == best
    assert "replayed from" in answer.reason

    again = world.submit()
    world.coordinator.tick()
    assert (world.shown(again).state, world.shown(again).progress.reused_tasks) == (JobState.DONE, 1)


def test_a_schedule_that_is_replayed_twice_tells_where_it_was_found_first(database: Database) -> None:
    world = World(database)
    earlier = serve(world.scene, timed_records(1))
    world.submit()
    world.measure()
    world.measure()
    newest = NEWER.model_copy(update={"tvm": "0.29"})
    world.scene.register("worker-a", device=FOUND, toolchain=newest)
    world.submit()
    world.measure()
    world.measure()
    assert world.served().toolchain == newest.key
    assert world.served().replayed_from == earlier.provenance()


def test_the_rest_of_the_budget_searches_where_the_replay_did_not_hold(database: Database) -> None:
    world = World(database)
    serve(world.scene, timed_records(8))
    job = world.submit(trials=EFFORT)
    world.measure(lambda c: timed(c.digest, 19e-3))
    world.measure(lambda c: timed(c.digest, 20e-3 if c.trace == BASELINE_TRACE else 19e-3))
    (view,) = world.shown(job).tasks
    assert view.replay is Replay.KEPT, "it still wins, by far less"
    assert view.tuned_secs is None
    assert world.served().secs == 19e-3, "served at once: it beat the baseline on this device"
    assert [name for name, _ in world.steps.given] == ["propose"]
    assert {trace for trace, _ in world.steps.asked[0].measured} >= {f"[[],[{n}]]" for n in range(4)}
    assert f"[[],[{7}]]" not in {trace for trace, _ in world.steps.asked[0].measured}, "its time is another device's"
    world.propose(*candidates(20, 21))
    world.measure(lambda c: timed(c.digest, 2e-3))
    world.propose()  # The space is exhausted ...
    grant = world.measure(lambda c: timed(c.digest, 19e-3))
    assert [c.trace for c in grant.candidates] == [f"[[],[{n}]]" for n in range(4, 8)], (
        "... but not what was found elsewhere"
    )
    world.propose()
    world.measure(lambda c: timed(c.digest, {BASELINE_TRACE: 20e-3, "[[],[20]]": 2e-3}.get(c.trace, 19e-3)))
    done = world.shown(job)
    assert (done.state, done.progress.trials) == (JobState.DONE, REPLAYED + 1 + 4)
    assert world.served().trace == "[[],[20]]"
    assert world.served().replayed_from is None
    assert world.left() == []


def test_a_larger_budget_goes_on_after_a_replay_that_held(database: Database) -> None:
    world = World(database)
    serve(world.scene, timed_records(3))
    job = world.submit(trials=10 * EFFORT)
    world.measure()
    world.measure()
    assert world.shown(job).tasks[0].replay is Replay.KEPT
    assert [name for name, _ in world.steps.given] == ["propose"]


@pytest.mark.parametrize("kind", [FailureKind.WRONG_OUTPUT, FailureKind.BUILD_ERROR])
def test_a_replayed_candidate_that_fails_its_check_is_why_to_search_again(
    database: Database, kind: FailureKind
) -> None:
    world = World(database)
    serve(world.scene, timed_records(4))
    job = world.submit()
    world.measure(lambda c: failed(c.digest, kind) if c.trace == "[[],[3]]" else timed(c.digest, SECS[c.trace]))
    world.measure()
    (view,) = world.shown(job).tasks
    assert (view.replay, view.failed_trials) == (Replay.KEPT, 1)
    assert bool(world.steps.given) is (kind is FailureKind.WRONG_OUTPUT)


def test_where_nothing_of_it_builds_any_more_the_baseline_is_served_and_a_search_follows(database: Database) -> None:
    world = World(database)
    serve(world.scene, timed_records(6))
    job = world.submit()
    world.measure(lambda c: failed(c.digest))
    grant = world.measure()
    assert [c.trace for c in grant.candidates] == [BASELINE_TRACE], "what just failed is not confirmed"
    (view,) = world.shown(job).tasks
    assert view.replay is Replay.FAILED
    assert (world.served().record, world.served().toolchain) == (None, NEWER.key)
    assert [name for name, _ in world.steps.given] == ["propose"]


def test_without_a_budget_for_a_replay_what_is_served_still_meets_the_baseline(database: Database) -> None:
    world = World(database)
    earlier = serve(world.scene, timed_records(4))
    job = world.submit(trials=0)
    grant = world.measure()
    assert [c.trace for c in grant.candidates] == [BASELINE_TRACE, earlier.trace]
    assert (world.shown(job).state, world.shown(job).progress.trials) == (JobState.DONE, 0)
    assert world.served().replayed_from == earlier.provenance()


def test_a_fixed_task_is_confirmed_again_at_no_trial(database: Database) -> None:
    world = World(database)
    earlier = serve(world.scene, timed_records(1))
    fixed = task().model_copy(update={"kind": TaskKind.FIXED, "fixed": earlier.trace})
    job = world.submit(tasks=[fixed])
    world.measure()
    view = world.shown(job)
    assert (view.state, view.progress.trials, view.tasks[0].replay) == (JobState.DONE, 0, Replay.KEPT)
    assert world.served().toolchain == NEWER.key


def test_what_was_timed_elsewhere_and_never_confirmed_is_replayed_too(database: Database) -> None:
    world = World(database)
    with database.transaction() as session:
        workloads.put(session, world.scene.project, WORKLOAD)
        records.add(session, world.scene.project, timed_records(2))
    job = world.submit()
    world.measure()
    world.measure()
    (view,) = world.shown(job).tasks
    assert (view.replay, view.earlier, view.trials) == (Replay.CHANGED, None, 2)
    assert [name for name, _ in world.steps.given] == ["propose"], "nobody tuned it"


def test_a_job_waits_for_a_worker_before_it_says_what_holds(database: Database) -> None:
    world = World(database, FOUND, TOOLCHAIN)
    serve(world.scene, timed_records(2))
    world.scene.pass_time()
    with database.transaction() as session:
        session.connection().exec_driver_sql("UPDATE workers SET state = 'lost'")
    job = world.submit()
    world.coordinator.tick()
    assert world.shown(job).state is JobState.INGESTING
    world.scene.register("worker-a", device=FOUND, toolchain=NEWER)
    world.coordinator.tick()
    assert world.shown(job).tasks[0].replay is Replay.DUE


@pytest.mark.parametrize("holds", [True, False])
def test_a_coordinator_that_dies_at_any_moment_of_a_replay_charges_once_and_decides_the_same(
    database: Database, holds: bool
) -> None:
    world = World(database)
    serve(world.scene, timed_records(6))
    job = world.submit()

    def result(c: Candidate) -> Measurement:
        return timed(c.digest, SECS[c.trace] if holds or c.trace == BASELINE_TRACE else 30e-3)

    confirmed = (
        [None, 0] if holds else [None, 0, 1, 2]
    )  # Of those that hold, the second takes twice as long as the first.
    for measured, expected in enumerate(([0, 1, 2, 3], confirmed)):
        for _ in range(2):
            world.restart()
            world.coordinator.tick()
        assert world.scene.counts(job).queued == len(expected), "one batch is out, whoever issued it"
        grant = world.scene.granted(2)
        world.scene.report(grant, [result(c) for c in grant.candidates], final=True)
        world.restart()
        world.coordinator.tick()
        if measured == 0:
            more = world.scene.granted()
            world.scene.report(more, [result(c) for c in more.candidates], final=True)
            world.restart()
            world.coordinator.tick()
            grant = grant.model_copy(update={"candidates": (*grant.candidates, *more.candidates)})
        names = [BASELINE_TRACE if n is None else f"[[],[{n}]]" for n in expected]
        assert [c.trace for c in grant.candidates] == names
        assert world.scene.trials(job) == (REPLAYED, 0)
    counts = world.scene.counts(job)
    assert counts.issued == counts.terminal == REPLAYED + len(confirmed)
    view = world.shown(job)
    if holds:
        assert (view.state, view.tasks[0].replay) == (JobState.DONE, Replay.KEPT)
        assert world.steps.given == []
    else:
        assert (view.state, view.tasks[0].replay) == (JobState.TUNING, Replay.LOST)
        assert [name for name, _ in world.steps.given] == ["propose"]
        assert world.served().record is None


def test_a_coordinator_that_dies_between_results_and_verdict_confirms_and_does_not_replay_again(
    database: Database,
) -> None:
    world = World(database)
    serve(world.scene, timed_records(4))
    job = world.submit()
    grant = world.scene.granted()
    world.scene.report(grant, [timed(c.digest, SECS[c.trace]) for c in grant.candidates], final=True)
    with database.transaction() as session:
        batches.observed(session, [found.batch for found in batches.finished(session, job)])
    world.restart()
    world.coordinator.tick()
    assert world.scene.granted().purpose is Purpose.CONFIRM
    assert world.scene.trials(job) == (REPLAYED, 0)


def models_with_effort(world: World) -> list[Workload]:
    """Three workloads of one model that are served; the second saves most of a run, the third is where it is expected."""
    made = [Workload(digest=sha256(name), ir="{}") for name in (b"one", b"two", b"three")]
    tasks = [task(each).model_copy(update={"weight": weight}) for each, weight in zip(made, (1, 3, 1), strict=True)]
    world.scene.submit(tasks=tasks)
    with world.scene.database.transaction() as session:
        for job in [job for _, job, _ in jobs.active(session)]:
            jobs.cancel(session, world.scene.project, job)
    for each, toolchain in zip(made, (TOOLCHAIN, TOOLCHAIN, NEWER), strict=True):
        serve(world.scene, timed_records(6, workload=each.digest, toolchain=toolchain), workload=each)
    return made


def test_an_upgrade_replays_what_is_served_most_valuable_first_and_searches_for_nothing(database: Database) -> None:
    world = World(database)
    one, two, _ = models_with_effort(world)
    assert world.left() == [(UpgradeStage.REPLAY, two.digest), (UpgradeStage.REPLAY, one.digest)]
    job = world.upgrade(UpgradeStage.REPLAY, two.digest, one.digest)
    grant = world.measure()
    assert grant.workload == two.digest, "it weighs more"
    assert world.measure().workload == two.digest, "its confirming run"
    for _ in range(2):
        world.measure(lambda c: timed(c.digest, 20e-3 if c.trace == BASELINE_TRACE else 30e-3))
    view = world.shown(job)
    assert (view.state, view.origin, view.progress.trials) == (JobState.DONE, JobOrigin.UPGRADE, 2 * REPLAYED)
    assert {each.workload: each.replay for each in view.tasks} == {two.digest: Replay.KEPT, one.digest: Replay.LOST}
    assert world.steps.given == []
    assert world.left() == [(UpgradeStage.RETUNE, one.digest)]

    job = world.upgrade(UpgradeStage.RETUNE, one.digest, trials=4)
    world.propose(*candidates(20, 24, one.digest))
    world.measure(lambda c: timed(c.digest, 2e-3))
    world.measure(lambda c: timed(c.digest, 20e-3 if c.trace == BASELINE_TRACE else 2e-3))
    assert world.shown(job).state is JobState.DONE
    assert world.left() == []


def test_an_upgrade_that_was_interrupted_has_the_rest_left(database: Database) -> None:
    world = World(database)
    one, two, _ = models_with_effort(world)
    job = world.upgrade(UpgradeStage.REPLAY, two.digest, one.digest)
    world.measure()
    first, second = world.scene.granted(), world.scene.granted()
    confirm = first if first.purpose is Purpose.CONFIRM else second
    world.scene.report(confirm, [timed(c.digest, SECS[c.trace]) for c in confirm.candidates], final=True)
    world.coordinator.tick()
    with database.transaction() as session:
        jobs.cancel(session, world.scene.project, job)
    assert world.left() == [(UpgradeStage.REPLAY, one.digest)]


def test_an_upgrade_gives_way_to_a_users_job(database: Database) -> None:
    world = World(database)
    one, two, _ = models_with_effort(world)
    users = world.scene.submit()
    job = world.upgrade(UpgradeStage.REPLAY, two.digest, one.digest)
    world.coordinator.tick()
    assert world.scene.counts(job).issued == 0
    with database.transaction() as session:
        jobs.cancel(session, world.scene.project, users)
    world.coordinator.tick()
    assert world.scene.counts(job).issued == 2 * REPLAYED


def test_a_baseline_that_had_won_is_kept_where_it_wins_again(database: Database) -> None:
    world = World(database)
    made = timed_records(2)
    with database.transaction() as session:
        workloads.put(session, world.scene.project, WORKLOAD)
        records.add(session, world.scene.project, made)
        won = best_of_record(made[0], secs=20e-3, baseline_secs=20e-3)
        won = won.model_copy(update={"record": None, "trace": BASELINE_TRACE})
        records.set_best(session, world.scene.project, KEY, TARGET, won, effort=EFFORT)
    job = world.submit()
    world.measure(lambda c: timed(c.digest, 30e-3))
    world.measure(lambda c: timed(c.digest, 20e-3 if c.trace == BASELINE_TRACE else 30e-3))
    view = world.shown(job)
    assert (view.state, view.tasks[0].replay, view.progress.trials) == (JobState.DONE, Replay.KEPT, 2)
    assert (world.served().record, world.served().toolchain) == (None, NEWER.key)
