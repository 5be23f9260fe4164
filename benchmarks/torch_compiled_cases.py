"""What becomes of a call of torch's operator database on its way through `torch.compile(backend="pitchpipe")`.

Whatever eager mode answers has to be answered alike: values, types, strides, memory that results share with arguments or
with each other, arguments that are written into, the random numbers that come next, and errors, of the same type or of the
one in which Dynamo tells what went wrong while it captured. Memory that nobody has written is compared without its values.
Every call is made three times: for its own tensors twice, then for others of the same shapes, whose results the backend
itself has not compared.

Whatever can be compiled is, however few operators are beside it and however slow it is, since a sample stands for models
that have its operator among others. What children do is done in this process: a child a sample would cost more than the
sample.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.exc import TorchRuntimeError
from torch.utils._pytree import tree_flatten
from torch_operator_cases import SAMPLES, Call, Outcome, calls

from pitchpipe import torch_backend
from pitchpipe.deploy import building
from pitchpipe.model.comparison import difference
from pitchpipe.processes.plugins import step
from pitchpipe.torch_backend import cutting, paired_benchmark, partition
from pitchpipe.torch_operators.arrays import to_array

OPTIONS = {"on_miss": "default", "deadline_secs": 600}
"""The first call waits until what can be compiled is, and is decided on."""


def prepare(cache: Path) -> None:
    """Of a process that judges nothing else: the backend works in it, compiles all it can, and keeps its files there."""
    from tuner.deploy import build as deploy
    from tuner.ingest import parse_container

    def run_here(name: str, data: bytes, *, timeout_secs: float | None = None, **arguments: Any) -> Any:
        del timeout_secs
        return step(name)(data, {}, **arguments)

    os.environ["PITCHPIPE_CACHE_DIR"], os.environ["XDG_DATA_HOME"] = str(cache), str(cache / "data")
    os.environ.pop("PITCHPIPE_URL", None)
    changes: list[tuple[Any, str, Any]] = [
        (cutting, "run_step", run_here),
        (building, "run_step", run_here),
        (building, "prove", lambda *_arguments, **_options: SimpleNamespace(ok=True, wrong=None)),
        (deploy, "ingest", lambda data, _format: parse_container(data)),
        (paired_benchmark, "MARGIN", float("inf")),
        (paired_benchmark, "BUDGET_SECS", 0.0),
        (paired_benchmark, "LEAST_ROUNDS", 1),
        (partition, "FEWEST", 1),
    ]
    for module, name, value in changes:
        setattr(module, name, value)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call gave, or raised, and left behind."""

    error: Exception | None = None
    structure: Any = None
    """Of the results, as pytrees tell it."""
    facts: tuple[str, ...] = ()
    """What is to be equal about results besides the values of tensors, and about the arguments afterwards."""
    tensors: tuple[Any, ...] = ()
    """Results and arguments, in order."""


def answered(function: Callable[..., Any], tensors: Sequence[Any]) -> Answer:
    """Calls with copies of the tensors, from the same random state each time."""
    given = [one.clone() for one in tensors]
    torch.manual_seed(0)
    try:
        found = function(*given)
    except Exception as error:  # noqa: BLE001 - operators raise whatever they do
        return Answer(error=error)
    leaves, structure = tree_flatten(found)
    known = [*given, *(one for one in leaves if isinstance(one, torch.Tensor))]
    facts = [_fact(one, known) for one in (*leaves, *given)]
    return Answer(
        structure=structure,
        facts=(*facts, f"the next random number is {float(torch.rand(()))}"),
        tensors=tuple(one.detach() for one in (*leaves, *given) if isinstance(one, torch.Tensor)),
    )


def differs(found: Answer, expected: Answer, *, values: bool = True) -> str | None:
    """How an answer differs from eager mode's, or None."""
    if expected.error is not None or found.error is not None:
        if expected.error is not None and type(found.error) in (type(expected.error), TorchRuntimeError):
            return None
        return f"it raises {_told(found.error)}, eager mode {_told(expected.error)}"
    if found.structure != expected.structure:
        return f"it gives {found.structure}, eager mode {expected.structure}"
    for mine, other in zip(found.facts, expected.facts, strict=True):
        if mine != other:
            return f"{mine}, in eager mode {other}"
    return difference(_arrays(found), _arrays(expected)) if values else None


