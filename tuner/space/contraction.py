"""The contraction of a workload: its block, and the role of each of the block's axes.

Notation, for C[b, i, v] += A[b, i, r] * B[b, r, v]: v is the column (the last axis of C, which B has and A has not), i a
row (A has it, B has not), b a batch (both have it), r a reduction. In a convolution the rows are the positions of the
output, the reductions the window and the input channels; in a depthwise convolution v is in both and only the window is
reduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.byte_products import accumulated
from tuner.tvm_compat import ir, structural_walk, tirx, tvm, uses

MIN_MACS = 1 << 16
"""Multiply-adds of the smallest contraction that is tiled."""
DILATED = 1.5


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """One block that multiplies and accumulates. Axes are given by their position among the block's iteration variables;
    those named here have extents above 1, except in `spatial_units` and `reduction_units`."""

    block: Any
    data: int
    """Position of A among the block's reads."""
    weight: int
    """Position of B."""
    prepacked: bool
    """Whether B is a weight, whose layout may be changed when it is bound."""
    depthwise: bool
    """Whether the vector axis is in A too: every column has its own reduction over a window."""
    vector: int
    """The axis of the columns; the last of C."""
    rows: tuple[int, ...]
    """Axes of A and C, in the order of C."""
    batch: tuple[int, ...]
    """Axes of A, B and C other than the vector axis."""
    columns: tuple[int, ...]
    """Axes of B and C other than the vector axis."""
    reduction: tuple[int, ...]
    """Reduction axes; the last is the longest, usually the input channels, which sketches split."""
    spatial_units: tuple[int, ...]
    """Spatial axes of extent one."""
    reduction_units: tuple[int, ...]
    """Reduction axes of extent one."""
    group: int
    """Number of neighbouring columns that read the same A: all of them, except in grouped convolutions."""
    window: bool
    """Whether A is indexed by sums of axes, or with a stride, so that rows of C are not rows of A."""
    period: int
    """Period, along rows and window, of the condition under which A is read: the stride of a transposed convolution; 1 where
    there is no condition."""
    row_stride: int
    """Elements of A from one position of the last row axis to the next; 0 where there are no rows."""
    dilated: bool
    """Whether a row of C reads rows of A far apart: half as many again lie between the first and the last of them. With
    dilations of 6, 12 and 18 a convolution took 1.2 times as long with its padding in chunks, each of which pads all."""
    extents: tuple[int, ...]
    """Extent of every axis of the block."""
    output_axes: tuple[int, ...]
    """Per dimension of C, the axis that indexes it."""
    data_axes: tuple[int | None, ...]
    """Per dimension of A, the first axis longer than one in its index (without a window there is no other); None where there
    is none."""
    weight_axes: tuple[int | None, ...]
    """Per dimension of B, the axis that is its index, None for one of extent one; empty where an index of B is no single
    axis (a flipped window)."""
    bits: int
    """Bits of an element of C."""

    @property
    def one_row(self) -> bool:
        """Whether there is one row, and B is no weight and lies along its reduction, as the keys of a decoder's attention
        do: every element of B is used once, in a sum over neighbours, so packing it costs more than all the rest."""
        lies_along = bool(self.weight_axes) and self.weight_axes[-1] in self.reduction
        return lies_along and not (self.rows or self.prepacked or self.depthwise)

    def extent(self, axes: tuple[int, ...]) -> int:
        return math.prod(self.extents[axis] for axis in axes)


