"""Products of half precision on tensor cores, by products of 16 x 16 x 16 of a warp that sum in single precision.

block: a tile of i x j
  for k, in steps
    asynchronous copies of the parts of A and B of a later step into shared memory
    for k of the step, by 16; the warps of a block divide i, j and these among them
      warp: fragments of A and B from shared memory, its products
  warp: its sums, into shared memory
  block: sums of the warps along k, and what follows the product, in vectors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.space.gpu.limits import NoSchedule
from tuner.space.gpu.operands import inline_following, into_shared, may_be_vector, spread_copy
from tuner.space.gpu.tiles import PAD, SIDE, SUM_LANES, SUM_PAD, WARP, Tile
from tuner.tvm_compat import ir, structural_walk, tirx

INTRINSICS = {"float16": "f16", "bfloat16": "bf16"}
"""Type of the operands -> its name in TVM's tensor intrinsics."""
ASYNC_LANES = 2
"""Of 16 bits: the least that a thread may copy asynchronously."""
STAGED, STAGED_ORDER = (0, 0, 0, 0, 1), (0, 3, 1, 4, 2)
"""Where a copy cannot be asynchronous, a step consists of A from memory into registers, from there into shared memory,
likewise B, and the products: its loads run while the products of the step before are computed."""


def tensor_type(definition: Any) -> str | None:
    """The type of the operands of a product that tensor cores compute, summed in single precision; None for any other."""
    types = {str(region.source.dtype) for region in definition.reads}
    calls: list[Any] = []
    structural_walk(definition.body, (ir.Call, calls.append))
    if len(types) != 1 or calls or str(definition.writes[0].source.dtype) != "float32":
        return None
    (found,) = types
    return found if found in INTRINSICS else None


def tiled_for_tensor_cores(schedule: Any, main: Any, tile: Tile, transposed: bool) -> Callable[[], None]:
    """Makes a product in normal form one kernel; `transposed`: B is [s, j, k].

    Returns what is to be done last: after it, TVM moves no stage of the workload into loops any more. Raises NoSchedule for
    operands that tensor cores do not take.
    """
    nest = tensor_nest(schedule, main, tile, transposed)
    schedule.bind(nest.block, "blockIdx.x")
    return nest.finish


@dataclass(frozen=True, kw_only=True)
class Nest:
    """A product whose loops stand."""

    block: Any
    """The loop over thread blocks, which is still to be bound."""
    finish: Callable[[], None]
    """To be called last."""


