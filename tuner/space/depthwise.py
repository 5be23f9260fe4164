"""Register tiles for depthwise convolutions: every channel has its own window, nothing is shared but weights.

    parallel over (images, blocks of output rows, panels of channels)
      padding of the block, one panel wide              a few rows that stay in the L1 or L2 cache
      for output rows, tiles of X output columns
        for the window (unrolled)
          for X (unrolled), channels (vectorised)       X * V accumulators
            C[y, x, c] += A[y * s + ky, x * s + kx, c] * B[ky, kx, c]

A of more bytes than the cores' L2 caches hold comes from memory, which is slow where it is not read as it lies: the channels
of a panel are a few neighbours of each pixel. So such a convolution is also offered *streamed*: a task takes rows alone,
pads all channels of them at once, and walks the panels inside a tile.

Unrolled over the window, neighbouring outputs share their loads: (X - 1) * s + k vectors of A serve X * k multiply-adds,
where a scalar schedule loads two operands for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.space import stages
from tuner.space.contraction import Contraction
from tuner.space.processor import BALANCED, L2_BYTES, VectorUnit

MAX_UNROLLED = 25
"""Taps of a window that is unrolled whole; of a larger one only the last axis is."""
MAX_ROWS = 32
"""Output rows of a block: more share their halo, fewer stay in a smaller cache."""
MAX_VECTORS = 4
STREAMED_VECTORS = 2
ROWS_OFFERED = 3
TURNS = 4
"""Tasks per core that are enough: cores seldom start together."""
FEW_OUTPUTS = 4
"""Outputs of a tile below which more channels must keep the FMA units busy."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A register tile: X outputs of a row by V vectors of channels."""

    outputs: int
    vectors: int
    lanes: int
    rows: tuple[int, ...]
    """Offered numbers of output rows in a block, the one to begin with first."""
    streamed: bool = False
    """All channels of a tile before the next tile: A is read as it lies."""


def windows(found: Contraction, unit: VectorUnit, cores: int) -> Iterator[Window]:
    """Tiles whose accumulators take half the registers: the other half holds weights and what was loaded. Streamed ones
    follow those of the same size; `read` is the size of A in bytes, if its strides are those of the window."""
    channels, outputs = found.extents[found.vector], found.extents[found.rows[-1]]
    lanes = next((unit.lanes >> n for n in range(3) if channels % (unit.lanes >> n) == 0), 1)
    if lanes < 2:
        return
    rows = found.extents[found.rows[-2]] if found.rows[:-1] else 1
    images = found.extent(found.batch) * found.extent(found.columns) * found.extent(found.rows[:-2])
    read = images * rows * outputs * found.row_stride * (found.row_stride // channels) * found.bits // 8
    for vectors in range(1, MAX_VECTORS + 1):
        tile = stages.largest_divisor(outputs, max(1, unit.registers // 2 // vectors))
        if channels % (vectors * lanes) or (vectors > 2 and tile >= FEW_OUTPUTS):
            continue
        panels = images * channels // (vectors * lanes)
        sizes = [
            n for n in range(1, MAX_ROWS + 1) if rows % n == 0 and stages.busy(panels * rows // n, cores) >= BALANCED
        ]
        offered = sizes[-ROWS_OFFERED:] or [1]
        tasks = {n: panels * rows // n for n in offered}
        offered.sort(key=lambda n: (-min(tasks[n], TURNS * cores), -stages.busy(tasks[n], cores), -n))
        yield Window(outputs=tile, vectors=vectors, lanes=lanes, rows=tuple(offered))
        alone = [n for n in range(MAX_ROWS, 0, -1) if rows % n == 0 and images * rows // n >= cores * TURNS]
        if vectors <= STREAMED_VECTORS and alone and read > cores * L2_BYTES:
            yield Window(outputs=tile, vectors=vectors, lanes=lanes, rows=tuple(alone[:ROWS_OFFERED]), streamed=True)


def tile_window(schedule: Any, found: Contraction, window: Window) -> None:
    """Makes the schedule described above; raises what TVM raises where it does not fit the workload."""
    block = found.block
    padding = stages.producers_to_place(schedule, block)
    result = stages.inline_epilogue(schedule, block)
    loops = dict(enumerate(schedule.get_loops(block)))
    panel, vector, lane = schedule.split(loops[found.vector], [None, window.vectors, window.lanes])
    tile, output = schedule.split(loops[found.rows[-1]], [None, window.outputs])
    outer = [loops[i] for i in (*found.spatial_units, *found.batch, *found.columns, *found.rows[:-1])]
    inner = []
    if found.rows[:-1]:
        outer[-1], row = schedule.split(outer[-1], [None, stages.sample(schedule, list(window.rows), window.rows[0])])
        inner = [row]
    taps = [loops[i] for i in (*found.reduction_units, *found.reduction)]
    if window.streamed:
        schedule.reorder(*outer, *inner, tile, panel, *taps, output, vector, lane)
        task, at = schedule.fuse(*outer), panel
    else:
        schedule.reorder(*outer, panel, *inner, tile, *taps, output, vector, lane)
        task, at = schedule.fuse(*outer, panel), tile
    schedule.parallel(task)
    stages.write_back(schedule, result, at, window.lanes)
    for producer in padding:
        stages.place(schedule, producer, task, window.lanes)
    unrolled = taps if found.extent(found.reduction) <= MAX_UNROLLED else taps[-1:]
    for loop in (*unrolled, output, vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, taps[0])
