"""What won inside models: what may be tried there, what is believed, and whom it is served to. On both databases."""

from __future__ import annotations

from typing import Any

import pytest

from pitchpipe.errors import InvalidInput
from pitchpipe.wire.context import (
    ChosenInContext,
    ContendersRequest,
    Context,
    InContext,
    Neighbours,
    WholeRun,
    contexts_of,
)
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.pin import Pin, PinRequest
from pitchpipe.wire.record import Best, LookupRequest, Placed, ScheduleAnswer, Tier, TuningRecord
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Workload
from service.db import Database
from service.store import contexts, lookups, pins, records, tokens, workloads
from service.store.values import target_digest
from tests.scene import DEVICE, OTHER_DEVICE, TOOLCHAIN, best, candidates, failed, record, timed

GPU = Target(kind="cuda", arch="sm_90")
A, B, C, D = (sha256(name.encode()) for name in "abcd")
HERE = contexts_of([A, B, C])[B]
ELSEWHERE = contexts_of([A, B, D])[B]
SLOW, FAST = WholeRun(run_secs=(3e-4,) * 18, processes=3), WholeRun(run_secs=(2.9e-4,) * 18, processes=3)


class World:
    """A project in which workload B is served, and three more of its candidates were timed."""

    def __init__(self, database: Database, *, serves: bool = True) -> None:
        self.database = database
        with database.transaction() as session:
            self.project = tokens.bootstrap(session, "default")
        self.timed = [self.add(number, 1e-6 * (number + 1)) for number in range(4)]
        if serves:
            self.serve(self.timed[0])

    def add(
        self, number: int, secs: float, *, device: DeviceFingerprint = DEVICE, toolchain: Toolchain = TOOLCHAIN
    ) -> TuningRecord:
        (candidate,) = candidates(number, number + 1, B)
        made = record(
            candidate, timed(candidate.digest, secs), workload=B, target=GPU, device=device, toolchain=toolchain
        )
        with self.database.transaction() as session:
            records.add(session, self.project, [made])
        return made

    def serve(self, of: TuningRecord, **changes: Any) -> Best:
        found = best(of, secs=1e-6, baseline_secs=5e-6).model_copy(update=changes)
        with self.database.transaction() as session:
            records.set_best(session, self.project, B, GPU, found)
        return found

    def won(self, of: TuningRecord | str | None, context: Context = HERE, **changes: Any) -> None:
        chosen = ChosenInContext(workload=B, context=context, record=of.id if isinstance(of, TuningRecord) else of)
        report = InContext(
            target=GPU, device_class=DEVICE.device_class, toolchain=TOOLCHAIN.key, model="bert", before=SLOW,
            after=FAST, chosen=(chosen,),
        ).model_copy(update=changes)  # fmt: skip
        with self.database.transaction() as session:
            contexts.put(session, self.project, report)

    def ask(self, context: Context | None = HERE, **changes: Any) -> ScheduleAnswer:
        asked = {"contexts": (Placed(workload=B, context=context.digest),)} if context is not None else {}
        fields = {"target": GPU, "device_class": DEVICE.device_class, "toolchain": TOOLCHAIN.key}
        request = LookupRequest(workloads=(B,), **{**fields, **asked, **changes})
        with self.database.reading() as session:
            (through_session,) = lookups.lookup(session, self.project, request).answers
        (answer,) = self.database.glance(lambda at: lookups.answer(at, self.project, request))[1].answers
        assert answer == through_session
        return answer

    def served(self, context: Context | None = HERE, **changes: Any) -> str:
        answer = self.ask(context, **changes)
        assert answer.best is not None
        assert answer.best.record is not None
        assert (answer.context is not None) == (answer.best.record != self.timed[0].id)
        return answer.best.record


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def test_what_won_is_served_in_its_context_and_nowhere_else(world: World) -> None:
    alone, other = world.timed[:2]
    world.won(other)
    assert world.served() == other.id
    assert world.served(ELSEWHERE) == alone.id
    assert world.served(None) == alone.id
    answer = world.ask()
    assert answer.best is not None
    assert (answer.best.trace, answer.best.secs, answer.best.baseline_secs) == (other.trace, 2e-6, 5e-6)
    assert answer.best.secs_low <= answer.best.secs <= answer.best.secs_high
    assert answer.context == HERE.digest
    assert "290 us in place of 300" in answer.reason


