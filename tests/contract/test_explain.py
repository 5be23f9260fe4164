"""Why a look-up missed: what is near, in which order, and what tells it apart. On both databases."""

from __future__ import annotations

import pytest

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.record import ExplainRequest, Explanation, Tier
from pitchpipe.wire.task import Signature, SignedWorkload, TensorShape, Workload
from service.db import Database
from service.store import explanations, workloads
from tests.contract.test_lookup import OLDER, World, cpu, gpu
from tests.scene import DEVICE, OTHER_DEVICE, TOOLCHAIN


def product(m: int, n: int, k: int, *, operators: str = "matmul_add", dtype: str = "float32") -> Signature:
    shapes = ((m, k), (k, n), (n,), (m, n))
    arguments = tuple(TensorShape(shape=shape, dtype=dtype) for shape in shapes)
    return Signature(
        operators=operators, anchor="SSR products", extents=(m, n, k), arguments=arguments, flops=2.0 * m * n * k
    )


def key(signature: Signature) -> str:
    return sha256(signature.model_dump_json().encode())


class Explained(World):
    """A world whose workloads have signatures."""

    def store(self, signature: Signature) -> str:
        with self.database.transaction() as session:
            workloads.put(session, self.project, Workload(digest=key(signature), ir="{}"), signature)
        return key(signature)

    def why(self, *wanted: str, signatures: tuple[Signature, ...] = ()) -> dict[str, Explanation]:
        request = ExplainRequest(
            target=cpu("znver5"),
            workloads=wanted,
            device_class=DEVICE.device_class,
            toolchain=TOOLCHAIN.key,
            signatures=tuple(SignedWorkload(workload=key(each), **each.model_dump()) for each in signatures),
        )
        with self.database.reading() as session:
            misses = explanations.explain(session, self.project, request).misses
        assert [miss.workload for miss in misses] == [each for each in wanted if each in {m.workload for m in misses}]
        return {miss.workload: miss for miss in misses}


def told(miss: Explanation) -> list[tuple[str, list[tuple[str, str, str]]]]:
    return [(near.workload, [(d.subject, d.asked, d.stored) for d in near.differences]) for near in miss.nearest]


def test_a_miss_is_told_from_the_same_workload_elsewhere(database: Database) -> None:
    world = Explained(database)
    exact, older, elsewhere, on_gpu = (sha256(name) for name in (b"exact", b"older", b"elsewhere", b"on a GPU"))
    world.serve(cpu("znver5"), workload=exact)
    world.serve(cpu("znver5"), workload=older, toolchain=OLDER, device=OTHER_DEVICE)
    world.serve(cpu("znver5", 8, "-avx512f"), workload=elsewhere)
    world.serve(gpu("sm_90"), workload=on_gpu)
    found = world.why(exact, older, elsewhere, on_gpu)
    assert list(found) == [older, elsewhere, on_gpu]
    classes = (f"device class {d.device_class[:16]}" for d in (DEVICE, OTHER_DEVICE))
    assert told(found[older]) == [
        (older, [("device", *classes), ("toolchain", TOOLCHAIN.key, OLDER.key)]),
    ]
    assert found[older].nearest[0].device_model == OTHER_DEVICE.model
    assert told(found[elsewhere]) == [
        (elsewhere, [("target", "mattr not named", "mattr ['-avx512f']"), ("target", "num-cores 2", "num-cores 8")])
    ]
    assert found[elsewhere].tier is Tier.COMPATIBLE_ISA
    (near,) = found[on_gpu].nearest
    assert ("target", "kind llvm", "kind cuda") in [(d.subject, d.asked, d.stored) for d in near.differences]
    assert "does not run" in near.differences[0].detail


def test_a_miss_is_told_from_its_neighbours_nearest_first(database: Database) -> None:
    world = Explained(database)
    mine = product(128, 768, 768)
    longer, half = product(130, 768, 768), product(128, 768, 768, dtype="float16")
    gelu, far = product(128, 768, 768, operators="matmul_add_gelu"), product(4096, 4096, 4096)
    unserved, convolution = (
        product(127, 768, 768),
        product(129, 768, 768).model_copy(update={"anchor": "SSSSRRR products"}),
    )
    for signature in (longer, gelu, half, far, convolution):
        world.serve(cpu("znver5"), workload=world.store(signature))
    world.store(unserved)
    asked = key(mine)
    assert world.why(asked)[asked].nearest == ()
    found = world.why(asked, signatures=(mine,))[asked]
    assert found.operators == "matmul_add"
    assert [near.workload for near in found.nearest] == [key(longer), *sorted((key(gelu), key(half)))]
    differences = dict(told(found))
    assert differences[key(longer)] == [("shape", "128x768x768", "130x768x768")]
    assert differences[key(gelu)] == [("epilogue", "matmul_add", "matmul_add_gelu")]
    assert differences[key(half)] == [
        ("element type", "float32, float32, float32, float32", ", ".join(["float16"] * 4))
    ]
    world.store(mine)
    assert world.why(asked)[asked] == found
    same = mine.model_copy(update={"flops": mine.flops + 1})
    world.serve(cpu("znver5"), workload=world.store(same))
    assert told(world.why(asked)[asked])[0] == (
        key(same),
        [("program", "another program of this signature", key(same)[:16])],
    )
    world.serve(gpu("sm_90"), workload=asked)
    assert world.why(asked)[asked].nearest[0].workload == key(same)


def test_neighbours_are_the_nearest_in_size_however_many_there_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Explained(database)
    monkeypatch.setattr(explanations, "NEIGHBOURS", 2)
    for n in range(45, 56):
        world.serve(cpu("znver5"), workload=world.store(product(16 * n, 64, 64)))
    mine = product(16 * 50 + 1, 64, 64)
    found = world.why(key(mine), signatures=(mine,))[key(mine)]
    assert [near.differences[0].stored for near in found.nearest] == [f"{m}x64x64" for m in (800, 816, 784)]


def test_a_workload_from_before_signatures_gets_one_when_it_is_tuned_again(database: Database) -> None:
    world, mine = Explained(database), product(8, 8, 8)
    with database.transaction() as session:
        workloads.put(session, world.project, Workload(digest=key(mine), ir="{}"))
    assert world.why(key(mine))[key(mine)].operators is None
    world.store(mine)
    with database.transaction() as session:
        workloads.put(session, world.project, Workload(digest=key(mine), ir="{}"))
    assert world.why(key(mine))[key(mine)].operators == "matmul_add"
