"""Schedules of convolutions rewritten by Winograd's algorithm (tuner/schedule/winograd.py), for CPUs.

    [parallel over tiles: pad a tile's input, transform it]     where the input is transformed at the root
    parallel over blocks of tiles (and of panels)
      [pad, transform the input of the block]                   where it is transformed at the block: V stays in the cache
      for panels of the block
        for the n * n products
          for tiles of the block: R tiles by C channels in registers for the whole reduction
        transform the output of the block, compute the epilogue on it

With the input transformed at the block, every block reads all weights (n * n / 9 times as many as the convolution's), and V
and M stay in the L2 cache: this is faster with many tiles and few channels. With the input transformed at the root, blocks
of panels divide the weights among the threads and each weight is read once: this is faster with few tiles and many
channels. Transforms are vectorised over channels, and their intermediate results stay in registers. The register tile
follows from the target and the number of tiles; the sizes of blocks are left to the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.schedule.rewrites import REWRITE, WINOGRAD, rewritten
from tuner.schedule.winograd import KERNEL, Convolution, find_convolution
from tuner.space.micro_kernel import tile_cost
from tuner.space.processor import VectorUnit
from tuner.space.refusals import tell_refused
from tuner.space.stages import busy, last_consumer
from tuner.tvm_compat import Schedule

WIDTHS = 2
"""Register tiles offered for one rewrite."""
MANY_TILES = 256
"""Tiles beyond which F(2, 3) is not offered: it takes 1.8 times the products of F(4, 3), and its fewer weights matter only
where few tiles share them."""
MIN_SAVED_PER_BYTE = 16.0
"""FLOPs that the rewrite must save for every byte by which it enlarges the weights. In a model weights come from memory,
while those of a measurement may be in a cache; a processor does 10 to 15 FLOPs in the time that it loads a byte from
memory."""
FLOPS_PER_BYTE = 8.0
"""FLOPs in the time that a byte of weights is loaded, as the model of the cost counts them."""
FLOPS_PER_STORED_BYTE = 10.0
"""FLOPs in the time that a byte of the transformed input is written and read again, where it leaves the cache."""
MAX_BLOCK = 1 << 10
"""Limit of sampled inner factors, larger than any extent here."""


@dataclass(frozen=True, kw_only=True)
class _RegisterTile:
    """The results that are accumulated in registers: `rows` x `columns` tiles by `channels` output channels."""

    rows: int
    columns: int
    channels: int


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The choices that distinguish one sketch from another."""

    rewrite: str
    registers: _RegisterTile
    input_at_block: bool
    """Whether the input is transformed at the block, for a block of tiles; else at the root, for all tiles."""


def winograd_sketches(mod: Any, target: Target, most: int | None = None) -> list[Any]:
    """Schedules of the rewritten workload with the sizes of blocks left open, at most `most`, those of the least modelled
    cost first; none where the workload holds no 3 x 3 convolution of stride one, or its input channels are no multiple of a
    vector."""
    found = find_convolution(mod["main"])
    if found is None:
        return []
    unit, cores = VectorUnit.of(target, 32), target.num_cores or 1
    modules: dict[str, Any] = {}
    sketches: list[Any] = []
    for choice in sorted(_choices(found, unit), key=lambda choice: _cost(found, choice, unit, cores)):
        if len(sketches) == most:
            break
        if choice.rewrite not in modules:
            modules[choice.rewrite] = rewritten(mod, choice.rewrite)
        schedule = Schedule(modules[choice.rewrite], seed=1, debug_mask=0, error_render_level="none")
        schedule.annotate(schedule.get_sblock("root"), REWRITE, choice.rewrite)
        try:
            _tile(schedule, unit, choice)
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; other sketches may apply
            tell_refused("winograd", error, choice=repr(choice))
            continue
        sketches.append(schedule)
    return sketches


