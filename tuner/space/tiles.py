"""A design space shaped by the hardware: register tiles over packed weights, for CPUs.

For a contraction C[b, i, v] += A[b, i, r] * B[b, r, v] hidden in a convolution, a dense layer or a batched product:

    parallel over (b, panels of v, rows i outer)     one tile of C stays in registers for the whole reduction
      for r outer, r inner                           reduction decomposed: C is zeroed before, written once after
        for i inner (unrolled)                       R rows ...
          for v inner (vectorized)                   ... by V columns: R * V / lanes accumulators
            C[i, v] += A[i, r] * B'[v / V, r, v % V] A is broadcast, B' streams through the cache line by line

B' is B packed into panels of V columns: when B is a weight, MetaSchedule's RewriteLayout postprocessor does it from the
loop order, once, when weights are bound; otherwise packing is a stage of the kernel, which pays when many rows read B,
or B is read as it lies. What follows the contraction (bias, residual, activation) is computed on the tile before it is
written. R and the split of r are left to the search; V, the loop order, whether B is packed and where padding happens
make one sketch each.

The accumulators, the broadcast and the row of B' must fit the vector registers, or they spill and nothing of this helps:
Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), section 6; Georganas et al., "Anatomy of
High-Performance Deep Learning Convolutions on SIMD Architectures" (2018), section II.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.tvm_compat import Schedule, tirx, to_tvm_target, tvm, uses

MAX_INNER_REDUCTION = 64
"""Longest inner reduction loop offered: beyond it the rows of A leave the L1 cache."""
MIN_MACS = 1 << 16
"""Smaller contractions are not worth a tile."""


@dataclass(frozen=True, kw_only=True)
class VectorUnit:
    """What the target's vector instructions give: elements per register, and registers."""

    lanes: int
    registers: int

    @staticmethod
    def of(target: Target, element_bits: int) -> VectorUnit:
        """From the target's features: AVX-512, AVX2, else the 128-bit unit of NEON and of baseline x86."""
        features = to_tvm_target(target)
        has = tvm.target.codegen.target_has_features
        if has("avx512f", features):
            return VectorUnit(lanes=512 // element_bits, registers=32)
        if has("avx2", features):
            return VectorUnit(lanes=256 // element_bits, registers=16)
        return VectorUnit(lanes=128 // element_bits, registers=32 if has("neon", features) else 16)


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """Where the contraction is and which of its axes play which part; axes are positions in the block's iteration."""

    block: Any
    data: int
    """Position of A among the block's reads."""
    weight: int
    """Position of B."""
    prepacked: bool
    """B is a weight whose layout may change."""
    vector: int
    row: int | None
    """The spatial axis of A tiled into registers; None where there is none (a vector times a matrix)."""
    outer: tuple[int, ...]
    """The other spatial axes."""
    reduction: tuple[int, ...]
    """Reduction axes, the one to split (usually input channels) last."""
    extents: tuple[int, ...]
    weight_axes: tuple[int, ...]
    """Axis of the block that each dimension of B is indexed by."""
    bits: int


def tiled_sketches(mod: Any, target: Target) -> list[Any]:
    """Schedules with the register tile and the reduction split left open; none where the workload holds no contraction
    of this form or the target is no CPU."""
    if target.kind != "llvm":
        return []
    found = find_contraction(Schedule(mod, debug_mask=0, error_render_level="none"))
    if found is None:
        return []
    unit = VectorUnit.of(target, found.bits)
    sketches = []
    for choice in _choices(found, unit):
        schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
        contraction = find_contraction(schedule)
        assert contraction is not None
        try:
            _tile(schedule, contraction, unit, choice)
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; other sketches may apply
            continue
        sketches.append(schedule)
    return sketches


def find_contraction(schedule: Any) -> Contraction | None:
    """The one block of the workload that multiplies and accumulates, if its indices are plain enough to be tiled."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    reducing = [block for block in blocks if any(axis.iter_type == 2 for axis in schedule.get(block).iter_vars)]
    if len(reducing) != 1:
        return None
    block = reducing[0]
    stmt = schedule.get(block)
    extents = tuple(int(axis.dom.extent) for axis in stmt.iter_vars)
    store = stmt.body
    if not isinstance(store, tirx.BufferStore) or len(stmt.reads) != 2 or not _is_multiply_add(store.value):
        return None
    if not str(store.buffer.dtype).startswith("float") or _product(extents) < MIN_MACS:
        return None
    axes = [axis.var for axis in stmt.iter_vars]
    spatial = [i for i, axis in enumerate(stmt.iter_vars) if axis.iter_type == 0]
    reduction = [i for i, axis in enumerate(stmt.iter_vars) if axis.iter_type == 2]
    used = [[i for i, var in enumerate(axes) if any(uses(r.min, var) for r in read.region)] for read in stmt.reads]
    vector = next((i for i in reversed(spatial) if store.indices[-1].same_as(axes[i])), None)
    if vector is None:
        return None
    weight = next((w for w in (1, 0) if vector in used[w] and vector not in used[1 - w]), None)
    if weight is None:
        return None
    plain = [next((i for i, var in enumerate(axes) if r.min.same_as(var)), None) for r in stmt.reads[weight].region]
    if any(axis is None for axis in plain) or len(set(plain)) != len(plain):
        return None
    rows = [i for i in spatial if i not in used[weight] and i in used[1 - weight] and extents[i] > 1]
    row = rows[-1] if rows else None
    buffer = stmt.reads[weight].source
    free = {int(i) for i in (schedule.mod["main"].attrs or {}).get("layout_free_buffers", [])}
    return Contraction(
        block=block,
        data=1 - weight,
        weight=weight,
        prepacked=any(
            buffer.same_as(schedule.mod["main"].params[i]) for i in free if i < len(schedule.mod["main"].params)
        ),
        vector=vector,
        row=row,
        outer=tuple(i for i in spatial if i not in (vector, row)),
        reduction=tuple(sorted(reduction, key=lambda i: (extents[i] == max(extents[r] for r in reduction), i))),
        extents=extents,
        weight_axes=tuple(axis for axis in plain if axis is not None),
        bits=int(tvm.runtime.DataType(str(store.buffer.dtype)).bits),
    )


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What tells one sketch from another."""

    width: int
    """Columns of a panel."""
    panels_outer: bool
    """The loop over panels is outside that over rows."""
    pack: bool
    """Packing B is a stage of the kernel."""
    pad_at_tile: bool = False


def _choices(found: Contraction, unit: VectorUnit) -> Iterator[_Choice]:
    columns = found.extents[found.vector]
    widths = [unit.lanes * k for k in (4, 3, 2, 1) if columns % (unit.lanes * k) == 0]
    if not widths:
        widths = [w for w in range(2 * unit.lanes, unit.lanes // 2 - 1, -1) if columns % w == 0][:1]
    packs = [False] if found.prepacked else [True]
    if not found.prepacked and found.weight_axes[-1] == found.vector:
        packs.append(False)
    for width, panels_outer, pack in itertools.product(widths, (True, False), packs):
        yield _Choice(width=width, panels_outer=panels_outer, pack=pack)
    if len(found.reduction) > 1:
        for width in widths[:2]:
            yield _Choice(width=width, panels_outer=False, pack=packs[0], pad_at_tile=True)


def _tile(schedule: Any, found: Contraction, unit: VectorUnit, choice: _Choice) -> None:
    width = choice.width
    block = found.block
    producers = list(schedule.get_producers(block))
    _inline_epilogue(schedule, block)
    if choice.pack:
        _pack(schedule, found, width)
    loops = list(schedule.get_loops(block))
    panel, columns = schedule.split(loops[found.vector], [None, width])
    accumulators = max(1, (unit.registers - 2) // max(1, width // unit.lanes) - (1 if width <= unit.lanes else 0))
    outer = [loops[i] for i in found.outer]
    rows = []
    if found.row is not None:
        tile = schedule.sample_perfect_tile(loops[found.row], n=2, max_innermost_factor=accumulators)
        row_outer, row = schedule.split(loops[found.row], tile)
        outer.append(row_outer)
        rows = [row]
    *slow, split = [loops[i] for i in found.reduction]
    tile = schedule.sample_perfect_tile(split, n=2, max_innermost_factor=MAX_INNER_REDUCTION)
    split_outer, split_inner = schedule.split(split, tile)
    outer = [panel, *outer] if choice.panels_outer else [*outer, panel]
    schedule.reorder(*outer, split_outer, *slow, split_inner, *rows, columns)
    result = schedule.cache_write(block, 0, "global")
    spread = schedule.fuse(*outer)
    schedule.parallel(spread)
    schedule.reverse_compute_at(result, spread, preserve_unit_loops=True)
    consumers = schedule.get_consumers(result)
    if consumers:
        schedule.reverse_compute_inline(consumers[0])
    for loop in schedule.get_loops(result)[1:-1]:
        schedule.unroll(loop)
    schedule.vectorize(schedule.get_loops(result)[-1])
    for producer in producers:
        _place_producer(schedule, producer, spread if choice.pad_at_tile else None)
    for loop in rows:
        schedule.unroll(loop)
    schedule.vectorize(columns)
    schedule.decompose_reduction(block, split_outer)


def _inline_epilogue(schedule: Any, block: Any) -> None:
    """Leaves one consumer of the contraction at most: the last, with all before it inlined."""
    chain: list[Any] = []
    while schedule.get_consumers(block if not chain else chain[-1]):
        chain.append(schedule.get_consumers(block if not chain else chain[-1])[0])
    for stage in chain[:-1]:
        schedule.compute_inline(stage)


def _pack(schedule: Any, found: Contraction, width: int) -> None:
    """B -> panels of `width` columns: [batch..., v / width, reduction in the order it is walked, v % width]."""
    batch = [axis for axis in found.weight_axes if axis in found.outer]
    order = [*batch, found.vector, *(axis for axis in found.reduction if axis in found.weight_axes)]
    packed = schedule.cache_read(found.block, found.weight, "global")

    def layout(*index: Any) -> list[Any]:
        at = dict(zip(found.weight_axes, index, strict=True))
        column = at[found.vector]
        return [*(column // width if axis == found.vector else at[axis] for axis in order), column % width]

    schedule.transform_layout(packed, ("write", 0), layout)
    loops = dict(zip(found.weight_axes, schedule.get_loops(packed), strict=True))
    loops[found.vector], columns = schedule.split(loops[found.vector], [None, width])
    schedule.reorder(*(loops[axis] for axis in order), columns)
    schedule.parallel(schedule.fuse(*(loops[axis] for axis in order[: len(batch) + 2])))
    schedule.vectorize(columns)


def _place_producer(schedule: Any, producer: Any, at: Any) -> None:
    """Padding: a parallel stage of its own, or computed for each tile. A copy that pads nothing is inlined."""
    if not _is_guarded(schedule.get(producer).body):
        schedule.compute_inline(producer)
        return
    if at is not None:
        schedule.compute_at(producer, at, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(producer)[-1])
        return
    loops = schedule.get_loops(producer)
    schedule.vectorize(loops[-1])
    schedule.parallel(schedule.fuse(*loops[:2]) if len(loops) > 2 else loops[0])


def _is_guarded(body: Any) -> bool:
    return "if_then_else" in str(body) or "Select" in str(body)


def _is_multiply_add(value: Any) -> bool:
    return isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)


def _product(values: tuple[int, ...]) -> int:
    total = 1
    for value in values:
        total *= value
    return total
