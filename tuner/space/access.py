"""How a block walks through memory: what a vector along one of its axes would read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.tvm_compat import ir, sym, tirx, tvm, tvm_ffi, uses

MIN_LANES = 4
"""Shorter vectors are left to LLVM."""


def dividing_lanes(extent: int, lanes: int) -> int:
    """The widest vector, of a power of two elements, that divides the extent; 1 where it would be too short."""
    while lanes >= MIN_LANES and extent % lanes:
        lanes //= 2
    return lanes if lanes >= MIN_LANES else 1


def element_bits(definition: Any) -> int:
    """Of what a block writes."""
    return int(tvm.runtime.DataType(str(definition.writes[0].source.dtype)).bits)


def spatial_axes(definition: Any) -> list[Any]:
    """Its axes that are no reduction, in order."""
    return [axis for axis in definition.iter_vars if int(axis.iter_type) == tirx.IterVar.DataPar]


def lane_stride(definition: Any, index: Any, axis: Any, lanes: int | None = None) -> int | None:
    """How the index moves from lane to lane of an aligned vector along the axis: by 0, by 1, or otherwise (None).

    Without `lanes` the axis is one vector.
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
    """Whether lanes find one element or neighbours: strides of zero in all dimensions but the last."""
    return found[-1] in (0, 1) and all(stride == 0 for stride in found[:-1])


def vector_lanes(definition: Any, unit: int) -> int:
    """Elements of the widest vector along the last spatial axis that writes neighbours and reads neighbours or one
    element everywhere; 1 where there is none.

    A read with the axis in an index that is not the last is a gather with a constant stride: still better than a reduction
    that LLVM may not reorder, so it is allowed where there is one.
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
    """Whether a block without reductions writes and reads everything in the order of its axes: one long vector."""
    axes = [axis.var for axis in definition.iter_vars]
    extents = [int(axis.dom.extent) for axis in definition.iter_vars]
    return all(
        [int(extent) for extent in region.source.shape] == extents
        and all(dim.min.same_as(axis) for dim, axis in zip(region.region, axes, strict=True))
        for region in [*definition.reads, *definition.writes]
        if region.region
    )


def turned_axis(definition: Any, unit: int) -> int | None:
    """The axis that a read finds in order while the last axis jumps, both long enough for a tile; None where there is
    none."""
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


def _jumps(definition: Any, read: Any, axis: Any) -> bool:
    return any(lane_stride(definition, dim.min, axis) != 0 for dim in read.region[:-1])
