"""Transposes through shared memory: what is read and what is written lies side by side along different axes.

A block of threads takes a tile: a range of the axis along which the source is contiguous (the rows here), and of the last
axis, along which the result is (the columns). Where a range is all of a short axis, the tile has several steps of the axis
that goes on in memory behind it (the rows of an image behind its columns), so that whole lines are read or written.

    load    threads along the rows, then columns     global -> shared memory
    store   threads along 32 columns, then the rows  shared memory -> registers -> global

Elements of 16 and 8 bits are moved in words of 32: a thread loads a word of a row, and stores a word of a column, whose
elements it reads one by one. A column of the tile is padded by a word, and the threads of a warp that read different
elements of one word do so at once, so that 32 threads use 32 banks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.space.gpu.limits import BLOCK_THREADS, MULTIPROCESSORS, Limits
from tuner.space.gpu.vectors import looked_up_by, step
from tuner.tvm_compat import sym, tirx, tvm, tvm_ffi, uses

SIDE, LEAST_SIDE = 64, 32
"""Elements of a side of a tile; the smaller one where there are few tiles."""
LONG_SIDE = 128
"""Up to which a side goes on along a second axis."""
SECTOR_BYTES = 32
"""What memory reads and writes at least."""
WORD_BYTES = 4
"""Width of a bank of shared memory."""
COLUMNS = 32
"""Neighbouring columns that a warp stores."""
LEAST_EXTENT = 8
"""Of both axes: of less, lines are read in part and stay in the cache."""
LEAST_ELEMENTS = 1024
"""Of a tensor that is read across."""


@dataclass(frozen=True, kw_only=True)
class Transposition:
    """Positions among the axes of a block; `read` is one among its reads."""

    read: int
    row: int
    """The axis along which the source is contiguous; the result is along the last."""
    behind_row: int | None
    """The axis that goes on where the rows end, in the source."""
    behind_column: int | None
    """The axis that goes on where the columns end, in the result."""


def find_transposition(definition: Any, axes: Sequence[Any]) -> Transposition | None:
    """None unless the elements of a large read lie side by side along another axis than the last, and apart along that."""
    if len(axes) < 2 or int(axes[-1].dom.extent) < LEAST_EXTENT:
        return None
    places = looked_up_by(definition)
    for number, read in enumerate(definition.reads):
        if math.prod(map(int, read.source.shape)) < LEAST_ELEMENTS or read.source in places:
            continue
        strides = [_stride(definition, read, axis) for axis in axes]
        if strides[-1] in (None, 0, 1):
            continue
        for row, axis in enumerate(axes[:-1]):
            extent = int(axis.dom.extent)
            if strides[row] == 1 and extent >= LEAST_EXTENT:
                written = [_stride(definition, definition.writes[0], each) for each in axes]
                others = [at for at in range(len(axes) - 1) if at != row]
                return Transposition(
                    read=number,
                    row=row,
                    behind_row=next((at for at in others if strides[at] == extent), None),
                    behind_column=next((at for at in others if written[at] == int(axes[-1].dom.extent)), None),
                )
    return None


def schedule_transposition(schedule: Any, block: Any, found: Transposition, limits: Limits) -> None:
    """Makes the block one kernel."""
    definition = schedule.get(block)
    axes = list(definition.iter_vars)
    source, result = definition.reads[found.read], definition.writes[0]
    size = _bytes(source)
    last = len(axes) - 1
    sides = _sides(axes, found, size)
    even = all(int(axes[at].dom.extent) % side == 0 for at, side in sides.items())
    lanes = WORD_BYTES // max(size, _bytes(result)) or 1
    works = (
        even
        and all(sides[at] % lanes == 0 for at in (found.row, last))
        and step(definition, source, [axes[found.row]], lanes, aligned=True) == 1
        and step(definition, result, [axes[last]], lanes, aligned=True) == 1
    )
    lanes = lanes if works else 1
    column_dim = next(at for at, dim in enumerate(source.region) if uses(dim.min, axes[last].var))
    tile = schedule.cache_read(block, found.read, "shared", consumer_blocks=[block])
    if column_dim < len(source.region) - 1:
        schedule.storage_align(tile, 0, column_dim, 2 * lanes, lanes)
    threads = min(BLOCK_THREADS, limits.threads)
    nests = [block, schedule.cache_write(block, 0, "local")] if lanes > 1 else [block]
    loops = [_tiled(schedule, each, found, sides, threads, lanes) for each in nests]
    if lanes > 1:
        # Not moved, since TVM 0.27 would not see which elements a thread holds, but made alike and merged.
        schedule.merge(*(turn for _, _, turn, _ in loops))
        schedule.unroll(loops[0][-1])
        schedule.vectorize(loops[1][-1])
    blocks, thread, turn, *_ = schedule.get_loops(block)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.unroll(turn)
    schedule.compute_at(tile, blocks)
    *others, inner = list(schedule.get_loops(tile))[1:]
    if lanes > 1:
        inner, vector = schedule.split(inner, [None, lanes])
        schedule.vectorize(vector)
    thread, turn = _spread(schedule, [*others, inner], threads)
    schedule.bind(thread, "threadIdx.x")
    schedule.unroll(turn)


def _tiled(
    schedule: Any, block: Any, found: Transposition, sides: dict[int, int], threads: int, lanes: int
) -> list[Any]:
    """The loops over tiles, threads, turns and, with lanes, these, of a block that stores elements of the result."""
    outer, inner = {}, {}
    loops = list(schedule.get_loops(block))
    for at, loop in enumerate(loops):
        outer[at] = loop
        if at in sides:
            outer[at], inner[at] = schedule.split(loop, [None, sides[at]])
    last = len(loops) - 1
    vector = []
    if lanes > 1:
        inner[last], *vector = schedule.split(inner[last], [None, lanes])
    columns = [inner[at] for at in (found.behind_column, last) if at in inner]
    rows = [inner[at] for at in (found.behind_row, found.row) if at in inner and at != found.behind_column]
    schedule.reorder(*outer.values(), *rows, *columns, *vector)
    tiles = schedule.fuse(*outer.values())
    near = schedule.fuse(*columns) if len(columns) > 1 else columns[0]
    if int(schedule.get(near).extent) * lanes % COLUMNS == 0:
        far, near = schedule.split(near, [None, COLUMNS // lanes])
        schedule.reorder(far, *rows, near, *vector)
        rows = [far, *rows]
    return [tiles, *_spread(schedule, [*rows, near], threads), *vector]


def _spread(schedule: Any, loops: list[Any], threads: int) -> list[Any]:
    """A nest divided among threads, each of which takes every so-many-th iteration: the loops over threads and turns."""
    loop = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    turn, thread = schedule.split(loop, [None, threads])
    schedule.reorder(thread, turn)
    return [thread, turn]


def _sides(axes: Sequence[Any], found: Transposition, size: int) -> dict[int, int]:
    """Position of an axis -> its side of a tile."""
    extents = [int(axis.dom.extent) for axis in axes]
    last = len(axes) - 1
    for wanted in (SIDE, LEAST_SIDE):
        sides = {at: _side(extents[at], wanted, size) for at in (found.row, last)}
        tiles = math.prod(-(-extent // sides.get(at, 1)) for at, extent in enumerate(extents))
        if tiles >= 4 * MULTIPROCESSORS:
            break
    for at, behind in ((found.row, found.behind_row), (last, found.behind_column)):
        room = LONG_SIDE // sides[at]
        if (
            behind is not None
            and behind not in sides
            and sides[at] == extents[at]
            and tiles >= 4 * MULTIPROCESSORS * room
        ):
            sides[behind] = max(n for n in range(1, room + 1) if extents[behind] % n == 0)
    return sides


def _side(extent: int, wanted: int, size: int) -> int:
    """About as many elements, so that tiles are of one length and begin with a sector; all of a short axis they do not
    divide."""
    count = -(-extent // wanted)
    sector = max(SECTOR_BYTES // size, 1)
    side = min(-(-extent // (count * sector)) * sector, extent)
    return extent if extent <= SIDE and extent % side else side


def _stride(definition: Any, region: Any, axis: Any) -> int | None:
    """How far apart in memory, in elements, a region's elements for neighbouring values of an axis are, if always as far."""
    offset: Any = tirx.const(0, axis.var.ty.dtype)
    for dim, size in zip(region.region, region.source.shape, strict=True):
        if getattr(dim.extent, "value", None) != 1:
            return None
        offset = offset * size.astype(offset.ty.dtype) + dim.min.astype(offset.ty.dtype)
    analyzer = sym.Analyzer()
    for other in definition.iter_vars:
        analyzer.bind(other.var, other.dom)
    moved = tvm_ffi.structural_map(offset, (tirx.Var, lambda var: var + 1 if var.same_as(axis.var) else var))
    apart = analyzer.simplify(moved - offset)
    return int(apart) if isinstance(apart, tirx.IntImm) else None


def _bytes(region: Any) -> int:
    return -(-int(tvm.runtime.DataType(str(region.source.dtype)).bits) // 8)
