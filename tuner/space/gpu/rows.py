"""One kernel for a chain of stages that share their parallel iterations: reductions, softmax, norms, pooling, means,
depthwise convolutions, products with few rows.

A parallel iteration is a row here, and what a stage does in it, reduced or not, are its columns. A block of threads has
several rows, and every row has one or more threads, of which each takes every so-many-th vector of the columns:

    block of rows
      first stage                 thread: partial result over its columns, then one result of all threads of the row
      second stage ...            the same columns for the same threads
      last stage                  writes

The input is read from memory by the first stage, and from the L1 cache, in vectors, by those that follow: the rows of a
block are few enough for that. Neighbouring threads take what lies side by side in memory:

* columns (a softmax over the last axis): threads of a row are threadIdx.x, mostly a warp, and rows threadIdx.y;
* rows (pooling channels last, a mean over space): rows are threadIdx.x, and where these are few, the columns of each are
  divided among threadIdx.y.

A reduction of fewer columns than a row has threads, such as a softmax over one, is done by each of these.

The partial results of threads are stages of their own (rfactor), so that loads are vectors and loops that do not divide
keep their guards. Loops of stages are merged, not moved: TVM 0.27's compute_at loses such guards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.space.chain import parallel_candidates, shared_parallel_axes
from tuner.space.gpu.limits import NoSchedule
from tuner.space.gpu.mapping import Chain, Mapping, Stage
from tuner.space.gpu.stages import axis_loops, fused, reduction_axes
from tuner.space.gpu.vectors import computed_lanes, lanes_of, step
from tuner.space.inlining import is_reduction
from tuner.tvm_compat import ScheduleError, structural_walk, tirx

MAX_UNROLL, UNROLL = 16, 8
"""Turns of a thread's loop over its columns up to which the loop is unrolled, so that its loads are in flight together."""
SHUFFLED = {f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (32, 64)} | {"float16"}
"""Types that threads of a warp exchange through registers. Of others TVM 0.27 reduces a warp's values in shared memory below
a barrier that half of the warp does not reach, which CUDA leaves undefined: every thread of the row combines them itself."""


def find_chain(schedule: Any, blocks: Sequence[Any]) -> Chain | None:
    """The blocks as one chain with a reduction. None where they share no rows, or where a stage that reduces has axes that
    are neither rows nor reduced, or where one writes a result of the workload that another reads.
    """
    reductions = [block for block in blocks if is_reduction(schedule, block)]
    if not reductions or any(axis_loops(schedule, block) is None for block in blocks):
        return None
    first = min(reductions, key=lambda block: len(parallel_candidates(schedule, block)))
    shared = shared_parallel_axes(schedule, blocks, first, beside=True)
    if shared is None:
        return None
    definitions = [schedule.get(block) for block in blocks]
    if len({_extent(definition, axes) for definition, axes in zip(definitions, shared, strict=True)}) != 1:
        return None
    for number, definition in enumerate(definitions):
        later = {region.source for other in definitions[number + 1 :] for region in other.reads}
        read_later = [region.source for region in definition.writes if region.source in later]
        if read_later and (_is_result(schedule, read_later) or not is_reduction(schedule, blocks[number])):
            return None
        reduced = reduction_axes(definition)
        if reduced and _extent(definition, [*shared[number], *(axis.var for axis in reduced)]) != _extent(definition):
            return None
    order = _order(definitions, shared)
    shared = [tuple(axes[i] for i in order) for axes in shared]
    side_by_side = _side_by_side(definitions, shared)
    stages = tuple(
        Stage(
            block=block,
            rows=axes,
            reduces=is_reduction(schedule, block),
            columns=_extent(definition) // _extent(definition, axes),
            lanes=_column_lanes(definition, axes),
        )
        for block, definition, axes in zip(blocks, definitions, shared, strict=True)
    )
    row_extents = tuple(_extent(definitions[0], [axis]) for axis in shared[0])
    return Chain(
        stages=stages,
        row_extents=row_extents,
        side_by_side=side_by_side,
        # A vector of two rows of the last axis would be no part of what a thread keeps between stages.
        lanes=math.gcd(min(map(_row_lanes, definitions, shared)), *row_extents[-1:]) if side_by_side else 1,
        shuffled=all(
            str(region.source.dtype) in SHUFFLED
            for definition in definitions
            if reduction_axes(definition)
            for region in definition.writes
        ),
    )