def find_contraction(schedule: Any) -> Contraction | None:
    """The workload's only reduction, where it multiplies and accumulates and its indices have the form described above;
    else None."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    reducing = [block for block in blocks if any(axis.iter_type == 2 for axis in schedule.get(block).iter_vars)]
    if len(reducing) != 1:
        return None
    (block,) = reducing
    stmt = schedule.get(block)
    store = stmt.body
    if not isinstance(store, tirx.BufferStore) or len(stmt.reads) != 2:
        return None
    period = 1 if accumulated(store) else _period(store.value)
    if period is None:
        return None
    extents = tuple(int(axis.dom.extent) for axis in stmt.iter_vars)
    summed = str(store.buffer.dtype)
    if not (summed.startswith("float") or summed == "int32") or math.prod(extents) < MIN_MACS:
        return None
    axes = [axis.var for axis in stmt.iter_vars]
    output = [_plain(index, axes) for index in store.indices]
    if not output or any(axis is None for axis in output):
        return None
    output_axes = tuple(axis for axis in output if axis is not None)
    vector = output_axes[-1]
    reads = [[dim.min for dim in read.region] for read in stmt.reads]
    used = [{i for i, axis in enumerate(axes) if extents[i] > 1 and any(uses(x, axis) for x in r)} for r in reads]
    groups = [_group(read, axes[vector], extents[vector]) for read in reads]
    weight = _weight(vector, used, groups)
    if weight is None:
        return None
    data = 1 - weight
    weight_plain = [_plain(index, axes) for index in reads[weight]]
    weight_axes = tuple(axis for axis in weight_plain if axis is not None)
    plain = len(weight_axes) == len(weight_plain) and len(set(weight_axes)) == len(weight_axes)
    spatial = [axis for axis in output_axes if axis != vector and extents[axis] > 1]
    reduction = [i for i, axis in enumerate(stmt.iter_vars) if axis.iter_type == 2 and extents[i] > 1]
    rows = tuple(i for i in spatial if i in used[data] and i not in used[weight])
    longest = max((extents[i] for i in reduction), default=1)
    depthwise = vector in used[data] and groups[data] == 1
    if not (depthwise or plain or weight_plain[-1] == vector):
        return None
    return Contraction(
        block=block,
        data=data,
        weight=weight,
        prepacked=_layout_is_free(schedule, stmt.reads[weight].source),
        depthwise=depthwise,
        vector=vector,
        rows=rows,
        batch=tuple(i for i in spatial if i in used[data] and i in used[weight]),
        columns=tuple(i for i in spatial if i not in used[data]),
        reduction=tuple(sorted(reduction, key=lambda i: (extents[i] == longest, i))),
        spatial_units=tuple(i for i, axis in enumerate(stmt.iter_vars) if axis.iter_type == 0 and extents[i] == 1),
        reduction_units=tuple(i for i, axis in enumerate(stmt.iter_vars) if axis.iter_type == 2 and extents[i] == 1),
        group=extents[vector] if vector not in used[data] else groups[data],
        window=any(_shifted(index, axes, extents) for index in reads[data]),
        period=period,
        row_stride=_stride(reads[data], stmt.reads[data].source.shape, axes[rows[-1]]) if rows else 0,
        dilated=_spread(reads[data], [axes[i] for i in rows[:-1]], [(axes[i], extents[i]) for i in reduction])
        > DILATED,
        extents=extents,
        output_axes=output_axes,
        data_axes=tuple(
            next((i for i, axis in enumerate(axes) if extents[i] > 1 and uses(index, axis)), None)
            for index in reads[data]
        ),
        weight_axes=tuple(None if extents[axis] == 1 else axis for axis in weight_axes) if plain else (),
        bits=int(tvm.runtime.DataType(str(store.buffer.dtype)).bits),
    )


def as_product(schedule: Any, found: Contraction, result: Any) -> Contraction:
    """Fuses all rows into one axis and drops the axes of extent one: in the block, in C, and in `result`.

    C must be an intermediate buffer, and `result` its only reader, which copies it element by element. Returns the
    contraction with the new axes.
    """
    rows = found.rows
    dropped = {*found.spatial_units, *found.reduction_units, *rows[1:]}

    def index_map(axes: Sequence[int]) -> Any:
        def kept(*index: Any) -> list[Any]:
            at = dict(zip(axes, index, strict=True))
            fused: Any = at[rows[0]] if rows else None
            for axis in rows[1:]:
                fused = fused * found.extents[axis] + at[axis]
            return [fused if axis in rows else at[axis] for axis in axes if axis not in dropped]

        return tirx.IndexMap.from_func(kept, ndim=len(axes), index_dtype=index_type(schedule, found.block))

    every = range(len(found.extents))
    schedule.transform_layout(found.block, ("write", 0), index_map(found.output_axes))
    schedule.transform_block_layout(found.block, index_map(every))
    schedule.transform_block_layout(result, index_map(found.output_axes))
    place = {axis: i for i, axis in enumerate(axis for axis in every if axis not in dropped)}

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[axis] for axis in axes if axis in place)

    total = found.extent(rows)
    return replace(
        found,
        vector=place[found.vector],
        rows=moved(rows),
        batch=moved(found.batch),
        columns=moved(found.columns),
        reduction=moved(found.reduction),
        spatial_units=(),
        reduction_units=(),
        extents=tuple(total if axis in rows else found.extents[axis] for axis in place),
        output_axes=moved(found.output_axes),
        data_axes=(),
        weight_axes=tuple(None if axis is None else place[axis] for axis in found.weight_axes),
    )


def copy_as_matrix(schedule: Any, found: Contraction) -> Any:
    """Adds a stage that copies A so that all rows are one axis of the copy, and returns it. It is inlined into the stage
    that pads."""
    shape = [int(extent) for extent in schedule.get(found.block).reads[found.data].source.shape]

    def kept(*index: Any) -> list[Any]:
        at = dict(zip(found.data_axes, index, strict=True))
        row: Any = 0
        for axis in found.rows:
            row = row * found.extents[axis] + at[axis]
        axes = [axis for axis, extent in zip(found.data_axes, shape, strict=True) if extent > 1]
        return [row if axis in found.rows else at[axis] for axis in axes if axis not in found.rows[1:]]

    copy = schedule.cache_read(found.block, found.data, "global")
    index_map = tirx.IndexMap.from_func(kept, ndim=len(shape), index_dtype=index_type(schedule, found.block))
    schedule.transform_layout(copy, ("write", 0), index_map)
    return copy


def index_type(schedule: Any, block: Any) -> str:
    """Type of the block's axes: int64 in workloads lowered from a graph, int32 in TVM's own."""
    return str(schedule.get(block).iter_vars[0].var.ty.dtype)


def _weight(vector: int, used: list[set[int]], groups: list[int]) -> int | None:
    """Position of B among the reads: the read with the vector axis where the other has none or only groups of columns;
    where both have it (depthwise), the read whose axes are a proper subset of the other's."""
    for weight in (1, 0):
        if vector in used[weight] and (vector not in used[1 - weight] or groups[1 - weight] > 1):
            return weight
    for weight in (1, 0):
        if vector in used[weight] and used[weight] < used[1 - weight]:
            return weight
    return None


