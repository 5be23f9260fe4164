"""Register tiles for depthwise convolutions: every channel has its own window, and outputs share nothing but weights.

    parallel over (images, blocks of output rows, panels of channels)
      padding of the block, one panel wide              a few rows that stay in the L1 or L2 cache
      for output rows, tiles of X output columns
        for the window (unrolled)
          for X (unrolled), channels (vectorised)       X * V accumulators
            C[y, x, c] += A[y * s + ky, x * s + kx, c] * B[ky, kx, c]

Where A is larger than the cores' L2 caches together it comes from memory, which is slow unless it is read sequentially; a
panel reads a few neighbouring channels of each pixel. So such a convolution is also offered *streamed*: a chunk is a block
of rows with all channels, pads them at once, and loops over the panels inside a tile.

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
"""Taps of the largest window that is unrolled completely; of a larger one only the last axis is unrolled."""
MAX_ROWS = 32
"""Output rows of a block, at most: with more rows fewer halo rows are padded twice, with fewer the block fits a smaller
cache."""
MAX_VECTORS = 4
STREAMED_VECTORS = 2
ROWS_OFFERED = 3
TURNS = 4
"""Chunks per core beyond which more do not help: some are needed because cores seldom start together."""
FEW_OUTPUTS = 4
"""Outputs of a tile below which more than two vectors of channels are offered, to keep the FMA units busy."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A register tile: X outputs of a row by V vectors of channels."""

    outputs: int
    vectors: int
    lanes: int
    rows: tuple[int, ...]
    """Numbers of output rows in a block that the search chooses from; it begins with the first."""
    streamed: bool = False
    """Whether a tile computes all channels before the next tile, so that A is read sequentially."""


def windows(found: Contraction, unit: VectorUnit, cores: int) -> Iterator[Window]:
    """The register tiles offered, each followed by its streamed form where A is larger than the L2 caches.

    Accumulators take at most half the registers; the others hold weights and loaded inputs.
    """
    channels, outputs = found.extents[found.vector], found.extents[found.rows[-1]]
    lanes = next((unit.lanes >> n for n in range(3) if channels % (unit.lanes >> n) == 0), 1)
    if lanes < 2:
        return
    rows = found.extents[found.rows[-2]] if found.rows[:-1] else 1
    images = found.extent(found.batch) * found.extent(found.columns) * found.extent(found.rows[:-2])
    # Bytes of A, where its strides are those of the window.
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
        chunks = {n: panels * rows // n for n in offered}
        offered.sort(key=lambda n: (-min(chunks[n], TURNS * cores), -stages.busy(chunks[n], cores), -n))
        yield Window(outputs=tile, vectors=vectors, lanes=lanes, rows=tuple(offered))
        alone = [n for n in range(MAX_ROWS, 0, -1) if rows % n == 0 and images * rows // n >= cores * TURNS]
        if vectors <= STREAMED_VECTORS and alone and read > cores * L2_BYTES:
            yield Window(outputs=tile, vectors=vectors, lanes=lanes, rows=tuple(alone[:ROWS_OFFERED]), streamed=True)


def tile_window(schedule: Any, found: Contraction, window: Window) -> None:
    """Applies the schedule described above. Raises whatever TVM raises where it does not apply to the workload."""
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
        chunk, at = schedule.fuse(*outer), panel
    else:
        schedule.reorder(*outer, panel, *inner, tile, *taps, output, vector, lane)
        chunk, at = schedule.fuse(*outer, panel), tile
    schedule.parallel(chunk)
    stages.write_back(schedule, result, at, window.lanes)
    for producer in padding:
        stages.place(schedule, producer, chunk, window.lanes)
    unrolled = taps if found.extent(found.reduction) <= MAX_UNROLLED else taps[-1:]
    for loop in (*unrolled, output, vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, taps[0])