def schedule_chain(schedule: Any, chain: Chain, mapping: Mapping) -> None:
    """Makes the chain one kernel."""
    stages: list[Stage] = []
    for stage in chain.stages:
        stages.append(stage)
        is_stored = stage is chain.stages[-1] or _writes_result(schedule, stage)
        if stage.reduces and is_stored and (chain.side_by_side or _reduced_by_each(stage, mapping)):
            stored = _stored_after(schedule, stage)
            if not stored and mapping.threads > 1:
                raise NoSchedule("several threads would sum up in one place")
            stages += stored
    for stage in stages[:-1]:
        written = schedule.get(stage.block).writes
        if not _is_result(schedule, [region.source for region in written]):
            for index in range(len(written)):
                schedule.set_scope(stage.block, index, "local")
    row, column = ("threadIdx.x", "threadIdx.y") if chain.side_by_side else ("threadIdx.y", "threadIdx.x")
    nests = [nest for stage in stages for nest in _nests(schedule, stage, chain, mapping, column)]
    if len(nests) > 1:
        schedule.merge(*(schedule.get_loops(nest.block)[1] for nest in nests))
    blocks, rows = list(schedule.get_loops(nests[0].block))[:2]
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(rows, row if mapping.threads > 1 else "threadIdx.x")
    for nest in nests:  # All before the first reduction is taken apart: TVM 0.27 vectorises no guarded loop beside one.
        if nest.vector:
            schedule.vectorize(schedule.get_loops(nest.block)[-1])
    for nest in nests:
        _finish(schedule, nest)


def _reduced_by_each(stage: Stage, mapping: Mapping) -> bool:
    """Whether every thread of a row reduces all columns of a stage. Where there are fewer than threads, some would have
    none, and TVM 0.27 leaves the partial result of such a thread unwritten, which the others read."""
    return stage.reduces and (mapping.threads == 1 or stage.columns < mapping.threads)


def _stored_after(schedule: Any, stage: Stage) -> list[Stage]:
    """Has a reduction sum up in registers, and returns the stages that store its results; none where their rows are not
    its axes."""
    writes = schedule.get(stage.block).writes
    indices = [dim.min for dim in writes[0].region]
    places = [[at for at, index in enumerate(indices) if index.same_as(row)] for row in stage.rows]
    if any(len(found) != 1 for found in places):
        return []
    blocks = [schedule.cache_write(stage.block, index, "local") for index in range(len(writes))]
    axes = [schedule.get(block).iter_vars for block in blocks]
    return [
        Stage(block=block, rows=tuple(of[at].var for (at,) in places), reduces=False, columns=1, lanes=1)
        for block, of in zip(blocks, axes, strict=True)
    ]


def _writes_result(schedule: Any, stage: Stage) -> bool:
    return _is_result(schedule, [region.source for region in schedule.get(stage.block).writes])


# -- what is found


def _extent(definition: Any, axes: Sequence[Any] | None = None) -> int:
    """Iterations of the axes with these variables; of all axes without them."""
    return math.prod(
        int(axis.dom.extent)
        for axis in definition.iter_vars
        if axes is None or any(axis.var.same_as(var) for var in axes)
    )


def _is_result(schedule: Any, buffers: Sequence[Any]) -> bool:
    """Whether one of the buffers is a parameter of the function."""
    params = list(schedule.mod["main"].params)
    return any(buffer.same_as(param) for buffer in buffers for param in params)


def _order(definitions: Sequence[Any], shared: Sequence[Sequence[Any]]) -> list[int]:
    """The order of row axes in which the last is one along which the largest read is contiguous, if any is."""
    order = list(range(len(shared[0])))
    best = 0
    last = None
    for definition, axes in zip(definitions, shared, strict=True):
        for read in definition.reads:
            size = _size(read)
            for number in order:
                (axis,) = (a for a in definition.iter_vars if a.var.same_as(axes[number]))
                if size > best and step(definition, read, [axis], 2) == 1:
                    best, last = size, number
    return order if last is None else [number for number in order if number != last] + [last]


