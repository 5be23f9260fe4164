"""Which elements one thread may load and store at once.

Notation: the loops over some axes are fused into one of `f`; a thread takes f = lanes * vector + lane for all lanes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tuner.space.gpu.limits import VECTOR_BYTES
from tuner.tvm_compat import ir, structural_walk, sym, tirx, tvm, tvm_ffi, uses

MAX_LANES = 8
"""TVM 0.27 has no CUDA vector of more than eight floats."""
MAX_INTEGER_LANES = 4
"""Nor one of more than four 32-bit integers, to which indices and narrow integers are often converted."""
MAX_CONSTANT_LANES = 4
"""Nor a constant of eight floats, with which a statement is taken apart (tuner/lowering/lane_by_lane.py)."""


def lanes_of(definition: Any, axes: Sequence[Any], *, reads_decide: bool = False) -> int:
    """Lanes of the widest vectors along the fused axes of a block, 1 where accesses are not contiguous along them.

    All writes have to be contiguous, and reads of 16 bits or less, of which TVM 0.27 makes no vector element by element; an
    element that stays the same is broadcast. What finds the place of another read has to stay the same for all lanes.
    reads_decide: writes may stay the same, as those of a reduction over the axes do, but some read has to be contiguous.
    """
    extent = math.prod(int(axis.dom.extent) for axis in axes)
    found = looked_up_by(definition)
    finders = [read for read in definition.reads if read.source in found]
    values = [read for read in definition.reads if read.source not in found]
    types = [tvm.runtime.DataType(str(region.source.dtype)) for region in [*values, *definition.writes]]
    lanes = min(MAX_LANES, VECTOR_BYTES // max((int(data.bits) + 7) // 8 for data in types))
    if not all(str(data).startswith(("float", "bfloat")) for data in types):
        lanes = min(lanes, MAX_INTEGER_LANES)
    narrow = [int(tvm.runtime.DataType(str(read.source.dtype)).bits) < 32 for read in values]
    while lanes > 1:
        if extent % lanes == 0:
            writes = [step(definition, region, axes, lanes, aligned=True) for region in definition.writes]
            reads = [step(definition, region, axes, lanes, aligned=True) for region in values]
            works = not any(found is None and small for found, small in zip(reads, narrow, strict=True))
            works = works and all(step(definition, read, axes, lanes) == 0 for read in finders)
            if works and (1 in reads if reads_decide else all(found == 1 for found in writes)):
                return lanes
        lanes //= 2
    return 1


def looked_up_by(definition: Any) -> set[Any]:
    """The buffers that a block reads in order to know which element of another to read, and for nothing else."""
    loads: list[Any] = []
    nested: list[Any] = []
    structural_walk(definition.body, (ir.TensorLoad, loads.append))
    for load in loads:
        for index in load.indices:
            structural_walk(index, (ir.TensorLoad, nested.append))
    all_reads, as_indices = (Counter(load.source for load in found) for found in (loads, nested))
    return {buffer for buffer, count in as_indices.items() if count >= all_reads[buffer]}


def uniform_lanes(definition: Any, axis: Any, lanes: int) -> int:
    """As many of the lanes along an axis as every condition of a block treats alike (tuner/lowering/lane_conditions.py)."""
    bounds: list[int] = []

    def note(comparison: Any) -> None:
        bound, other = comparison.a, comparison.b
        if isinstance(comparison, tirx.LT | tirx.GE):
            bound, other = other, bound
        if any(uses(side, axis.var) for side in (bound, other)):
            bounds.append(int(bound) if isinstance(bound, tirx.IntImm) else 1)

    structural_walk(definition.body, ((tirx.LT, tirx.GE, tirx.LE, tirx.GT, tirx.EQ, tirx.NE), note))
    return math.gcd(lanes, *bounds)


def computed_lanes(definition: Any, lanes: int) -> int:
    """As many of the lanes as a block may be computed in."""
    wide: list[Any] = []
    structural_walk(definition.body, (tirx.FloatImm, lambda one: wide.append(one) if _is_single(one) else None))
    return min(lanes, MAX_CONSTANT_LANES) if wide else lanes


def _is_single(constant: Any) -> bool:
    return str(constant.ty.dtype) == "float32"


def step(definition: Any, region: Any, axes: Sequence[Any], lanes: int, *, aligned: bool = False) -> int | None:
    """How far apart in memory, in elements, an access's neighbouring lanes are: 0, 1, or None for anything else.

    aligned: neighbours that do not begin at a multiple of `lanes` elements count as anything else. Of several accesses to
    one buffer, as to an element and to the first of its row, those that stay the same count only if all do.
    """
    shape = region.source.shape
    steps = [_step(definition, indices, shape, axes, lanes, aligned) for indices in _accesses(definition, region)]
    known = [one for one in steps if one is not None]
    return max(known, default=None) if len(known) == len(steps) else None


def _step(
    definition: Any, indices: Sequence[Any], shape: Sequence[Any], axes: Sequence[Any], lanes: int, aligned: bool
) -> int | None:
    analyzer = sym.Analyzer()
    for other in definition.iter_vars:
        analyzer.bind(other.var, other.dom)
    dtype = axes[-1].var.ty.dtype
    vector, lane = tirx.Var("vector", dtype), tirx.Var("lane", dtype)
    total = math.prod(int(axis.dom.extent) for axis in axes)
    analyzer.bind(vector, ir.Range(0, max(total // lanes, 1)))
    analyzer.bind(lane, ir.Range(0, lanes))
    places: dict[Any, Any] = {}
    inner = 1
    for axis in reversed(axes):
        extent = int(axis.dom.extent)
        position = vector * lanes + lane
        position = tirx.floordiv(position, tirx.const(inner, dtype)) if inner > 1 else position
        places[axis.var] = tirx.floormod(position, tirx.const(extent, dtype)) if inner * extent < total else position
        inner *= extent
    offset: Any = tirx.const(0, dtype)
    for index, size in zip(indices, shape, strict=True):
        offset = offset * size.astype(dtype) + index.astype(dtype)
    moved = analyzer.simplify(tvm_ffi.structural_map(offset, (tirx.Var, lambda found: places.get(found, found))))
    start = tvm_ffi.structural_map(moved, (tirx.Var, lambda v: tirx.const(0, dtype) if v.same_as(lane) else v))
    apart = analyzer.simplify(moved - analyzer.simplify(start))
    if analyzer.can_prove_equal(apart, 0):
        return 0
    if not analyzer.can_prove_equal(apart, lane):
        return None
    first = analyzer.simplify(tirx.floormod(analyzer.simplify(start), tirx.const(lanes, dtype)))
    return 1 if not aligned or analyzer.can_prove_equal(first, 0) else None


def _accesses(definition: Any, region: Any) -> list[list[Any]]:
    """The indices of each element that a block accesses in a region.

    A region of one element is its own; of others, which bound several accesses, or an element that is looked up, those of
    the block's own loads are taken.
    """
    if all(getattr(dim.extent, "value", None) == 1 for dim in region.region):
        return [[dim.min for dim in region.region]]
    loads: list[Any] = []

    def note(load: Any) -> None:
        if load.source.same_as(region.source) and not any(tvm_ffi.structural_equal(load, known) for known in loads):
            loads.append(load)

    structural_walk(definition.body, (ir.TensorLoad, note))
    return [list(load.indices) for load in loads]
