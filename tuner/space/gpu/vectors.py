"""Which elements one thread may load and store at once.

Notation: the loops over some axes are fused into one of `f`; a thread takes f = lanes * vector + lane for all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuner.space.gpu.limits import VECTOR_BYTES
from tuner.tvm_compat import ir, structural_walk, sym, tirx, tvm, tvm_ffi

MAX_LANES = 8
"""TVM 0.27 has no CUDA vector of more than eight floats."""
MAX_INTEGER_LANES = 4
"""Nor one of more than four 32-bit integers, to which indices and narrow integers are often converted."""
MAX_CONSTANT_LANES = 4
"""And it writes a constant of eight floats as four numbers of eight arguments, which no compiler takes."""


def lanes_of(definition: Any, axes: Sequence[Any], *, reads_decide: bool = False) -> int:
    """Lanes of the widest vectors along the fused axes of a block, 1 where accesses are not contiguous along them.

    All writes have to be contiguous, and reads of 16 bits or less, of which TVM 0.27 makes no vector element by element; an
    element that stays the same is broadcast. reads_decide: writes may stay the same, as those of a reduction over the axes
    do, but some read has to be contiguous.
    """
    extent = math.prod(int(axis.dom.extent) for axis in axes)
    types = [tvm.runtime.DataType(str(r.source.dtype)) for r in [*definition.reads, *definition.writes]]
    lanes = min(MAX_LANES, VECTOR_BYTES // max((int(data.bits) + 7) // 8 for data in types))
    if not all(str(data).startswith(("float", "bfloat")) for data in types):
        lanes = min(lanes, MAX_INTEGER_LANES)
    while lanes > 1:
        if extent % lanes == 0:
            writes = [step(definition, region, axes, lanes, aligned=True) for region in definition.writes]
            reads = [step(definition, region, axes, lanes, aligned=True) for region in definition.reads]
            narrow = [int(tvm.runtime.DataType(str(read.source.dtype)).bits) < 32 for read in definition.reads]
            works = not any(found is None and small for found, small in zip(reads, narrow, strict=True))
            if works and (1 in reads if reads_decide else all(found == 1 for found in writes)):
                return lanes
        lanes //= 2
    return 1


def computed_lanes(definition: Any, lanes: int) -> int:
    """As many of the lanes as a block may be computed in."""
    wide: list[Any] = []
    structural_walk(definition.body, (tirx.FloatImm, lambda one: wide.append(one) if _is_single(one) else None))
    return min(lanes, MAX_CONSTANT_LANES) if wide else lanes


def _is_single(constant: Any) -> bool:
    return str(constant.ty.dtype) == "float32"


def step(definition: Any, region: Any, axes: Sequence[Any], lanes: int, *, aligned: bool = False) -> int | None:
    """How far apart in memory, in elements, an access's neighbouring lanes are: 0, 1, or None for anything else.

    aligned: neighbours that do not begin at a multiple of `lanes` elements count as anything else.
    """
    if any(getattr(dim.extent, "value", None) != 1 for dim in region.region):
        return None
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
    for dim, size in zip(region.region, region.source.shape, strict=True):
        offset = offset * size.astype(dtype) + dim.min.astype(dtype)
    moved = analyzer.simplify(tvm_ffi.structural_map(offset, (tirx.Var, lambda found: places.get(found, found))))
    start = tvm_ffi.structural_map(moved, (tirx.Var, lambda v: tirx.const(0, dtype) if v.same_as(lane) else v))
    apart = analyzer.simplify(moved - analyzer.simplify(start))
    if analyzer.can_prove_equal(apart, 0):
        return 0
    if not analyzer.can_prove_equal(apart, lane):
        return None
    first = analyzer.simplify(tirx.floormod(analyzer.simplify(start), tirx.const(lanes, dtype)))
    return 1 if not aligned or analyzer.can_prove_equal(first, 0) else None