def _side_by_side(definitions: Sequence[Any], shared: Sequence[Sequence[Any]]) -> bool:
    """Whether more of the largest operands of reductions are read along the last row axis than along the last reduced axis.
    What is small, as the means that a second reduction reads, says nothing."""
    reductions = [(each, rows) for each, rows in zip(definitions, shared, strict=True) if reduction_axes(each)]
    reads = [(_size(read), read, each, rows) for each, rows in reductions for read in each.reads]
    largest = max((size for size, *_ in reads), default=0)
    along_rows = along_columns = 0
    for size, read, definition, rows in reads:
        if size < largest:
            continue
        if rows:
            (last,) = (a for a in definition.iter_vars if a.var.same_as(rows[-1]))
            along_rows += step(definition, read, [last], 2) == 1
        along_columns += step(definition, read, reduction_axes(definition)[-1:], 2) == 1
    return along_rows > along_columns


def _size(region: Any) -> int:
    return math.prod(int(extent) for extent in region.source.shape)


def _column_axes(definition: Any, rows: Sequence[Any]) -> list[Any]:
    return [axis for axis in definition.iter_vars if not any(axis.var.same_as(row) for row in rows)]


def _column_lanes(definition: Any, rows: Sequence[Any]) -> int:
    axes = _column_axes(definition, rows)
    reduced = reduction_axes(definition)
    if not axes or (reduced and len(definition.writes) > 1 and _chooses(definition)):
        return 1
    return computed_lanes(definition, lanes_of(definition, axes, reads_decide=bool(reduced)))


def _chooses(definition: Any) -> bool:
    """Whether a block selects among values. TVM 0.27 stores the last lane of a vector of such a reduction in all lanes."""
    found: list[Any] = []
    structural_walk(definition.body, (tirx.Select, found.append))
    return bool(found)


def _row_lanes(definition: Any, rows: Sequence[Any]) -> int:
    """1 for reductions of several values at once: TVM does not vectorise them."""
    axes = [axis for row in rows for axis in definition.iter_vars if axis.var.same_as(row)]
    return 1 if not axes or len(definition.writes) > 1 else computed_lanes(definition, lanes_of(definition, axes))


# -- the loop nests


@dataclass(frozen=True, kw_only=True)
class _Nest:
    """A block with loops of its own: blocks, rows, threads of a row, turns, vector."""

    block: Any
    vector: bool = False
    turn: int | None = None
    """Place of the loop over a thread's turns, from outside."""
    turns: int = 1
    reduces: bool = False
    """Whether it is initialised before that loop."""


