"""Schedules from elsewhere: the trace of one workload re-fitted to another of the same operator.

The trace is not edited. The workload that needs a schedule has a design space of its own, whose sketches fit its stages,
its epilogue and its extents by construction. So re-fitting answers two questions:

1. Which sketch is most similar to the trace? Both are read as sequences of moves (kinds of instructions, without names of
   blocks and variables) and aligned; moves that belong to one epilogue only have no counterpart. Among sketches with the
   same moves, that one is nearest which makes them on the same loops, with the nearest constants (register tiles).
2. Which decisions are nearest to those of the trace? A tile keeps its inner factors (vectors, registers) as nearly as the
   divisors of the new extent allow, and the outermost factor takes the rest. A categorical choice keeps its value, or takes
   the nearest that is offered. A compute location is kept where it is valid. Any other decision, and one without a
   counterpart, is drawn from a fixed seed.

The result is a candidate like any other, which has to be built, checked and measured.

`nearest` chooses the workloads whose traces are tried first. It needs no compiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from pitchpipe.wire.task import Signature
from tuner.schedule.rewrites import REWRITE
from tuner.schedule.trace import encode_trace, without_postproc

LEAST_ALIKE = 0.5
"""Share of the moves that a trace and a sketch must have in common, so that decisions have counterparts. Traces of another
shape have 0.8 to 1 in common, of another epilogue at least 0.6, of another algorithm 0.2 to 0.4."""
SKETCHES_TRIED = 3
"""Sketches tried, as the nearest may be refused for the size of its code or by a limit of a GPU."""
MOVES_COUNT = 6.0
"""Weight of the share of moves that differ, or are made on other loops, in a distance whose other part is that of constants
in doublings."""
OTHER_EPILOGUE = 0.25
"""What other operators before or after the anchor add to a distance, in doublings of an extent."""
NO_BOUND = 0.5
"""Share of its bound that a schedule is assumed to reach where that is not known."""
DRAWN_SEED = 1


# -- which workloads


@dataclass(frozen=True, kw_only=True)
class Known:
    """A workload with a served schedule."""

    workload: str
    """Digest."""
    signature: Signature
    trace: str
    bound_share: float | None
    """The bound of its time, divided by the time of the schedule; None where no bound is known."""


def nearest(signature: Signature, known: Sequence[Known], n: int) -> list[Known]:
    """The `n` nearest workloads with the same anchor and element type, whatever the order of `known`.

    They are ordered by the extents of the anchor's loops and by whether the operators around it are the same, then by how
    near their schedules are to their bounds.
    """
    same = [one for one in known if _kind(one.signature) == _kind(signature)]
    return sorted(
        same,
        key=lambda one: (_distance(signature, one.signature), -(one.bound_share or NO_BOUND), one.workload),
    )[:n]


def _kind(signature: Signature) -> tuple[str, list[str]]:
    return signature.anchor, [argument.dtype for argument in signature.arguments[-1:]]


def _distance(one: Signature, other: Signature) -> float:
    """The distance of two workloads in doublings of extents, summed over the anchor's loops."""
    doublings = sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in zip(one.extents, other.extents, strict=True))
    return doublings + (OTHER_EPILOGUE if one.operators != other.operators else 0.0)


# -- re-fitting


def refitted(space: Any, trace: str) -> Iterator[Any]:
    """The schedules that re-fitting a trace gives, before postprocessing, from the nearest sketch on; none where no sketch
    is similar enough.

    `space` is the design space of the workload that gets the schedule; `trace` is canonical (decode_trace). A schedule may
    still break a rule of the target.
    """
    source = _Moves.read(without_postproc(trace))
    alike: list[tuple[float, int, dict[int, int]]] = []
    for index, sketch in enumerate(space.sketches):
        if (found := _alike(source, _Moves.read(encode_trace(sketch)))) is not None:
            alike.append((found[0], index, found[1]))
    for _, index, counterparts in sorted(alike, key=lambda one: one[:2])[:SKETCHES_TRIED]:
        decider = _Decider(source=source, counterparts=counterparts)
        schedule = space.applied(space.sketches[index], DRAWN_SEED, decider.deciding)
        if schedule is not None:
            yield schedule


