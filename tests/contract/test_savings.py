"""What served schedules saved: the runs that deployments report, times what a run gains, by day and project."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pitchpipe.errors import IdempotencyConflict
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate
from pitchpipe.wire.miss import MissCount, MissReceipt, MissReport, ServedCount
from pitchpipe.wire.savings import Saved, SavedDay
from pitchpipe.wire.target import DeviceFingerprint, Target
from pitchpipe.wire.task import Workload
from service.db import Database, clock
from service.store import misses, records, savings
from tests.scene import DEVICE, OTHER_DEVICE, OTHER_TARGET, TARGET, WORKLOAD, Scene, candidates, record, task, timed

DAY_SECS = 86400.0
DEFAULT = candidates(90, 91)[0]
Sums = tuple[int, float, int, float]
"""Runs, seconds saved over the baseline; runs with a known default schedule, seconds saved over it."""
NOTHING = (0, 0.0, 0, 0.0)


def sums(of: Saved) -> Sums:
    return of.runs, of.baseline_saved_secs, of.default_runs, of.default_saved_secs


def about(runs: int, over_baseline: float, default_runs: int = 0, over_default: float = 0.0) -> Any:
    return pytest.approx((runs, over_baseline, default_runs, over_default))


class World(Scene):
    """A scene at noon, with a record that a deployment runs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        with database.reading() as session:
            database.clock_offset_secs += DAY_SECS / 2 - clock(session) % DAY_SECS
        self.served = self.recorded(candidates(0, 1)[0], 1e-3)

    def recorded(self, candidate: Candidate, secs: float, *, device: DeviceFingerprint = DEVICE) -> str:
        made = record(candidate, timed(candidate.digest, secs), device=device)
        with self.database.transaction() as session:
            records.add(session, self.project, [made])
        return made.id

    def count(
        self, runs: int, *, record: str | None = None, secs: float = 1e-3, baseline_secs: float | None = 4e-3
    ) -> ServedCount:
        return ServedCount(
            workload=WORKLOAD.digest,
            runs=runs,
            record=record or self.served,
            secs=secs,
            baseline_secs=baseline_secs,
        )

    def tell(
        self,
        *served: ServedCount,
        missed: dict[str, int] | None = None,
        target: Target = TARGET,
        key: str | None = None,
    ) -> MissReceipt:
        counts = tuple(MissCount(workload=workload, runs=runs) for workload, runs in (missed or {}).items())
        body = MissReport(target=target, misses=counts, served=served)
        with self.database.transaction() as session:
            return misses.report(session, self.project, body, key)

    def days(self, days: int = 3) -> tuple[SavedDay, ...]:
        with self.database.reading() as session:
            return savings.by_day(session, self.project, days).days

    def today(self) -> Sums:
        return sums(self.days(1)[0])


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def test_a_run_saves_what_the_schedule_is_faster_than_the_baseline(world: World) -> None:
    assert world.tell(world.count(1000)) == MissReceipt(counted=1)
    assert world.today() == about(1000, 3.0)
    world.tell(world.count(500, secs=2e-3, baseline_secs=3e-3))
    assert world.today() == about(1500, 3.5), "with the seconds of the look-up, not of what is served now"


def test_days_are_of_the_databases_clock_and_none_is_left_out(world: World) -> None:
    world.tell(world.count(1000))
    world.pass_time(2 * DAY_SECS)
    world.tell(world.count(3000))
    with world.database.reading() as session:
        today = datetime.fromtimestamp(clock(session), UTC).date()
        found = savings.by_day(session, world.project, 4)
    assert [each.day for each in found.days] == [today - timedelta(days=ago) for ago in (3, 2, 1, 0)]
    assert [each.runs for each in found.days] == [0, 1000, 0, 3000]
    assert sums(found.last(1)) == about(3000, 9.0)
    assert sums(found.last(7)) == about(4000, 12.0)


