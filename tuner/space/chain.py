"""Chains of stages that share their parallel iterations: softmax over rows, norms, pooling, attention.

The parallel iterations of a chain are those of the axes that all its stages share and none reduces. Stages whose parallel
loops are merged run one after another for an iteration, so every intermediate value must be written and read in the same
iteration: `shared_parallel_axes` checks that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.space.access import spatial_axes
from tuner.space.inlining import root_blocks
from tuner.tvm_compat import loop_bindings, sym, tirx


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A block of the chain. Axes are positions in its iteration."""

    block: Any
    parallel: tuple[int, ...]
    """Which of its axes are the chain's parallel axes, in the chain's order."""
    others: tuple[int, ...]
    """Its other spatial axes."""
    reduction: tuple[int, ...]
    extents: tuple[int, ...]


def parallel_candidates(schedule: Any, block: Any) -> list[Any]:
    """The spatial axes of a block that are longer than one."""
    return [axis.var for axis in spatial_axes(schedule.get(block)) if int(axis.dom.extent) > 1]


def parallel_iterations(schedule: Any) -> int | None:
    """Iterations of the axes that all stages share and none reduces; None where a stage reads a value of another one."""
    blocks = root_blocks(schedule)
    first = min(blocks, key=lambda block: len(parallel_candidates(schedule, block)))
    parallel = shared_parallel_axes(schedule, blocks, first)
    if parallel is None:
        return None
    extents = {axis.var: int(axis.dom.extent) for axis in spatial_axes(schedule.get(first))}
    return math.prod(extents[axis] for axis in parallel[blocks.index(first)])


def shared_parallel_axes(
    schedule: Any, blocks: Sequence[Any], first: Any, *, beside: bool = False
) -> list[tuple[Any, ...]] | None:
    """For each block its parallel axes, where the spatial axes of the block `first` are the parallel axes of the chain.

    The axes are followed from a stage to a buffer (the dimensions that they index) and from a buffer to a stage (the axes
    that index those dimensions). None where a stage reads a value of another iteration, or is not reached.
    beside: a stage that no other reads or is read by gets the axes with which it reads an input that they read.
    """
    accesses = [_accesses(schedule, block) for block in blocks]
    written = {region.source for block in blocks for region in schedule.get(block).writes}
    shared = {buffer for buffer in written if sum(buffer in access for access in accesses) > 1}
    known: dict[int, tuple[Any, ...]] = {blocks.index(first): tuple(parallel_candidates(schedule, first))}
    dims: dict[Any, tuple[int, ...]] = {}
    waiting = [blocks.index(first)]
    while waiting:
        number = waiting.pop()
        for buffer, places in accesses[number].items():
            if buffer not in shared:
                continue
            for indices in places:
                at = tuple(_position(indices, axis) for axis in known[number])
                if None in at or dims.setdefault(buffer, at) != at:  # type: ignore[arg-type]
                    return None
            for other, access in enumerate(accesses):
                for indices in access.get(buffer, ()):
                    axes = tuple(indices[dim] for dim in dims[buffer])
                    candidates = parallel_candidates(schedule, blocks[other])
                    if not all(any(axis.same_as(c) for c in candidates) for axis in axes):
                        return None
                    if other not in known:
                        known[other] = axes
                        waiting.append(other)
                    elif not all(a.same_as(b) for a, b in zip(known[other], axes, strict=True)):
                        return None
    for number in range(len(blocks)) if beside else ():
        if number not in known and not any(buffer in shared for buffer in accesses[number]):
            found = _axes_beside(accesses, known, number, parallel_candidates(schedule, blocks[number]))
            known |= {} if found is None else {number: found}
    return [known[number] for number in range(len(blocks))] if len(known) == len(blocks) else None


def _axes_beside(
    accesses: Sequence[dict[Any, list[list[Any]]]],
    known: dict[int, tuple[Any, ...]],
    number: int,
    candidates: Sequence[Any],
) -> tuple[Any, ...] | None:
    """The axes with which a stage reads what another reads with its parallel axes."""
    for other, axes in sorted(known.items()):
        for buffer, places in accesses[number].items():
            for indices in accesses[other].get(buffer, ()):
                at = [_position(indices, axis) for axis in axes]
                found = tuple(places[0][dim] for dim in at if dim is not None)
                if len(found) == len(axes) and all(any(axis.same_as(c) for c in candidates) for axis in found):
                    return found
    return None


def _accesses(schedule: Any, block: Any) -> dict[Any, list[list[Any]]]:
    """Buffer -> the indices of every access to it. A dimension that is accessed over a range stands there as its extent, so
    that it equals no axis. A quotient is simplified: of an axis that was divided in two, it is the first of these."""
    found: dict[Any, list[list[Any]]] = {}
    definition = schedule.get(block)

    def index(dim: Any) -> Any:
        if getattr(dim.extent, "value", None) != 1:
            return dim.extent
        return _simplified(definition, dim.min) if isinstance(dim.min, tirx.FloorDiv) else dim.min

    for region in [*definition.reads, *definition.writes]:
        found.setdefault(region.source, []).append([index(dim) for dim in region.region])
    return found


def _simplified(definition: Any, index: Any) -> Any:
    analyzer = sym.Analyzer()
    for axis in definition.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    return analyzer.simplify(index)


def _position(indices: Sequence[Any], axis: Any) -> int | None:
    return next((dim for dim, index in enumerate(indices) if index.same_as(axis)), None)


def stage_of(schedule: Any, block: Any, parallel: Sequence[Any]) -> Stage:
    axes = list(schedule.get(block).iter_vars)
    at = tuple(next(i for i, axis in enumerate(axes) if axis.var.same_as(var)) for var in parallel)
    spatial = [i for i, axis in enumerate(axes) if int(axis.iter_type) == tirx.IterVar.DataPar]
    return Stage(
        block=block,
        parallel=at,
        others=tuple(i for i in spatial if i not in at),
        reduction=tuple(i for i in range(len(axes)) if i not in spatial),
        extents=tuple(int(axis.dom.extent) for axis in axes),
    )


def is_plain_nest(schedule: Any, block: Any) -> bool:
    """Whether the block has one loop per axis, in the order of the axes."""
    bound = loop_bindings(schedule, block)
    loops = schedule.get_loops(block)
    kinds = {int(axis.iter_type) for axis in schedule.get(block).iter_vars}
    return (
        kinds <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}
        and len(bound) == len(loops)
        and all(schedule.get(loop).loop_var.same_as(value) for loop, value in zip(loops, bound, strict=True))
    )
