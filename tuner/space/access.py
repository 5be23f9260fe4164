"""The memory accesses of a block: which elements a vector along one of its axes would read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.tvm_compat import ir, sym, tirx, tvm, tvm_ffi, uses

WORD_BITS = 32
MIN_LANES = 4
"""Elements of the shortest vector that a schedule asks for; shorter ones are left to LLVM."""
NARROW = range(8, 257)
"""Elements of an axis of which a tile of a transposition has all. Of fewer, a line of memory stays in the cache until it
was read whole."""


def dividing_lanes(extent: int, lanes: int) -> int:
    """The largest of lanes, lanes / 2, lanes / 4, ... that divides the extent; 1 where that is below MIN_LANES."""
    while lanes >= MIN_LANES and extent % lanes:
        lanes //= 2
    return lanes if lanes >= MIN_LANES else 1


def element_bits(definition: Any) -> int:
    """Bits of an element that a block computes with: of what it writes, or, up to WORD_BITS, of the widest that it reads. A
    quantisation computes in float32 what it writes in bytes. Whole numbers of 64 bits are indices, only looked up by."""
    reads = [region.source for region in definition.reads if region.source.dtype != "int64"]
    written, *read = (int(tvm.runtime.DataType(str(each.dtype)).bits) for each in (definition.writes[0].source, *reads))
    return max(written, min(WORD_BITS, max(read, default=0)))


def spatial_axes(definition: Any) -> list[Any]:
    """The block's axes that are no reduction, in order."""
    return [axis for axis in definition.iter_vars if int(axis.iter_type) == tirx.IterVar.DataPar]


def lane_stride(definition: Any, index: Any, axis: Any, lanes: int | None = None) -> int | None:
    """The stride of the index from lane to lane of an aligned vector along the axis: 0, 1, or None for any other.

    lanes: elements of the vector; None for one vector over the whole axis.
    """
    extent = int(axis.dom.extent)
    lanes = lanes or extent
    if not uses(index, axis.var):
        return 0
    analyzer = sym.Analyzer()
    for other in definition.iter_vars:
        analyzer.bind(other.var, other.dom)
    dtype = axis.var.ty.dtype
    vector, lane = tirx.Var("vector", dtype), tirx.Var("lane", dtype)
    analyzer.bind(vector, ir.Range(0, extent // lanes))
    analyzer.bind(lane, ir.Range(0, lanes))
    at = vector * lanes + lane
    moved = tvm_ffi.structural_map(index, (tirx.Var, lambda found: at if found.same_as(axis.var) else found))
    moved = analyzer.simplify(moved)
    if not uses(moved, lane):
        return 0
    base = analyzer.simplify(moved - lane)
    return None if uses(base, lane) else 1


def strides(definition: Any, regions: Sequence[Any], axis: Any, lanes: int | None = None) -> list[list[int | None]]:
    """`lane_stride` of every index of every region."""
    return [[lane_stride(definition, dim.min, axis, lanes) for dim in region.region] for region in regions]


def in_last_only(found: Sequence[int | None]) -> bool:
    """Whether the lanes access one element or neighbours: the strides are 0 in all dimensions but the last, there 0 or 1."""
    return found[-1] in (0, 1) and all(stride == 0 for stride in found[:-1])


def vector_lanes(definition: Any, unit: int) -> int:
    """Elements of the widest vector along the last spatial axis for which every write is contiguous and every read is
    contiguous or a broadcast; 1 where there is none.

    In a block with a reduction, reads may also be gathers with a constant stride (the axis is in an index that is not the
    last): they are still faster than a scalar reduction, which LLVM may not reorder. `unit`: lanes of the vector unit.
    """
    axes = spatial_axes(definition)
    lanes = dividing_lanes(int(axes[-1].dom.extent), unit)
    reduces = len(axes) < len(definition.iter_vars)
    while lanes >= MIN_LANES:
        writes = strides(definition, definition.writes, axes[-1], lanes)
        reads = [s for s in strides(definition, definition.reads, axes[-1], lanes) if s]
        if all(s and s[-1] == 1 and in_last_only(s) for s in writes) and all(
            s[-1] is not None and (reduces or in_last_only(s)) for s in reads
        ):
            return lanes
        lanes //= 2
    return 1


def is_flat(definition: Any) -> bool:
    """Whether a block without reductions reads and writes every buffer as a whole in the order of its axes, so that all axes
    may be fused into one."""
    axes = [axis.var for axis in definition.iter_vars]
    extents = [int(axis.dom.extent) for axis in definition.iter_vars]
    return all(
        [int(extent) for extent in region.source.shape] == extents
        and all(dim.min.same_as(axis) for dim, axis in zip(region.region, axes, strict=True))
        for region in [*definition.reads, *definition.writes]
        if region.region
    )


def turned_axis(definition: Any, unit: int) -> int | None:
    """Position of the axis along which a transposed read is contiguous, where both it and the last axis, along which that
    read is strided, are long enough for a tile; None where there is no such read."""
    axes = spatial_axes(definition)
    if dividing_lanes(int(axes[-1].dom.extent), MIN_LANES) == 1:
        return None
    for read in definition.reads:
        if not read.region or not _jumps(definition, read, axes[-1]):
            continue
        for number, axis in enumerate(axes[:-1]):
            lanes = dividing_lanes(int(axis.dom.extent), unit)
            if lanes > 1 and lane_stride(definition, read.region[-1].min, axis, lanes) == 1:
                return number
    return None


def narrow_axis(definition: Any) -> int | None:
    """Position of an axis of NARROW elements along which a transposed read is contiguous, as that of an image's classes,
    whatever divides it; None where there is no such read."""
    *others, last = spatial_axes(definition)
    for read in definition.reads:
        if not read.region or not _jumps(definition, read, last):
            continue
        for number, axis in enumerate(others):
            if int(axis.dom.extent) in NARROW and lane_stride(definition, read.region[-1].min, axis) == 1:
                return number
    return None


def _jumps(definition: Any, read: Any, axis: Any) -> bool:
    return any(lane_stride(definition, dim.min, axis) != 0 for dim in read.region[:-1])
