"""Elements that are chosen by their place, such as a concatenation's: each piece is a loop of its own.

    for rows (parallel)
      for the elements of the first piece
      for the elements of the second piece
      ...

A concatenation asks for every element in which of its operands it lies, one question after another. Within a piece the
answers are known when it is compiled, and what is left is a copy, of which vectors are made. A stack of the 27 vectors that
a recommendation multiplies with each other took a third of the model's time.

TVM divides the loop (LoopPartition) where each question compares the axis with a number. Where a question is another, equal
pieces are unrolled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import element_bits, spatial_axes
from tuner.space.processor import VectorUnit
from tuner.space.rowwise import worth_parallelizing
from tuner.space.spread import axis_loops, fuse_outer
from tuner.tvm_compat import PARTITION_HINT, ir, structural_walk, sym, tirx, tvm_ffi, uses

MOST_PIECES = 64
"""Each is a loop of its own in the code."""
FEWEST_VECTOR_BITS = 128


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Where the operands of a block meet along one of its axes."""

    axis: int
    """Position among the block's spatial axes."""
    boundaries: tuple[int, ...]
    """The first elements of the second piece and the later ones."""
    size: int
    """The greatest common divisor of the pieces' sizes."""
    compared: bool
    """Whether every question compares the axis with a number."""


def spread_pieces(schedule: Any, block: Any, target: Target) -> bool:
    """Makes the loops around the pieces of a block parallel and one loop of each piece; False where the block has no pieces,
    or too few loops around them for all cores."""
    spatial, reductions = axis_loops(schedule, block)
    definition = schedule.get(block)
    if not spatial or reductions or (found := pieces_of(definition)) is None:
        return False
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    if math.prod(extents[: found.axis]) < (target.num_cores or 1):
        return False
    lanes = VectorUnit.of(target, element_bits(definition)).lanes
    over, parts = spatial[found.axis], extents[found.axis] // found.size
    if not found.compared or not _can_be_divided(schedule.mod["main"]):
        if parts > MOST_PIECES:
            return False
        over, _ = schedule.split(over, factors=[None, found.size])
        schedule.unroll(over)
    else:
        within = math.gcd(found.size, lanes)
        if over is spatial[-1] and within * element_bits(definition) >= FEWEST_VECTOR_BITS:
            # LLVM would do it, too, and takes eleven seconds over 64 pieces.
            over, vector = schedule.split(over, factors=[None, within])
            schedule.vectorize(vector)
        schedule.annotate(over, PARTITION_HINT, 1)
    outer = fuse_outer(schedule, spatial[: found.axis], target)
    if worth_parallelizing(math.prod(extents), lanes):
        schedule.parallel(outer)
    return True


def pieces_of(definition: Any) -> Pieces | None:
    """The pieces by which all questions of a block of several operands are answered that ask where an element lies; None
    where there are no questions, no such pieces, or too many."""
    questions: list[Any] = []
    structural_walk(definition.body, (ir.Call, lambda call: questions.extend(_question(call))))
    if not questions or len(definition.reads) == 1:
        return None
    questions = [_analyzer(definition).simplify(question) for question in questions]
    for position, axis in enumerate(spatial_axes(definition)):
        if not any(uses(question, axis.var) for question in questions):
            continue
        extent, boundaries = int(axis.dom.extent), set[int]()
        try:
            for question in questions:
                boundaries.update(itertools.islice(_changes(definition, axis, question), MOST_PIECES))
        except _Unanswered:
            continue
        size = math.gcd(extent, *boundaries)
        compared = all(_compares(question, axis.var) for question in questions)
        if 0 < (len(boundaries) if compared else extent // size - 1) < MOST_PIECES:
            return Pieces(axis=position, boundaries=tuple(sorted(boundaries)), size=size, compared=compared)
    return None


def _can_be_divided(function: Any) -> bool:
    """Whether TVM divides loops of the function: their indices are made narrow first (tuner/lowering/narrow_indices.py),
    which it refuses beside buffers of 64-bit whole numbers."""
    return all(str(param.ty.dtype) != "int64" for param in function.params)


def _question(call: Any) -> list[Any]:
    return [call.args[0]] if getattr(call.op, "name", None) == "prim.if_then_else" else []


def _compares(question: Any, variable: Any) -> bool:
    """Whether it is `variable < number` or the like."""
    sides = (question.a, question.b) if isinstance(question, tirx.LT | tirx.LE | tirx.GT | tirx.GE | tirx.EQ) else ()
    return any(side.same_as(variable) for side in sides) and any(isinstance(side, tirx.IntImm) for side in sides)


class _Unanswered(Exception):
    """An axis alone does not answer a question."""


def _changes(definition: Any, axis: Any, question: Any) -> Iterator[int]:
    """The places along the axis at which the answer is another than at the place before. Raises _Unanswered."""
    before: bool | None = None
    for at, answer in _answers(definition, axis, question, 0, int(axis.dom.extent)):
        if before is not None and answer is not before:
            yield at
        before = answer


def _answers(definition: Any, axis: Any, question: Any, low: int, high: int) -> Iterator[tuple[int, bool]]:
    """The answer from each of some places on, within [low, high): of the whole range where that has one, else of its halves.
    Raises _Unanswered."""
    analyzer = _analyzer(definition, axis)
    within = tirx.Var("within", axis.var.ty.dtype)
    analyzer.bind(within, ir.Range(0, high - low))
    place = tirx.IntImm(axis.var.ty.dtype, low) if high - low == 1 else within + low
    asked = tvm_ffi.structural_map(question, (tirx.Var, lambda found: place if found.same_as(axis.var) else found))
    if analyzer.can_prove(asked):
        yield low, True
    elif analyzer.can_prove(tirx.Not(asked)):
        yield low, False
    elif high - low == 1:
        raise _Unanswered
    else:
        middle = (low + high) // 2
        yield from _answers(definition, axis, question, low, middle)
        yield from _answers(definition, axis, question, middle, high)


def _analyzer(definition: Any, without: Any = None) -> Any:
    """Knows the ranges of the block's axes but one."""
    analyzer = sym.Analyzer()
    for axis in definition.iter_vars:
        if without is None or not axis.var.same_as(without.var):
            analyzer.bind(axis.var, axis.dom)
    return analyzer