def _nests(schedule: Any, stage: Stage, chain: Chain, mapping: Mapping, column_threads: str) -> list[_Nest]:
    """Orders the loops of a stage; what a reduction by several threads becomes are two nests."""
    loops = axis_loops(schedule, stage.block)
    assert loops is not None
    definition = schedule.get(stage.block)
    places = {i: axis.var for i, axis in enumerate(definition.iter_vars)}
    rows = [loops[i] for row in stage.rows for i, var in places.items() if var.same_as(row)]
    columns = [loop for loop in loops if loop is not None and not any(loop.same_as(row) for row in rows)]
    if len(order := [*rows, *columns]) > 1:
        schedule.reorder(*order)
    column = fused(schedule, stage.block, columns) if columns else None
    inner: list[Any] = []
    if mapping.lanes > 1 and int(schedule.get(rows[-1]).extent) % mapping.lanes == 0:
        rows[-1], vector = schedule.split(rows[-1], [None, mapping.lanes])  # No condition on another axis has the lane.
        inner = [vector]
    row = fused(schedule, stage.block, rows)
    if mapping.lanes > 1 and not inner:
        row, vector = schedule.split(row, [None, mapping.lanes])
        inner = [vector]
    outer = list(schedule.split(row, [None, mapping.rows]))
    if column is None:
        if inner:
            schedule.reorder(*outer, *inner)
        return [_Nest(block=stage.block, vector=bool(inner))]
    alone = _reduced_by_each(stage, mapping)
    lanes = 1 if chain.side_by_side or alone else stage.lanes
    if lanes > 1:
        column, vector = schedule.split(column, [None, lanes])
        inner = [vector]
    if mapping.threads == 1 or alone:
        schedule.reorder(*outer, column, *inner)
        turns = stage.columns // lanes
        return [_Nest(block=stage.block, vector=bool(inner), turn=2, turns=turns, reduces=stage.reduces)]
    turn, thread = schedule.split(column, [None, mapping.threads])
    turns = -(-stage.columns // (lanes * mapping.threads))
    if not stage.reduces:
        schedule.reorder(*outer, thread, turn, *inner)
        schedule.bind(thread, column_threads)
        return [_Nest(block=stage.block, vector=bool(inner), turn=3, turns=turns)]
    schedule.reorder(*outer, turn, thread, *inner)
    if chain.side_by_side:
        return _summed_up_in_shared_memory(schedule, stage, thread, column_threads, turns)
    rank = len(definition.writes[0].region)
    partial = schedule.rfactor(schedule.fuse(thread, *inner) if inner else thread, rank)
    layout = None if chain.shuffled else _rows_in_order(schedule.get(partial), stage.rows)
    for index in range(len(definition.writes)):
        schedule.set_scope(partial, index, "local" if chain.shuffled else "shared")
        if layout is not None:
            schedule.transform_layout(partial, ("write", index), layout)
    *_, turn, thread = schedule.get_loops(partial)
    together = list(schedule.get_loops(stage.block))[-1]
    inner = []
    if lanes > 1:
        thread, vector = schedule.split(thread, [None, lanes])
        together, lane = schedule.split(together, [None, lanes])
        schedule.unroll(lane)
        inner = [vector]
    schedule.reorder(thread, turn, *inner)
    schedule.bind(thread, column_threads)
    if chain.shuffled:
        schedule.bind(together, column_threads)
    return [
        _Nest(block=partial, vector=bool(inner), turn=3, turns=turns, reduces=True),
        _Nest(block=stage.block),
    ]


def _summed_up_in_shared_memory(
    schedule: Any, stage: Stage, thread: Any, column_threads: str, turns: int
) -> list[_Nest]:
    """A reduction by rows that lie side by side: every thread reduces its columns in registers, writes the result to shared
    memory, and reduces those of all threads of its rows.

    TVM's own reduction between threads would have the threads of a warp use one bank, since their rows are apart there.
    """
    block = stage.block
    partial = schedule.rfactor(thread, 0)
    layout = _rows_in_order(schedule.get(partial), stage.rows)
    count = len(schedule.get(partial).writes)
    for index in range(count):
        schedule.set_scope(partial, index, "shared")
    stored = [schedule.cache_write(partial, index, "local") for index in range(count)]
    _, _, turn, thread, *vector = schedule.get_loops(partial)
    schedule.reorder(thread, turn, *vector)
    schedule.bind(thread, column_threads)
    for each in stored:
        schedule.reverse_compute_at(each, thread)
        if vector:
            schedule.vectorize(schedule.get_loops(each)[-1])
        if layout is not None:
            schedule.transform_layout(each, ("write", 0), layout)
    return [
        _Nest(block=partial, vector=bool(vector), turn=3, turns=turns, reduces=True),
        _Nest(block=block, vector=bool(vector), turn=2, turns=1, reduces=True),
    ]


def _rows_in_order(definition: Any, rows: Sequence[Any]) -> Any | None:
    """The layout of partial results in which their rows are one index, beside that of the threads of a row: so the rows of
    a block of threads are one range. Of ranges along several indices TVM 0.27 finds bounds that are far too wide. None where
    the rows are not the indices."""
    indices = [dim.min for dim in definition.writes[0].region]
    places = [[at for at, index in enumerate(indices) if index.same_as(row)] for row in rows]
    if any(len(found) != 1 for found in places):
        return None
    order = [at for (at,) in places]
    variables = [tirx.Var(f"x{number}", index.ty.dtype) for number, index in enumerate(indices)]
    row: Any = tirx.const(0, variables[0].ty.dtype)
    for at in order:
        row = row * definition.writes[0].source.shape[at] + variables[at]
    others = [(at, variable) for at, variable in enumerate(variables) if at not in order]
    before = [variable for at, variable in others if at < min(order, default=0)]
    return tirx.IndexMap(variables, [*before, row, *(variable for _, variable in others[len(before) :])], None)


def _finish(schedule: Any, nest: _Nest) -> None:
    """Unrolls a nest, and initialises its reduction before the loop over turns where TVM allows it.

    TVM 0.27 takes a second guarded reduction below merged loops for none. It is then initialised in the first turn, whose
    guard holds for every thread.
    """
    if nest.turn is None:
        return
    turn = schedule.get_loops(nest.block)[nest.turn]
    if nest.turns <= MAX_UNROLL:
        schedule.unroll(turn)
    elif nest.turns % UNROLL == 0:
        turn, inside = schedule.split(turn, [None, UNROLL])
        schedule.unroll(inside)
    if not nest.reduces:
        return
    try:
        start = schedule.decompose_reduction(nest.block, turn)
    except ScheduleError:
        return
    if nest.vector:
        schedule.vectorize(schedule.get_loops(start)[-1])