def test_what_nobody_confirmed_alone_is_served_where_it_won_over_the_baseline(database: Database) -> None:
    world = World(database, serves=False)
    first, second, third, _ = world.timed
    assert world.ask().tier is Tier.NONE
    world.won(second)
    answer = world.ask()
    assert answer.best is not None
    assert (answer.tier, answer.best.record, answer.best.baseline_secs) == (Tier.EXACT, second.id, None)
    assert (answer.measured_here, answer.context) == (True, HERE.digest)
    assert answer.provenance is not None
    assert (answer.provenance.target, answer.provenance.device_model) == (GPU, DEVICE.model)
    assert "not confirmed alone" in answer.reason
    for changes in ({"device_class": OTHER_DEVICE.device_class}, {"toolchain": "another"}, {"device_class": None}):
        assert world.ask(**changes).tier is Tier.NONE
    assert world.ask(ELSEWHERE).tier is Tier.NONE
    assert world.ask(None).tier is Tier.NONE
    world.won(third)
    assert world.served() == third.id
    world.serve(first)
    assert world.ask().context is None, "what is confirmed alone later was not tried there"


def test_models_of_one_family_have_equal_contexts() -> None:
    shallow = contexts_of([A, B, C, B, C, D])
    deep = contexts_of([A, B, C, B, C, B, C, B, C, D])
    assert shallow == deep
    assert set(shallow[B].neighbours) == {Neighbours(before=A, after=C), Neighbours(before=C, after=C)}
    assert shallow[A].neighbours == (Neighbours(before=None, after=B),)
    assert shallow[D].neighbours == (Neighbours(before=C, after=None),)
    assert contexts_of([]) == {}
    assert len({context.digest for context in shallow.values()}) == 4


def test_what_is_served_alone_later_was_not_tried_there_and_is_served(world: World) -> None:
    alone, other, newer, _ = world.timed
    world.won(other)
    world.serve(newer)
    found = world.ask().best
    assert found is not None
    assert found.trace == newer.trace
    world.serve(alone)
    assert world.served() == other.id, "the same candidate is served alone again"


def test_a_schedule_that_a_user_pinned_is_served_everywhere(world: World) -> None:
    alone, other = world.timed[:2]
    world.won(other)
    with world.database.transaction() as session:
        pins.hold(session, world.project, B, target_digest(GPU), DEVICE.device_class, pinned=True)
    assert world.served() == alone.id


def test_another_device_or_toolchain_is_not_told_what_won(world: World) -> None:
    world.won(world.timed[1])
    assert world.served(device_class=OTHER_DEVICE.device_class) == world.timed[1].id, "nothing else is there"
    newer = Toolchain(tvm="0.28", tvm_ffi="0.2", codegen="llvm 21")
    with_newer = world.add(0, 1e-6, toolchain=newer)
    world.serve(with_newer, toolchain=newer.key)
    answer = world.ask(toolchain=newer.key)
    assert answer.context is None


def test_a_later_verdict_takes_the_place_of_an_earlier_one(world: World) -> None:
    alone, other, third, _ = world.timed
    world.won(other)
    world.won(other)
    world.won(third)
    assert world.served() == third.id
    world.won(other)
    assert world.served() == other.id
    world.won(None)
    assert world.served() == alone.id
    world.won(other)
    world.won(alone)
    assert world.served() == alone.id


def test_a_verdict_changes_the_answers_tag(world: World) -> None:
    with world.database.reading() as session:
        before = lookups.generation(session, world.project)
    world.won(world.timed[1])
    with world.database.reading() as session:
        assert lookups.generation(session, world.project) > before


def test_a_record_says_in_which_contexts_it_won(world: World) -> None:
    other, third = world.timed[1:3]
    world.won(other)
    world.won(other, ELSEWHERE)
    world.won(third)
    with world.database.transaction() as session:
        workloads.put(session, world.project, Workload(digest=B, ir="{}"))
    with world.database.reading() as session:
        views = [records.view(session, world.project, one.id) for one in world.timed]
    assert [len(view.won_in) for view in views] == [0, 2, 1, 0]
    assert {one.context.digest: one.stands for one in views[1].won_in} == {HERE.digest: False, ELSEWHERE.digest: True}
    (won,) = views[2].won_in
    assert (won.context, won.model, won.before_secs, won.after_secs) == (HERE, "bert", 3e-4, 2.9e-4)


