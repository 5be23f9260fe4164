"""A product in its normal form, and the copies of its operands: the same for plain cores and for tensor cores.

Notation: C[s, i, j] += A[s, i, k] * B[s, k, j]; s are the axes of all three (batches), i those of A and C (rows, positions
of an image), j those of B and C, k those that are summed (a window and its channels). Whatever axes a workload has are fused
into these four, so that a convolution is a product whose A is gathered while it is copied (implicit GEMM).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.space.gpu.limits import NoSchedule
from tuner.space.gpu.vectors import step as distance
from tuner.space.inlining import is_reduction
from tuner.tvm_compat import tirx, tvm, uses


def _reduced(axis: Any) -> bool:
    return bool(int(axis.iter_type) == tirx.IterVar.CommReduce)


def kinds_of(definition: Any) -> dict[Any, str]:
    """Variable of an axis -> s, i, j or k; raises NoSchedule where the block is no product. Axes of one iteration are
    left out."""
    if len(definition.reads) != 2 or len(definition.writes) != 1:
        raise NoSchedule("a product reads two tensors and writes one")
    regions = [*definition.reads, *definition.writes]
    if any(getattr(dim.extent, "value", None) != 1 for region in regions for dim in region.region):
        raise NoSchedule("more than one element is read at a time")
    found = {}
    for axis in definition.iter_vars:
        if int(axis.dom.extent) == 1:
            continue
        a, b, c = (any(uses(dim.min, axis.var) for dim in region.region) for region in regions)
        kind = {(True, True, True): "s", (True, False, True): "i", (False, True, True): "j", (True, True, False): "k"}
        if (a, b, c) not in kind or _reduced(axis) == c:
            raise NoSchedule("an axis is none of a product's")
        found[axis.var] = kind[a, b, c]
    return found


def stages_after(schedule: Any, block: Any) -> list[Any]:
    """The element-wise stages after a block, one after another, which use nothing else that is computed."""
    found: list[Any] = []
    while True:
        users = schedule.get_consumers(found[-1] if found else block)
        if len(users) != 1 or is_reduction(schedule, users[0]) or len(schedule.get_producers(users[0])) != 1:
            return found
        found.append(users[0])


def follows_in_order(schedule: Any, block: Any) -> bool:
    """Whether the stages after a block read each of its results at the place of an axis for each dimension.

    Where one reads at c // 24 and c % 24, TVM 0.27 computes it wherever c is below its end: beyond the 24th column of a
    product whose columns are padded, too, in the place of another product's.
    """
    for before, stage in itertools.pairwise([block, *stages_after(schedule, block)]):
        written = schedule.get(before).writes[0].source
        for read in schedule.get(stage).reads:
            if read.source.same_as(written) and not all(isinstance(d.min, tirx.Var | tirx.IntImm) for d in read.region):
                return False
    return True


def normal_form(schedule: Any, main: Any, i: int, j: int, k: int, *, rows_first: bool) -> bool:
    """Makes a block C[s, i, j] += A[s, i, k] * B[s, k, j] whose extents are multiples of i, j and k; returns whether B lies
    in memory as [s, j, k].

    An operand is copied in the order in which it lies in memory, but A as [s, i, k] if `rows_first`, and B as [s, k, j] if
    not: threads that sum read columns side by side.
    """
    along = [_contiguous(schedule.get(main), read) for read in schedule.get(main).reads]
    reindexed = [schedule.reindex(main, place) for place in (("read", 0), ("read", 1), ("write", 0))]
    definition = schedule.get(main)
    kinds = kinds_of(definition)
    layouts = [
        "sik" if along[0] == "k" or rows_first else "ski",
        "sjk" if along[1] == "k" and rows_first else "skj",
        "sij",
    ]
    for number, (block, layout) in enumerate(zip(reindexed, layouts, strict=True)):
        region = (definition.reads[number] if number < 2 else definition.writes[0]).region
        layout_map = _fused_map([dim.min for dim in region], kinds, layout, definition)
        schedule.transform_layout(block, ("write", 0) if number < 2 else ("read", 0), layout_map)
    variables = [axis.var for axis in definition.iter_vars]
    schedule.transform_block_layout(main, _fused_map(variables, kinds, "sijk", definition))
    schedule.pad_einsum(main, [1, i, j, k])
    return along[1] == "k"


def into_shared(schedule: Any, main: Any, read: int, scope: str, at: Any) -> Any:
    """The stage that copies a step's part of an operand into shared memory; what comes before it is computed there."""
    copied = schedule.cache_read(main, read, scope)
    schedule.compute_at(copied, at, preserve_unit_loops=True)
    for producer in list(_before(schedule, copied)):
        schedule.compute_inline(producer)
    return copied


