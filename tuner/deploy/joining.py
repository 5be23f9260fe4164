"""Joins calls of a GPU model: where a product's sums are divided among blocks and a norm or a softmax comes next, the kernel
of the latter adds the parts. That saves a launch, and writing and reading the result.

Only schedules that are templates are joined. The result is rounded as it is in memory, so that joining changes nothing but
perhaps the order in which threads add up a row. Tasks, their records and what was checked of them stay what they are.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.program import Place
from tuner.deploy.flow import Flow, Step, Tensor
from tuner.templates.kernels import THEN, followed, template_of
from tuner.templates.text import ROWS, parse


def join_calls(flow: Flow, functions: dict[str, Any]) -> None:
    """Puts one call in the place of two wherever that can be.

    functions: by name. The joined ones are added, those that nothing calls any more are taken out.
    """
    joiner, run = Joiner(flow, functions), list[Step]()
    for step in flow.run:
        joined = joiner.joined(run[-1], step) if run else None
        if joined is None:
            run.append(step)
        else:
            run[-1] = joined
    flow.run = run
    for name in functions.keys() - {step.function for step in (*flow.prepare, *run)}:
        del functions[name]


class Joiner:
    """Joins calls of a flow. functions: by name, to which the joined ones are added."""

    def __init__(self, flow: Flow, functions: dict[str, Any]) -> None:
        self._flow, self._functions = flow, functions
        self._found: dict[tuple[str, str, int, bool], str | None] = {}

    def joined(self, step: Step, then: Step) -> Step | None:
        """The one call of two neighbours, which takes the arguments of both; None where they cannot be one."""
        functions = self._functions
        if not (_is_divided(functions[step.function]) and _is_chain(functions[then.function])):
            return None
        result, written = step.arguments[-1], then.arguments[-1].tensor
        reads = [at for at, view in enumerate(then.arguments) if view.tensor is result.tensor]
        if len(reads) != 1 or any(view.tensor is written for view in (*step.arguments, *then.arguments[:-1])):
            return None
        view = then.arguments[reads[0]]
        types = [_type(functions[step.function].params[-1]), _type(functions[then.function].params[reads[0]])]
        if not result.is_whole or not view.is_whole or types[0] != types[1]:
            return None
        key = (step.function, then.function, reads[0], self._is_kept(result.tensor, then))
        if key not in self._found:
            self._found[key] = self._made(*key)
        name = self._found[key]
        return None if name is None else Step(function=name, arguments=(*step.arguments, *then.arguments))

    def _made(self, step: str, then: str, reads: int, keeps: bool) -> str | None:
        """The name of the joined function; None where there is none."""
        try:
            made = followed(self._functions[step], self._functions[then], reads=reads, keeps=keeps)
        except InvalidTrace:
            return None
        name = f"{step}_{then}{'_kept' if keeps else ''}"
        self._functions[name] = made.with_attr("global_symbol", name)
        return name

    def _is_kept(self, result: Tensor, then: Step) -> bool:
        """Whether anything but that call reads the result."""
        if result.buffer.place is not Place.SCRATCH or any(view.tensor is result for view in self._flow.outputs):
            return True
        others = (step for step in self._flow.run if step is not then)
        return any(view.tensor is result for step in others for view in step.arguments[:-1])


def _type(param: Any) -> tuple[str, tuple[int, ...]]:
    return str(param.ty.dtype), tuple(int(extent) for extent in param.ty.shape)


def _is_divided(function: Any) -> bool:
    """Whether a template computes it that divides a sum, and whose parts no other one adds yet."""
    text = template_of(function)
    return text is not None and parse(text).arguments.get("parts", 1) > 1 and THEN not in function.attrs


def _is_chain(function: Any) -> bool:
    text = template_of(function)
    return text is not None and parse(text).template == ROWS
