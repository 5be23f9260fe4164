"""Chains of reductions and element-wise stages (softmax, norms, pooling, means), fused row by row, for CPUs.

The parallel iterations of a chain are those of the axes that all its stages share and none reduces: softmax over the last
axis of [b, s, n] has one for every (b, s), a mean over space of [b, h, w, c] one for every (b, c), pooling one for every
output. Whatever the chain is, it becomes one loop nest:

    parallel iterations                         the whole chain runs while an iteration's data is in the L1 cache
      first reduction, element-wise stage, second reduction, ...

and it is vectorised along the axis in which memory is contiguous:

* along the reduction, when it walks the last axis: the reduction is split into `lanes` partial results, one per lane
  of a vector (rfactor), which are combined once per iteration, in two steps. This reorders floating-point additions.
* along the parallel axes, when these include the last axis: neighbouring iterations then fill some vectors together, and
  the reduction stays in its order.

Stages are fused by merging their parallel loops rather than by compute_at: TVM 0.27's compute_at drops the guard of a
split that does not divide (a reduction of 197 elements in vectors of 16 then reads past its end). `merge` does not check
dependences, so `shared_parallel_axes` does: every intermediate value must be written and read in the same iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import MIN_LANES, dividing_lanes, element_bits, in_last_only, strides
from tuner.space.chain import Stage, is_plain_nest, parallel_candidates, shared_parallel_axes, stage_of
from tuner.space.inlining import inline_producers, is_reduction, root_blocks
from tuner.space.processor import VectorUnit
from tuner.space.refusals import tell_refused
from tuner.space.stages import largest_divisor
from tuner.space.tiles import find_contraction
from tuner.tvm_compat import Schedule, uses

ACCUMULATORS = (1, 2, 4)
"""Vectors of partial results that a reduction may be split into: more hide more of an addition's latency, and take longer
to combine at the end of every iteration."""
COMBINED = 2
"""Cost of combining one more vector of partial results, in additions that wait for one another: it is stored and loaded."""
TURNS = 4
"""Chunks per core that the search begins with, where there are as many iterations."""
MAX_ITERATIONS_PER_CHUNK = 64
PARALLEL_MIN_VECTORS = 1 << 12
"""Vector operations, at about one a nanosecond, below which waking a second thread (about 5 us) takes longer than it
saves."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages that share their parallel axes."""

    stages: tuple[Stage, ...]
    along_parallel: bool
    """Whether it is vectorised along the last parallel axis; otherwise along the reductions."""
    bits: int
    """Bits of an element."""

    @property
    def steps(self) -> int:
        """Statement instances of all stages."""
        return sum(math.prod(stage.extents) for stage in self.stages)


def rowwise_sketches(mod: Any, target: Target) -> list[Any]:
    """Schedules with the number of iterations of a chunk left open, one for each number of accumulators, the best first.

    None where the workload is no such chain or has a contraction of more than one row.
    """
    sketches: list[Any] = []
    for rank in range(len(ACCUMULATORS)):
        schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
        if (contraction := find_contraction(schedule)) is not None and not contraction.one_row:
            return []
        try:
            inline_producers(schedule)
            chain = find_chain(schedule)
            if chain is None or not any(stage.reduction for stage in chain.stages):
                return []
            schedule_chain(schedule, chain, target, rank=rank, sample=True)
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; other sketches may apply
            tell_refused("rowwise", error, choice=f"{rank + 1}. number of accumulators")
            continue
        sketches.append(schedule)
        if chain.along_parallel:  # It uses no accumulators, so the other sketches would be the same.
            break
    return sketches


# -- parallel iterations


def find_chain(schedule: Any) -> Chain | None:
    """The stages of the workload as one chain; None where they share no parallel axes, or cannot be vectorised."""
    blocks = root_blocks(schedule)
    reductions = [block for block in blocks if is_reduction(schedule, block)]
    if not reductions:
        return None
    parallel = shared_parallel_axes(
        schedule, blocks, min(reductions, key=lambda block: len(parallel_candidates(schedule, block)))
    )
    if parallel is None:
        return None
    stages = tuple(stage_of(schedule, block, axes) for block, axes in zip(blocks, parallel, strict=True))
    directions = {_along_parallel(schedule, stage) for stage in stages if stage.reduction}
    if len(directions) != 1 or None in directions or not all(is_plain_nest(schedule, block) for block in blocks):
        return None
    return Chain(stages=stages, along_parallel=directions == {True}, bits=element_bits(schedule.get(blocks[-1])))


