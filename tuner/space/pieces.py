"""Elements that are chosen by their place, such as a concatenation's: the loop over the pieces is unrolled.

    for rows (parallel)
      for the pieces (unrolled)
        for the elements of a piece

A concatenation asks for every element in which of its operands it lies, one question after another. Of an unrolled piece
the answers are known when it is compiled, and what is left is a copy, of which LLVM makes vectors. A stack of the 27 vectors
that a recommendation multiplies with each other took a third of the model's time.
"""

from __future__ import annotations

import math
from typing import Any

from pitchpipe.wire.target import Target
from tuner.space.access import element_bits, spatial_axes
from tuner.space.processor import VectorUnit
from tuner.space.rowwise import worth_parallelizing
from tuner.space.spread import axis_loops, fuse_outer
from tuner.tvm_compat import ir, structural_walk, sym, tirx, tvm_ffi, uses

FEWEST_PIECES, MOST_PIECES = 2, 64
"""Pieces that are unrolled, at most: each is a loop of its own in the code."""


def spread_pieces(schedule: Any, block: Any, target: Target) -> bool:
    """Makes the loops around the pieces of a block parallel and unrolls the one over the pieces; False where the block has
    no pieces, or too few loops around them for all cores."""
    spatial, reductions = axis_loops(schedule, block)
    definition = schedule.get(block)
    if not spatial or reductions or (found := pieces_of(definition)) is None:
        return False
    axis, pieces = found
    extents = [int(schedule.get(loop).extent) for loop in spatial]
    if math.prod(extents[:axis]) < (target.num_cores or 1):
        return False
    over, _ = schedule.split(spatial[axis], factors=[pieces, None])
    outer = fuse_outer(schedule, spatial[:axis], target)
    if worth_parallelizing(math.prod(extents), VectorUnit.of(target, element_bits(definition)).lanes):
        schedule.parallel(outer)
    schedule.unroll(over)
    return True


def pieces_of(definition: Any) -> tuple[int, int] | None:
    """(position of a spatial axis, equal pieces of it, as few as can be) by which all questions of a block of several
    operands are answered that ask where an element lies; None where there are no questions, or no such pieces."""
    questions: list[Any] = []
    structural_walk(definition.body, (ir.Call, lambda call: questions.extend(_question(call))))
    if not questions or len(definition.reads) == 1:
        return None
    for position, axis in enumerate(spatial_axes(definition)):
        extent = int(axis.dom.extent)
        if not any(uses(question, axis.var) for question in questions):
            continue
        for pieces in range(FEWEST_PIECES, min(extent, MOST_PIECES) + 1):
            if extent % pieces == 0 and _answers(definition, axis, extent // pieces, pieces, questions):
                return position, pieces
    return None


def _question(call: Any) -> list[Any]:
    return [call.args[0]] if getattr(call.op, "name", None) == "prim.if_then_else" else []


def _answers(definition: Any, axis: Any, size: int, pieces: int, questions: list[Any]) -> bool:
    """Whether every question has one answer for all elements of a piece."""
    within = tirx.Var("within", axis.var.ty.dtype)
    for piece in range(pieces):
        analyzer = sym.Analyzer()
        analyzer.bind(within, ir.Range(0, size))
        for other in definition.iter_vars:
            if not other.var.same_as(axis.var):
                analyzer.bind(other.var, other.dom)
        at = within + piece * size
        for question in questions:
            asked = tvm_ffi.structural_map(
                question, (tirx.Var, lambda found, at=at: at if found.same_as(axis.var) else found)
            )
            if not (analyzer.can_prove(asked) or analyzer.can_prove(tirx.Not(asked))):
                return False
    return True