def tensor_nest(
    schedule: Any, main: Any, tile: Tile, transposed: bool, *, copied: Sequence[int] = (0, 1), stored: bool = False
) -> Nest:
    """The loops of a product in normal form, on tensor cores.

    copied: the operands that are copied into shared memory; A is there otherwise, in its static part. stored: the result is
    left in shared memory, and warps do not divide k; else the block sums what its warps found and writes it with what
    follows.
    """
    kind = INTRINSICS.get(tensor_type(schedule.get(main)) or "")
    if kind is None:
        raise NoSchedule("no tensor core takes these operands")
    *_, loop_k = schedule.get_loops(main)
    if stored:
        partial, over_warps = main, []
        batch, loop_i, loop_j, _ = schedule.get_loops(main)
        ko, ki = schedule.split(loop_k, [None, tile.k])
    else:
        _, kw, _ = schedule.split(loop_k, [None, tile.warps[2], tile.k // tile.warps[2]])
        partial = schedule.rfactor(kw, 0)
        batch, loop_i, loop_j, ko, kw, ki = schedule.get_loops(partial)
        over_warps = [kw]
    oi, ii = schedule.split(loop_i, [None, SIDE])
    oj, ij = schedule.split(loop_j, [None, SIDE])
    ki, ik = schedule.split(ki, [None, SIDE])
    schedule.reorder(*over_warps, oi, oj, ko, ki, ii, ij, ik)
    outer = schedule.blockize(ii)
    bi, wi, ri = schedule.split(oi, [None, tile.warps[0], tile.rows // SIDE])
    bj, wj, rj = schedule.split(oj, [None, tile.warps[1], tile.columns // SIDE])
    schedule.reorder(batch, bi, bj, *over_warps, wi, wj, ko, ki, ri, rj)
    block = schedule.fuse(batch, bi, bj)
    warp = schedule.fuse(*over_warps, wi, wj)
    schedule.bind(warp, "threadIdx.y")
    _copy_operands(schedule, outer, ko, tile, copied)
    fragments = [schedule.cache_read(outer, read, f"wmma.matrix_{name}") for read, name in enumerate("ab")]
    for fragment in fragments:
        schedule.compute_at(fragment, ki)
    schedule.unroll(ki)
    schedule.set_scope(outer, 0, "shared.dyn")
    sums = schedule.cache_write(outer, 0, "wmma.accumulator")
    schedule.reverse_compute_at(sums, warp)
    kw = None if stored else _sum_warps(schedule, main, block, tile)

    def finish() -> None:
        if kw is not None:
            start = schedule.decompose_reduction(main, kw)
            schedule.vectorize(schedule.get_loops(start)[-1])
        start = schedule.decompose_reduction(outer, ko)
        turned = "_trans" if transposed else ""
        found = [(schedule.get_loops(schedule.get_child_blocks(start)[0])[-2], "wmma_fill_16x16x16_f32")]
        places = ("a_shared_dyn" if 0 in copied else "a_shared", f"b{turned}_shared_dyn")
        for fragment, place in zip(fragments, places, strict=True):
            found.append((by_fragments(schedule, fragment), f"wmma_load_16x16x16_{kind}_{place}"))
        written = schedule.blockize(by_fragments(schedule, sums))
        schedule.storage_align(written, 0, -2, SIDE, SUM_PAD)
        found.append((written, "wmma_store_16x16x16_f32_shared_dyn"))
        found.append((schedule.get_loops(partial)[-3], f"wmma_sync_16x16x16_{kind}{kind}f32{turned}"))
        for loop, intrinsic in found:
            schedule.tensorize(loop, intrinsic)

    return Nest(block=block, finish=finish)


def _copy_operands(schedule: Any, outer: Any, ko: Any, tile: Tile, operands: Sequence[int]) -> None:
    """Copies the parts of a step into shared memory, while the products of earlier steps are computed."""
    warps = math.prod(tile.warps)
    axes = [("threadIdx.y", warps), ("threadIdx.x", WARP)]
    copies = []
    for read in operands:
        copied = into_shared(schedule, outer, read, "shared.dyn", ko)
        lanes = spread_copy(schedule, copied, warps * WARP, axes, SIDE, PAD)
        copies.append((copied, lanes >= ASYNC_LANES and _moves(schedule.get(copied))))
    steps = int(schedule.get(ko).extent)
    if steps == 1:
        return
    if all(at_once for _, at_once in copies):
        stages, order = [0, 0, min(tile.stages, steps) - 1], [0, 1, 2]
        schedule.annotate(ko, "software_pipeline_async_stages", [0])
    else:
        stages, order = list(STAGED), list(STAGED_ORDER)
        for copied, _ in copies:
            schedule.annotate(copied, "tirx.manifest_shared_memory_local_stage", 1)
            schedule.annotate(copied, "double_buffer_scope", 0)
    schedule.annotate(ko, "software_pipeline_stage", stages)
    schedule.annotate(ko, "software_pipeline_order", order)


def _sum_warps(schedule: Any, main: Any, block: Any, tile: Tile) -> Any:
    """Threads of the block sum what its warps found, in vectors, and write it with what follows the product. Returns the
    loop over warps, before which the sum is to be initialised last: then TVM takes the block for no reduction any more."""
    schedule.reverse_compute_at(main, block, preserve_unit_loops=True)
    _, kw, _, row, column = schedule.get_loops(main)
    result = schedule.cache_write(main, 0, "local")
    across = min(tile.j // SUM_LANES, WARP)
    _, warp, line = schedule.split(row, [None, math.prod(tile.warps), WARP // across])
    turn, place, vector = schedule.split(column, [None, across, SUM_LANES])
    schedule.reorder(turn, warp, line, place, kw, vector)
    schedule.bind(warp, "threadIdx.y")
    thread = schedule.fuse(line, place)
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(result, thread)
    inline_following(schedule, result)
    if may_be_vector(schedule.get(result), SUM_LANES):
        schedule.vectorize(schedule.get_loops(result)[-1])
    schedule.vectorize(vector)
    schedule.unroll(kw)
    return kw


def _moves(definition: Any) -> bool:
    """Whether a block copies elements as they are, or puts zeros beyond an end."""
    value = definition.body.value
    while isinstance(value, ir.Call) and str(value.op.name).endswith("if_then_else"):
        value = value.args[1]
    return isinstance(value, ir.TensorLoad) and isinstance(definition.body, tirx.BufferStore)


def by_fragments(schedule: Any, block: Any) -> Any:
    """Divides the two innermost loops of a move of a tile into fragments; the loop over a fragment's rows."""
    loop_i, loop_j = schedule.get_loops(block)[-2:]
    oi, ii = schedule.split(loop_i, [None, SIDE])
    oj, ij = schedule.split(loop_j, [None, SIDE])
    schedule.reorder(oi, oj, ii, ij)
    schedule.unroll(oi)
    schedule.unroll(oj)
    return ii
