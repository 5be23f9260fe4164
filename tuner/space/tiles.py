"""A design space shaped by the hardware: register tiles over packed weights, for products and convolutions on CPUs.

For a contraction C[b, i, v] += A[b, i, r] * B[b, r, v] hidden in a convolution, a dense layer or a batched product:

    parallel over (b, groups of panels of v, rows i outer)
      for panels of the group                          B of a group stays in the L2 cache
        for r outer, window, r inner                   one tile of C stays in registers for the whole reduction:
          for i inner (unrolled)                       R rows ...
            for v inner (unrolled, vectorised)         ... by V vectors, R * V accumulators
              C[i, v] += A[i, r] * B'[v / W, r, v % W] A is broadcast, B' streams through the cache line by line

B' is B packed into panels of W = V * lanes columns: when B is a weight, MetaSchedule's RewriteLayout postprocessor does
it from the loop order, once, when weights are bound; otherwise packing is a stage of the kernel, for each group of
panels in the thread that uses it. What follows the contraction (bias, residual, activation) is computed on the tile
before it is written.

Where a panel of B is larger than the cache, each tile would load it from memory again. Then the reduction is blocked, which
goes first where a panel is larger than all of the cache and not only than the half that is counted on:

    parallel over (b, panels of v)
      for blocks of r                                  part of a panel of B, used by all tiles while it is in the cache
        for rows i outer
          for window, r inner                          one tile of C, loaded and stored once for each block
            for i inner, v inner (unrolled)
              C[i, v] += A[i, r] * B'[v / W, r, v % W]

No inner loop has a predicate. Rows of a product that R does not divide are padded: the last tile reads zeros beyond the
last row, without a branch (tuner/lowering/padded_reads.py), and writes back only rows that exist. Several row axes
(positions of a 1x1 convolution) are fused first, so that tiles extend across image rows. With a window, R divides the
positions of an image row. Columns that the vector does not divide are padded where B is packed in the kernel, and rows are
copied there, with the zeros beyond them; a weight, which may not grow, gets narrower vectors.

A chunk is one iteration of the parallel loop. Each tile that micro_kernel.py ranks high is a sketch. Left to the search:
how many panels make a group, how the longest reduction is split around a window or in blocks, and whether the padding of a
convolution is computed in each chunk or before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space import stages
from tuner.space.contraction import Contraction, as_product, copy_as_matrix, find_contraction, index_type
from tuner.space.depthwise import tile_window, windows
from tuner.space.micro_kernel import MicroKernel, Product, micro_kernels
from tuner.space.processor import BALANCED, L2_BYTES, LINE_BYTES, VectorUnit, lines_in_l1
from tuner.space.refusals import tell_refused
from tuner.tvm_compat import Schedule, tirx, to_tvm_target

__all__ = ["find_contraction", "sketches_for", "tiled_sketches"]

KERNELS = 6
"""Register tiles offered, at most: the best of each width, then other heights. The latter compile in half the time of
MetaSchedule's candidates, and most are faster than those."""
WORST = 1.25
"""Largest modelled cost of a tile that is offered, in costs of the best."""
FEWEST_KERNELS = 2
"""Register tiles offered, at least, where there are as many: a model may err."""
FEW_TILES = 8
"""Tiles that use a panel of B, up to which packing it costs more than it saves. With one, packing is half of the time."""
INNER_REDUCTIONS = (16, 32, 64, 128, 256, 512)
"""Lengths offered for the reduction loop inside a window, and for a block of the reduction."""
INNER_REDUCTION = 64
"""Length that the search begins with inside a window: others were seldom faster by more than a twentieth."""
BLOCK_STEPS = 512
"""Steps, those of the window included, of the block of the reduction that the search begins with."""


def tiled_sketches(mod: Any, target: Target, most: int | None = None) -> list[Any]:
    """Schedules with a few decisions left open, at most `most`, those that the cost of micro_kernel.py ranks best first;
    none where the workload holds no contraction of a known form, or one of a single row that goes row by row."""
    return sketches_for(mod, to_tvm_target(target), target.num_cores or 1, most)


