"""An attention as one kernel: scores, their softmax, and the product with the values, on tensor cores.

Notation: scores[s, i, j] = Q[s, i, :] . K[s, j, :]; s are batches and heads, i queries, j keys. P is the softmax of whatever
is made of the scores (scaled, masked), in half precision.

    block: queries i of one s
      copies of its Q and of all K into shared memory; warps: scores, into shared memory, in single precision
      a warp for each i: reductions over j (largest, sum of exponentials) in registers; P, into shared memory
      copy of all V into the memory that K had; warps: P V, summed over the warps along j, and what follows it, in vectors

What Q, K and V are joined of is read where they are copied. Keys beyond the last are zeros in K, in P and in V; the
reductions leave them out. So no extent has to be a multiple of 16. Of fewer than 32 keys fewer than 16 queries will do.
The scores of a block have to fit into its shared memory; attentions of more keys are three kernels (product.py).

The loops of each stage are made by themselves and then merged: TVM 0.27 moves no stage into loops any more once another
reads what guards have written (the largest score of rows that do not exist).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tuner.space.gpu.limits import MULTIPROCESSORS, Limits, NoSchedule, power_of_two
from tuner.space.gpu.operands import normal_form
from tuner.space.gpu.product import FEW_OF_BATCH, extents_of
from tuner.space.gpu.stages import axis_loops, fused
from tuner.space.gpu.tensor_cores import tensor_nest, tensor_type
from tuner.space.gpu.tiles import (
    CACHE_BYTES,
    COPY_BYTES,
    CORES,
    LATENCY,
    PAD,
    SIDE,
    SUM_LANES,
    SUM_PAD,
    TENSOR_CORES,
    THREADS,
    VECTOR,
    WARP,
    Product,
    Tile,
)
from tuner.space.inlining import is_reduction, root_blocks
from tuner.tvm_compat import ScheduleError, sym, tirx, uses

MOST_FRAGMENTS = 16
"""Of scores, of a warp, which keeps them in registers."""
STATIC_BYTES = 48 << 10
"""Of the static part of a block's shared memory. P is there because TVM 0.27 takes all of the dynamic part for one buffer,
and would put a barrier between reading a score and writing what is made of it."""
SCORE_OPERATIONS = 16
"""Of plain cores, for each score: two exponentials, a division, scale and mask, the reductions."""
ROW_CYCLES = 400
"""A warp's wait for the softmax of a row of at most one key a thread: two reductions, of five shuffles each."""


def schedule_attention(schedule: Any, limits: Limits) -> None:
    """Schedules a workload that is an attention of half precision; raises NoSchedule for any other, and for more keys than
    a block has shared memory for."""
    scores, rows, values = _stages(schedule)
    first, second = (extents_of(schedule.get(block)) for block in (scores, values))
    if (first.s, first.i, first.j) != (second.s, second.i, second.k):
        raise NoSchedule("the second product does not read the scores row by row")
    if min(first.i, first.j) == 1 or (first.i < SIDE and first.j >= WARP) or first.k < SIDE or second.j < FEW_OF_BATCH:
        raise NoSchedule("too small for tiles")
    of_scores, of_values = best_tiles(first, second.j, limits)
    values_turned = normal_form(schedule, values, of_values.i, of_values.j, of_values.k, rows_first=True)
    keys_turned = normal_form(schedule, scores, of_scores.i, of_scores.j, of_scores.k, rows_first=True)
    rows.append(schedule.get_producers(values)[0])  # P
    for block in rows:
        _inline_before(schedule, block)
    kinds = [_axis_kinds(schedule, block, scores) for block in rows]
    schedule.set_scope(rows[-1], 0, "shared")
    schedule.storage_align(rows[-1], 0, -2, SIDE, PAD)
    before = tensor_nest(schedule, scores, of_scores, keys_turned, stored=True)
    behind = tensor_nest(schedule, values, of_values, values_turned, copied=(1,))
    shape = of_scores.i, of_scores.threads // WARP
    nests = [_row_nests(schedule, block, kind, *shape) for block, kind in zip(rows, kinds, strict=True)]
    whole = [nest for found in nests for nest in found]
    schedule.merge(*(schedule.get_loops(nest)[2] for nest in whole))
    block = schedule.merge(before.block, schedule.get_loops(whole[0])[0], behind.block)
    schedule.bind(block, "blockIdx.x")
    schedule.bind(schedule.get_loops(whole[0])[2], "threadIdx.y")
    for partial, *together in nests:
        if together:
            with suppress(ScheduleError):  # Below guards it is initialised in the first turn (rows.py).
                schedule.decompose_reduction(partial, schedule.get_loops(partial)[-1])
    before.finish()
    behind.finish()


