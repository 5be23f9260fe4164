"""A GPU model whose tensor functions have alternatives: one program that holds the launches of all of them.

Every call of a tensor function that has alternatives becomes several calls in a row, one by each, on the same tensors:

    run of the model        a        b        c
    run of this program     a  a'    b        c  c'  c''

A variant of the model is a part of these launches, one alternative of each workload, so that all variants share code,
weights and scratch memory, and another variant costs no compilation. The memory plan holds for each of them: a tensor lives
from the first to the last launch that may touch it.

Where a schedule of a call is one that the model joins with the call behind it (joining.py), one call stands for both, and
the one behind runs with the other schedules alone. It has no alternatives then, since the model would join these too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.gpu.program import Program
from pitchpipe.wire.target import Target
from tuner.deploy.build import Scheduled, applied, schedule_model
from tuner.deploy.flow import Flow, Step
from tuner.deploy.gpu_model import assemble_checked, compile_functions, settled_flow
from tuner.deploy.joining import Joiner
from tuner.ingest import IngestedModel
from tuner.measure.gpu_lowered import Lowered

Choice = Mapping[str, int]
"""By workload, which of its schedules runs: 0 is the model's own, which is also that of workloads left out; the
alternatives count from 1."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a tensor function by one of its schedules."""

    workload: str | None
    """Digest; None where there is no choice."""
    schedules: frozenset[int]
    """Of that workload, those with which it is made."""
    launches: int


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """The program, and what its launches are of."""

    program: Program
    """Its `run` has the launches of all calls: nobody runs all of it."""
    calls: tuple[Call, ...]
    """In the order of the launches."""
    refused: Mapping[tuple[str, int], str]
    """(workload, alternative) -> why it is not in the program."""

    def launches(self, choice: Choice) -> tuple[int, ...]:
        """Indices into the program's `run` of what a run of the variant launches."""
        found, at = list[int](), 0
        for call in self.calls:
            if call.workload is None or choice.get(call.workload, 0) in call.schedules:
                found += range(at, at + call.launches)
            at += call.launches
        return tuple(found)


def compile_alternatives(
    model: IngestedModel, target: Target, traces: Mapping[str, str], alternatives: Mapping[str, Sequence[str]]
) -> Alternatives:
    """The model with a schedule for each workload (`traces`, by digest) and others for some (`alternatives`).

    An alternative that does not apply, does not compile, or lays out a weight in another way is left out. Raises
    UnsupportedOperator and PitchpipeError as compiling the model does. One thread at a time.
    """
    scheduled = schedule_model(model, target, traces)
    flow, functions = settled_flow(scheduled.module, target)
    refused: dict[tuple[str, int], str] = {}
    others = _others(scheduled, functions, alternatives, refused)
    more, joined = _joined(flow, functions, others, refused)
    lowered, codes = _compiled(functions, others, more, target, refused)
    schedules: dict[str, list[tuple[str, int]]] = {}
    for name, _, number in others:
        if _name(name, number) in lowered:
            schedules.setdefault(name, []).append((_name(name, number), number))
    calls = add_calls(flow, lowered, schedules, {name: workload for name, workload, _ in others}, joined)
    return Alternatives(program=assemble_checked(flow, lowered, codes), calls=calls, refused=refused)


def add_calls(
    flow: Flow,
    lowered: Mapping[str, Lowered],
    schedules: Mapping[str, Sequence[tuple[str, int]]],
    workloads: Mapping[str, str],
    joined: Mapping[int, Mapping[int, Step]] | None = None,
) -> tuple[Call, ...]:
    """Puts calls of alternatives behind those of the model's own functions, and says which call is which.

    schedules: name of a function -> (name, number) of each alternative. workloads: what such functions compute. joined:
    place of a call in the run -> by number, the call that stands for it and the one behind it.
    """
    calls, run = list[Call](), list[Step]()

    def add(step: Step, function: str, numbers: set[int]) -> None:
        run.append(step)
        count = len(lowered[step.function].calls)
        calls.append(Call(workload=workloads.get(function), schedules=frozenset(numbers), launches=count))

    before, left = "", set[int]()
    """What may be joined with the call, and with which of its schedules it is not, if any."""
    for at, step in enumerate(flow.run):
        if before:
            if left:
                add(step, before, left)
            before = ""
            continue
        named = {0: step.function, **{number: function for function, number in schedules.get(step.function, ())}}
        both = {number: one for number, one in (joined or {}).get(at, {}).items() if one.function in lowered}
        for number, function in named.items():
            add(both.get(number, replace(step, function=function)), step.function, {number})
        before, left = step.function if both else "", named.keys() - both.keys()
    flow.run = run
    return tuple(calls)