def compiled(operator: Any, dtype: str) -> Iterator[Outcome]:
    """Of an operator's first samples in a type, and of the first one in place where the operator has such a form."""
    others = calls(operator, dtype, seed=1)
    given = calls(operator, dtype)
    for at, call in enumerate(given):
        yield judged(call, others[at] if at < len(others) else call)
    if given and operator.inplace_variant is not None:
        with_place = calls(operator, dtype, SAMPLES, operator.inplace_variant)[0]
        yield judged(with_place, with_place)


def judged(call: Call, other: Call) -> Outcome:
    """Of one call; `other` has other tensors, and counts where they are of the same shapes and types."""
    written = answered(call.results, call.tensors)
    values = written.error is not None or differs(_filled(call), written) is None
    torch_backend.recompile()
    gc.collect()
    run = torch.compile(call.results, backend="pitchpipe", options=OPTIONS)
    turns = [call.tensors, call.tensors]
    if [_type(one) for one in other.tensors] == [_type(one) for one in call.tensors]:
        turns.append(other.tensors)
    for at, tensors in enumerate(turns):
        expected = answered(call.results, tensors)
        wrong = differs(answered(run, tensors), expected, values=values)
        if wrong is not None:
            kind = "raised" if wrong.startswith("it raises") else "wrong"
            return Outcome(kind=kind, detail=f"call {at + 1}: {wrong}"[:400], ran=_ran())
    return Outcome(kind="right", ran=_ran())


def _ran() -> str:
    """What ran the call: compiled code of ours, or eager mode and why."""
    reports = torch_backend.reports()
    if not reports:
        return "eager: nothing was captured"
    parts = [part for report in reports for graph in report.graphs for part in graph.partitions]
    if any(report.runs == "pitchpipe" for report in reports) and any(part.runs == "pitchpipe" for part in parts):
        return "compiled"
    left = [reason for report in reports for graph in report.graphs for reason in graph.left]
    told = [part.reason for part in parts if part.runs == "eager"]
    reasons = [*told, *(report.reason for report in reports), *left]
    return f"eager: {'; '.join(dict.fromkeys(filter(None, reasons)))}"[:300]


def _filled(call: Call) -> Answer:
    """The answer where memory that nobody has written is filled with values that are no numbers, or largest ones."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return answered(call.results, call.tensors)
    finally:
        torch.use_deterministic_algorithms(False)


def _fact(one: Any, known: Sequence[Any]) -> str:
    """What a caller could tell besides a tensor's values; `known` are the arguments and the results, in order."""
    if not isinstance(one, torch.Tensor):
        return repr(one)
    told = f"{type(one).__name__} {_type(one)}"
    if one.layout is not torch.strided:
        return told
    strides = [stride if extent > 1 else 0 for stride, extent in zip(one.stride(), one.shape, strict=True)]
    shares = next(at for at, other in enumerate(known) if other is one or _shared(one, other))
    gradient = "with" if one.requires_grad else "without"
    return f"{told} of strides {strides if one.numel() else []}, {gradient} gradient, in memory {shares}"


def _shared(one: Any, other: Any) -> bool:
    if other.layout is not torch.strided or one.untyped_storage().data_ptr() == 0:
        return False
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _type(one: Any) -> str:
    return f"{one.dtype}{list(one.shape)} {one.layout}"


def _arrays(answer: Answer) -> list[Any]:
    found = []
    for one in answer.tensors:
        dense = one.to_dense() if one.layout is not torch.strided else one
        dense = dense.resolve_conj()
        found.append(to_array(torch.view_as_real(dense) if dense.is_complex() else dense))
    return found


def _told(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {str(error).strip()[:150]}"
