"""Products and convolutions on a GPU's plain cores: tiles in shared memory, a smaller one in every thread's registers.

Notation: C[s, i, j] += A[s, i, k] * B[s, j, k]; s are the axes of all three (batches), i those of A and C (rows, positions
of an image), j those of B and C, k those that are summed (a window and its channels). Whatever axes a workload has are fused
into these four, so that a convolution is a product whose A is gathered while it is copied (implicit GEMM).

    block: a tile of i x j
      for k, in steps
        copy of the step's parts of A and B into shared memory, padded with zeros beyond their ends
        thread: its rows x columns of the tile, summed in registers
      what follows the product (bias, residual, activation), on the way to memory

Where there are fewer tiles than multiprocessors, k is divided among blocks, and a second kernel sums what these found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.space.gpu.limits import MULTIPROCESSORS, Limits
from tuner.space.gpu.plan import NoSchedule, schedule_in_order
from tuner.space.gpu.stages import axis_loops, fused
from tuner.space.gpu.vectors import step as distance
from tuner.space.inlining import is_reduction, root_blocks
from tuner.tvm_compat import tirx, tvm, uses

FEW = 16
"""Rows or columns below which a product is bound by memory, and rows.py has the better kernel."""
STEP = 16
"""Iterations of k for which parts of A and B are in shared memory."""
UNROLL = 512


@dataclass(frozen=True, kw_only=True)
class Tile:
    """i x j that a block computes, and what part of it a thread does."""

    i: int
    j: int
    rows: int
    columns: int
    parts: int = 1
    """Into how many k is divided."""

    @property
    def threads(self) -> int:
        return (self.i // self.rows) * (self.j // self.columns)


TILES = (
    Tile(i=128, j=128, rows=8, columns=8),
    Tile(i=128, j=64, rows=8, columns=4),
    Tile(i=64, j=128, rows=4, columns=8),
    Tile(i=64, j=64, rows=4, columns=4),
    Tile(i=32, j=64, rows=4, columns=4),
    Tile(i=64, j=32, rows=4, columns=4),
    Tile(i=32, j=32, rows=2, columns=4),
    Tile(i=16, j=64, rows=2, columns=4),
)
PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)
CORES = 128
"""Multiplications and additions of a multiprocessor in one cycle."""
STEP_CYCLES = 700
"""From the load of a step's parts to its end, where nothing else runs on the multiprocessor."""
SECOND_KERNEL = 3000
"""Cycles of a launch, and of what it waits for."""
BYTES_A_CYCLE = 2500
"""Of the device's L2 cache."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """The extents of a product's four axes."""

    s: int
    i: int
    j: int
    k: int


def schedule_product(schedule: Any, limits: Limits) -> None:
    """Schedules a workload with one product among element-wise stages; raises NoSchedule for any other."""
    main = _main(schedule)
    definition = schedule.get(main)
    kinds, found = _kinds(definition), _product(definition)
    tile = best_tile(found, limits)
    if tile.parts == 1:
        _tiled(schedule, main, tile)
        return
    # Axes of one iteration go first: once a loop is split, TVM binds them to no loop, and takes such a block for no product.
    variables = [axis.var for axis in definition.iter_vars]
    order = [*(v for v in variables if kinds.get(v, "k") != "k"), *(v for v in variables if kinds.get(v) == "k")]
    schedule.transform_block_layout(main, _moved_map(variables, order))
    summed = list(schedule.get_loops(main))[-sum(kinds[v] == "k" for v in order) :]
    part, _ = schedule.split(fused(schedule, main, summed), [tile.parts, None])
    parts = schedule.rfactor(part, 0)
    schedule.reorder(*(axis_loops(schedule, parts) or ()))
    _tiled(schedule, parts, tile)
    schedule_in_order(schedule, [main, *_following(schedule, main)], limits)