def spread_copy(
    schedule: Any, copied: Any, threads: int, axes: Sequence[tuple[str, int]], align: int, offset: int
) -> int:
    """Divides the two innermost loops of a copy among threads, in vectors where the source lies in order; elements of a
    vector.

    axes: names and extents of the thread axes, the outer first. align, offset: rows begin `offset` elements after a multiple
    of `align`, or a whole number of vectors, so that few threads meet in a bank of shared memory.
    """
    definition = schedule.get(copied)
    loops = schedule.get_loops(copied)[-2:]
    extent = math.prod(int(schedule.get(loop).extent) for loop in loops)
    last = [definition.iter_vars[-1]]
    bits = int(tvm.runtime.DataType(str(definition.writes[0].source.dtype)).bits)
    row = int(schedule.get(loops[-1]).extent)
    wanted = [n for n in (128 // bits, 64 // bits) if n > 1 and row % n == 0 and extent % (n * threads) == 0]
    regions = [*definition.reads, *definition.writes]
    lanes = next((n for n in wanted if all(distance(definition, r, last, n, aligned=True) == 1 for r in regions)), 1)
    vector = None
    if lanes > 1:  # split off first: TVM divides a number of vectors by a row's, and not one of elements by a row's 48
        loops[-1], vector = schedule.split(loops[-1], [None, lanes])
    _, *inner = schedule.split(schedule.fuse(*loops), [None, *(size for _, size in axes)])
    for loop, (name, _) in zip(inner, axes, strict=True):
        schedule.bind(loop, name)
    if vector is not None:
        schedule.vectorize(vector)
    schedule.storage_align(copied, 0, -2, align, -(-offset // lanes) * lanes)  # vectors stay aligned
    return int(lanes)


def may_be_vector(definition: Any, lanes: int) -> bool:
    """Whether a block can take that many elements along its last axis at once."""
    last = [definition.iter_vars[-1]]
    regions = [*definition.writes, *definition.reads]
    return all(distance(definition, region, last, lanes, aligned=True) in (0, 1) for region in regions)


def inline_following(schedule: Any, block: Any) -> None:
    """Computes the element-wise stages after a block where it writes its result."""
    for stage in stages_after(schedule, block):
        schedule.reverse_compute_inline(stage)


def _before(schedule: Any, block: Any) -> Iterator[Any]:
    """The stages before a block that are no kernels yet, in their order."""
    for producer in schedule.get_producers(block):
        is_kernel = any(schedule.get(loop).thread_binding is not None for loop in schedule.get_loops(producer))
        if not is_kernel and not is_reduction(schedule, producer):
            yield from _before(schedule, producer)
            yield producer


def _contiguous(definition: Any, read: Any) -> str:
    """The kind of the axis along which a read is contiguous, k where it is none."""
    kinds = kinds_of(definition)
    for axis in definition.iter_vars:
        if axis.var in kinds and distance(definition, read, [axis], 2) == 1:
            return kinds[axis.var]
    return "k"


def _fused_map(indices: Sequence[Any], kinds: dict[Any, str], order: str, definition: Any) -> Any:
    """The map that fuses indices of one kind, in the order of kinds."""
    extents = {axis.var: int(axis.dom.extent) for axis in definition.iter_vars}
    dtype = next(iter(extents)).ty.dtype
    variables = [tirx.Var(f"x{number}", dtype) for number in range(len(indices))]
    parts: dict[str, Any] = {}
    for variable, index in zip(variables, indices, strict=True):
        if (kind := kinds.get(index)) is not None:
            parts[kind] = parts[kind] * tirx.const(extents[index], dtype) + variable if kind in parts else variable
    return tirx.IndexMap(variables, [parts.get(kind, tirx.const(0, dtype)) for kind in order], None)