def sketches_for(mod: Any, target: Any, cores: int, most: int | None = None) -> list[Any]:
    """The same for a CPU target of TVM's, of any architecture that its LLVM knows."""
    schedule, found = _start(mod)
    if found is None or found.one_row:
        return []
    unit = VectorUnit.with_features_of(target, found.bits)
    if alone := stages.is_short(found, unit.lanes):
        cores = 1
    if found.depthwise:
        choices: list[Any] = list(windows(found, unit, cores))
    else:
        choices = list(_choices(found, unit, cores, bool(stages.producers_to_place(schedule, found.block))))
    sketches: list[Any] = []
    for choice in choices:
        if len(sketches) == most:
            break
        schedule, found = _start(mod)
        assert found is not None
        try:
            tile_window(schedule, found, choice) if found.depthwise else _Sketch(schedule, found, choice, cores).make()
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; other sketches may apply
            tell_refused("tiles", error, choice=repr(choice))
            continue
        sketches.append(stages.on_one_core(schedule, mod) if alone else schedule)
    return sketches


def _start(mod: Any) -> tuple[Any, Contraction | None]:
    schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
    found = find_contraction(schedule)
    if found is not None and stages.inline_copies(schedule, found.block):
        found = find_contraction(schedule)
    return schedule, found


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The choices that distinguish one sketch from another."""

    kernel: MicroKernel
    pack: bool
    """Whether packing B is a stage of the kernel."""
    pad_in_chunk: bool
    """Whether each chunk computes the padding of a convolution for itself."""
    blocked: bool = False
    """Whether the reduction is blocked: all rows process one block of it before any processes the next."""


def _choices(found: Contraction, unit: VectorUnit, cores: int, padded: bool) -> Iterator[_Choice]:
    columns = found.extents[found.vector]
    rows, chunks = found.extent(found.rows), found.extent(found.batch) * found.extent(found.columns)
    if found.window:
        rows, chunks = found.extent(found.rows[-1:]), chunks * found.extent(found.rows[:-1])
    product = Product(
        rows=rows,
        columns=columns,
        steps=found.extent(found.reduction),
        chunks=chunks,
        group=found.group,
        pads_rows=not found.window,
        pads_columns=not found.prepacked and not found.window and columns % unit.lanes > 0,
        step=found.period,
        max_rows=lines_in_l1(found.row_stride * found.bits // 8),
    )
    kernels = micro_kernels(product, unit, cores)
    pack = bool(found.weight_axes) and not found.prepacked
    within = [kernel for kernel in kernels if kernel.cost <= WORST * kernels[0].cost]
    offered = within[:KERNELS] if len(within) >= FEWEST_KERNELS else kernels[:FEWEST_KERNELS]
    # Where the columns of B are contiguous, packing only brings panels together.
    may_stay = pack and found.weight_axes[-1] == found.vector and not product.pads_columns
    packs = pack and not (may_stay and offered and rows <= FEW_TILES * offered[0].rows)
    blocked = next((kernel for kernel in offered if _outgrows_cache(found, product, kernel, cores)), None)
    # In one dimension each chunk would pad all of the input; dilated, rows that it never reads.
    in_chunk = (True, False) if found.rows[:-1] and not found.dilated else (False, True)
    for kernel in offered:
        pads = in_chunk if padded and found.window else (False,)
        choices = [_Choice(kernel=kernel, pack=packs, pad_in_chunk=pad_in_chunk) for pad_in_chunk in pads]
        if kernel is blocked:
            gathers = pack and found.weight_axes[-1] != found.vector
            in_blocks = _Choice(kernel=kernel, pack=gathers, pad_in_chunk=False, blocked=True)
            choices.insert(0 if _panel_bytes(found, kernel) > L2_BYTES else len(choices), in_blocks)
        yield from choices
    if offered and may_stay:
        yield _Choice(kernel=offered[0], pack=not packs, pad_in_chunk=False)


def _outgrows_cache(found: Contraction, product: Product, kernel: MicroKernel, cores: int) -> bool:
    """Whether a panel of B is too large to stay in the L2 cache from tile to tile, while a block of it and the panel of C
    fit. False where a panel would be padded."""
    if product.pads_columns or not found.rows or found.period > 1:
        return False
    column = kernel.width * found.bits // 8
    rows = found.extent(found.rows)
    chunks = found.extent(found.batch) * found.extent(found.columns) * (product.columns // kernel.width)
    return (
        _panel_bytes(found, kernel) > L2_BYTES // 2
        and kernel.rows < rows <= L2_BYTES // 4 // column
        and stages.busy(chunks, cores) >= BALANCED
    )


def _panel_bytes(found: Contraction, kernel: MicroKernel) -> int:
    """Of a panel of B over the whole reduction."""
    return found.extent(found.reduction) * kernel.width * found.bits // 8


PADDED_STEPS = 4
"""Steps of the reduction that packing takes at a time where columns are padded: of a loop over more of them LLVM makes
scatters, and windows of attention (49 by 49 by 32) took 1.7 times as long."""


class _Sketch:
    """One schedule in the making."""

    def __init__(self, schedule: Any, found: Contraction, choice: _Choice, cores: int) -> None:
        self.schedule, self.found, self.choice, self.cores = schedule, found, choice, cores
        self.kernel = choice.kernel

    def make(self) -> None:
        schedule, kernel = self.schedule, self.kernel
        producers = stages.producers_to_place(schedule, self.found.block)
        result = stages.inline_epilogue(schedule, self.found.block)
        if self.choice.blocked:
            self._block(producers, result)
            return
        data, packed, tile_result = self._padded(result)
        found, block = self.found, self.found.block
        costly = None
        if tile_result is None and stages.calls_functions(schedule, result):
            costly = schedule.cache_write(block, 0, "global")
        rows = math.ceil(found.extent(found.rows[-1:]) / kernel.rows)
        panels = math.ceil(found.extents[found.vector] / kernel.width)
        # Whether a chunk has all its rows in a loop, because something is computed once for all of them.
        packs_alone = packed is not None and not found.rows[:-1] and found.extent(found.batch) >= self.cores
        alone = self.choice.pad_in_chunk or packs_alone or found.period > 1

        loops = dict(enumerate(schedule.get_loops(block)))
        panel, vector, lane = schedule.split(loops[found.vector], [None, kernel.vectors, kernel.lanes])
        sizes = [panels] if tile_result is not None else self._group_sizes(panels, 1 if alone else rows)
        # A chunk pads its part of the input once for all panels of the group, which costs more than weights from memory.
        begin = max(sizes)
        if not self.choice.pad_in_chunk:
            begin = min(sizes, key=lambda size: self._group_traffic(size, panels))
        groups, panel = schedule.split(panel, [None, stages.sample(schedule, sizes, begin)])
        tile, row = [], []
        if found.rows:
            tile, row = [[loop] for loop in schedule.split(loops[found.rows[-1]], [None, kernel.rows])]
        phase = []
        if found.period > 1 and found.rows[:-1]:
            loops[found.rows[-2]], *phase = schedule.split(loops[found.rows[-2]], [None, found.period])
        reduction = self._reduction(loops)
        outer = [loops[i] for i in (*found.spatial_units, *found.batch, *found.columns)]
        spread = [*outer, groups, *(loops[i] for i in found.rows[:-1])]
        schedule.reorder(*spread, *tile, panel, *phase, *reduction, *row, vector, lane)
        serial = alone or tile_result is not None
        chunk = schedule.fuse(*spread, *([] if alone else tile), *([] if serial else [panel]))
        schedule.parallel(chunk)
        rows_at = tile[0] if alone and tile else chunk
        if tile_result is not None:
            stages.write_back(schedule, tile_result, panel, kernel.lanes)
            schedule.reverse_compute_at(result, rows_at, preserve_unit_loops=True)
        else:
            tile_at = [panel, *phase][-1] if serial else chunk
            if costly is not None:
                stages.write_back(schedule, costly, tile_at, kernel.lanes)
            stages.write_back(schedule, result, tile_at, kernel.lanes, unroll=costly is None)
        if data is not None:
            stages.place(schedule, data, rows_at, kernel.lanes)
        for producer in producers:
            stages.place(schedule, producer, chunk if self.choice.pad_in_chunk else None, kernel.lanes)
        if packed is not None:
            self._place_packing(packed, chunk if packs_alone else None)
        # With the window and its phase unrolled, the condition of a transposed convolution is a constant everywhere.
        window = reduction[1:-1] if found.period > 1 else []
        for loop in (*phase, *window, *row, vector):
            schedule.unroll(loop)
        schedule.vectorize(lane)
        schedule.decompose_reduction(block, reduction[0])

    def _block(self, producers: list[Any], result: Any) -> None:
        """Schedules a blocked reduction. Padding and packing are stages of their own: every chunk needs all of A, and a
        packed copy of B is worth writing to memory only where its columns are not contiguous."""
        _, packed, _ = self._padded(result)
        schedule, found, kernel = self.schedule, self.found, self.kernel
        loops = dict(enumerate(schedule.get_loops(found.block)))
        panel, vector, lane = schedule.split(loops[found.vector], [None, kernel.vectors, kernel.lanes])
        tile, row = schedule.split(loops[found.rows[-1]], [None, kernel.rows])
        part, *reduction = self._reduction(loops)
        spread = [*(loops[i] for i in (*found.spatial_units, *found.batch, *found.columns)), panel]
        images = [loops[i] for i in found.rows[:-1]]
        schedule.reorder(*spread, part, *images, tile, *reduction, row, vector, lane)
        chunk = schedule.fuse(*spread)
        schedule.parallel(chunk)
        stages.write_back(schedule, result, chunk, kernel.lanes, unroll=False)
        for producer in producers:
            stages.place(schedule, producer, None, kernel.lanes)
        if packed is not None:
            self._place_packing(packed, None)
        for loop in (row, vector):
            schedule.unroll(loop)
        schedule.vectorize(lane)
        schedule.decompose_reduction(found.block, part)

    def _padded(self, result: Any) -> tuple[Any, Any, Any]:
        """Pads a product to whole tiles. Returns the stages that copy rows of A, that pack B and that write the tile, each
        None where it is not needed. Rows are copied where columns are padded, too: one chunk has all panels then."""
        schedule, kernel, block = self.schedule, self.kernel, self.found.block
        short_rows = self.found.extent(self.found.rows[-1 if self.found.window else 0 :]) % kernel.rows > 0
        short_columns = self.found.extents[self.found.vector] % kernel.width > 0
        if self.found.window or not (short_rows or short_columns or len(self.found.rows) > 1):
            return None, self._packed() if self.choice.pack else None, None
        copy = copy_as_matrix(schedule, self.found) if short_rows else None
        self.found = found = as_product(schedule, self.found, result)
        data = packed = tile_result = None
        if short_rows or short_columns:
            factors = [1] * len(found.extents)
            factors[found.vector] = kernel.width
            if found.rows:
                factors[found.rows[0]] = kernel.rows
            schedule.pad_einsum(block, factors)
            (written,) = schedule.get_consumers(block)
            schedule.compute_inline(written)
            if copy is not None:
                schedule.compute_inline(copy)
                data = stages.producer(schedule, block, found.data)
                if not short_columns:
                    schedule.compute_inline(data)
                    data = None
            if short_columns:
                packed = self._packed(stages.producer(schedule, block, found.weight))
                tile_result = schedule.cache_write(block, 0, "global")
        if packed is None and self.choice.pack:
            packed = self._packed()
        return data, packed, tile_result

    def _reduction(self, loops: dict[int, Any]) -> list[Any]:
        """Loops over the reduction, outermost first: blocks of the longest axis, the window, the steps of a block."""
        found = self.found
        *window, longest = [loops[i] for i in (*found.reduction_units, *found.reduction)]
        if len(found.reduction) < 2 and not self.choice.blocked:
            return [*window, longest]
        extent = found.extents[found.reduction[-1]]
        longest_offered = stages.largest_divisor(extent, INNER_REDUCTIONS[-1])
        lengths = [length for length in INNER_REDUCTIONS if extent % length == 0] or [longest_offered]
        steps = BLOCK_STEPS // found.extent(found.reduction[:-1]) if self.choice.blocked else INNER_REDUCTION
        preferred = min(lengths, key=lambda length: abs(length - steps))
        outer, inner = self.schedule.split(longest, [None, stages.sample(self.schedule, lengths, preferred)])
        return [outer, *window, inner]

    def _group_sizes(self, panels: int, tiles: int) -> list[int]:
        """Numbers of panels in a group to choose from: one, as many as fit half the L2 cache, and all; only those that keep
        the cores BALANCED, where one does."""
        found = self.found
        fit = stages.largest_divisor(panels, max(1, L2_BYTES // 2 // _panel_bytes(found, self.kernel)))
        chunks = found.extent(found.batch) * found.extent(found.columns) * found.extent(found.rows[:-1]) * tiles
        sizes = sorted({1, fit, panels})
        if tiles > 1:  # The parallel loop includes the panels of a group: every size gives as many chunks.
            return sizes
        busy = {size: stages.busy(chunks * panels // size, self.cores) for size in sizes}
        return [size for size in sizes if busy[size] >= BALANCED] or [max(sizes, key=busy.__getitem__)]

    def _group_traffic(self, size: int, panels: int) -> tuple[float, int]:
        """Bytes that come from beyond the L2 cache with so many panels in a group, then the number of groups.

        A group that fits the cache is loaded once for all tiles, a larger one again for each; A is loaded again for each
        group.
        """
        found, rows = self.found, self.found.extent(self.found.rows)
        panel_bytes = _panel_bytes(found, self.kernel)
        tiles = math.ceil(rows / self.kernel.rows) if size * panel_bytes > L2_BYTES else 1
        channels = found.extent(found.reduction[-1:] if found.window else found.reduction)
        groups = panels // size
        data = groups * rows * channels * found.bits // 8
        return float(panels * panel_bytes * tiles + data), groups

    def _packed(self, stage: Any = None) -> Any:
        """The stage that packs B as [batch..., v / width, reduction axes in loop order, v % width]."""
        found, width = self.found, self.kernel.width
        packed = stage if stage is not None else self.schedule.cache_read(found.block, found.weight, "global")
        order = self._packed_order()

        def layout(*index: Any) -> list[Any]:
            at = dict(zip(found.weight_axes, index, strict=True))
            column = at[found.vector]
            return [*(column // width if axis == found.vector else at[axis] for axis in order), column % width]

        index_dtype = index_type(self.schedule, found.block)
        index_map = tirx.IndexMap.from_func(layout, ndim=len(found.weight_axes), index_dtype=index_dtype)
        self.schedule.transform_layout(packed, ("write", 0), index_map)
        return packed

    def _packed_order(self) -> list[int]:
        found = self.found
        first = [axis for axis in found.batch + found.columns if axis in found.weight_axes]
        return [*first, found.vector, *(axis for axis in found.reduction if axis in found.weight_axes)]

    def _place_packing(self, packed: Any, chunk: Any) -> None:
        """Schedules the packing of B, at the loop `chunk` or, for None, as a parallel loop of its own.

        Where B is contiguous along its reduction, every element of a vector along the columns is in another cache line, and
        many of these lines are in one set. So a few lines are read to their end before the next ones, or, where columns are
        padded and lanes have a condition, PADDED_STEPS of each.
        """
        schedule, found, kernel = self.schedule, self.found, self.kernel
        if chunk is not None:
            schedule.compute_at(packed, chunk, preserve_unit_loops=True)
        own = list(zip(found.weight_axes, schedule.get_loops(packed)[-len(found.weight_axes) :], strict=True))
        loops = dict(own)
        units = [loop for axis, loop in own if axis is None]
        loops[found.vector], vector, lane = schedule.split(loops[found.vector], [None, kernel.vectors, kernel.lanes])
        last, along = found.weight_axes[-1], []
        if last in found.reduction:
            padded = found.extents[found.vector] % kernel.width > 0
            steps = PADDED_STEPS if padded else LINE_BYTES * 8 // found.bits
            length = stages.largest_divisor(found.extents[last], steps)
            loops[last], *along = schedule.split(loops[last], [None, length])
        order = self._packed_order()
        schedule.reorder(*units, *(loops[axis] for axis in order), vector, *along, lane)
        if chunk is None:
            schedule.parallel(schedule.fuse(*(loops[axis] for axis in order[: order.index(found.vector) + 2])))
        if last == found.vector or along:
            schedule.vectorize(lane)