def best_tiles(scores: Product, columns: int, limits: Limits) -> tuple[Tile, Tile]:
    """The tiles of scores and of P V with `columns` columns, by an estimate of cycles: two waits for memory, the copies,
    the softmax, the products, one after another, and of few keys a warp's rows. Raises NoSchedule where none fits."""
    found = []
    for rows in (16, 32, 64):
        for warps in (1, 2, 4, 8) if scores.j < WARP else (4, 8):
            if (tiles := _tiles(scores, columns, rows, warps)) is None:
                continue
            tile, shared = tiles[0], _shared_bytes(*tiles)
            if tile.threads > limits.threads or shared is None or shared > limits.shared_bytes:
                continue
            blocks = scores.s * -(-scores.i // rows)
            room = max(min(limits.shared_bytes // shared, THREADS // tile.threads), 1)
            turns = -(-blocks // (MULTIPROCESSORS * room))
            beside = min(room, -(-blocks // MULTIPROCESSORS))
            copied = (rows * tile.k + tile.j * (tile.k + tiles[1].j)) * 2
            rate = min(COPY_BYTES, CACHE_BYTES / min(blocks, MULTIPROCESSORS))
            softmax = rows * tile.j * SCORE_OPERATIONS / CORES
            products = rows * tile.j * (tile.k + tiles[1].j) / TENSOR_CORES
            waits = 2 * LATENCY + (rows // warps * ROW_CYCLES if scores.j < WARP else 0)
            found.append((turns * (waits + beside * (copied / rate + softmax + products)), rows, -warps, tiles))
    if not found:
        raise NoSchedule("the scores of a block do not fit into its shared memory")
    return min(found, key=lambda each: each[:3])[3]


def _tiles(scores: Product, columns: int, rows: int, warps: int) -> tuple[Tile, Tile] | None:
    """The tiles of both products for so many rows and warps of a block; None where the work does not come out even."""
    down = rows // SIDE
    across = warps // down
    if not across:
        return None
    width = SIDE * across
    keys = -(-scores.j // width) * width
    length = _copied_length(scores.k, (rows, keys), warps * WARP)
    wide = max(power_of_two(columns), SIDE)
    beside = min(across, wide // SIDE)
    lines = warps * (WARP // min(wide // SUM_LANES, WARP))
    if keys // width > MOST_FRAGMENTS or wide // beside > SIDE * MOST_FRAGMENTS or rows % lines or rows % warps:
        return None
    return (
        Tile(i=rows, j=keys, k=length, rows=SIDE, columns=keys // across, warps=(down, across, 1)),
        Tile(i=rows, j=wide, k=keys, rows=SIDE, columns=wide // beside, warps=(down, beside, across // beside)),
    )


def _copied_length(length: int, rows: tuple[int, ...], threads: int) -> int:
    """The extent to which rows of Q and K are filled up with zeros: a multiple of a fragment's side, and if one is near, one
    at which every thread of a block copies the same number of vectors. Otherwise it would copy single elements."""
    lanes = next((n for n in (VECTOR, VECTOR // 2) if length % n == 0), 1)
    lengths = [-(-length // side) * side for side in (SIDE, 2 * SIDE, 4 * SIDE, 8 * SIDE)]
    return next((n for n in lengths if not any(each * n % (lanes * threads) for each in rows)), lengths[0])


def _shared_bytes(scores: Tile, values: Tile) -> int | None:
    """Of a block: P, and what lives at a time of Q, K, scores, V and sums; None where P is too large for its place."""
    shares = scores.i * (scores.j + PAD) * 2
    held = scores.i * (scores.j + SUM_PAD) * 4
    keys = (scores.i + scores.j) * (scores.k + PAD) * 2
    columns = max(values.k * (values.j + PAD), values.j * (values.k + PAD)) * 2
    sums = values.warps[2] * values.i * (values.j + SUM_PAD) * 4
    return shares + max(keys + held, held + columns, sums) if shares <= STATIC_BYTES else None


# -- what is found


def _stages(schedule: Any) -> tuple[Any, list[Any], Any]:
    """(scores, reductions of the rows of scores, P V), after every other stage but the result and the operands of products
    was inlined. Raises NoSchedule."""
    blocks = root_blocks(schedule)
    reductions = [block for block in blocks if is_reduction(schedule, block)]
    if len(reductions) < 3:
        raise NoSchedule("no attention")
    scores, *rows, values = reductions
    if any(tensor_type(schedule.get(block)) is None for block in (scores, values)):
        raise NoSchedule("no attention of half precision")
    products = {str(schedule.get(block).name_hint) for block in (scores, values)}
    for block in blocks:
        users = [str(schedule.get(user).name_hint) for user in schedule.get_consumers(block)]
        if users and not is_reduction(schedule, block) and products.isdisjoint(users):
            schedule.compute_inline(block)
    return scores, rows, values


def _inline_before(schedule: Any, block: Any) -> None:
    """Computes in a block what it reads, up to reductions."""
    for producer in schedule.get_producers(block):
        if not is_reduction(schedule, producer):
            _inline_before(schedule, producer)
            schedule.compute_inline(producer)


def _axis_kinds(schedule: Any, block: Any, scores: Any) -> list[str]:
    """s, i or j for each axis of a block that reads the scores [s, i, j] once. Raises NoSchedule where the axes of a kind,
    in their order, are not the index."""
    definition = schedule.get(block)
    (written,) = schedule.get(scores).writes
    reads = [read for read in definition.reads if read.source.same_as(written.source)]
    if len(reads) != 1:
        raise NoSchedule("a stage of the softmax does not read the scores once")
    indices = [dim.min for dim in reads[0].region]
    kinds = []
    for axis in definition.iter_vars:
        used = "".join(kind for kind, at in zip("sij", indices, strict=True) if uses(at, axis.var))
        kinds.append("s" if not used and int(axis.dom.extent) == 1 else used)
    analyzer = sym.Analyzer()
    for axis in definition.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    for kind, index in zip("sij", indices, strict=True):
        place: Any = tirx.const(0, index.ty.dtype)
        for axis, of in zip(definition.iter_vars, kinds, strict=True):
            place = place * axis.dom.extent + axis.var if of == kind else place
        if not analyzer.can_prove_equal(place, index):
            raise NoSchedule("a stage of the softmax reads the scores in another order")
    return kinds


# -- the loops


def _row_nests(schedule: Any, block: Any, kinds: Sequence[str], rows: int, warps: int) -> list[Any]:
    """The loops of a stage of the softmax: blocks, turns, warps, threads of a warp, turns over j. A reduction becomes two
    stages, of each thread and of the warp; one where threads have one j at most, and the last may have none."""
    loops = axis_loops(schedule, block)
    if loops is None or not set(kinds) <= set("sij"):
        raise NoSchedule("a stage of the softmax has loops that are not its axes")
    known = [(loop, kind) for loop, kind in zip(loops, kinds, strict=True) if loop is not None]
    groups = [[loop for loop, each in known if each == kind] for kind in "sij"]
    schedule.reorder(*(loop for group in groups for loop in group))
    batch, row, column = (fused(schedule, block, group) for group in groups)
    tile, turn, warp = schedule.split(row, [None, rows // warps, warps])
    around = schedule.fuse(batch, tile)
    is_short = int(schedule.get(column).extent) < WARP
    again, thread = schedule.split(column, [None, WARP])
    if is_short or not is_reduction(schedule, block):
        schedule.reorder(around, turn, warp, thread, again)
        schedule.bind(thread, "threadIdx.x")
        if is_reduction(schedule, block):
            schedule.set_scope(block, 0, "local")
        return [block]
    schedule.reorder(around, turn, warp, again, thread)
    partial = schedule.rfactor(thread, len(schedule.get(block).writes[0].region))
    for stage in (partial, block):
        schedule.set_scope(stage, 0, "local")
    *_, again, thread = schedule.get_loops(partial)
    schedule.reorder(thread, again)
    schedule.bind(thread, "threadIdx.x")
    schedule.bind(schedule.get_loops(block)[-1], "threadIdx.x")
    return [partial, block]
