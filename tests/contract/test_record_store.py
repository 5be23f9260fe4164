"""What every RecordStore promises: in memory, on SQLite, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pitchpipe.errors import InvalidInput
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.measure import FailureKind
from pitchpipe.wire.record import LookupRequest, Origin, Tier
from pitchpipe.wire.target import Toolchain
from service.db import Database
from service.store import lookups, records, tokens
from service.store.record_store import SqlRecordStore
from tests.scene import (
    DEVICE,
    OTHER_DEVICE,
    OTHER_TARGET,
    TARGET,
    TOOLCHAIN,
    WORKLOAD,
    best,
    candidates,
    failed,
    record,
    timed,
)
from tuner.tuning.records import InMemoryRecordStore, RecordStore

KEY = WORKLOAD.digest
NewStore = Callable[[], RecordStore]


def project(database: Database, name: str = "records") -> str:
    with database.transaction() as session:
        return tokens.bootstrap(session, name)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> RecordStore:
    if request.param == "memory":
        return InMemoryRecordStore()
    database = request.getfixturevalue("sqlite_database" if request.param == "sqlite" else "postgres_database")
    return SqlRecordStore(database, project(database))


class TestRecordStore:
    def test_it_is_a_record_store(self, store: RecordStore) -> None:
        assert isinstance(store, RecordStore)

    def test_an_empty_store_knows_nothing(self, store: RecordStore) -> None:
        assert store.for_task(KEY, TARGET) == []
        assert store.best(KEY, TARGET) is None
        assert store.seen(KEY, TARGET) == frozenset()

    def test_records_come_back_equal_in_the_order_they_were_added(self, store: RecordStore) -> None:
        added = [record(c) for c in candidates(0, 20)]
        added[7] = record(candidates(7, 8)[0], failed(candidates(7, 8)[0].digest, FailureKind.WRONG_OUTPUT))
        store.add(added[:10])
        store.add(added[10:])
        assert store.for_task(KEY, TARGET) == added
        assert store.seen(KEY, TARGET) == {c.digest for c in candidates(0, 20)}

    def test_adding_a_record_again_changes_nothing(self, store: RecordStore) -> None:
        added = [record(c) for c in candidates(0, 3)]
        store.add(added)
        store.add([*added, record(candidates(3, 4)[0])])
        assert len(store.for_task(KEY, TARGET)) == 4

    def test_adding_nothing_is_allowed(self, store: RecordStore) -> None:
        store.add([])
        assert store.for_task(KEY, TARGET) == []

    def test_it_never_answers_for_another_target(self, store: RecordStore) -> None:
        mine = record(candidates(0, 1)[0])
        store.add([mine])
        store.set_best(KEY, TARGET, best(mine))
        for other in (OTHER_TARGET, TARGET.model_copy(update={"num_cores": 4})):
            assert store.for_task(KEY, other) == []
            assert store.best(KEY, other) is None
            assert store.seen(KEY, other) == frozenset()

    def test_it_never_answers_for_another_workload(self, store: RecordStore) -> None:
        mine = record(candidates(0, 1)[0])
        store.add([mine])
        store.set_best(KEY, TARGET, best(mine))
        other = sha256(b"another workload")
        assert store.for_task(other, TARGET) == []
        assert store.best(other, TARGET) is None

    def test_targets_that_are_equal_as_values_are_the_same_key(self, store: RecordStore) -> None:
        spelled = TARGET.model_copy(update={"mattr": ("+avx2", "+fma")})
        other = type(TARGET).model_validate(
            {"kind": "llvm", "mcpu": TARGET.mcpu, "num-cores": 2, "mattr": "+fma,+avx2,+fma"}
        )
        store.add([record(candidates(0, 1)[0], target=spelled)])
        assert len(store.for_task(KEY, other)) == 1

    def test_the_fastest_are_candidates_each_once_then_those_without_a_time(self, store: RecordStore) -> None:
        assert store.fastest(KEY, TARGET, 5) == ()
        a, b, c, d = candidates(0, 4)
        store.add([record(c, failed(c.digest)), record(d, failed(d.digest)), record(a, timed(a.digest, 3e-3))])
        # A confirming run times again what a search timed, and may fail where that did not.
        store.add([record(b, timed(b.digest, 2e-3)), record(a, timed(a.digest, 1e-3)), record(a, failed(a.digest))])
        ranked = ((a.trace, 1e-3), (b.trace, 2e-3), (c.trace, None), (d.trace, None))
        for n in range(6):
            assert store.fastest(KEY, TARGET, n) == ranked[:n]
        assert store.fastest(KEY, OTHER_TARGET, 5) == ()

    def test_a_later_best_replaces_the_earlier_one(self, store: RecordStore) -> None:
        first, second = (record(c) for c in candidates(0, 2))
        store.add([first, second])
        store.set_best(KEY, TARGET, best(first))
        store.set_best(KEY, TARGET, best(second, secs=5e-4))
        assert store.best(KEY, TARGET) == best(second, secs=5e-4).model_copy(
            update={"confirmed_at": store.best(KEY, TARGET).confirmed_at}  # type: ignore[union-attr]
        )

    def test_threads_add_at_once_and_nothing_is_lost(self, store: RecordStore) -> None:
        parts = [[record(c) for c in candidates(10 * n, 10 * n + 10)] for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store.add, parts))
        found = store.for_task(KEY, TARGET)
        assert {r.id for r in found} == {r.id for part in parts for r in part}
        assert len(found) == 80


class TestServedRecords:
    """What the database adds: only what is true can be served, and answers say what they are."""

    def test_only_a_true_confirmation_can_be_served(self, database: Database) -> None:
        mine, other = project(database), project(database, "other")
        one, two = candidates(0, 2)
        good, bad = record(one), record(two, failed(two.digest, FailureKind.WRONG_OUTPUT))
        elsewhere, foreign = record(one, target=OTHER_TARGET), record(one)
        with database.transaction() as session:
            records.add(session, mine, [good, bad, elsewhere])
            records.add(session, other, [foreign])
        refused = {
            "failed: wrong_output": best(bad),
            "is not a record of this workload and target": best(elsewhere),
            "is not a record": best(foreign),
            "another trace": best(good).model_copy(update={"trace": two.trace}),
            "another device class": best(good).model_copy(update={"device_class": OTHER_DEVICE.device_class}),
            "slower than the baseline": best(good, secs=3e-3),
            "is the baseline itself": best(good).model_copy(update={"record": None}),
        }
        for message, wrong in refused.items():
            with pytest.raises(InvalidInput, match=message), database.transaction() as session:
                records.set_best(session, mine, KEY, TARGET, wrong)
        with database.transaction() as session:
            assert records.best(session, mine, KEY, TARGET) is None
            records.set_best(session, mine, KEY, TARGET, best(good))
            assert records.best(session, mine, KEY, TARGET) is not None

    def test_a_best_whose_baseline_ran_out_of_time_has_no_time_of_it(self, database: Database) -> None:
        mine, (one, *_) = project(database), candidates(0, 1)
        made = record(one)
        with database.transaction() as session:
            records.add(session, mine, [made])
            records.set_best(session, mine, KEY, TARGET, best(made, baseline_secs=None))
            found = records.best(session, mine, KEY, TARGET)
        assert found is not None
        assert (found.record, found.baseline_secs) == (made.id, None)

    def test_the_baseline_can_win(self, database: Database) -> None:
        mine = project(database)
        won = best(record(candidates(0, 1)[0]), secs=2e-3).model_copy(update={"record": None})
        with database.transaction() as session:
            records.set_best(session, mine, KEY, TARGET, won)
            assert records.best(session, mine, KEY, TARGET) == won

    def test_a_transferred_schedule_never_takes_the_place_of_one_that_was_searched_for(
        self, database: Database
    ) -> None:
        mine = project(database)
        one, two, three = (record(c) for c in candidates(0, 3))
        fitted = {"origin": Origin.TRANSFERRED, "source": sha256(b"another workload")}
        with database.transaction() as session:
            records.add(session, mine, [one, two, three])
            for wrong in ({"origin": Origin.TRANSFERRED}, {"source": sha256(b"another workload")}):
                with pytest.raises(InvalidInput, match="names the workload"):
                    records.set_best(session, mine, KEY, TARGET, best(one).model_copy(update=wrong))
            for offered, served in (
                (best(one).model_copy(update=fitted), one),
                (best(two).model_copy(update=fitted), two),
                (best(three), three),
                (best(one, secs=5e-4).model_copy(update=fitted), three),
            ):
                records.set_best(session, mine, KEY, TARGET, offered)
                found = records.best(session, mine, KEY, TARGET)
                assert found is not None
                assert found.record == served.id

    def test_device_classes_have_bests_of_their_own_and_the_exact_one_is_preferred(self, database: Database) -> None:
        mine = project(database)
        one, two = candidates(0, 2)
        here, there = record(one), record(two, device=OTHER_DEVICE)
        with database.transaction() as session:
            records.add(session, mine, [here, there])
            records.set_best(session, mine, KEY, TARGET, best(here))
            records.set_best(session, mine, KEY, TARGET, best(there))

        def asked(device_class: str | None, toolchain: str | None) -> tuple[Tier, str | None, str]:
            request = LookupRequest(target=TARGET, workloads=(KEY,), device_class=device_class, toolchain=toolchain)
            with database.reading() as session:
                (answer,) = lookups.lookup(session, mine, request).answers
            return answer.tier, answer.best and answer.best.record, answer.reason

        for device, expected in ((DEVICE, here), (OTHER_DEVICE, there)):
            tier, found, _ = asked(device.device_class, TOOLCHAIN.key)
            assert (tier, found) == (Tier.EXACT, expected.id)
            tier, found, reason = asked(device.device_class, Toolchain(tvm="9", tvm_ffi="9", codegen="9").key)
            assert (tier, found) == (Tier.SAME_ARCH, expected.id)
            assert "another toolchain" in reason
        tier, found, reason = asked(sha256(b"unknown device"), TOOLCHAIN.key)
        assert tier is Tier.SAME_ARCH
        assert "another device class" in reason
        tier, _, reason = asked(None, None)
        assert tier is Tier.SAME_ARCH
        assert "not named" in reason
        store = SqlRecordStore(database, mine, device_class=DEVICE.device_class)
        served = store.best(KEY, TARGET)
        assert served is not None
        assert served.record == here.id

    def test_many_workloads_are_answered_in_the_order_they_were_asked(self, database: Database) -> None:
        mine = project(database)
        workloads = [sha256(str(n).encode()) for n in range(900)]
        known = workloads[::3]
        made = [record(candidates(n, n + 1, w)[0], workload=w) for n, w in enumerate(known)]
        with database.transaction() as session:
            records.add(session, mine, made)
            for one in made:
                records.set_best(session, mine, one.workload, TARGET, best(one))
        request = LookupRequest(target=TARGET, workloads=tuple(workloads))
        with database.reading() as session:
            answers = lookups.lookup(session, mine, request).answers
        assert [answer.workload for answer in answers] == workloads
        assert [answer.workload for answer in answers if answer.tier is not Tier.NONE] == known
        assert all((answer.best is None) == (answer.tier is Tier.NONE) for answer in answers)

    def test_lists_page_newest_first_and_filter(self, database: Database) -> None:
        mine = project(database)
        made = [record(c, None if n % 2 else failed(c.digest)) for n, c in enumerate(candidates(0, 9))]
        with database.transaction() as session:
            records.add(session, mine, [*made, record(candidates(9, 10)[0], target=OTHER_TARGET)])

        def all_pages(**filters: object) -> list[str]:
            found, cursor = [], None
            while True:
                with database.reading() as session:
                    items, cursor = records.list_(session, mine, cursor=cursor, limit=4, **filters)  # type: ignore[arg-type]
                found += [item.id for item in items]
                if cursor is None:
                    return found

        assert all_pages(target=TARGET) == sorted((one.id for one in made), reverse=True)
        assert set(all_pages(timed=False)) == {one.id for one in made[::2]}
        assert all_pages(workload=sha256(b"another")) == []
        assert len(all_pages()) == 10

    def test_of_several_efforts_the_largest_is_kept(self, database: Database) -> None:
        mine, other = project(database), project(database, "other")
        made = record(candidates(0, 1)[0])
        with database.transaction() as session:
            records.add(session, mine, [made])
            records.set_best(session, mine, KEY, TARGET, best(made))
            assert records.efforts(session, mine, [KEY], TARGET) == {}
            for effort in (32.0, 64.0, 16.0):
                records.add_effort(session, mine, KEY, TARGET, DEVICE.device_class, effort)
            records.add_effort(session, mine, KEY, TARGET, OTHER_DEVICE.device_class, 640.0)
            assert records.efforts(session, mine, [KEY, sha256(b"another")], TARGET) == {KEY: 64.0}
            assert records.efforts(session, mine, [KEY], OTHER_TARGET) == {}
            assert records.efforts(session, other, [KEY], TARGET) == {}

    def test_the_same_record_id_in_two_projects_is_two_records(self, database: Database) -> None:
        mine, other = project(database), project(database, "other")
        one = record(candidates(0, 1)[0])
        for each in (mine, other):
            with database.transaction() as session:
                assert records.add(session, each, [one]) == 1
        for each in (mine, other):
            assert SqlRecordStore(database, each).for_task(KEY, TARGET) == [one]
