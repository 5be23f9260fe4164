"""What is wrong with a model: the first operator whose output differs from its framework's, or that crashes.

The work is done in a child (tuner/minify): a model may end the process that imports, builds or runs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.lookup import resolve_target
from pitchpipe.errors import InvalidInput, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.local import LocalModel, local_model, read_file
from pitchpipe.processes.child import run_step
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind, Refusal
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target

__all__ = ["Finding", "FindingKind", "Refusal", "first_difference", "refusals"]


def first_difference(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    trust: bool = False,
    out: Path | None = None,
    wall_secs: float = WALL_SECS,
    timeout_secs: float | None = None,
) -> Finding:
    """The smallest part of a model that still shows what is wrong with it, and the step of ours at fault.

    `model` is a path of any file that `tune` takes, the bytes of an ONNX file, a torch.export.ExportedProgram, a torch
    module in eval mode or TorchScript with example inputs, a function of JAX, or a LocalModel. It is tried on
    `example_inputs`, arrays or tensors in order (drawn where there are none), on inputs drawn like them and on edge values.
    `out` is a folder for the standalone script; without it none is written. `wall_secs` is of each attempt, a build and a
    run; `timeout_secs` of all.

    A fault is an answer. Raises InvalidInput and its kinds for what cannot be read at all, StepDied where the framework
    itself dies of the model, StepTimeout after `timeout_secs`.
    """
    with _file_of(model, example_inputs, trust=trust) as (path, model_format, data, weights):
        given = None if example_inputs is None else {f"input {at}": _array(x) for at, x in enumerate(example_inputs)}
        try:
            found = run_step(
                "minify",
                data,
                {**weights, **(given or {})},
                timeout_secs=timeout_secs,
                model_format=model_format.value,
                path=str(path.resolve()) if path is not None else None,
                inputs=None if given is None else list(given),
                target=resolve_target(target, cache_dir()).key,
                out=str(out) if out is not None else None,
                wall_secs=wall_secs,
            )
        except (UnsupportedOperator, UnsupportedShape) as error:
            return Finding(kind=FindingKind.REFUSED, detail=error.detail)
    return Finding.model_validate(found)


def refusals(path: Path, example_inputs: Sequence[Any] | None = None, *, trust: bool = False) -> list[Refusal]:
    """Everything in a model's file that would be refused, by operator and node, without building anything.

    Empty for a model that is taken. Raises InvalidInput for a suffix that is not known, for a file that can run code and is
    not trusted, and InvalidModel for one that cannot be read.
    """
    with _file_of(path, example_inputs, trust=trust) as (_, model_format, data, _):
        given = {f"input {at}": _array(x) for at, x in enumerate(example_inputs or ())}
        found = run_step(
            "refusals", data, given, model_format=model_format.value, path=str(path.resolve()), inputs=list(given)
        )
    return [Refusal.model_validate(each) for each in found]


@contextlib.contextmanager
def _file_of(
    model: Any, example_inputs: Sequence[Any] | None, *, trust: bool
) -> Iterator[tuple[Path | None, ModelFormat, bytes, dict[str, Any]]]:
    """Where the model lies, in which format, and its bytes and weights where it lies in memory."""
    if isinstance(model, (str, Path)):
        yield (Path(model), *read_file(Path(model), trust=trust), {})
    elif isinstance(model, LocalModel):
        yield None, model.format, model.data, dict(model.weights)
    elif isinstance(model, bytes):
        yield None, ModelFormat.ONNX, model, {}
    elif hasattr(model, "lower") or hasattr(model, "mlir_module_serialized"):  # JAX's
        found = local_model(model, example_inputs)
        yield None, found.format, found.data, dict(found.weights)
    else:
        with TemporaryDirectory(prefix="pitchpipe-minify-") as folder:
            yield (*_saved(model, example_inputs, Path(folder)), b"", {})


def _saved(model: Any, example_inputs: Sequence[Any] | None, folder: Path) -> tuple[Path, ModelFormat]:
    """Where a model of PyTorch was written, exported here where it is a module, and in which format."""
    import torch

    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        model.save(str(folder / "model.pt"))
        return folder / "model.pt", ModelFormat.TORCHSCRIPT
    program = model
    if not isinstance(model, torch.export.ExportedProgram):
        if example_inputs is None:
            raise InvalidInput(f"a {type(model).__name__} needs example inputs")
        with torch.no_grad():
            program = torch.export.export(model, tuple(torch.as_tensor(each) for each in example_inputs))
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2", ModelFormat.PT2


def _array(example: Any) -> Any:
    import numpy as np

    if hasattr(example, "detach"):
        example = example.detach().cpu()
    return np.asarray(example)
