"""Samples of torch's operator database as models, and what becomes of one on its way through Pitchpipe.

A sample is a call of an operator; its tensors are the model's inputs, its other arguments are constants. Samples that no
static inference program can hold are told apart by running them in eager mode (`outside`) and by torch.export's own words.
Where PyTorch leaves the order of equal elements open, what is expected are their places in order.
"""

from __future__ import annotations

import itertools
import os
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pitchpipe.deploy.artifact import CompiledModel, Manifest
from pitchpipe.errors import InvalidModel, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.comparison import difference
from pitchpipe.torch_operators.arrays import to_array
from pitchpipe.torch_operators.ties import TiesByPlace
from pitchpipe.wire.target import Target
from tuner.ingest import DEFAULT_LIMITS, parse_container
from tuner.ingest.relax_reader import read_relax

SAMPLES = 3
DTYPES = ("float32", "int64", "float16", "bfloat16")
HALF = ("float16", "bfloat16")
REFUSALS = (InvalidModel, UnsupportedOperator, UnsupportedShape)
OUTSIDE = ("torch.export failed", "the program writes into its input", "has a shape that depends on data")
"""What refusals say of programs that torch.export cannot hold, or that are none of a static inference by its signature."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a sample."""

    kind: str
    """right, wrong, refused, raised, or outside."""
    detail: str = ""
    ran: str = ""
    """Through torch.compile: `compiled`, or `eager` and why."""


def database() -> list[Any]:
    """torch's operators. The database's module imports expecttest, of which it uses nothing here."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stand_in: Any = types.ModuleType("expecttest")
            stand_in.TestCase, stand_in.assert_expected_inline = unittest.TestCase, None
            sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(operator: Any) -> str:
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else str(operator.name)


class Call(torch.nn.Module):  # type: ignore[misc]
    """A call of an operator as a module of its tensors; it gives the tensors among the results."""

    def __init__(self, function: Callable[..., Any], sample: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.at = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[at].detach().clone() for at in self.at)
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def results(self, *tensors: Any) -> Any:
        leaves = list(self.leaves)
        for at, tensor in zip(self.at, tensors, strict=True):
            leaves[at] = tensor
        first, args, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(first, *args, **kwargs)

    def forward(self, *tensors: Any) -> Any:
        found = [one for one in tree_leaves(self.results(*tensors)) if one is not None]
        return found[0] if len(found) == 1 else tuple(found)


class Several(torch.nn.Module):  # type: ignore[misc]
    """Calls side by side."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = calls
        self.tensors = tuple(tensor for call in calls for tensor in call.tensors)

    def forward(self, *tensors: Any) -> Any:
        found: list[Any] = []
        rest = list(tensors)
        for call in self.calls:
            own, rest = rest[: len(call.tensors)], rest[len(call.tensors) :]
            found += tree_leaves(call(*own))
        return tuple(found)


def calls(
    operator: Any, dtype: str, samples: int = SAMPLES, function: Callable[..., Any] | None = None, seed: int = 0
) -> list[Call]:
    """The first samples of an operator in a type; none where it has none. `function`: another form of the operator."""
    kind = getattr(torch, dtype)
    if kind not in operator.dtypes:
        return []
    torch.manual_seed(seed)
    given = iter(operator.sample_inputs("cpu", kind, requires_grad=False))
    try:
        return [Call(function or operator.op, sample) for sample in itertools.islice(given, samples)]
    finally:
        if hasattr(given, "close"):
            given.close()