def _choices(found: Convolution, unit: VectorUnit) -> Iterator[_Choice]:
    batch, height, width, channels = found.shape
    if found.reduction % unit.lanes:
        return
    for name, m in sorted(WINOGRAD.items(), key=lambda item: -item[1]):
        rows, columns = -(-height // m), -(-width // m)
        if m == 2 and batch * rows * columns > MANY_TILES:
            continue
        direct, squares = batch * height * width * KERNEL**2, (m + KERNEL - 1) ** 2
        saved = 2 * (direct - batch * rows * columns * squares)
        if saved < MIN_SAVED_PER_BYTE * 4 * (squares - KERNEL**2):
            continue
        for tile, at_block in itertools.product(_register_tiles(rows, columns, channels, unit), (True, False)):
            yield _Choice(rewrite=name, registers=tile, input_at_block=at_block)


def _cost(found: Convolution, choice: _Choice, unit: VectorUnit, cores: int) -> float:
    """Modelled time, in FLOPs at the peak rate of all cores: the products in their register tile, their weights from
    memory, the transformed input where it is stored for all tiles, and idle cores."""
    batch, height, width, channels = found.shape
    m, tile = WINOGRAD[choice.rewrite], choice.registers
    tiles, squares = batch * -(-height // m) * -(-width // m), (m + KERNEL - 1) ** 2
    count, vectors = tile.rows * tile.columns, tile.channels // unit.lanes
    products = 2 * tiles * squares * found.reduction * channels * tile_cost(count, vectors) / (count * vectors)
    weights = 4 * squares * found.reduction * channels * FLOPS_PER_BYTE
    blocks = tiles // count
    if choice.input_at_block:
        return (products + weights) / busy(blocks, cores)
    stored = 4 * tiles * squares * found.reduction * FLOPS_PER_STORED_BYTE
    return (products + weights) / busy(blocks * (channels // tile.channels), cores) + stored


def _register_tiles(rows: int, columns: int, channels: int, unit: VectorUnit) -> list[_RegisterTile]:
    """The best register tile of every width, the best WIDTHS of them: those with most multiply-adds per load.

    A register tile of r tiles by v vectors takes r * v multiply-adds for v loads of weights and r of inputs, and needs
    r * v registers for sums, v for weights and one for an input. Without that last one, 7 x 4 spills and takes twice as
    long.
    """
    ranked = []
    for vectors in (4, 3, 2, 1):
        if channels % (vectors * unit.lanes):
            continue
        most = max(1, (unit.registers - vectors - 1) // vectors)
        fitting = [(h * w, w, h) for h in _divisors(rows) for w in _divisors(columns) if h * w <= most]
        count, across, down = max(fitting)
        tile = _RegisterTile(rows=down, columns=across, channels=vectors * unit.lanes)
        ranked.append((count * vectors / (count + vectors), vectors, tile))
    ranked.sort(key=lambda item: item[:2], reverse=True)
    return [tile for _, _, tile in ranked[:WIDTHS]]


def _tile(schedule: Any, unit: VectorUnit, choice: _Choice) -> None:
    width, lanes = choice.registers.channels, unit.lanes
    source, product, output = (schedule.get_sblock(f"winograd_{stage}") for stage in ("input", "product", "output"))
    padding = _last_producer(schedule, source)
    epilogue = last_consumer(schedule, output)
    schedule.transform_layout(product, ("read", 1), lambda s, k, c: [c // width, s, k, c % width])
    result = schedule.cache_write(product, 0, "global")

    # Blocks of tiles and of panels, from the loops of the output transform.
    batch, row, column, channel = schedule.get_loops(output)
    row, row_inner = schedule.split(row, [None, choice.registers.rows])
    column, column_inner = schedule.split(column, [None, choice.registers.columns])
    panel, channel = schedule.split(channel, [None, width])
    # The search begins with a block of one register tile, and of two panels where they share the transformed input.
    row_block, row = schedule.split(row, _sample(schedule, row, 1))
    column_block, column = schedule.split(column, _sample(schedule, column, 1))
    panel_block, panel = schedule.split(panel, _sample(schedule, panel, 2 if choice.input_at_block else 1))
    outer = [batch, row_block, column_block]
    schedule.reorder(*outer, panel_block, row, row_inner, column, column_inner, panel, channel)
    schedule.reverse_compute_at(epilogue, panel_block, preserve_unit_loops=True)
    schedule.compute_at(result, panel_block, preserve_unit_loops=True)
    schedule.compute_at(product, panel_block, preserve_unit_loops=True)
    _vectorize(schedule, channel, lanes)
    _vectorize(schedule, schedule.get_loops(epilogue)[-1], lanes)

    # The products: a tile of registers for the whole reduction.
    square, one, row, column, channel, reduction = schedule.get_loops(product)[-6:]
    row, row_inner = schedule.split(row, [None, choice.registers.rows])
    column, column_inner = schedule.split(column, [None, choice.registers.columns])
    panel, channel = schedule.split(channel, [None, width])
    schedule.reorder(square, one, panel, row, column, reduction, row_inner, column_inner, channel)
    schedule.reverse_compute_at(result, column, preserve_unit_loops=True)
    for loop in (row_inner, column_inner, *schedule.get_loops(result)[-4:-1]):
        schedule.unroll(loop)
    for loop in (channel, schedule.get_loops(result)[-1]):
        schedule.unroll(_vectorize(schedule, loop, lanes))

    # The input transform.
    if choice.input_at_block:
        schedule.compute_at(source, column_block, preserve_unit_loops=True)
        stage = column_block
    else:
        *tiles, _ = schedule.get_loops(source)
        outer.append(panel_block)
        stage = tiles[-1]
    _vectorize(schedule, schedule.get_loops(source)[-1], lanes)
    if padding is not None:
        schedule.compute_at(padding, stage, preserve_unit_loops=True)
        _vectorize(schedule, schedule.get_loops(padding)[-1], lanes)
    if not choice.input_at_block:
        schedule.parallel(schedule.fuse(*tiles))
    schedule.parallel(schedule.fuse(*outer))
    schedule.decompose_reduction(product, reduction)


def _sample(schedule: Any, loop: Any, inner: int) -> Any:
    """Factors of a loop, left to the search, which begins with the inner factor `inner`, or 1 where that does not divide."""
    extent = int(schedule.get(loop).extent)
    inner = inner if extent % inner == 0 else 1
    return schedule.sample_perfect_tile(loop, 2, MAX_BLOCK, [extent // inner, inner])


def _vectorize(schedule: Any, loop: Any, lanes: int) -> Any:
    """Vectorises a loop over channels, whose extent is a multiple of `lanes`; returns the loop over the vectors."""
    outer, inner = schedule.split(loop, [None, lanes])
    schedule.vectorize(inner)
    return outer


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _last_producer(schedule: Any, block: Any) -> Any:
    """The stage that makes the padded input, with all stages before it inlined; None where the block reads a parameter."""
    producers = list(schedule.get_producers(block))
    if not producers:
        return None
    (nearest,) = producers
    while before := list(schedule.get_producers(nearest)):
        for stage in before:
            schedule.compute_inline(stage)
    return nearest