def test_a_report_counts_once(world: World) -> None:
    first = world.tell(world.count(10), key="key")
    assert world.tell(world.count(10), key="key") == first
    assert world.today()[0] == 10
    with pytest.raises(IdempotencyConflict):
        world.tell(world.count(11), key="key")
    assert world.today()[0] == 10


def test_what_is_missed_and_what_is_served_come_in_one_report(world: World) -> None:
    unknown = sha256(b"never seen")
    receipt = world.tell(world.count(10), missed={WORKLOAD.digest: 7, unknown: 1})
    assert receipt == MissReceipt(counted=1, unknown=(unknown,))
    with world.database.reading() as session:
        (miss,) = misses.list_(session, world.project)
    assert (miss.workload, miss.runs) == (WORKLOAD.digest, 7)
    assert world.today()[0] == 10
    assert world.tell() == MissReceipt(counted=0)


def test_only_records_of_the_project_for_that_workload_and_target_count(world: World) -> None:
    theirs = World(world.database)
    other = world.count(1).model_copy(update={"workload": sha256(b"another")})
    for wrong in (world.count(1, record=theirs.served), world.count(1, record=new_id("rec")), other):
        assert world.tell(wrong) == MissReceipt(counted=0)
    assert world.tell(world.count(1), target=OTHER_TARGET) == MissReceipt(counted=0)
    assert world.today() == theirs.today() == NOTHING


def test_a_baseline_that_ran_out_of_time_saves_nothing_that_is_known(world: World) -> None:
    world.tell(world.count(10, baseline_secs=None))
    assert world.today() == about(10, 0.0)


class TestDefaultSchedules:
    def planned(self, world: World, **fields: str | None) -> None:
        """A newer job knows the workload's default schedule, or its baseline."""
        world.submit(tasks=[task().model_copy(update=fields)])

    def test_what_is_saved_over_one_counts_where_it_was_timed(self, world: World) -> None:
        self.planned(world, fixed=DEFAULT.trace)
        world.tell(world.count(10))
        assert world.today() == about(10, 0.03)
        world.recorded(DEFAULT, 1.5e-3)
        world.recorded(DEFAULT, 1.2e-3)
        world.recorded(DEFAULT, 1.1e-3, device=OTHER_DEVICE)
        world.tell(world.count(100))
        assert world.today() == about(110, 0.33, 100, 0.02), "against the least of its times on such a device"

    def test_where_it_is_the_baseline_its_time_is_that_of_the_confirming_run(self, world: World) -> None:
        self.planned(world, fixed=DEFAULT.trace, baseline=DEFAULT.trace)
        world.recorded(DEFAULT, 9e-3)
        world.tell(world.count(10))
        assert world.today() == about(10, 0.03, 10, 0.03)
        world.tell(world.count(10, baseline_secs=None))
        assert world.today() == about(20, 0.03, 10, 0.03)
        self.planned(world, fixed=BASELINE_TRACE)
        world.tell(world.count(10))
        assert world.today() == about(30, 0.06, 20, 0.06)

    def test_one_that_was_faster_is_told(self, world: World) -> None:
        self.planned(world, fixed=DEFAULT.trace)
        world.recorded(DEFAULT, 0.5e-3)
        world.tell(world.count(10))
        assert world.today() == about(10, 0.03, 10, -0.005)


def test_many_workloads_and_reports_add_up(world: World) -> None:
    digests = [sha256(b"workload %d" % n) for n in range(3)]
    counts = []
    for digest in digests:
        (candidate,) = candidates(0, 1, digest)
        made = record(candidate, workload=digest)
        with world.database.transaction() as session:
            records.add(session, world.project, [made])
        counts.append(ServedCount(workload=digest, runs=2, record=made.id, secs=1e-3, baseline_secs=2e-3))
    world.submit(tasks=[task(Workload(digest=digest, ir="{}")) for digest in digests])
    assert world.tell(*counts).counted == 3
    world.tell(*counts)
    assert world.today() == about(12, 0.012)
