"""Products and convolutions on a GPU: tiles in shared memory, a smaller one in the registers of every thread or warp.

Notation as in operands.py: C[s, i, j] += A[s, i, k] * B[s, k, j].

    block: a tile of i x j
      for k, in steps
        copy of the step's parts of A and B into shared memory, padded with zeros beyond their ends
        thread: its rows x columns of the tile, summed in registers
      what follows the product (bias, residual, activation), on the way to memory

Where there are fewer tiles than multiprocessors, k is divided among blocks, and a second kernel sums what these found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.space.gpu.limits import MULTIPROCESSORS, Limits, NoSchedule
from tuner.space.gpu.operands import inline_following, into_shared, kinds_of, normal_form, spread_copy, stages_after
from tuner.space.gpu.plan import schedule_in_order
from tuner.space.gpu.stages import axis_loops, fused
from tuner.space.gpu.tensor_cores import shared_bytes, tensor_type, tiled_for_tensor_cores
from tuner.space.gpu.vectors import step as distance
from tuner.space.inlining import is_reduction, root_blocks
from tuner.tvm_compat import tirx

FEW = 16
"""Rows or columns below which a product is bound by memory, and rows.py has the better kernel."""
STEP = 16
"""Iterations of k for which parts of A and B are in shared memory."""
WIDE_STEP = 64
"""The same for tensor cores."""
UNROLL = 512


@dataclass(frozen=True, kw_only=True)
class Tile:
    """i x j that a block computes, and what part of it a thread does."""

    i: int
    j: int
    rows: int
    columns: int
    warps: tuple[int, int] | None = None
    """Warps of a block along i and j, where it uses tensor cores; `rows` and `columns` are then of a warp."""
    parts: int = 1
    """Into how many k is divided."""

    @property
    def threads(self) -> int:
        if self.warps:
            return 32 * math.prod(self.warps)
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
TENSOR_TILES = tuple(
    Tile(i=i, j=j, rows=i // down, columns=j // across, warps=(down, across))
    for i, j, down, across in (
        (128, 128, 2, 4),
        (128, 64, 4, 2),
        (64, 128, 2, 4),
        (64, 64, 2, 2),
        (32, 64, 1, 4),
        (64, 32, 4, 1),
        (32, 32, 2, 1),
        (16, 64, 1, 4),
    )
)
"""For operands of half precision: of 16 x 16 products."""
PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)
CORES = 128
"""Multiplications and additions of a multiprocessor in one cycle."""
TENSOR_CORES = 1024
"""The same of its tensor cores in half precision, as far as instructions of a warp get them to."""
STEP_CYCLES = 500
"""From the load of a step's parts to its end, where nothing else runs on the multiprocessor ..."""
COPY_BYTES = 64
"""... and bytes that it gets in a cycle."""
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


def schedule_products(schedule: Any, limits: Limits, *, tensor_cores: bool = True) -> None:
    """Schedules a workload that has products worth tiles; raises NoSchedule for any other.

    What a product reads is computed while its operands are copied, unless it depends on a reduction: the softmax of an
    attention is a kernel of its own, row by row, between the kernels of two products.
    """
    blocks = root_blocks(schedule)
    products = {_name(schedule, block) for block in blocks if _is_product(schedule, block)}
    if not products:
        raise NoSchedule("no product is large enough for tiles")
    for block in blocks:
        users = schedule.get_consumers(block)
        if users and not is_reduction(schedule, block) and not any(_name(schedule, user) in products for user in users):
            schedule.compute_inline(block)
    rest: list[list[Any]] = [[]]
    tiled: list[Any] = []
    absorbed: set[str] = set()
    for block in root_blocks(schedule):
        if _name(schedule, block) in products:
            tiled.append(block)
            rest.append([])
            absorbed |= {_name(schedule, stage) for stage in stages_after(schedule, block)}
        elif _name(schedule, block) not in absorbed and not _is_copied(schedule, block, products):
            rest[-1].append(block)
    for blocks in rest:
        schedule_in_order(schedule, blocks, limits)
    # The last comes first: TVM moves no stage any more once some stage reads what a product with guards has written.
    unfinished = [_schedule_product(schedule, block, limits, tensor_cores) for block in reversed(tiled)]
    for finish in unfinished:
        finish()


def _schedule_product(schedule: Any, main: Any, limits: Limits, tensor_cores: bool) -> Callable[[], None]:
    """Makes a product one kernel, or two; returns what is to be done once all stages have their places."""
    definition = schedule.get(main)
    kinds, found = kinds_of(definition), _product(definition)
    tile = best_tile(found, limits, TENSOR_TILES if tensor_cores and tensor_type(definition) else TILES)
    if tile.parts == 1:
        return _tiled(schedule, main, tile)
    # Axes of one iteration go first: once a loop is split, TVM binds them to no loop, and takes such a block for no product.
    variables = [axis.var for axis in definition.iter_vars]
    order = [*(v for v in variables if kinds.get(v, "k") != "k"), *(v for v in variables if kinds.get(v) == "k")]
    schedule.transform_block_layout(main, _moved_map(variables, order))
    summed = list(schedule.get_loops(main))[-sum(kinds[v] == "k" for v in order) :]
    part, _ = schedule.split(fused(schedule, main, summed), [tile.parts, None])
    parts = schedule.rfactor(part, 0)
    schedule.reorder(*(axis_loops(schedule, parts) or ()))
    finish = _tiled(schedule, parts, tile)
    schedule_in_order(schedule, [main, *stages_after(schedule, main)], limits)
    return finish