class _Seen(TorchDispatchMode):  # type: ignore[misc]
    """Which operators draw numbers, and which give as many elements as their data say."""

    def __init__(self) -> None:
        super().__init__()
        self.random = self.depends = False

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = getattr(function, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _quiet(function, args, kwargs or {}):
            self.random = True
        self.depends |= torch.Tag.dynamic_output_shape in tags
        return function(*args, **(kwargs or {}))


class _Unwritten(TorchDispatchMode):  # type: ignore[misc]
    """Memory that an operator leaves unwritten holds a given number."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name.startswith(("empty", "new_empty")) and not found.is_complex():
            found.fill_(self.value)
        return found


def _quiet(function: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in function._schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    return values.get("train", values.get("training")) is False or 0 in (values.get("p", 1), values.get("dropout_p", 1))


def outside(call: Call) -> tuple[str | None, list[Any]]:
    """Why no static inference program can hold a call, or None; and what it gives in eager mode."""
    if any(tensor.is_complex() for tensor in call.tensors):
        return "complex input", []
    if any(tensor.layout is not torch.strided for tensor in call.tensors):
        return "sparse input", []
    if not call.tensors:
        return "no tensor is given", []
    if any(tensor.numel() == 0 for tensor in call.tensors):
        return "an input without elements", []
    given = [tensor.clone() for tensor in call.tensors]
    seen = _Seen()
    try:
        with TiesByPlace(), seen:
            found = call.results(*given)
    except Exception as error:  # noqa: BLE001 - operators raise whatever they do
        return f"eager mode raises {type(error).__name__}", []
    if seen.random:
        return "random", []
    results = [one for one in tree_leaves(found) if one is not None]
    if not results or not all(isinstance(one, torch.Tensor) for one in results):
        return "a result is no tensor", []
    if any(one.is_complex() for one in results):
        return "complex result", []
    if any(one.layout is not torch.strided for one in results):
        return "sparse result", []
    if any(one.numel() == 0 for one in results):
        return "a result without elements", []
    if seen.depends:
        return "a shape that depends on data", []
    if any(
        not torch.equal(
            old.nan_to_num() if old.is_floating_point() else old, new.nan_to_num() if new.is_floating_point() else new
        )
        for old, new in zip(call.tensors, given, strict=True)
    ):
        return "it writes into its inputs", []
    arrays = [*map(to_array, results)]
    for value in (0, 1):
        with TiesByPlace(), _Unwritten(value):
            again = tree_leaves(call.results(*(tensor.clone() for tensor in call.tensors)))
        if difference([to_array(one) for one in again if one is not None], arrays) is not None:
            return "memory that nobody has written", []
    return None, arrays


def through_load(module: Any, target: Target) -> list[Any]:
    """What the module gives on its own inputs when it is built as `pitchpipe.load` builds it, without schedules.

    The same steps, in this process: a child a model would cost more than the model.
    """
    from tuner.deploy.build import compile_scheduled, schedule_model
    from tuner.ingest.torch_export import from_torch
    from tuner.tvm_compat import toolchain

    data, weights = from_torch(module.eval(), module.tensors)
    ingested = parse_container(data)
    read_relax(data, DEFAULT_LIMITS)
    scheduled = schedule_model(ingested, target, {})
    executable = compile_scheduled(scheduled)
    manifest = Manifest.model_validate(
        {
            "target": target.attributes(),
            "inputs": [vars(spec) for spec in ingested.inputs],
            "params": [vars(spec) for spec in ingested.params],
            "tuned": [],
            "untuned": sorted(scheduled.untuned),
            "refused": {},
            "toolchain": toolchain(target.kind).model_dump(),
        }
    )
    found = CompiledModel(manifest, executable, weights)(*map(to_array, module.tensors))
    return list(found) if isinstance(found, tuple) else [found]


def judged(run: Callable[[], list[Any]], expected: Sequence[Any]) -> Outcome:
    try:
        found = run()
    except REFUSALS as error:
        return Outcome(kind="refused", detail=error.detail[:300])
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        line = (str(error).strip().splitlines() or [""])[-1]
        return Outcome(kind="raised", detail=f"{type(error).__name__}: {line}"[:300])
    differs = difference(found, expected)
    return Outcome(kind="right") if differs is None else Outcome(kind="wrong", detail=differs)


def exported(given: Sequence[Call], target: Target) -> list[Outcome]:
    """Of each call through torch.export. Those that can be are built side by side, in one program; where that program is
    not right, one by one."""
    outcomes: list[Outcome | None] = []
    inside: list[tuple[int, Call, list[Any]]] = []
    for at, call in enumerate(given):
        reason, expected = outside(call)
        outcomes.append(None if reason is None else Outcome(kind="outside", detail=reason))
        if reason is None:
            inside.append((at, call, expected))
    if len(inside) > 1:
        together = [array for _, _, expected in inside for array in expected]
        if judged(lambda: through_load(Several([call for _, call, _ in inside]), target), together).kind == "right":
            for at, _, _ in inside:
                outcomes[at] = Outcome(kind="right")
            return [one for one in outcomes if one is not None]
    for at, call, expected in inside:
        outcomes[at] = judged(lambda call=call: through_load(call, target), expected)  # type: ignore[misc]
        outcome = outcomes[at]
        if outcome is not None and outcome.kind == "refused" and any(each in outcome.detail for each in OUTSIDE):
            outcomes[at] = Outcome(kind="outside", detail=outcome.detail)
    return [one for one in outcomes if one is not None]


def quiet() -> None:
    """TVM's and torch's warnings are not what is looked for."""
    import logging

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("TVM_LOG_DEBUG", "")
