"""Joins calls of a GPU model: where a product's sums are divided among blocks and a norm or a softmax comes next, the kernel
of the latter adds the parts. That saves a launch, and writing and reading the result.

Only schedules that are templates are joined, and only where that changes no bit of what is computed: tasks, their records
and what was checked of them stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.program import Place
from tuner.deploy.flow import Flow, Step, Tensor
from tuner.templates.kernels import followed, template_of
from tuner.templates.text import ROWS, parse


def join_calls(flow: Flow, functions: dict[str, Any]) -> None:
    """Puts one call in the place of two wherever that can be. functions: by name, to which the joined ones are added."""
    found: dict[tuple[str, str, int, bool], str | None] = {}
    run = list[Step]()
    for step in flow.run:
        joined = _joined(run[-1], step, flow, functions, found) if run else None
        if joined is None:
            run.append(step)
        else:
            run[-1] = joined
    flow.run = run


def _joined(
    step: Step,
    then: Step,
    flow: Flow,
    functions: dict[str, Any],
    found: dict[tuple[str, str, int, bool], str | None],
) -> Step | None:
    """The one call of two neighbours, which takes the arguments of both; None where they are none."""
    if not (_parts(functions[step.function]) > 1 and _is_chain(functions[then.function])):
        return None
    result = step.arguments[-1]
    reads = [at for at, view in enumerate(then.arguments) if view.tensor is result.tensor]
    written = then.arguments[-1].tensor
    if len(reads) != 1 or any(view.tensor is written for view in (*step.arguments, *then.arguments[:-1])):
        return None
    place = reads[0]
    types = [str(functions[step.function].params[-1].ty), str(functions[then.function].params[place].ty)]
    if not result.is_whole or not then.arguments[place].is_whole or types[0] != types[1]:
        return None
    key = (step.function, then.function, place, _is_kept(result.tensor, flow, (step, then)))
    if key not in found:
        found[key] = _made(*key, functions)
    name = found[key]
    return None if name is None else Step(function=name, arguments=(*step.arguments, *then.arguments))


def _made(step: str, then: str, reads: int, keeps: bool, functions: dict[str, Any]) -> str | None:
    """The name of the joined function, which is added; None where there is none."""
    try:
        made = followed(functions[step], functions[then], reads=reads, keeps=keeps)
    except InvalidTrace:
        return None
    name = f"{step}_{then}{'_kept' if keeps else ''}"
    functions[name] = made.with_attr("global_symbol", name)
    return name


def _parts(function: Any) -> int:
    """Parts into which a function's template divides a sum; 1 for any other."""
    text = template_of(function)
    return 1 if text is None else parse(text).arguments.get("parts", 1)


def _is_chain(function: Any) -> bool:
    text = template_of(function)
    return text is not None and parse(text).template == ROWS


def _is_kept(result: Tensor, flow: Flow, pair: Sequence[Step]) -> bool:
    """Whether anything but the two calls needs the result."""
    if result.buffer.place is not Place.SCRATCH or any(view.tensor is result for view in flow.outputs):
        return True
    others = (step for step in flow.run if not any(step is one for one in pair))
    return any(view.tensor is result for step in others for view in step.arguments)
