"""Products and convolutions on a GPU: tiles in shared memory, a smaller one in the registers of every thread or warp.

Notation as in operands.py: C[s, i, j] += A[s, i, k] * B[s, k, j].

    block: a tile of i x j
      for k, in steps
        copy of the step's parts of A and B into shared memory, padded with zeros beyond their ends
        thread: its rows x columns of the tile, summed in registers
      what follows the product (bias, residual, activation), on the way to memory

Where there are few tiles and k is long, k is divided among blocks, and a second kernel sums what these found (tiles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.space.gpu.limits import Limits, NoSchedule
from tuner.space.gpu.operands import (
    follows_in_order,
    inline_following,
    into_shared,
    kinds_of,
    may_be_vector,
    normal_form,
    spread_copy,
    stages_after,
)
from tuner.space.gpu.plan import schedule_in_order
from tuner.space.gpu.stages import axis_loops, fused
from tuner.space.gpu.tensor_cores import tensor_type, tiled_for_tensor_cores
from tuner.space.gpu.tiles import PLAIN_STEP, Product, Tile, best_tile
from tuner.space.inlining import is_reduction, root_blocks
from tuner.tvm_compat import tirx, uses

FEW = 16
"""Rows or columns below which a product is bound by memory, and rows.py has the better kernel."""
FEW_OF_BATCH = 4
"""The same of columns in a batch of products, such as the groups of a convolution."""
FEW_OF_WINDOWS = 2
"""The same of columns where rows are windows, whose elements are read once into shared memory for many of them."""
UNROLL = 512


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
    kinds, found = kinds_of(definition), product_of(definition)
    tile = best_tile(found, limits, tensor_cores=tensor_cores and tensor_type(definition) is not None)
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


# -- what is found


def _name(schedule: Any, block: Any) -> str:
    return str(schedule.get(block).name_hint)


def _is_product(schedule: Any, block: Any) -> bool:
    try:
        return is_reduction(schedule, block) and bool(product_of(schedule.get(block)))
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


def product_of(definition: Any) -> Product:
    """The extents of a product; raises NoSchedule for a block that is none, or one too small for tiles."""
    found, kinds = extents_of(definition), kinds_of(definition)
    few_columns = FEW if found.s == 1 else FEW_OF_BATCH
    if found.s == 1 and _reads_windows(definition, kinds):
        few_columns = FEW_OF_WINDOWS
    if found.i < FEW or found.j < few_columns or found.k < PLAIN_STEP:
        raise NoSchedule("too small for tiles")
    return found


def extents_of(definition: Any) -> Product:
    """The extents of a product of any size; raises NoSchedule for a block that is none."""
    kinds = kinds_of(definition)
    extent = dict.fromkeys("sijk", 1)
    for axis in definition.iter_vars:
        if axis.var in kinds:
            extent[kinds[axis.var]] *= int(axis.dom.extent)
    runs = [int(axis.dom.extent) for axis in definition.iter_vars if kinds.get(axis.var) == "k"]
    return Product(**extent, run=runs[-1] if runs else 1)


def _reads_windows(definition: Any, kinds: Mapping[Any, str]) -> bool:
    """Whether an element of the first operand is in several rows: an index has an axis of rows and one that is summed."""
    rows, summed = ([axis for axis, kind in kinds.items() if kind == wanted] for wanted in "ik")
    return any(
        any(uses(dim.min, axis) for axis in rows) and any(uses(dim.min, axis) for axis in summed)
        for read in definition.reads
        for dim in read.region
    )


# -- the kernel


def _tiled(schedule: Any, main: Any, tile: Tile) -> Callable[[], None]:
    """Makes the product, with what comes before it and, unless a second kernel follows, after it, one kernel."""
    found = product_of(schedule.get(main))
    is_padded = bool(found.i % tile.i or found.j % tile.j)
    if is_padded and not follows_in_order(schedule, main):
        raise NoSchedule("padding beside what follows in another order")
    if tile.warps[0]:
        transposed = normal_form(schedule, main, tile.i, tile.j, tile.k, rows_first=True)
        return tiled_for_tensor_cores(schedule, main, tile, transposed)
    turned = normal_form(schedule, main, tile.i, tile.j, tile.k, rows_first=False)
    s, i, j, k = schedule.get_loops(main)
    bi, ti, ri = schedule.split(i, [None, tile.i // tile.rows, tile.rows])
    bj, tj, rj = schedule.split(j, [None, tile.j // tile.columns, tile.columns])
    ko, ki = schedule.split(k, [None, tile.k])
    schedule.reorder(s, bi, bj, ti, tj, ko, ki, ri, rj)
    block = schedule.fuse(s, bi, bj)
    schedule.bind(block, "blockIdx.x")
    thread = schedule.fuse(ti, tj)
    schedule.bind(thread, "threadIdx.x")
    schedule.annotate(thread, "pragma_auto_unroll_max_step", UNROLL)
    schedule.annotate(thread, "pragma_unroll_explicit", 1)
    for read in range(2):
        copied = into_shared(schedule, main, read, "shared", ko)
        if read == 1 and turned:  # Neighbouring threads read what lies side by side in memory.
            schedule.reorder(*reversed(schedule.get_loops(copied)[-2:]))
        spread_copy(schedule, copied, tile.threads, [("threadIdx.x", tile.threads)], 32, 4)
    result = schedule.cache_write(main, 0, "local")
    schedule.reverse_compute_at(result, thread, preserve_unit_loops=True)
    inline_following(schedule, result)
    *_, columns = schedule.get_loops(result)
    if tile.columns % 4 == 0 and may_be_vector(schedule.get(result), 4):
        schedule.vectorize(schedule.split(columns, [None, 4])[1])
    schedule.decompose_reduction(main, ko)
    return lambda: None


def _moved_map(variables: Sequence[Any], order: Sequence[Any]) -> Any:
    """The map that leaves the variables of `order`, in that order."""
    new = {variable: tirx.Var(f"x{number}", variable.ty.dtype) for number, variable in enumerate(variables)}
    return tirx.IndexMap(list(new.values()), [new[variable] for variable in order], None)
