"""Whether a model, compiled, computes what its framework computes: asked before a trial is spent.

The framework runs in this process or, for a file, in a child; the compiled model runs in another child, with the fixed
schedules that tasks without trials get. Agreement is kept in the cache, by what decides it, so that it is paid for once.
"""

from __future__ import annotations

import hashlib
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pitchpipe.arrays import on_host
from pitchpipe.deploy import identity
from pitchpipe.errors import DeadlineExceeded, WrongResult
from pitchpipe.model.comparison import Agreement
from pitchpipe.model.local import LocalModel
from pitchpipe.model.reference import CannotRun, Expected, ModuleSource, NoSource, Source
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import MissingExtra, step
from pitchpipe.target_kind import HOST, fit
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")
VERIFY_SECS = 1200.0
"""Longest build and runs of a default build: BERT-base takes half a minute on two busy cores."""
EXPLAIN_SECS = 120.0
"""Longest search for the first operator that differs."""
ASKED_NOT_TO = "it was asked not to"
UNLIKE_ITS_EXPORT = (
    "the program that torch.export makes of the module differs from it in PyTorch, too: code of the module goes by the"
    " values of tensors, or by whether it is traced"
)
_FRAMEWORKS = ("torch", "onnx", "onnxruntime", "jax", "ai-edge-litert")


def framework_outputs(model: LocalModel, weights: Mapping[str, Any] | None = None) -> Expected | Comparison:
    """The framework's outputs, or why there are none; `weights` are of a file that holds none, by name."""
    try:
        return model.source.expected(weights or {})
    except CannotRun as error:
        return not_compared(str(error))


def compare_default(
    model: LocalModel, target: Target, cache: Path, *, expected: Expected | Comparison | None = None
) -> Comparison:
    """The model as it is before tuning beside its framework; `expected` if that was run already.

    It is built for `target` where this machine runs such code, else for this machine. Raises WrongResult for a model that
    differs, DeadlineExceeded when there is no verdict within VERIFY_SECS, InvalidModel and its kinds for one that cannot
    be built, StepDied for one that crashes.
    """
    if isinstance(model.source, NoSource):
        return not_compared(model.source.reason)
    try:
        runs = build_target(target, cache)
        file = cache / "comparisons" / f"{_key(model, runs)}.json"
    except MissingExtra as error:
        return not_compared(error.detail)
    known = identity.read_json(file, Comparison)
    if known is not None and known.compared:
        return known
    expected = expected or framework_outputs(model)
    if isinstance(expected, Comparison):
        return expected
    found = _run(model, runs, expected, cache)
    if isinstance(found, Comparison):
        return found
    if found.difference is not None:
        raise WrongResult(refusal(model.source, expected, found, runs))
    comparison = expected.comparison(found)
    identity.write_json(file, comparison)
    return comparison


def build_target(wanted: Target, cache: Path) -> Target:
    """The target to compare a model on: the wanted one where its code runs on this machine."""
    here = identity.this_target(cache)
    if here.kind not in (wanted.kind, HOST):
        here = step("detect_target")(HOST)
    return wanted if fit(here, wanted).fits else here


def refusal(source: Source, expected: Expected, found: Agreement, target: Target) -> str:
    """What is wrong, in one line, with the first operator whose output differs where that can be found."""
    assert found.differs_at is not None
    told = f"{found.difference}, compared with {expected.reference}"
    return with_operator(told, source, target, expected.inputs[found.differs_at])


def with_operator(told: str, source: Source, target: Target, inputs: Sequence[Any] | None = None) -> str:
    """The same with the first operator whose output differs, on `inputs` or, without, on the model's examples; or that
    torch.export made another program of a module."""
    operator = _first_operator(source, inputs, target)
    return f"{told}; {operator}" if operator else told


def _first_operator(source: Source, inputs: Sequence[Any] | None, target: Target) -> str | None:
    from pitchpipe.deploy.minify import first_difference  # which imports this module

    try:
        if isinstance(source, ModuleSource) and source.unlike_its_export():
            return UNLIKE_ITS_EXPORT
        given = inputs if inputs is not None else getattr(source, "examples", None)
        found = first_difference(source.origin, given, target=target, trust=source.trust, timeout_secs=EXPLAIN_SECS)
        return found.sentence() if found.operator else None
    except Exception as error:  # noqa: BLE001 - the model is refused whether or not we find out why
        log.info("the first operator that differs was not found: %s", error)
        return None


def _run(model: LocalModel, target: Target, expected: Expected, cache: Path) -> Agreement | Comparison:
    with tempfile.TemporaryDirectory(prefix="pitchpipe-verify-") as scratch:
        path = Path(scratch) / "expected.npz"
        expected.write(path)
        try:
            answer = run_step(
                "evaluate",
                model.data,
                model.weights,
                timeout_secs=VERIFY_SECS,
                model_format=model.format.value,
                target=target.key,
                traces=None,
                seed=0,
                expected=str(path),
                defaults=str(identity.defaults_folder(cache)),
            )
        except MissingExtra as error:
            return not_compared(error.detail)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"the model could not be compared with {expected.reference} within {VERIFY_SECS:.0f} s; where it is known"
                " to be right, ask for no comparison"
            ) from error
    if answer.get("incomparable"):
        return not_compared(answer["incomparable"])
    return Agreement(**answer["agreement"])


def _key(model: LocalModel, target: Target) -> str:
    """Of everything that decides the outcome."""
    frameworks = []
    for name in _FRAMEWORKS:
        try:
            frameworks.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            frameworks.append(f"no {name}")
    graph = [sha256(model.data), model.format.value, weights_digest(model.weights), type(model.source).__name__]
    return json_digest([*graph, target.key, identity.versions(), identity.preparation(), frameworks])


def weights_digest(weights: Mapping[str, Any]) -> str:
    """Of names, shapes, types and values."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.asarray(on_host(weights[name]), order="C")
        digest.update(f"{len(name)} {name} {array.dtype} {array.shape};".encode())
        if math.prod(array.shape):
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