def best_tile(product: Product, limits: Limits) -> Tile:
    """The tile and the parts of k with the least modelled time."""
    found = [
        Tile(i=tile.i, j=tile.j, rows=tile.rows, columns=tile.columns, parts=parts)
        for tile in TILES
        for parts in PARTS
        if tile.threads <= limits.threads and product.k % parts == 0 and (parts == 1 or product.k // parts >= 4 * STEP)
    ]
    return min(found, key=lambda tile: _cycles(product, tile))


def _cycles(product: Product, tile: Tile) -> float:
    blocks = product.s * -(-product.i // tile.i) * -(-product.j // tile.j) * tile.parts
    steps = -(-product.k // tile.parts // STEP)
    turns = -(-blocks // MULTIPROCESSORS)
    # A thread loads rows + columns numbers from shared memory for rows * columns multiplications.
    useful = 1 / (1 + 1.5 * (tile.rows + tile.columns) / (tile.rows * tile.columns))
    computing = turns * tile.i * tile.j * steps * STEP / (CORES * useful)
    waiting = steps * STEP_CYCLES * max(1, turns / 4)
    written = product.s * product.i * product.j * tile.parts * 8 / BYTES_A_CYCLE if tile.parts > 1 else 0
    return max(computing, waiting) + (SECOND_KERNEL + written if tile.parts > 1 else 0)


# -- what is found


def _main(schedule: Any) -> Any:
    """The only reduction. What follows it becomes one stage, and what is beside the way to it is inlined there."""
    blocks = root_blocks(schedule)
    mains = [block for block in blocks if is_reduction(schedule, block)]
    if len(mains) != 1:
        raise NoSchedule(f"{len(mains)} reductions")
    (main,) = mains
    for block in blocks:
        if block is not main and schedule.get_consumers(block) and not _leads_to(schedule, block, main):
            schedule.compute_inline(block)
    return main


def _following(schedule: Any, block: Any) -> list[Any]:
    """The stages after a block, which have to be one after another."""
    found: list[Any] = []
    while users := schedule.get_consumers(found[-1] if found else block):
        if len(users) > 1:
            raise NoSchedule("several stages use the product")
        found.append(users[0])
    return found


def _leads_to(schedule: Any, block: Any, main: Any) -> bool:
    name = schedule.get(main).name_hint
    users = schedule.get_consumers(block)
    return any(schedule.get(user).name_hint == name or _leads_to(schedule, user, main) for user in users)


def _reduced(axis: Any) -> bool:
    return int(axis.iter_type) == tirx.IterVar.CommReduce


def _kinds(definition: Any) -> dict[Any, str]:
    """Variable of an axis -> s, i, j or k; raises NoSchedule where the block is no product. Axes of one iteration are
    left out."""
    if len(definition.reads) != 2 or len(definition.writes) != 1:
        raise NoSchedule("a product reads two tensors and writes one")
    regions = [*definition.reads, *definition.writes]
    if any(getattr(dim.extent, "value", None) != 1 for region in regions for dim in region.region):
        raise NoSchedule("more than one element is read at a time")
    found = {}
    for axis in definition.iter_vars:
        if int(axis.dom.extent) == 1:
            continue
        a, b, c = (any(uses(dim.min, axis.var) for dim in region.region) for region in regions)
        kind = {(True, True, True): "s", (True, False, True): "i", (False, True, True): "j", (True, True, False): "k"}
        if (a, b, c) not in kind or _reduced(axis) == c:
            raise NoSchedule("an axis is none of a product's")
        found[axis.var] = kind[a, b, c]
    return found


def _product(definition: Any) -> Product:
    kinds = _kinds(definition)
    extent = dict.fromkeys("sijk", 1)
    for axis in definition.iter_vars:
        if axis.var in kinds:
            extent[kinds[axis.var]] *= int(axis.dom.extent)
    if extent["i"] < FEW or extent["j"] < FEW or extent["k"] < STEP:
        raise NoSchedule("too small for tiles")
    return Product(**extent)


# -- the kernel


def _tiled(schedule: Any, main: Any, tile: Tile) -> None:
    """Makes the product, with what comes before it and, unless a second kernel follows, after it, one kernel."""
    along = [_contiguous(schedule.get(main), read) for read in schedule.get(main).reads]
    reindexed = [schedule.reindex(main, place) for place in (("read", 0), ("read", 1), ("write", 0))]
    definition = schedule.get(main)
    kinds = _kinds(definition)
    # The tile of an operand lies in shared memory as the operand lies in memory, so that its copy is in order.
    layouts = ["sik" if along[0] == "k" else "ski", "sjk" if along[1] == "k" else "skj", "sij"]
    for number, (block, layout) in enumerate(zip(reindexed, layouts, strict=True)):
        region = (definition.reads[number] if number < 2 else definition.writes[0]).region
        layout_map = _fused_map([dim.min for dim in region], kinds, layout, schedule.get(main))
        schedule.transform_layout(block, ("write", 0) if number < 2 else ("read", 0), layout_map)
    variables = [axis.var for axis in definition.iter_vars]
    schedule.transform_block_layout(main, _fused_map(variables, kinds, "sijk", definition))
    schedule.pad_einsum(main, [1, tile.i, tile.j, STEP])
    s, i, j, k = schedule.get_loops(main)
    bi, ti, ri = schedule.split(i, [None, tile.i // tile.rows, tile.rows])
    bj, tj, rj = schedule.split(j, [None, tile.j // tile.columns, tile.columns])
    ko, ki = schedule.split(k, [None, STEP])
    schedule.reorder(s, bi, bj, ti, tj, ko, ki, ri, rj)
    block = schedule.fuse(s, bi, bj)
    schedule.bind(block, "blockIdx.x")
    thread = schedule.fuse(ti, tj)
    schedule.bind(thread, "threadIdx.x")
    schedule.annotate(thread, "pragma_auto_unroll_max_step", UNROLL)
    schedule.annotate(thread, "pragma_unroll_explicit", 1)
    for read in range(2):
        _copy(schedule, main, read, ko, tile.threads)
    result = schedule.cache_write(main, 0, "local")
    schedule.reverse_compute_at(result, thread, preserve_unit_loops=True)
    following = _following(schedule, result)
    for stage in following:
        if is_reduction(schedule, stage):
            break
        schedule.reverse_compute_inline(stage)
    *_, columns = schedule.get_loops(result)
    if tile.columns % 4 == 0 and _may_be_vector(schedule.get(result)):
        schedule.vectorize(schedule.split(columns, [None, 4])[1])
    schedule.decompose_reduction(main, ko)


def _copy(schedule: Any, main: Any, read: int, at: Any, threads: int) -> None:
    """Threads copy a step's part of an operand into shared memory together, in vectors where it lies in order."""
    copied = schedule.cache_read(main, read, "shared")
    schedule.compute_at(copied, at, preserve_unit_loops=True)
    for producer in list(_before(schedule, copied)):
        schedule.compute_inline(producer)
    definition = schedule.get(copied)
    loops = schedule.get_loops(copied)[-2:]
    extent = math.prod(int(schedule.get(loop).extent) for loop in loops)
    last = [definition.iter_vars[-1]]
    bits = int(tvm.runtime.DataType(str(definition.writes[0].source.dtype)).bits)
    wanted = [n for n in (128 // bits, 64 // bits) if n > 1 and extent % (n * threads) == 0]
    lanes = next((n for n in wanted if all(distance(definition, r, last, n) == 1 for r in definition.reads)), 1)
    loop = schedule.fuse(*loops)
    if lanes > 1:
        _, thread, vector = schedule.split(loop, [None, threads, lanes])
        schedule.vectorize(vector)
    else:
        _, thread = schedule.split(loop, [None, threads])
    schedule.bind(thread, "threadIdx.x")
    schedule.storage_align(copied, 0, -2, 32, max(lanes, 32 // bits))


def _before(schedule: Any, block: Any) -> Iterator[Any]:
    """The stages before a block, in their order."""
    for producer in schedule.get_producers(block):
        yield from _before(schedule, producer)
        yield producer


def _contiguous(definition: Any, read: Any) -> str:
    """The kind of the axis along which a read is contiguous, k where it is none."""
    kinds = _kinds(definition)
    for axis in definition.iter_vars:
        if axis.var in kinds and distance(definition, read, [axis], 2) == 1:
            return kinds[axis.var]
    return "k"


def _may_be_vector(definition: Any) -> bool:
    last = [definition.iter_vars[-1]]
    return all(distance(definition, region, last, 4) == 1 for region in definition.writes) and all(
        distance(definition, region, last, 4) is not None for region in definition.reads
    )


def _moved_map(variables: Sequence[Any], order: Sequence[Any]) -> Any:
    """The map that leaves the variables of `order`, in that order."""
    new = {variable: tirx.Var(f"x{number}", variable.ty.dtype) for number, variable in enumerate(variables)}
    return tirx.IndexMap(list(new.values()), [new[variable] for variable in order], None)


def _fused_map(indices: Sequence[Any], kinds: dict[Any, str], order: str, definition: Any) -> Any:
    """The map that fuses indices of one kind, in the order of kinds."""
    extents = {axis.var: int(axis.dom.extent) for axis in definition.iter_vars}
    dtype = next(iter(extents)).ty.dtype
    variables = [tirx.Var(f"x{number}", dtype) for number in range(len(indices))]
    parts: dict[str, Any] = {}
    for variable, index in zip(variables, indices, strict=True):
        if (kind := kinds.get(index)) is not None:
            parts[kind] = parts[kind] * tirx.const(extents[index], dtype) + variable if kind in parts else variable
    return tirx.IndexMap(variables, [parts.get(kind, tirx.const(0, dtype)) for kind in order], None)
