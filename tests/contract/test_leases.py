"""Leases: the cases worth a name. Random histories are in test_lease_machine.py."""

from __future__ import annotations

import pytest
import structlog

from pitchpipe.errors import InvalidReport, InvalidTransition, NotFound, StaleLease
from pitchpipe.wire.ids import json_digest, new_id
from pitchpipe.wire.job import JobState
from pitchpipe.wire.lease import LeaseRequest, Purpose, Steadiness, WorkerState
from pitchpipe.wire.measure import Failed, FailureKind
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import Target
from service.db import Database
from service.store import batches, jobs, leases, records, samples, workers
from service.store.endings import body_digest
from tests.scene import (
    DEVICE,
    OTHER_DEVICE,
    OTHER_TARGET,
    TARGET,
    TOOLCHAIN,
    TTL_SECS,
    WORKLOAD,
    Scene,
    candidates,
    failed,
    roofline,
    steadiness,
    timed,
)


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


def test_a_grant_carries_what_was_issued(scene: Scene) -> None:
    scene.issue(candidates(0, 5))
    grant = scene.granted(3)
    assert grant.candidates == tuple(candidates(0, 3))
    assert (grant.workload, grant.target, grant.purpose) == (WORKLOAD.digest, TARGET, Purpose.SEARCH)
    assert grant.ttl_secs == TTL_SECS


def test_no_work_is_no_grant(scene: Scene) -> None:
    assert scene.acquire() is None


def test_work_for_another_target_is_no_work(scene: Scene) -> None:
    scene.issue(candidates(0, 5))
    assert scene.acquire(worker=scene.register("gpu", target=OTHER_TARGET)) is None


def test_available_says_what_acquire_would_find(scene: Scene) -> None:
    def available() -> bool:
        with scene.database.reading() as session:
            return leases.available(session, scene.project, scene.worker)

    assert not available()
    scene.issue(candidates(0, 2))
    assert available()
    scene.granted()
    assert not available()
    scene.pass_time()
    assert available()


def test_a_partial_report_keeps_the_lease_and_a_final_one_gives_the_rest_back(scene: Scene) -> None:
    scene.issue(candidates(0, 4))
    grant = scene.granted()
    one, two, *_ = (c.digest for c in grant.candidates)
    assert scene.report(grant, [timed(one)]).lease_open
    assert scene.counts() == batches.Counts(issued=4, queued=0, leased=3, terminal=1)
    assert not scene.report(grant, [timed(two)], final=True).lease_open
    assert scene.counts() == batches.Counts(issued=4, queued=2, leased=0, terminal=2)
    assert len(scene.granted().candidates) == 2


