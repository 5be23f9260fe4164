"""Products of half precision on tensor cores, by products of 16 x 16 x 16 of a warp that sum in single precision.

block: a tile of i x j
  for k, in steps
    copy of the step's parts of A and B into shared memory
    for k of the step, by 16
      warp: fragments of A and B from shared memory, its products
  warp: its part of the tile through shared memory, where what follows the product is computed in vectors
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.space.gpu.limits import NoSchedule
from tuner.space.gpu.operands import inline_following, into_shared, spread_copy
from tuner.space.gpu.vectors import step
from tuner.tvm_compat import ir, structural_walk

SIDE = 16
"""Of a fragment."""
PAD = 8
"""Elements between rows of shared memory beyond a multiple of 16, so that the rows of a fragment lie in different banks."""
INTRINSICS = {"float16": "f16", "bfloat16": "bf16"}
"""Type of the operands -> its name in TVM's tensor intrinsics."""
WARP = 32
STEP_STAGES, STEP_ORDER = (0, 0, 0, 0, 0, 1, 1), (0, 3, 1, 4, 5, 2, 6)
"""Of what a step consists of: A from memory into registers, from there into shared memory, likewise B; the first fragments,
all products but the last, the last. A step's loads from memory run while the products of the step before are computed."""


def tensor_type(definition: Any) -> str | None:
    """The type of the operands of a product that tensor cores compute, summed in single precision; None for any other."""
    types = {str(region.source.dtype) for region in definition.reads}
    calls: list[Any] = []
    structural_walk(definition.body, (ir.Call, calls.append))
    if len(types) != 1 or calls or str(definition.writes[0].source.dtype) != "float32":
        return None
    (found,) = types
    return found if found in INTRINSICS else None


def shared_bytes(i: int, j: int, k: int) -> int:
    """Of a block: parts of both operands, or its tile of the result."""
    return max((i + j) * (k + PAD) * 2, i * (j + 4 * j // SIDE) * 4)


def tiled_for_tensor_cores(
    schedule: Any, main: Any, i: int, j: int, k: int, warps: tuple[int, int], transposed: bool
) -> Callable[[], None]:
    """Schedules a product in normal form, tiles of i x j, k at a time; `transposed`: B is [s, j, k].

    Returns what is to be done last: after it, TVM moves no stage of the workload into loops any more. Raises NoSchedule for
    operands that tensor cores do not take.
    """
    kind = INTRINSICS.get(tensor_type(schedule.get(main)) or "")
    if kind is None:
        raise NoSchedule("no tensor core takes these operands")
    batch, loop_i, loop_j, loop_k = schedule.get_loops(main)
    oi, ii = schedule.split(loop_i, [None, SIDE])
    oj, ij = schedule.split(loop_j, [None, SIDE])
    ok, ik = schedule.split(loop_k, [None, SIDE])
    schedule.reorder(oi, oj, ok, ii, ij, ik)
    outer = schedule.blockize(ii)
    bi, wi, ri = schedule.split(oi, [None, warps[0], i // SIDE // warps[0]])
    bj, wj, rj = schedule.split(oj, [None, warps[1], j // SIDE // warps[1]])
    ko, ki = schedule.split(ok, [None, k // SIDE])
    schedule.reorder(batch, bi, bj, wi, wj, ko, ki, ri, rj)
    schedule.bind(schedule.fuse(batch, bi, bj), "blockIdx.x")
    warp = schedule.fuse(wi, wj)
    schedule.bind(warp, "threadIdx.y")
    count = warps[0] * warps[1]
    axes = [("threadIdx.y", count), ("threadIdx.x", WARP)]
    for read in range(2):
        copied = into_shared(schedule, outer, read, "shared.dyn", ko)
        spread_copy(schedule, copied, count * WARP, axes, SIDE, PAD)
        schedule.annotate(copied, "tirx.manifest_shared_memory_local_stage", 1)
        schedule.annotate(copied, "double_buffer_scope", 0)
    fragments = [schedule.cache_read(outer, read, f"wmma.matrix_{name}") for read, name in enumerate("ab")]
    for fragment in fragments:
        schedule.compute_at(fragment, ki)
    for loop, stages, order in ((ko, STEP_STAGES, STEP_ORDER), (ki, (0, 0, 1), (0, 1, 2))):
        schedule.annotate(loop, "software_pipeline_stage", list(stages))
        schedule.annotate(loop, "software_pipeline_order", list(order))
    result = schedule.cache_write(outer, 0, "shared.dyn")
    schedule.storage_align(result, 0, -2, SIDE, 4)
    sums = schedule.cache_write(outer, 0, "wmma.accumulator")
    for block in (sums, result):
        schedule.reverse_compute_at(block, warp)
    start = schedule.decompose_reduction(outer, ko)
    turned = "_trans" if transposed else ""
    found = [(schedule.get_loops(schedule.get_child_blocks(start)[0])[-2], "wmma_fill_16x16x16_f32")]
    for fragment, name in zip(fragments, ("a", f"b{turned}"), strict=True):
        found.append((_by_fragments(schedule, fragment), f"wmma_load_16x16x16_{kind}_{name}_shared_dyn"))
    found.append((_by_fragments(schedule, sums), "wmma_store_16x16x16_f32_shared_dyn"))
    found.append((schedule.get_loops(main)[-3], f"wmma_sync_16x16x16_{kind}{kind}f32{turned}"))
    inline_following(schedule, result)

    def finish() -> None:
        for loop, intrinsic in found:
            schedule.tensorize(loop, intrinsic)
        _write(schedule, result)

    return finish


def _write(schedule: Any, result: Any) -> None:
    """A warp writes its part of the tile in vectors."""
    definition = schedule.get(result)
    last = [definition.iter_vars[-1]]
    regions = [*definition.reads, *definition.writes]
    lanes = 4 if all(step(definition, region, last, 4, aligned=True) in (0, 1) for region in regions) else 1
    factors = [None, WARP, lanes] if lanes > 1 else [None, WARP]
    _, lane, *vector = schedule.split(schedule.fuse(*schedule.get_loops(result)[-2:]), factors)
    schedule.bind(lane, "threadIdx.x")
    for loop in vector:
        schedule.vectorize(loop)


def _by_fragments(schedule: Any, block: Any) -> Any:
    """Divides the two innermost loops of a move of a tile into fragments; the loop over a fragment's rows."""
    loop_i, loop_j = schedule.get_loops(block)[-2:]
    oi, ii = schedule.split(loop_i, [None, SIDE])
    oj, ij = schedule.split(loop_j, [None, SIDE])
    schedule.reorder(oi, oj, ii, ij)
    schedule.unroll(oi)
    schedule.unroll(oj)
    return ii
