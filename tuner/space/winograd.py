"""Schedules of convolutions rewritten by Winograd's algorithm (tuner/winograd.py), for CPUs.

    [parallel over tiles: pad a tile's input, transform it]     where the input is transformed at the root
    parallel over blocks of tiles (and of panels)
      [pad, transform the input of the block]                   where it is transformed at the block: V stays in the cache
      for panels of the block
        for the n * n products
          for tiles of the block: R tiles by V columns in registers for the whole reduction, as in tuner/space/tiles.py
        transform the output of the block, compute the epilogue on it

At the block, every block streams all weights (n * n / 9 times the convolution's), and V and M never leave the L2 cache: this
wins where there are many tiles and few channels. At the root, blocks of panels divide the weights among the threads, each
reads its own once: this wins where there are few tiles and many channels. Transforms are vectorised over channels, and
their intermediate results stay in registers. Sizes of blocks and of the register tile are left to the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.tiles import VectorUnit
from tuner.trace import REWRITE, REWRITES, rewritten
from tuner.tvm_compat import Schedule
from tuner.winograd import find_convolution

MAX_PANELS = 64
"""Of one block: more than any convolution has in a cache."""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What tells one sketch from another."""

    rewrite: str
    width: int
    """Columns of a panel: output channels whose products are summed together."""
    input_at_block: bool
    """The input is transformed for a block of tiles, not for all tiles before."""


def winograd_sketches(mod: Any, target: Target) -> list[Any]:
    """Schedules of the rewritten workload, tile sizes left open; none where it holds no 3 x 3 convolution of stride one,
    its channels fill no vectors, or the target is no CPU."""
    if target.kind != "llvm":
        return []
    found = find_convolution(mod["main"])
    if found is None:
        return []
    unit = VectorUnit.of(target, 32)
    if found.reduction % unit.lanes:
        return []
    modules = {name: rewritten(mod, name) for name in REWRITES}
    sketches = []
    for choice in _choices(found.shape[3], unit):
        schedule = Schedule(modules[choice.rewrite], seed=1, debug_mask=0, error_render_level="none")
        schedule.annotate(schedule.get_sblock("root"), REWRITE, choice.rewrite)
        try:
            _tile(schedule, unit, choice)
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; other sketches may apply
            continue
        sketches.append(schedule)
    return sketches


def _choices(channels: int, unit: VectorUnit) -> Iterator[_Choice]:
    widths = [unit.lanes * k for k in (4, 2) if channels % (unit.lanes * k) == 0]
    if not widths and channels % unit.lanes == 0:
        widths = [unit.lanes]
    for name, width, at_block in itertools.product(sorted(REWRITES, reverse=True), widths, (True, False)):
        yield _Choice(rewrite=name, width=width, input_at_block=at_block)


def _tile(schedule: Any, unit: VectorUnit, choice: _Choice) -> None:
    width, lanes = choice.width, unit.lanes
    source, product, output = (schedule.get_sblock(f"winograd_{stage}") for stage in ("input", "product", "output"))
    padding = _last_producer(schedule, source)
    epilogue = _last_consumer(schedule, output)
    schedule.transform_layout(product, ("read", 1), lambda s, k, c: [c // width, s, k, c % width])
    result = schedule.cache_write(product, 0, "global")

    # Blocks of tiles and of panels, from the loops of the output transform.
    batch, row, column, channel = schedule.get_loops(output)
    panel, channel = schedule.split(channel, [None, width])
    tiles_across = int(schedule.get(column).extent)
    accumulators = max(1, (unit.registers - 2) // (width // lanes) - (1 if width <= lanes else 0))
    row_tile = schedule.sample_perfect_tile(row, n=3, max_innermost_factor=max(1, accumulators // tiles_across))
    column_tile = schedule.sample_perfect_tile(column, n=3, max_innermost_factor=accumulators)
    panel_tile = schedule.sample_perfect_tile(panel, n=2, max_innermost_factor=MAX_PANELS)
    row_block, row, row_inner = schedule.split(row, row_tile)
    column_block, column, column_inner = schedule.split(column, column_tile)
    panel_block, panel = schedule.split(panel, panel_tile)
    outer = [batch, row_block, column_block]
    schedule.reorder(*outer, panel_block, row, row_inner, column, column_inner, panel, channel)
    schedule.reverse_compute_at(epilogue, panel_block, preserve_unit_loops=True)
    schedule.compute_at(result, panel_block, preserve_unit_loops=True)
    schedule.compute_at(product, panel_block, preserve_unit_loops=True)
    _vectorize(schedule, channel, lanes)
    _vectorize(schedule, schedule.get_loops(epilogue)[-1], lanes)

    # The products: a tile of registers for the whole reduction.
    square, one, row, column, channel, reduction = schedule.get_loops(product)[-6:]
    row, row_inner = schedule.split(row, [None, row_tile[2]])
    column, column_inner = schedule.split(column, [None, column_tile[2]])
    panel, channel = schedule.split(channel, [None, width])
    schedule.reorder(square, one, panel, row, column, reduction, row_inner, column_inner, channel)
    schedule.reverse_compute_at(result, column, preserve_unit_loops=True)
    for loop in (row_inner, column_inner, *schedule.get_loops(result)[-4:-1]):
        schedule.unroll(loop)
    schedule.vectorize(channel)
    schedule.vectorize(schedule.get_loops(result)[-1])

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


def _vectorize(schedule: Any, loop: Any, lanes: int) -> None:
    """Of a loop over channels, whose extent is a multiple of `lanes`."""
    _, inner = schedule.split(loop, [None, lanes])
    schedule.vectorize(inner)


def _last_producer(schedule: Any, block: Any) -> Any:
    """What makes the padded input, all before it inlined; None where the block reads a parameter."""
    producers = list(schedule.get_producers(block))
    if not producers:
        return None
    (nearest,) = producers
    while before := list(schedule.get_producers(nearest)):
        for stage in before:
            schedule.compute_inline(stage)
    return nearest


def _last_consumer(schedule: Any, block: Any) -> Any:
    """The stage that writes the output, with what lies between inlined."""
    (consumer,) = schedule.get_consumers(block)
    while following := list(schedule.get_consumers(consumer)):
        schedule.compute_inline(consumer)
        (consumer,) = following
    return consumer