def _layout_is_free(schedule: Any, buffer: Any) -> bool:
    function = schedule.mod["main"]
    free = [int(i) for i in (function.attrs or {}).get("layout_free_buffers", [])]
    return any(buffer.same_as(function.params[i]) for i in free if i < len(function.params))


def _group(indices: list[Any], axis: Any, extent: int) -> int:
    """Number of neighbouring values of the axis that give the same indices: `extent` where it does not occur, c for
    axis // c."""
    return min((_steps(index, axis, extent) for index in indices), default=extent)


def _steps(index: Any, axis: Any, extent: int) -> int:
    if not uses(index, axis):
        return extent
    if isinstance(index, tirx.FloorDiv) and index.a.same_as(axis) and isinstance(index.b, tirx.IntImm):
        return int(index.b)
    if isinstance(index, (tirx.Add, tirx.Sub, tirx.Mul)):
        return min(_steps(index.a, axis, extent), _steps(index.b, axis, extent))
    return 1


def _spread(indices: list[Any], rows: list[Any], window: list[tuple[Any, int]]) -> float:
    """Rows of A from the first to the last that a row of C reads, for each one that it reads."""
    spread = 1.0
    for index in indices:
        if any(uses(index, row) for row in rows):
            for axis, extent in window:
                if uses(index, axis):
                    spread *= (1 + (extent - 1) * _coefficient(index, axis)) / extent
    return spread


def _stride(indices: list[Any], shape: Any, axis: Any) -> int:
    """Elements of a row-major tensor between neighbouring values of an axis of the block."""
    stride, size = 0, 1
    for index, extent in zip(reversed(indices), reversed([int(extent) for extent in shape]), strict=True):
        stride += size * _coefficient(index, axis)
        size *= extent
    return stride


def _coefficient(index: Any, axis: Any) -> int:
    if isinstance(index, tirx.Add):
        return _coefficient(index.a, axis) + _coefficient(index.b, axis)
    if isinstance(index, tirx.Mul) and isinstance(index.b, tirx.IntImm):
        return _coefficient(index.a, axis) * int(index.b)
    return int(index.same_as(axis))


def _plain(index: Any, axes: list[Any]) -> int | None:
    return next((i for i, axis in enumerate(axes) if index.same_as(axis)), None)


def _shifted(index: Any, axes: list[Any], extents: tuple[int, ...]) -> bool:
    """Whether the index is anything but a single axis or a constant, axes of extent one left out."""
    found = [i for i, axis in enumerate(axes) if extents[i] > 1 and uses(index, axis)]
    if len(found) > 1:
        return True
    return bool(found) and not _is_sum_of(index, axes[found[0]], [a for i, a in enumerate(axes) if extents[i] == 1])


def _is_sum_of(index: Any, axis: Any, units: list[Any]) -> bool:
    if isinstance(index, tirx.Add):
        left, right = uses(index.a, axis), uses(index.b, axis)
        rest, part = (index.b, index.a) if left else (index.a, index.b)
        return left != right and any(rest.same_as(unit) for unit in units) and _is_sum_of(part, axis, units)
    return bool(index.same_as(axis))


def _period(value: Any) -> int | None:
    """The period of C + A * B: 1 where A and B are plain loads, the least common multiple of the moduli where one is read
    under a condition on remainders; None for any other value."""
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    period = 1
    for factor in (value.b.a, value.b.b):
        while isinstance(factor, tirx.Cast):
            factor = factor.value
        if isinstance(factor, ir.TensorLoad):
            continue
        moduli: list[Any] = []
        structural_walk(factor, (tirx.FloorMod, moduli.append))
        if not moduli or not all(isinstance(modulo.b, tirx.IntImm) for modulo in moduli):
            return None
        period = math.lcm(period, *(int(modulo.b) for modulo in moduli))
    return period