def test_the_last_result_closes_the_lease_without_being_called_final(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    grant = scene.granted()
    assert not scene.report(grant, [timed(grant.candidates[0].digest)]).lease_open
    with pytest.raises(StaleLease), scene.database.transaction() as session:
        leases.heartbeat(session, scene.project, grant.lease, grant.fence, TTL_SECS)


def test_a_final_report_of_nothing_gives_everything_back_at_no_cost(scene: Scene) -> None:
    scene.issue(candidates(0, 3))
    for _ in range(5):
        assert scene.report(scene.granted(), [], final=True).accepted == 0
    assert scene.counts() == batches.Counts(issued=3, queued=3, leased=0, terminal=0)
    assert len(scene.granted().candidates) == 3, "what is given back was not lost, and is not leased alone"


def test_a_heartbeat_keeps_a_lease_alive(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    grant = scene.granted()
    for _ in range(4):
        scene.pass_time(0.8 * TTL_SECS)
        with scene.database.transaction() as session:
            assert not leases.heartbeat(session, scene.project, grant.lease, grant.fence, TTL_SECS).cancelled
        assert scene.expire() == 0
    assert scene.report(grant, [timed(grant.candidates[0].digest)]).accepted == 1


def test_only_time_expires_a_lease(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    scene.granted()
    scene.pass_time(0.9 * TTL_SECS)
    assert scene.expire() == 0
    scene.pass_time(0.2 * TTL_SECS)
    assert scene.expire() == 1


def test_a_dead_workers_candidates_are_offered_again_even_if_no_coordinator_runs(scene: Scene) -> None:
    scene.issue(candidates(0, 3))
    scene.granted()
    scene.pass_time()
    again = scene.granted(worker=scene.register("worker-b"))
    assert len(again.candidates) == 1, "what was lost once is leased alone"


def test_a_worker_that_starts_anew_holds_nothing_and_what_it_held_is_offered_at_once(scene: Scene) -> None:
    other = scene.register("worker-b")
    scene.issue(candidates(0, 4))
    old, others = scene.granted(2), scene.granted(2, worker=other)
    assert scene.register("worker-a") == scene.worker
    with pytest.raises(StaleLease):
        scene.report(old, [timed(old.candidates[0].digest)])
    assert len(scene.granted(worker=other).candidates) == 1
    assert scene.report(others, [timed(others.candidates[0].digest)]).accepted == 1


def test_a_candidate_that_loses_two_workers_is_quarantined_with_a_record(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    for _ in range(2):
        scene.granted()
        scene.pass_time()
    assert scene.acquire() is None
    assert scene.counts() == batches.Counts(issued=1, queued=0, leased=0, terminal=1)
    assert scene.trials() == (1, 1)
    with scene.database.reading() as session:
        (found,) = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
    assert isinstance(found.result, Failed)
    assert found.result.kind is FailureKind.WORKER_LOST
    assert "quarantined" in found.result.detail


def test_a_device_error_is_tried_again_once(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    for expected in (1, 0):
        grant = scene.granted()
        scene.report(grant, [failed(grant.candidates[0].digest, FailureKind.DEVICE_ERROR)])
        assert scene.counts().queued == expected
    with scene.database.reading() as session:
        (found,) = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
    assert isinstance(found.result, Failed)
    assert found.result.kind is FailureKind.DEVICE_ERROR
    assert "a test says so" in found.result.detail


def test_a_report_with_one_bad_result_stores_none_of_it(scene: Scene) -> None:
    scene.issue(candidates(0, 2))
    grant = scene.granted()
    good = timed(grant.candidates[0].digest)
    for bad in (timed(candidates(7, 8)[0].digest), good):
        with pytest.raises(InvalidReport):
            scene.report(grant, [good, bad])
    assert scene.counts().terminal == 0
    assert scene.report(grant, [good]).accepted == 1


def test_a_late_report_is_refused_whole_even_if_part_of_it_is_known(scene: Scene) -> None:
    scene.issue(candidates(0, 2))
    grant = scene.granted()
    known, new = (timed(c.digest) for c in grant.candidates)
    scene.report(grant, [known])
    scene.pass_time()
    with pytest.raises(StaleLease):
        scene.report(grant, [known, new])
    assert scene.report(grant, [known]).duplicates == 1
    assert scene.counts().terminal == 1


def test_a_result_that_is_sent_again_to_a_service_that_knows_more_fields_is_still_the_same() -> None:
    result = timed(candidates(0, 1)[0].digest).model_copy(update={"load": 1.0})
    before = {"outcome", "candidate", "run_secs", "check", "build_secs", "load"}
    assert body_digest(result) == json_digest(result.model_dump(mode="json", include=before))


def test_a_record_says_which_device_and_toolchain_measured_it(scene: Scene) -> None:
    scene.issue(candidates(0, 1), features={candidates(0, 1)[0].digest: b"features"})
    worker = scene.register("another", device=OTHER_DEVICE)
    grant = scene.granted(worker=worker)
    scene.report(grant, [timed(grant.candidates[0].digest, 2e-3)])
    with scene.database.reading() as session:
        (found,) = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
        (finished,) = batches.finished(session, scene.job)
        (sample,) = samples.newest(session, scene.project, "llvm", 10)
        assert samples.newest(session, scene.project, "llvm", 10, after=sample.seq) == []
        assert samples.last(session, scene.project, "llvm") == sample.seq
        view = workers.get(session, scene.project, worker)
    assert (found.device, found.toolchain, found.worker) == (OTHER_DEVICE, TOOLCHAIN, worker)
    assert (finished.measured.device_class, finished.measured.toolchain) == (OTHER_DEVICE.device_class, TOOLCHAIN.key)
    assert finished.measured.records == (found.id,)
    assert (sample.workload, sample.features, sample.secs) == (WORKLOAD.digest, b"features", 2e-3)
    assert view.trials == 1


class TestConfirmation:
    def test_it_comes_before_searching_and_is_granted_whole(self, scene: Scene) -> None:
        scene.issue(candidates(0, 4))
        scene.issue(candidates(10, 14), Purpose.CONFIRM)
        grant = scene.granted(1)
        assert grant.purpose is Purpose.CONFIRM
        assert grant.candidates == tuple(candidates(10, 14)), "in the order issued: the baseline is the first"

    def test_it_is_not_charged(self, scene: Scene) -> None:
        scene.issue(candidates(0, 2), Purpose.CONFIRM)
        grant = scene.granted()
        scene.report(grant, [timed(c.digest) for c in grant.candidates])
        assert scene.trials() == (0, 0)

    def test_the_same_candidates_can_be_confirmed_again_and_again(self, scene: Scene) -> None:
        for _ in range(2):
            assert scene.issue(candidates(0, 2), Purpose.CONFIRM) == 2
            grant = scene.granted()
            scene.report(grant, [timed(c.digest) for c in grant.candidates])

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_a_finished_batch_says_whether_one_lease_measured_it(self, scene: Scene, interrupted: bool) -> None:
        scene.issue(candidates(0, 3), Purpose.CONFIRM)
        grant = scene.granted()
        if interrupted:
            scene.report(grant, [timed(grant.candidates[0].digest)])
            scene.pass_time()
            grant = scene.granted()
            assert len(grant.candidates) == 2, "the rest of it stays together"
        scene.report(grant, [timed(c.digest) for c in grant.candidates])
        with scene.database.reading() as session:
            (finished,) = batches.finished(session, scene.job)
        assert finished.measured.whole is not interrupted
        assert finished.measured.candidates == tuple(candidates(0, 3))


class TestRooflines:
    def known(self, scene: Scene) -> list[Roofline | None]:
        with scene.database.reading() as session:
            return workers.rooflines(session, scene.project, TARGET)

    def test_a_worker_keeps_its_roofline_as_long_as_it_has_the_same_device_and_target(self, scene: Scene) -> None:
        assert self.known(scene) == [None]
        scene.register("worker-a", roofline=roofline(1.0))
        scene.register("worker-a")
        assert self.known(scene) == [roofline(1.0)]
        scene.register("worker-a", roofline=roofline(2.0))
        assert self.known(scene) == [roofline(2.0)]
        scene.register("worker-a", device=OTHER_DEVICE)
        assert self.known(scene) == [None]
        scene.register("worker-a", roofline=roofline(3.0))
        scene.register("worker-a", target=OTHER_TARGET)
        assert self.known(scene) == []

    def test_only_active_workers_of_the_target_count(self, scene: Scene) -> None:
        scene.register("gpu", target=OTHER_TARGET, roofline=roofline(1.0))
        second = scene.register("worker-b", roofline=roofline(2.0))
        assert sorted(self.known(scene), key=str) == sorted([None, roofline(2.0)], key=str)
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, scene.worker, WorkerState.DRAINING)
            assert workers.get(session, scene.project, second).roofline == roofline(2.0)
        assert self.known(scene) == [roofline(2.0)]


class TestSteadiness:
    def shown(self, scene: Scene, worker: str | None = None) -> Steadiness | None:
        with scene.database.reading() as session:
            return workers.get(session, scene.project, worker or scene.worker).steadiness

    def test_the_worker_of_a_lease_shows_what_it_last_reported_until_it_registers_again(self, scene: Scene) -> None:
        other = scene.register("worker-b")
        scene.issue(candidates(0, 2))
        grant = scene.granted()
        assert self.shown(scene) is None
        first, second = ([timed(c.digest)] for c in grant.candidates)
        scene.report(grant, first, noisy=True)
        assert self.shown(scene) == steadiness(noisy=True)
        scene.report(grant, second)
        assert scene.report(grant, first, noisy=False).duplicates == 1
        assert self.shown(scene) == steadiness(noisy=True), "the lease had ended"
        assert self.shown(scene, other) is None
        scene.register("worker-a")
        assert self.shown(scene) is None

    def test_a_noisy_worker_confirms_only_where_no_other_would(self, scene: Scene) -> None:
        def available(worker: str) -> bool | None:
            with scene.database.reading() as session:
                return leases.available(session, scene.project, worker)

        scene.issue(candidates(0, 1))
        grant = scene.granted()
        scene.register("gpu", target=OTHER_TARGET)
        quiet = scene.register("worker-b")
        scene.report(grant, [timed(grant.candidates[0].digest)], noisy=True)
        scene.issue(candidates(10, 12), Purpose.CONFIRM)
        assert not available(scene.worker)
        assert scene.acquire() is None
        assert available(quiet)
        scene.issue(candidates(1, 2))
        assert scene.granted().purpose is Purpose.SEARCH
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, quiet, WorkerState.DRAINING)
        assert available(scene.worker)
        assert scene.granted().purpose is Purpose.CONFIRM

    def test_the_log_tells_when_a_worker_turns_noisy_or_quiet_but_not_of_a_refused_report(self, scene: Scene) -> None:
        scene.issue(candidates(0, 1))
        grant = scene.granted()
        with structlog.testing.capture_logs() as lines:
            for noisy in (False, True, True):
                scene.report(grant, [], noisy=noisy)
            with pytest.raises(InvalidReport):
                scene.report(grant, [timed(candidates(7, 8)[0].digest)], noisy=False)
            scene.report(grant, [], noisy=False)
        told = [(line["log_level"], line["event"], line["name"]) for line in lines]
        assert told == [("warning", "worker is noisy", "worker-a"), ("info", "worker is quiet again", "worker-a")]


class TestIssuing:
    def test_a_candidate_is_searched_once_however_often_it_is_proposed(self, scene: Scene) -> None:
        assert scene.issue(candidates(0, 4)) == 4
        assert scene.issue(candidates(0, 4)) == 0
        assert scene.issue([*candidates(2, 6), *candidates(5, 6)]) == 2
        other = scene.submit()
        assert scene.issue(candidates(0, 7), job=other) == 1

    def test_what_was_cancelled_unmeasured_can_be_proposed_again(self, scene: Scene) -> None:
        scene.issue(candidates(0, 3))
        grant = scene.granted(1)
        scene.report(grant, [timed(grant.candidates[0].digest)])
        with scene.database.transaction() as session:
            jobs.cancel(session, scene.project, scene.job)
            assert len(batches.seen(session, scene.project, WORKLOAD.digest, TARGET)) == 1
        assert scene.issue(candidates(0, 3), job=scene.submit()) == 2

    def test_a_job_that_ended_takes_no_more(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            jobs.cancel(session, scene.project, scene.job)
        with pytest.raises(InvalidTransition):
            scene.issue(candidates(0, 1))

    def test_finished_batches_are_given_until_they_are_observed(self, scene: Scene) -> None:
        scene.issue(candidates(0, 2))
        scene.issue(candidates(2, 4))
        grant = scene.granted()
        scene.report(grant, [timed(grant.candidates[0].digest), failed(grant.candidates[1].digest)])
        with scene.database.transaction() as session:
            (finished,) = batches.finished(session, scene.job)
            assert [r.outcome for r in finished.measured.results] == ["timed", "failed"]
            (open_,) = batches.open_(session, scene.job)
            assert (open_.candidates, open_.queued, open_.leased) == (2, 2, 0)
            batches.observed(session, [finished.batch])
            assert batches.finished(session, scene.job) == []

    def test_what_was_charged_before_its_batch_is_observed_is_told(self, scene: Scene) -> None:
        scene.issue(candidates(0, 4))
        grant = scene.granted()
        scene.report(grant, [timed(grant.candidates[0].digest), failed(grant.candidates[1].digest)])
        with scene.database.transaction() as session:
            assert batches.charged_early(session, scene.job) == {(WORKLOAD.digest, TARGET.key): 2}
        scene.report(grant, [timed(c.digest) for c in grant.candidates[2:]])
        with scene.database.transaction() as session:
            batches.observed(session, [found.batch for found in batches.finished(session, scene.job)])
            assert batches.charged_early(session, scene.job) == {}


class TestCancellation:
    def test_what_is_queued_is_cancelled_and_what_is_leased_may_still_be_reported(self, scene: Scene) -> None:
        scene.issue(candidates(0, 5))
        grant = scene.granted(3)
        with scene.database.transaction() as session:
            jobs.cancel(session, scene.project, scene.job)
            assert leases.heartbeat(session, scene.project, grant.lease, grant.fence, TTL_SECS).cancelled
        assert scene.counts() == batches.Counts(issued=5, queued=0, leased=3, terminal=2)
        scene.report(grant, [timed(grant.candidates[0].digest)], final=True)
        assert scene.counts() == batches.Counts(issued=5, queued=0, leased=0, terminal=5)
        assert scene.trials() == (1, 0)
        assert scene.acquire() is None

    @pytest.mark.parametrize("end", [JobState.FAILED, JobState.DONE])
    def test_any_end_of_a_job_cancels_its_queue(self, scene: Scene, end: JobState) -> None:
        scene.issue(candidates(0, 2))
        with scene.database.transaction() as session:
            jobs.transition(session, scene.job, end)
        assert scene.counts().terminal == 2

    def test_trials_that_are_withdrawn_end_their_batch_and_confirming_runs_stay(self, scene: Scene) -> None:
        scene.issue(candidates(0, 5))
        scene.issue(candidates(5, 7), Purpose.CONFIRM)
        confirming, grant = scene.granted(), scene.granted(3)
        scene.report(confirming, [], final=True)  # Queued again.
        with scene.database.transaction() as session:
            assert batches.withdraw(session, scene.job, [Purpose.SEARCH, Purpose.REPLAY]) == 2
        assert scene.counts() == batches.Counts(issued=7, queued=2, leased=3, terminal=2)
        scene.report(grant, [timed(candidate.digest) for candidate in grant.candidates])
        with scene.database.reading() as session:
            (ended,) = batches.finished(session, scene.job)
        assert (len(ended.measured.candidates), ended.measured.withdrawn) == (3, 2)
        assert ended.measured.worker == scene.worker
        assert ended.measured.granted_at is not None
        assert ended.measured.ended_at is not None
        assert ended.measured.granted_at <= ended.measured.ended_at
        assert scene.issue(candidates(3, 5)) == 2, "they may be proposed again"

    def test_who_measures_withdrawn_trials_is_told_and_what_is_handed_back_is_cancelled(self, scene: Scene) -> None:
        scene.issue(candidates(0, 3))
        scene.issue(candidates(5, 7), Purpose.CONFIRM)
        confirming, grant = scene.granted(), scene.granted(3)
        assert not scene.report(grant, [timed(grant.candidates[0].digest)]).cancelled
        with scene.database.transaction() as session:
            batches.withdraw(session, scene.job, [Purpose.SEARCH, Purpose.CONFIRM])
            assert leases.heartbeat(session, scene.project, grant.lease, grant.fence, TTL_SECS).cancelled
            held = confirming.lease, confirming.fence
            assert not leases.heartbeat(session, scene.project, *held, TTL_SECS).cancelled, "it goes on"
        answer = scene.report(grant, [timed(grant.candidates[1].digest)])
        assert (answer.accepted, answer.lease_open, answer.cancelled) == (1, True, True)
        scene.report(grant, [], final=True)
        with scene.database.reading() as session:
            (ended,) = batches.finished(session, scene.job)
        assert (len(ended.measured.results), ended.measured.withdrawn) == (2, 1)
        assert scene.trials() == (2, 0)
        assert not scene.report(confirming, [timed(one.digest) for one in confirming.candidates]).cancelled

    def test_a_batch_of_which_all_was_withdrawn_ends_without_results(self, scene: Scene) -> None:
        scene.issue(candidates(0, 5))
        with scene.database.transaction() as session:
            batches.withdraw(session, scene.job, [Purpose.SEARCH])
            (ended,) = batches.finished(session, scene.job)
        assert (ended.measured.results, ended.measured.withdrawn, ended.measured.worker) == ((), 5, None)
        assert scene.acquire() is None


class TestWorkers:
    def test_those_that_serve_a_target_are_counted(self, scene: Scene) -> None:
        def serving(*targets: Target) -> int:
            with scene.database.reading() as session:
                return workers.serving(session, scene.project, targets)

        scene.register("another")
        scene.register("a-gpu", target=OTHER_TARGET)
        assert (serving(TARGET), serving(OTHER_TARGET), serving(TARGET, OTHER_TARGET)) == (2, 1, 3)
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, scene.worker, WorkerState.GONE)
        assert serving(TARGET) == 1
        assert serving() == 0

    def test_a_draining_worker_gets_nothing_and_may_finish(self, scene: Scene) -> None:
        scene.issue(candidates(0, 2))
        grant = scene.granted(1)
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, scene.worker, WorkerState.DRAINING)
        assert scene.acquire() is None
        assert scene.report(grant, [timed(grant.candidates[0].digest)]).accepted == 1

    def test_a_worker_that_is_gone_registers_before_it_leases(self, scene: Scene) -> None:
        scene.issue(candidates(0, 2))
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, scene.worker, WorkerState.GONE)
        with pytest.raises(InvalidTransition, match="registers again"):
            scene.acquire()
        assert scene.register("worker-a") == scene.worker
        assert scene.acquire() is not None

    def test_a_silent_worker_is_lost_until_it_is_heard_of(self, scene: Scene) -> None:
        scene.issue(candidates(0, 4))
        grant = scene.granted(2)
        scene.pass_time(120)
        with scene.database.transaction() as session:
            assert workers.lost(session, 60.0) == [scene.worker]
            assert workers.lost(session, 60.0) == []
            assert workers.active(session, scene.project) == []
            assert leases.heartbeat(session, scene.project, grant.lease, grant.fence, TTL_SECS)
            assert [view.id for view in workers.active(session, scene.project)] == [scene.worker]

    def test_registering_again_describes_the_worker_anew(self, scene: Scene) -> None:
        assert scene.register("worker-a", device=OTHER_DEVICE) == scene.worker
        with scene.database.reading() as session:
            assert workers.get(session, scene.project, scene.worker).device == OTHER_DEVICE
            assert DEVICE != OTHER_DEVICE

    def test_an_invalid_transition_tells_the_history(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            workers.set_state(session, scene.project, scene.worker, WorkerState.DRAINING)
            workers.set_state(session, scene.project, scene.worker, WorkerState.GONE)
            with pytest.raises(InvalidTransition, match="active -> draining -> gone; it cannot become draining"):
                workers.set_state(session, scene.project, scene.worker, WorkerState.DRAINING)


def test_a_service_that_was_down_forgives_the_time(scene: Scene) -> None:
    scene.issue(candidates(0, 1))
    grant = scene.granted()
    scene.pass_time(10 * TTL_SECS)
    with scene.database.transaction() as session:
        assert leases.forgive(session, TTL_SECS) == 1
    assert scene.expire() == 0
    assert scene.report(grant, [timed(grant.candidates[0].digest)]).accepted == 1


def test_an_unknown_worker_or_lease_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound), scene.database.transaction() as session:
        leases.acquire(session, scene.project, LeaseRequest(worker=new_id("wrk")), TTL_SECS)
    with pytest.raises(NotFound), scene.database.transaction() as session:
        leases.heartbeat(session, scene.project, new_id("lea"), 1, TTL_SECS)


def test_leases_that_are_taken_back_are_counted(scene: Scene) -> None:
    def expired() -> int:
        with scene.database.reading() as session:
            return leases.expired(session)

    scene.issue(candidates(0, 4))
    assert expired() == 0
    scene.granted(2)
    scene.granted(2, worker=scene.register("worker-b"))
    scene.pass_time()
    scene.expire()
    assert expired() == 2
    scene.granted(1)
    scene.register("worker-a")
    assert expired() == 3, "its worker started anew"
    scene.report(scene.granted(1), [], final=True)
    assert expired() == 3


def test_queued_candidates_without_a_worker_are_told_apart_from_those_of_a_paused_job(scene: Scene) -> None:
    def unserved() -> int:
        with scene.database.reading() as session:
            return batches.unserved(session, scene.job)

    scene.issue(candidates(0, 3))
    assert unserved() == 0
    with scene.database.transaction() as session:
        workers.set_state(session, scene.project, scene.worker, WorkerState.GONE)
    scene.register("gpu", target=OTHER_TARGET)
    assert unserved() == 3
    with scene.database.transaction() as session:
        jobs.set_paused(session, scene.project, scene.job, paused=True)
    assert unserved() == 0
