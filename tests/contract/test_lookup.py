"""What an asking device is given: each tier, each way to be given nothing, what is nearest. On both databases."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.record import LookupRequest, Origin, ScheduleAnswer, Tier
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from service.db import Database
from service.store import lookups, records, tokens
from tests.scene import DEVICE, OTHER_DEVICE, TOOLCHAIN, best, candidates, record

KEY = sha256(b"a workload")
OLDER = Toolchain(tvm="0.26", tvm_ffi="0.1", codegen="llvm 19")


def cpu(mcpu: str, cores: int = 2, *mattr: str) -> Target:
    return Target(kind="llvm", mcpu=mcpu, num_cores=cores, mattr=mattr)


def gpu(arch: str, shared_bytes: int | None = 49152, **limits: int) -> Target:
    return Target(kind="cuda", arch=arch, max_shared_memory_per_block=shared_bytes, **limits)


class World:
    """A project and what it serves; the number of a served schedule is in its trace."""

    def __init__(self, database: Database, name: str = "default") -> None:
        self.database = database
        with database.transaction() as session:
            self.project = tokens.bootstrap(session, name)
        self.served = 0

    def serve(
        self,
        target: Target,
        *,
        workload: str = KEY,
        device: DeviceFingerprint = DEVICE,
        toolchain: Toolchain = TOOLCHAIN,
        **changes: Any,
    ) -> str:
        """The trace of a newly served schedule."""
        made = record(
            candidates(self.served, self.served + 1, workload)[0], workload=workload, target=target, device=device
        )
        self.served += 1
        confirmed = best(made).model_copy(update={"toolchain": toolchain.key, **changes})
        with self.database.transaction() as session:
            records.add(session, self.project, [made])
            records.set_best(session, self.project, workload, target, confirmed)
        return made.trace

    def ask(self, target: Target, *, device: DeviceFingerprint = DEVICE, workload: str = KEY) -> ScheduleAnswer:
        request = LookupRequest(
            target=target, workloads=(workload,), device_class=device.device_class, toolchain=TOOLCHAIN.key
        )
        with self.database.reading() as session:
            (answer,) = lookups.lookup(session, self.project, request).answers
        assert answer.workload == workload
        assert (answer.best is None) == (answer.provenance is None) == (answer.tier is Tier.NONE)
        return answer


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def given(answer: ScheduleAnswer) -> tuple[Tier, str]:
    assert answer.best is not None
    return answer.tier, answer.best.trace


def test_an_exact_answer_says_whence_it_is(world: World) -> None:
    trace = world.serve(cpu("znver5"))
    answer = world.ask(cpu("znver5"))
    assert given(answer) == (Tier.EXACT, trace)
    assert answer.measured_here
    assert answer.provenance is not None
    assert answer.provenance.target == cpu("znver5")
    assert (answer.provenance.device_model, answer.provenance.worker) == (DEVICE.model, "test")


def test_another_device_or_toolchain_of_the_same_target_is_said_to_be_so(world: World) -> None:
    for served_on, toolchain, says in (
        (OTHER_DEVICE, TOOLCHAIN, "another device class"),
        (DEVICE, OLDER, "another toolchain"),
    ):
        workload = sha256(says.encode())
        trace = world.serve(cpu("znver5"), device=served_on, toolchain=toolchain, workload=workload)
        answer = world.ask(cpu("znver5"), workload=workload)
        assert given(answer) == (Tier.SAME_ARCH, trace)
        assert not answer.measured_here
        assert says in answer.reason
        assert f"the seconds are of {served_on.model}, not of the asking device" in answer.reason


COMPATIBLE = [
    (cpu("znver5"), cpu("znver4"), "znver5 has all its instructions"),
    (cpu("znver5"), cpu("x86-64-v4"), "znver5 has all its instructions"),
    (cpu("znver5"), cpu("haswell"), "made for vectors of 256 bits, not 512"),
    (cpu("znver5"), cpu("znver5", 64), "confirmed on 64 cores, not 2"),
    (cpu("x86-64-v3", 2, "+avx512f"), cpu("x86-64-v3"), "has all its instructions"),
    (cpu("neoverse-v1"), cpu("neoverse-n1"), "neoverse-v1 has all its instructions"),
    (gpu("sm_90", 232448), gpu("sm_90"), "limits include its"),
    (gpu("sm_90a"), gpu("sm_90"), "same architecture"),
]
UNCERTAIN = [
    (cpu("haswell"), cpu("x86-64-v4"), "haswell lacks avx512bw"),
    (cpu("znver4"), cpu("znver5"), "znver4 lacks"),
    (cpu("znver5"), cpu("neoverse-n1"), "is arm"),
    (cpu("znver5", 2, "-avx512f"), cpu("x86-64-v4"), "lacks avx512"),
    (cpu("znver5"), cpu("generic"), "nothing is known of a CPU named 'generic'"),
    (cpu("a-new-cpu"), cpu("x86-64-v2"), "nothing is known of a CPU named 'a-new-cpu'"),
    (cpu("znver5", 2, "+a-new-feature"), cpu("x86-64-v2"), "nothing is known of the attribute '+a-new-feature'"),
    (cpu("znver5", 2, "-sse2"), cpu("x86-64-v2"), "every CPU of the family has"),
    (gpu("sm_90"), cpu("znver5"), "a CPU schedule does not run on a CUDA device"),
    (cpu("znver5"), gpu("sm_90"), "a CUDA schedule does not run on a CPU device"),
    (gpu("sm_90"), gpu("sm_90a"), "sm_90 is another architecture"),
    (gpu("sm_90"), gpu("sm_80"), "another architecture"),
    (gpu("sm_90"), gpu("sm_90", 232448), "may use max_shared_memory_per_block 232448"),
    (gpu("sm_90"), gpu("sm_90", None), "max_shared_memory_per_block is not known of both"),
    (gpu("sm_90", thread_warp_size=32), gpu("sm_90", thread_warp_size=64), "warps have 64 threads"),
]


def test_what_a_device_has_for_certain_is_compatible(world: World) -> None:
    for asking, stored, says in COMPATIBLE:
        workload = sha256(says.encode() + stored.key.encode())
        trace = world.serve(stored, workload=workload)
        answer = world.ask(asking, workload=workload)
        assert given(answer) == (Tier.COMPATIBLE_ISA, trace)
        assert says in answer.reason
        assert not answer.measured_here
        assert answer.provenance is not None
        assert answer.provenance.target == stored


def test_what_is_not_certain_is_not_given(world: World) -> None:
    for asking, stored, why in UNCERTAIN:
        workload = sha256(why.encode())
        world.serve(stored, workload=workload)
        answer = world.ask(asking, workload=workload)
        assert answer.tier is Tier.NONE, (asking, stored)
        assert why in answer.reason


def test_other_projects_other_workloads_and_measurements_of_another_kind_give_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.serve(cpu("znver5"))
    assert World(world.database, "other").ask(cpu("znver5")).tier is Tier.NONE
    assert world.ask(cpu("znver5"), workload=sha256(b"another")).tier is Tier.NONE
    monkeypatch.setattr(lookups, "MEASURE_VERSION", lookups.MEASURE_VERSION + 1)
    assert world.ask(cpu("znver5")).tier is Tier.NONE


def test_of_several_that_fit_the_nearest_is_given(world: World) -> None:
    fitted = {"origin": Origin.TRANSFERRED, "source": sha256(b"another")}
    farthest_first: list[tuple[Target, dict[str, Any]]] = [
        (cpu("x86-64-v2"), fitted),
        (cpu("znver5", 4), fitted),
        (cpu("haswell"), {}),
        (cpu("znver5", 64), {}),
        (cpu("x86-64-v4"), {"device": OTHER_DEVICE}),
        (cpu("znver4"), {"device": OTHER_DEVICE}),
        (cpu("znver4"), {}),
        (cpu("znver5"), {"device": OTHER_DEVICE, "toolchain": OLDER}),
        (cpu("znver5"), {"device": OTHER_DEVICE}),
        (cpu("znver5"), {"toolchain": OLDER}),
    ]
    for stored, how in farthest_first:
        trace = world.serve(stored, **how)
        assert world.ask(cpu("znver5")).best is not None
        assert given(world.ask(cpu("znver5")))[1] == trace, stored
    # Those that do not fit change nothing.
    world.serve(cpu("diamondrapids"))
    world.serve(gpu("sm_90"))
    assert given(world.ask(cpu("znver5"))) == (Tier.SAME_ARCH, trace)


def test_a_transferred_schedule_is_called_so_wherever_it_was_confirmed(world: World) -> None:
    source = sha256(b"another")
    trace = world.serve(cpu("znver4"), origin=Origin.TRANSFERRED, source=source)
    here, there = world.ask(cpu("znver4")), world.ask(cpu("znver5"))
    assert given(here) == given(there) == (Tier.TRANSFERRED, trace)
    assert (here.measured_here, there.measured_here) == (True, False)
    assert source[:16] in here.reason
    assert "for znver4 on 2 cores: znver5 has all its instructions" in there.reason
    assert world.ask(cpu("haswell")).tier is Tier.NONE


def test_the_tag_of_an_answer_changes_when_what_is_served_does_and_only_then(world: World) -> None:
    asked = LookupRequest(target=cpu("znver5"), workloads=(KEY, sha256(b"another")))

    def tag(request: LookupRequest = asked, project: str = world.project) -> str:
        with world.database.reading() as session:
            return lookups.entity_tag(project, request, lookups.generation(session, project))

    seen = [tag()]
    assert tag() == seen[0]
    for _ in range(3):
        world.serve(cpu("x86-64-v2"))
        assert tag() not in seen
        seen.append(tag())
    World(world.database, "other").serve(cpu("znver5"))
    assert tag() == seen[-1]
    turned = asked.model_copy(update={"workloads": asked.workloads[::-1]})
    assert len({tag(), tag(turned), tag(project=World(world.database, "other").project)}) == 3


def test_a_glance_finds_what_a_transaction_finds(world: World) -> None:
    world.serve(cpu("znver4"), origin=Origin.TRANSFERRED, source=sha256(b"another"))
    for asking in (cpu("znver4"), cpu("znver5"), cpu("haswell")):
        request = LookupRequest(target=asking, workloads=(KEY, sha256(b"unknown")), toolchain=TOOLCHAIN.key)
        with world.database.reading() as session:
            expected = lookups.answer(session, world.project, request)
        for _ in range(7):  # the driver prepares what it has run five times
            assert world.database.glance(lambda at, asked=request: lookups.answer(at, world.project, asked)) == expected


def test_a_glance_goes_on_when_the_server_has_closed_its_connections(postgres_database: Database) -> None:
    world = World(postgres_database)
    world.serve(cpu("znver4"))
    request = LookupRequest(target=cpu("znver4"), workloads=(KEY,))
    before = postgres_database.glance(lambda at: lookups.answer(at, world.project, request))
    with postgres_database.transaction() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    assert postgres_database.glance(lambda at: lookups.answer(at, world.project, request)) == before
