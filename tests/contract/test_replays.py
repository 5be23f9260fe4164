"""What is current, what is to be replayed, where something was found first; on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pitchpipe.errors import IdempotencyConflict, NoDevice, NotFound
from pitchpipe.wire.job import JobOrigin
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.record import Best, Earlier, ExplainRequest
from pitchpipe.wire.target import DeviceFingerprint, Toolchain
from pitchpipe.wire.upgrade import REPLAYED, UpgradeRequest, UpgradeStage
from service.db import Database
from service.store import batches, explanations, records, replays, upgrades, workers
from service.store.values import Circumstances
from tests.scene import (
    DEVICE,
    OTHER_DEVICE,
    OTHER_TARGET,
    TARGET,
    TOOLCHAIN,
    WORKLOAD,
    Scene,
    best,
    candidates,
    failed,
    record,
    timed,
)

KEY = WORKLOAD.digest
NEWER = TOOLCHAIN.model_copy(update={"tvm": "0.28"})
HERE = Circumstances(DEVICE.device_class, NEWER.key, "7.1")


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


def add(scene: Scene, n: int, secs: float | None, device: DeviceFingerprint, toolchain: Toolchain) -> str:
    (candidate,) = candidates(n, n + 1)
    result = failed(candidate.digest) if secs is None else timed(candidate.digest, secs)
    made = record(candidate, result, device=device, toolchain=toolchain)
    with scene.database.transaction() as session:
        records.add(session, scene.project, [made], {candidate.digest: b"features of %d" % n})
        if secs is not None:
            records.set_best(session, scene.project, KEY, TARGET, best(made, secs=secs, baseline_secs=1.0), effort=8.0)
    return made.id


def on(driver: str) -> DeviceFingerprint:
    return DEVICE.model_copy(update={"driver": driver})


def test_circumstances_are_those_of_the_active_workers_of_the_target(scene: Scene) -> None:
    scene.register("worker-b", device=on("7.1"), toolchain=NEWER)
    scene.register("worker-c", device=OTHER_DEVICE, target=OTHER_TARGET)
    with scene.database.reading() as session:
        found = workers.circumstances(session, scene.project, TARGET)
    assert found == {HERE, Circumstances(DEVICE.device_class, TOOLCHAIN.key, "")}


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        (HERE, []),
        (HERE._replace(driver=None), []),
        (HERE._replace(driver="7.0"), ["driver"]),
        (HERE._replace(toolchain="t", device_class=OTHER_DEVICE.device_class), ["device class", "toolchain"]),
    ],
)
def test_what_is_not_known_of_circumstances_differs_from_nothing(other: Circumstances, differences: list[str]) -> None:
    assert HERE.differences(other) == differences
    assert HERE.same(other) is other.same(HERE) is (not differences)


def test_of_several_bests_the_current_one_counts_then_that_of_the_same_device_class(scene: Scene) -> None:
    add(scene, 0, 1e-3, OTHER_DEVICE, NEWER)
    with scene.database.transaction() as session:
        (found,) = replays.found(session, scene.project, [KEY], TARGET, {HERE})
        assert (found.current, found.best and found.best.device_class) == (False, OTHER_DEVICE.device_class)
    add(scene, 1, 2e-3, DEVICE, TOOLCHAIN)
    with scene.database.transaction() as session:
        (found,) = replays.found(session, scene.project, [KEY], TARGET, {HERE})
        assert (found.current, found.best and found.best.device_class, found.effort) == (False, HERE.device_class, 8.0)
        (found,) = replays.found(
            session, scene.project, [KEY], TARGET, {Circumstances(OTHER_DEVICE.device_class, NEWER.key, "")}
        )
        assert (found.current, found.best and found.best.device_class) == (True, OTHER_DEVICE.device_class)
        assert replays.found(session, scene.project, [KEY], OTHER_TARGET, {HERE}) == []


def test_what_was_measured_here_is_told_from_what_was_measured_elsewhere(scene: Scene) -> None:
    for n, (secs, device, toolchain) in enumerate(
        [
            (3e-3, on("7.1"), NEWER),  # here
            (None, on("7.1"), NEWER),  # failed here
            (1e-3, on("7.0"), NEWER),
            (2e-3, on("7.1"), TOOLCHAIN),
            (4e-3, OTHER_DEVICE, NEWER),
            (None, OTHER_DEVICE, NEWER),
        ]
    ):
        add(scene, n, secs, device, toolchain)
    add(scene, 3, None, OTHER_DEVICE, NEWER)  # candidate 3 a second time, elsewhere too
    traces = {c.trace: n for n, c in enumerate(candidates(0, 6))}
    with scene.database.transaction() as session:
        here = records.fastest(session, scene.project, KEY, TARGET, 9, {HERE})
        assert [(traces[trace], secs) for trace, secs in here] == [(0, 3e-3), (1, None)]
        assert len(records.fastest(session, scene.project, KEY, TARGET, 9)) == 6

        def unreplayed(n: int = 9, **options: object) -> list[int]:
            found = replays.unreplayed(session, scene.project, KEY, TARGET, {HERE}, n, **options)  # type: ignore[arg-type]
            assert all(features == b"features of %d" % traces[c.trace] for c, features in found)
            return [traces[candidate.trace] for candidate, _ in found]

        assert unreplayed() == [2, 3, 4], "the fastest first; never what failed everywhere"
        digests = [c.digest for c in candidates(0, 6)]
        assert unreplayed(2, first=digests[4]) == [4, 2]
        assert unreplayed(without=[digests[2]]) == [3, 4]
        assert unreplayed(0) == []
    scene.issue(candidates(2, 3), Purpose.REPLAY)
    with scene.database.transaction() as session:
        assert unreplayed() == [3, 4], "the other waits for being replayed"


def test_a_replayed_candidate_may_be_issued_again_and_is_a_trial_like_any_other(scene: Scene) -> None:
    scene.issue(candidates(0, 2))
    grant = scene.granted()
    scene.report(grant, [timed(c.digest) for c in grant.candidates], final=True)
    assert scene.issue(candidates(0, 2)) == 0
    for _ in range(2):
        assert scene.issue(candidates(0, 2), Purpose.REPLAY) == 2
        grant = scene.granted()
        assert grant.purpose is Purpose.SEARCH
        scene.report(grant, [timed(grant.candidates[0].digest), failed(grant.candidates[1].digest)], final=True)
        scene.report(grant, [timed(grant.candidates[0].digest), failed(grant.candidates[1].digest)], final=True)
    assert scene.trials() == (6, 2)
    with scene.database.transaction() as session:
        assert replays.failures(session, scene.job, KEY, TARGET).count(None) == 2
        assert batches.charged_early(session, scene.job) == {(KEY, TARGET.key): 6}
        (purposes,) = batches.purposes(session, scene.job).values()
        assert purposes == {(Purpose.SEARCH, False), (Purpose.REPLAY, False)}


def test_an_effort_belongs_to_the_circumstances_that_it_was_spent_under(scene: Scene) -> None:
    (candidate,) = candidates(0, 1)
    older, newer = record(candidate), record(candidate, toolchain=NEWER)

    def found() -> tuple[float, Best]:
        with scene.database.reading() as session:
            (row, _), *_ = replays.standing(session, scene.project, TARGET, ()).values()
            best_ = records.best(session, scene.project, KEY, TARGET)
        assert best_ is not None
        return row.effort, best_

    with scene.database.transaction() as session:
        records.add(session, scene.project, [older, newer])
        records.set_best(session, scene.project, KEY, TARGET, best(older))
        records.add_effort(session, scene.project, KEY, TARGET, DEVICE.device_class, 64.0)
        records.set_best(session, scene.project, KEY, TARGET, best(older))
    assert found()[0] == 64.0, "confirmed again under the same circumstances"
    with scene.database.transaction() as session:
        records.set_best(session, scene.project, KEY, TARGET, best(newer))
    assert found()[0] == 0.0, "and now under others"
    with scene.database.transaction() as session:
        records.set_best(session, scene.project, KEY, TARGET, best(older), effort=16.0, owed=64.0)
        records.add_effort(session, scene.project, KEY, TARGET, DEVICE.device_class, 8.0)
        (row, _), *_ = replays.standing(session, scene.project, TARGET, ()).values()
        assert (row.effort, row.owed) == (16.0, 0.0)


def test_where_a_schedule_was_found_first_is_kept_through_every_replay_and_told_by_explain(scene: Scene) -> None:
    (candidate,) = candidates(0, 1)
    first, second, third = (record(candidate, toolchain=t) for t in (TOOLCHAIN, NEWER, NEWER))
    with scene.database.transaction() as session:
        records.add(session, scene.project, [first])
        assert replays.first_found(session, scene.project, KEY, TARGET, best(first)) is None
        records.add(session, scene.project, [second, third])
        told = replays.first_found(session, scene.project, KEY, TARGET, best(second))
        assert told is not None, "its oldest time tells where nothing was served"
        assert (told.record, told.toolchain) == (first.id, TOOLCHAIN.key)
        records.set_best(session, scene.project, KEY, TARGET, best(first))
        told = replays.first_found(session, scene.project, KEY, TARGET, best(second))
        assert told is not None
        replayed = best(second).model_copy(update={"replayed_from": told})
        records.set_best(session, scene.project, KEY, TARGET, replayed)
        assert records.best(session, scene.project, KEY, TARGET) == replayed
        newest = best(third).model_copy(update={"toolchain": "tvm 0.29"})
        assert replays.first_found(session, scene.project, KEY, TARGET, newest) == told
        request = ExplainRequest(target=TARGET, workloads=(KEY,), toolchain="tvm 0.29")
        ((near,),) = [miss.nearest for miss in explanations.explain(session, scene.project, request).misses]
        assert (near.toolchain, near.replayed_from) == (NEWER.key, told)


def test_provenance_of_a_best_is_that_best(scene: Scene) -> None:
    one = best(record(candidates(0, 1)[0])).model_copy(update={"driver": "7.1"})
    told = one.provenance()
    assert isinstance(told, Earlier)
    assert (told.record, told.secs, told.driver, told.measured_at) == (one.record, one.secs, "7.1", one.confirmed_at)


def test_an_upgrade_needs_known_workloads_and_a_worker_and_is_submitted_once(scene: Scene) -> None:
    request = UpgradeRequest(target=TARGET, workloads=(KEY,), stage=UpgradeStage.REPLAY)
    with scene.database.transaction() as session:
        one, made = upgrades.submit(session, scene.project, request, "key")
        again, made_again = upgrades.submit(session, scene.project, request, "key")
    assert (made, made_again, one.id) == (True, False, again.id)
    assert (one.origin, one.budget.trials) == (JobOrigin.UPGRADE, REPLAYED)
    other = request.model_copy(update={"stage": UpgradeStage.RETUNE, "trials": REPLAYED})
    with pytest.raises(IdempotencyConflict), scene.database.transaction() as session:
        upgrades.submit(session, scene.project, other, "key")
    with pytest.raises(NotFound), scene.database.transaction() as session:
        upgrades.submit(session, scene.project, request.model_copy(update={"target": OTHER_TARGET}))
    with scene.database.transaction() as session:
        session.connection().exec_driver_sql("UPDATE workers SET state = 'lost'")
    with pytest.raises(NoDevice), scene.database.transaction() as session:
        upgrades.submit(session, scene.project, request)


def test_only_what_an_active_worker_could_confirm_is_outdated_and_a_reason_says_why(scene: Scene) -> None:
    add(scene, 0, 1e-3, DEVICE, NEWER)
    with scene.database.reading() as session:
        (one,) = upgrades.outdated(session, scene.project).items
        assert upgrades.outdated(session, scene.project, OTHER_TARGET).total == 0
    assert (one.workload, one.stage, one.reason) == (KEY, UpgradeStage.REPLAY, "confirmed with another toolchain")
    assert one.value_secs == pytest.approx(1.0 - 1e-3), "once in one model"
    scene.register("worker-b", toolchain=NEWER)
    with scene.database.reading() as session:
        assert upgrades.outdated(session, scene.project).total == 0
    assert one.served.measured_at > datetime.now(UTC) - timedelta(hours=1)