def test_a_lock_file_may_pin_what_won_and_what_had_won(world: World) -> None:
    other, third = world.timed[1:3]
    world.won(other)
    world.won(third)
    asked = PinRequest(target=GPU, pins=tuple(Pin(workload=B, record=one.id) for one in world.timed))
    with world.database.reading() as session:
        found = pins.resolve(session, world.project, asked).schedules
    assert [one.trace is not None for one in found] == [True, True, True, False]
    assert [one.served for one in found] == [True, False, True, False]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"after": SLOW}, "do not show"),
        ({"before": FAST, "after": SLOW}, "do not show"),
        ({"after": WholeRun(run_secs=(2.9e-4, 2.9e-4, 3.1e-4) * 6, processes=3)}, "do not show"),
        ({"after": WholeRun(run_secs=(2.9e-4,) * 18, processes=1)}, "do not show"),
        ({"device_class": OTHER_DEVICE.device_class}, "on another device class"),
        ({"toolchain": "another"}, "with another toolchain"),
        ({"target": Target(kind="cuda", arch="sm_100")}, "not a record"),
    ],
)
def test_a_claim_that_is_not_shown_changes_nothing(world: World, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        world.won(world.timed[1], **changes)
    assert world.served() == world.timed[0].id


def test_only_verified_records_of_the_workload_and_device_are_served(world: World) -> None:
    slower = world.add(8, 6e-6)
    elsewhere = world.add(9, 1e-6, device=OTHER_DEVICE)
    unknown = new_id("rec")
    (candidate,) = candidates(7, 8, A)
    foreign = record(candidate, workload=A, target=GPU)
    (wrong,) = candidates(10, 11, B)
    broken = record(wrong, failed(wrong.digest), workload=B, target=GPU)
    with world.database.transaction() as session:
        records.add(session, world.project, [foreign, broken])
    for one, says in (
        (slower, "slower than the baseline"),
        (elsewhere, "another device class"),
        (unknown, "not a record"),
        (foreign, "not a record"),
        (broken, "failed"),
    ):
        with pytest.raises(InvalidInput, match=says):
            world.won(one)
    assert world.served() == world.timed[0].id


def test_another_project_is_told_nothing(world: World) -> None:
    world.won(world.timed[1])
    with world.database.transaction() as session:
        other = tokens.bootstrap(session, "other")
    request = ContendersRequest(
        target=GPU, workloads=(B,), device_class=DEVICE.device_class, toolchain=TOOLCHAIN.key, each=4
    )
    with world.database.reading() as session:
        assert contexts.contenders(session, other, request).contenders == ()
        asked = LookupRequest(target=GPU, workloads=(B,), contexts=(Placed(workload=B, context=HERE.digest),))
        assert lookups.lookup(session, other, asked).answers[0].best is None


def test_contenders_are_what_is_served_and_the_fastest_each_once(world: World) -> None:
    world.serve(world.timed[2])
    again = world.add(1, 1.5e-6)
    world.add(6, 1e-7, device=OTHER_DEVICE)
    request = ContendersRequest(
        target=GPU, workloads=(A, B), device_class=DEVICE.device_class, toolchain=TOOLCHAIN.key, each=3
    )
    with world.database.reading() as session:
        found = contexts.contenders(session, world.project, request).contenders
    assert [one.record for one in found] == [world.timed[2].id, world.timed[0].id, again.id]
    assert {one.workload for one in found} == {B}
    assert [one.secs for one in found][1:] == [1e-6, 1.5e-6]


def test_what_nobody_confirmed_contends(database: Database) -> None:
    world = World(database, serves=False)
    request = ContendersRequest(
        target=GPU, workloads=(B,), device_class=DEVICE.device_class, toolchain=TOOLCHAIN.key, each=2
    )
    with database.reading() as session:
        found = contexts.contenders(session, world.project, request).contenders
    assert [one.record for one in found] == [one.id for one in world.timed[:2]]


def test_what_is_slower_alone_than_the_baseline_does_not_contend(world: World) -> None:
    world.serve(world.timed[0], baseline_secs=2.5e-6)
    request = ContendersRequest(
        target=GPU, workloads=(B,), device_class=DEVICE.device_class, toolchain=TOOLCHAIN.key, each=16
    )
    with world.database.reading() as session:
        found = contexts.contenders(session, world.project, request).contenders
    assert [one.record for one in found] == [one.id for one in world.timed[:2]]