def _along_parallel(schedule: Any, stage: Stage) -> bool | None:
    """Whether memory is contiguous along the last parallel axis (True), the reduction (False), or neither (None)."""
    definition = schedule.get(stage.block)
    axes = list(definition.iter_vars)
    reduced = [axes[i].var for i in stage.reduction]
    reads = [r for r in definition.reads if any(uses(dim.min, axis) for dim in r.region for axis in reduced)]
    if stage.parallel:
        last = axes[stage.parallel[-1]]
        read, written = strides(definition, reads, last), strides(definition, definition.writes, last)
        if any(s[-1] == 1 for s in read) and all(s[-1] in (0, 1) for s in read) and all(s[-1] == 1 for s in written):
            return True
    read = strides(definition, reads, axes[stage.reduction[-1]])
    if any(s[-1] == 1 for s in read) and all(in_last_only(s) for s in read):
        return False
    return None


# -- the loop nest


def schedule_chain(schedule: Any, chain: Chain, target: Target, *, rank: int = 0, sample: bool = False) -> None:
    """Fuses the chain into one parallel loop and vectorises every inner loop whose extent allows it.

    rank: of the number of accumulators, 0 for the best. sample: leaves the number of iterations of a chunk open.
    """
    lanes = VectorUnit.of(target, chain.bits).lanes
    accumulators = _accumulators(chain, lanes)[rank]
    width = _parallel_width(chain, lanes, target) if chain.along_parallel else 1
    nests = [nest for stage in chain.stages for nest in _nest(schedule, stage, chain, width, lanes, accumulators)]
    if not chain.stages[0].parallel:
        for nest in nests:
            _finish(schedule, nest)
        return
    loop = schedule.merge(*(nest.parallel for nest in nests)) if len(nests) > 1 else nests[0].parallel
    if sample:
        iterations = int(schedule.get(loop).extent)
        chunks = TURNS * (target.num_cores or 1) if worth_parallelizing(chain.steps, lanes) else 1
        chunk = largest_divisor(iterations, min(MAX_ITERATIONS_PER_CHUNK, max(1, iterations // chunks)))
        factors = schedule.sample_perfect_tile(loop, 2, MAX_ITERATIONS_PER_CHUNK, [iterations // chunk, chunk])
        loop, _ = schedule.split(loop, factors)
    if sample or worth_parallelizing(chain.steps, lanes):
        schedule.parallel(loop)
    for nest in nests:
        _finish(schedule, nest)


def _accumulators(chain: Chain, lanes: int) -> list[int]:
    """ACCUMULATORS, the best for the longest reduction first: with n vectors and a accumulators n / a additions wait for one
    another, and then a - 1 results are combined."""
    reductions = [math.prod(stage.extents[i] for i in stage.reduction) for stage in chain.stages if stage.reduction]
    vectors = max(reductions, default=1) / lanes
    return sorted(ACCUMULATORS, key=lambda count: math.ceil(vectors / count) + COMBINED * (count - 1))


def worth_parallelizing(steps: int, lanes: int) -> bool:
    """Whether `steps` statement instances, in vectors of `lanes`, take long enough for a second thread to save time."""
    return steps >= PARALLEL_MIN_VECTORS * lanes


@dataclass(frozen=True, kw_only=True)
class _Nest:
    block: Any
    parallel: Any
    """The loop over parallel iterations."""
    vector: int | None
    """Index of the vectorised loop among the block's loops: -1, the innermost, or None."""
    initialise_at: int | None
    """Index, counted from the innermost, of the loop before which a reduction is initialised; None without a reduction."""


def _parallel_width(chain: Chain, lanes: int, target: Target) -> int:
    """Neighbouring iterations of one chunk: one, two or four vectors, as many as leave four chunks for every core.

    Few iterations that no vector of half a register or more divides, such as the ten columns of a classifier, are one
    vector of that many lanes: narrow ones would walk the reduction one after another, each at an addition's latency.
    """
    stage = chain.stages[0]
    extent = stage.extents[stage.parallel[-1]]
    chunks = math.prod(stage.extents[i] for i in stage.parallel)
    for vectors in (4, 2, 1):
        width = lanes * vectors
        if extent % width == 0 and (vectors == 1 or chunks // width >= 4 * (target.num_cores or 1)):
            return width
    width = next((w for w in range(lanes, 1, -1) if extent % w == 0 and w & (w - 1) == 0), 1)
    return extent if width < lanes // 2 and extent <= 2 * lanes else width


def _nest(schedule: Any, stage: Stage, chain: Chain, width: int, lanes: int, accumulators: int) -> Iterator[_Nest]:
    """Orders the loops of a stage: parallel, other spatial axes, reductions, vector.

    A reduction that is split over lanes gives two or three nests: partial results, and their combination.
    """
    block = stage.block
    loops = list(schedule.get_loops(block))
    parallel, others = [loops[i] for i in stage.parallel], [loops[i] for i in stage.others]
    reductions = [loops[i] for i in stage.reduction]
    inner = []
    if chain.along_parallel and width > 1:
        parallel[-1], neighbours = schedule.split(parallel[-1], [None, width])
        inner = [neighbours]
    order = [*parallel, *others, *reductions, *inner]
    if len(order) > 1:
        schedule.reorder(*order)
    if len(parallel) > 1:
        schedule.fuse(*parallel)
    if not chain.along_parallel and reductions:
        yield from _spread_reduction(schedule, stage, reductions, lanes, accumulators)
        return
    if not chain.along_parallel and others:
        inner = _split_vector(schedule, stage, others[-1], lanes)
    yield _Nest(
        block=block,
        parallel=schedule.get_loops(block)[0],
        vector=-1 if inner else None,
        initialise_at=-len(reductions) - len(inner) if reductions else None,
    )


def _split_vector(schedule: Any, stage: Stage, loop: Any, lanes: int) -> list[Any]:
    """Splits a vector loop off the loop over the last axis where its extent divides; LLVM vectorises any other itself.

    The list of that inner loop; empty without one.
    """
    lanes = dividing_lanes(stage.extents[stage.others[-1]], lanes)
    return [schedule.split(loop, [None, lanes])[1]] if lanes > 1 else []


def _spread_reduction(schedule: Any, stage: Stage, loops: list[Any], lanes: int, accumulators: int) -> Iterator[_Nest]:
    """Splits a reduction over lanes (rfactor): each has a partial result, and these are combined in two steps."""
    block, rank = stage.block, len(schedule.get(stage.block).writes[0].region)
    fused = len(loops) > 1 and fills_the_last_dimensions(schedule, stage)
    loop = schedule.fuse(*loops) if fused else loops[-1]
    outer = 0 if fused else len(loops) - 1
    extent = math.prod(stage.extents[i] for i in stage.reduction) if fused else stage.extents[stage.reduction[-1]]
    width = next((lanes * n for n in (4, 2, 1) if n <= accumulators and extent % (lanes * n) == 0), 0)
    width = width or dividing_lanes(extent, lanes)
    guarded = width == 1
    if guarded:
        # No width divides, so the last step is guarded. TVM does not vectorise a guarded loop; LLVM makes masked vectors.
        width = next((lanes * n for n in (4, 2, 1) if 2 * lanes * n <= extent), 1)
    if width == 1:
        yield _Nest(block=block, parallel=schedule.get_loops(block)[0], vector=None, initialise_at=-outer - 1)
        return
    _, lane = schedule.split(loop, [None, width])
    partial = schedule.rfactor(lane, rank)
    parallel = schedule.get_loops(partial)[0]
    if guarded:
        yield _Nest(block=partial, parallel=parallel, vector=None, initialise_at=None)
    else:
        yield _Nest(block=partial, parallel=parallel, vector=-1, initialise_at=-outer - 2)
    half = 1 << (width.bit_length() // 2)
    if half >= MIN_LANES:
        _, lane = schedule.split(schedule.get_loops(block)[-1], [None, half])
        partial = schedule.rfactor(lane, rank)
        yield _Nest(block=partial, parallel=schedule.get_loops(partial)[0], vector=-1, initialise_at=-2)
    yield _Nest(block=block, parallel=schedule.get_loops(block)[0], vector=None, initialise_at=-1)


def fills_the_last_dimensions(schedule: Any, stage: Stage) -> bool:
    """Whether every read that the reduction indexes has the reduction's axes, in order, as its last dimensions, so that they
    may be fused."""
    definition = schedule.get(stage.block)
    axes = [definition.iter_vars[i].var for i in stage.reduction]
    for read in definition.reads:
        indices = [dim.min for dim in read.region]
        if not any(uses(index, axis) for index in indices for axis in axes):
            continue
        last = indices[-len(axes) :]
        if len(last) != len(axes) or not all(i.same_as(a) for i, a in zip(last, axes, strict=True)):
            return False
        shape = [int(extent) for extent in read.source.shape[-len(axes) :]]
        if shape != [stage.extents[i] for i in stage.reduction]:
            return False
    return True


def _finish(schedule: Any, nest: _Nest) -> None:
    """Vectorises the nest, then moves the initialisation of a reduction out of its loop: TVM does not vectorise a decomposed
    reduction."""
    loops = schedule.get_loops(nest.block)
    if nest.vector is not None:
        schedule.vectorize(loops[nest.vector])
    if nest.initialise_at is None:
        return
    start = schedule.decompose_reduction(nest.block, loops[nest.initialise_at])
    if nest.vector is not None:
        schedule.vectorize(schedule.get_loops(start)[-1])