def best_tile(product: Product, limits: Limits, tiles: Sequence[Tile] = TILES) -> Tile:
    """The tile and the parts of k with the least modelled time."""
    step = WIDE_STEP if tiles[0].warps else STEP
    found = [
        replace(tile, parts=parts)
        for tile in tiles
        for parts in PARTS
        if tile.threads <= limits.threads and product.k % parts == 0 and (parts == 1 or product.k // parts >= 4 * STEP)
        if not tile.warps or shared_bytes(tile.i, tile.j, step) <= limits.shared_bytes
    ]
    return min(found, key=lambda tile: _cycles(product, tile, step))


def _cycles(product: Product, tile: Tile, step: int) -> float:
    blocks = product.s * -(-product.i // tile.i) * -(-product.j // tile.j) * tile.parts
    steps = -(-(product.k // tile.parts) // step)
    turns = -(-blocks // MULTIPROCESSORS)
    # A thread, or a warp, loads rows + columns numbers from shared memory for rows * columns multiplications.
    useful = 1 / (1 + (24 if tile.warps else 1.5) * (tile.rows + tile.columns) / (tile.rows * tile.columns))
    computing = turns * tile.i * tile.j * steps * step / ((TENSOR_CORES if tile.warps else CORES) * useful)
    copied = (tile.i + tile.j) * step * (2 if tile.warps else 4) / COPY_BYTES
    waiting = steps * (STEP_CYCLES + copied) * max(1, turns / 4)
    written = product.s * product.i * product.j * tile.parts * 8 / BYTES_A_CYCLE if tile.parts > 1 else 0
    return max(computing, waiting) + (SECOND_KERNEL + written if tile.parts > 1 else 0)


# -- what is found


def _name(schedule: Any, block: Any) -> str:
    return str(schedule.get(block).name_hint)


def _is_product(schedule: Any, block: Any) -> bool:
    try:
        return is_reduction(schedule, block) and bool(_product(schedule.get(block)))
    except NoSchedule:
        return False


def _is_copied(schedule: Any, block: Any, products: set[str]) -> bool:
    """Whether a stage is computed where products copy it: it depends on inputs alone."""
    users = schedule.get_consumers(block)
    return (
        bool(users)
        and all(_name(schedule, user) in products for user in users)
        and not is_reduction(schedule, block)
        and not schedule.get_producers(block)
    )


def _product(definition: Any) -> Product:
    kinds = kinds_of(definition)
    extent = dict.fromkeys("sijk", 1)
    for axis in definition.iter_vars:
        if axis.var in kinds:
            extent[kinds[axis.var]] *= int(axis.dom.extent)
    if extent["i"] < FEW or extent["j"] < FEW or extent["k"] < STEP:
        raise NoSchedule("too small for tiles")
    return Product(**extent)


# -- the kernel


def _tiled(schedule: Any, main: Any, tile: Tile) -> Callable[[], None]:
    """Makes the product, with what comes before it and, unless a second kernel follows, after it, one kernel."""
    if tile.warps:
        transposed = normal_form(schedule, main, tile.i, tile.j, WIDE_STEP, rows_first=True)
        return tiled_for_tensor_cores(schedule, main, tile.i, tile.j, WIDE_STEP, tile.warps, transposed)
    normal_form(schedule, main, tile.i, tile.j, STEP, rows_first=False)
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
        copied = into_shared(schedule, main, read, "shared", ko)
        spread_copy(schedule, copied, tile.threads, [("threadIdx.x", tile.threads)], 32, 4)
    result = schedule.cache_write(main, 0, "local")
    schedule.reverse_compute_at(result, thread, preserve_unit_loops=True)
    inline_following(schedule, result)
    *_, columns = schedule.get_loops(result)
    if tile.columns % 4 == 0 and _may_be_vector(schedule.get(result)):
        schedule.vectorize(schedule.split(columns, [None, 4])[1])
    schedule.decompose_reduction(main, ko)
    return lambda: None


def _may_be_vector(definition: Any) -> bool:
    last = [definition.iter_vars[-1]]
    return all(
        distance(definition, region, last, 4, aligned=True) in (0, 1)
        for region in [*definition.writes, *definition.reads]
    )


def _moved_map(variables: Sequence[Any], order: Sequence[Any]) -> Any:
    """The map that leaves the variables of `order`, in that order."""
    new = {variable: tirx.Var(f"x{number}", variable.ty.dtype) for number, variable in enumerate(variables)}
    return tirx.IndexMap(list(new.values()), [new[variable] for variable in order], None)