_Other = tuple[str, str, int]
"""Name of a tensor function, its workload, the number of an alternative."""


def _name(function: str, number: int) -> str:
    return f"{function}_alternative{number}"


def _others(
    scheduled: Scheduled,
    functions: Mapping[str, Any],
    alternatives: Mapping[str, Sequence[str]],
    refused: dict[tuple[str, int], str],
) -> dict[_Other, Any]:
    """The scheduled functions of alternatives that take the tensors of the model's own."""
    found: dict[_Other, Any] = {}
    for variable, function, workload in scheduled.unscheduled:
        name = variable.name_hint
        for number, trace in enumerate(alternatives.get(workload, ()), 1):
            if name not in functions:
                refused[workload, number] = "the model's own schedule lays out a weight in another way"
                continue
            try:
                other = applied(function, variable, trace)
            except InvalidTrace as error:
                refused[workload, number] = error.detail
                continue
            if _types(other) == _types(functions[name]):
                found[name, workload, number] = other.with_attr("global_symbol", _name(name, number))
            else:
                refused[workload, number] = "it lays out a weight in another way"
    return found


def _joined(
    flow: Flow, functions: dict[str, Any], others: dict[_Other, Any], refused: dict[tuple[str, int], str]
) -> tuple[dict[str, Any], dict[int, dict[int, Step]]]:
    """The joined functions of alternatives, by name, and the joined calls as `add_calls` takes them.

    Those of the model's own schedules are added to `functions`; alternatives of what is called behind are taken out of
    `others`.
    """
    every = {**functions, **{_name(name, number): function for (name, _, number), function in others.items()}}
    joiner = Joiner(flow, every)
    more, found = dict[str, Any](), dict[int, dict[int, Step]]()
    for at, (step, then) in enumerate(pairwise(flow.run)):
        for number in (0, *(number for name, _, number in others if name == step.function)):
            variant = replace(step, function=_name(step.function, number)) if number else step
            both = joiner.joined(variant, then)
            if both is not None:
                (more if number else functions)[both.function] = every[both.function]
                found.setdefault(at, {})[number] = both
    behind = {flow.run[at + 1].function for at in found}
    fixed = {workload for name, workload, _ in others if name in behind}
    for other in [one for one in others if one[1] in fixed]:
        del others[other]
        refused[other[1:]] = "it is joined with the call before it"
    return more, found


def _types(function: Any) -> list[str]:
    return [str(param.ty) for param in function.params]


def _compiled(
    functions: Mapping[str, Any],
    others: dict[_Other, Any],
    more: Mapping[str, Any],
    target: Target,
    refused: dict[tuple[str, int], str],
) -> tuple[dict[str, Lowered], dict[str, bytes]]:
    """The model's own functions, the others, and these joined; those of both that the compiler refuses are left out."""
    named = {_name(name, number): function for (name, _, number), function in others.items()}
    try:
        return compile_functions({**functions, **named, **more}, target)
    except PitchpipeError:
        # Rare, since all were compiled when they were measured; which one it was, is found out one by one.
        lowered, codes = compile_functions(functions, target)
        of = {_name(name, number): (workload, number) for name, workload, number in others}
        for name, function in (named | dict(more)).items():
            try:
                found, code = compile_functions({name: function}, target)
            except PitchpipeError as error:
                if name in of:
                    refused[of[name]] = error.detail
            else:
                lowered, codes = lowered | found, codes | code
        return lowered, codes