@dataclass(frozen=True, kw_only=True)
class _Moves:
    """A trace, read as a sequence of moves."""

    instructions: list[Any]
    tokens: list[str]
    decisions: dict[int, Any]
    definitions: dict[str, tuple[int, int]]
    """Variable -> (the instruction that defines it, its position among the results of that instruction)."""

    @classmethod
    def read(cls, text: str) -> _Moves:
        instructions, decisions = json.loads(text)
        return cls(
            instructions=instructions,
            tokens=[_token(i) for i in instructions],
            decisions=dict(decisions),
            definitions={name: (at, i) for at, one in enumerate(instructions) for i, name in enumerate(one[3])},
        )

    def inputs(self, at: int) -> list[Any]:
        """The inputs of an instruction, with the place of definition for each variable."""
        taken = [part for item in self.instructions[at][1] for part in (item if isinstance(item, list) else [item])]
        return [self.definitions.get(item) if isinstance(item, str) else item for item in taken]


def _token(instruction: Sequence[Any]) -> str:
    """The kind of an instruction, without the blocks and variables that it acts on."""
    kind, inputs, attributes, _ = instruction
    if kind in ("Annotate", "Unannotate"):
        return f"{kind} {attributes[0]} {inputs[1] if attributes[0] == REWRITE else ''}"
    if kind in ("Bind", "SamplePerfectTile"):
        return f"{kind} {attributes[0]}"
    return str(kind)


def _alike(source: _Moves, sketch: _Moves) -> tuple[float, dict[int, int]] | None:
    """(distance, sketch instruction -> source instruction of the same move); None where too few moves are the same."""
    # Without names of blocks and loops most tokens are frequent; autojunk would ignore frequent ones.
    matcher = SequenceMatcher(None, sketch.tokens, source.tokens, autojunk=False)
    alike = matcher.ratio()
    if alike < LEAST_ALIKE:
        return None
    pairs = {block.a + i: block.b + i for block in matcher.get_matching_blocks() for i in range(block.size)}
    inputs = [(a, b) for at, of in pairs.items() for a, b in zip(sketch.inputs(at), source.inputs(of), strict=False)]
    rewired = [
        pairs.get(a[0]) != b[0] or a[1] != b[1] for a, b in inputs if isinstance(a, tuple) and isinstance(b, tuple)
    ]
    gaps = [abs(math.log2(a / b)) for a, b in inputs if isinstance(a, int) and isinstance(b, int) and a > 0 and b > 0]
    return MOVES_COUNT * (1 - alike + _mean(rewired)) + _mean(gaps), pairs


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(kw_only=True)
class _Decider:
    """Decides a sketch's sampling instructions, in their order, while the sketch is applied."""

    source: _Moves
    counterparts: dict[int, int]
    at: int = -1
    """The index of the instruction that was decided last."""

    def deciding(self, schedule: Any) -> Callable[..., Any]:
        """TVM's decision provider for the schedule that the sketch is applied to; TVM calls it once per instruction."""

        def decision(instruction: Any, inputs: Sequence[Any], attributes: Sequence[Any], _drawn: Any) -> Any:
            self.at += 1
            of = self.counterparts.get(self.at)
            value = None if of is None else self.source.decisions.get(of)
            if of is None or value is None:
                return None
            kind = str(instruction.kind.name)
            if kind == "SamplePerfectTile":
                return refit_tile(value, int(schedule.get(inputs[0]).extent), int(attributes[1]))
            if kind == "SampleCategorical":
                offered = [int(candidate) for candidate in attributes[0]]
                return nearest_choice(int(self.source.instructions[of][2][0][value]), offered)
            return value if kind == "SampleComputeLocation" else None

        return decision


def refit_tile(factors: Sequence[int], extent: int, max_innermost: int) -> list[int]:
    """Factors of another extent: inner ones as near to `factors` as its divisors allow; the outermost takes the rest.

    The innermost factor is at most `max_innermost`, where that is positive.
    """
    kept: list[int] = []
    left = extent
    for position, factor in enumerate(reversed(factors[1:])):
        limit = max_innermost if position == 0 and max_innermost > 0 else left
        divisors = [d for d in range(1, min(left, limit) + 1) if left % d == 0]
        kept.append(min(divisors, key=lambda d: (abs(math.log(d / factor)), d)))
        left //= kept[-1]
    return [left, *reversed(kept)]


def nearest_choice(value: int, offered: Sequence[int]) -> int:
    """Index of the offered value whose ratio to `value` is nearest to one."""
    return min(range(len(offered)), key=lambda i: (abs(math.log2((offered[i] + 1) / (value + 1))), i))
