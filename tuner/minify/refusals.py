"""What of a model's file would be refused, and where: every operator and input of it, not only the first.

Nothing is built. Where every operator has an implementation the file is imported, for what only the import finds out; of a
TFLite file the import names all that it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pitchpipe.errors import InvalidModel, PitchpipeError
from pitchpipe.frontends import FRONTENDS
from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.finding import Refusal
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.isolation import run_child


def refusals(
    model: bytes, arrays: Mapping[str, Any], *, model_format: str, path: str, inputs: Sequence[str]
) -> list[dict[str, Any]]:
    """Step: a Refusal as JSON for everything that would be refused in the file at `path`, whose bytes `model` is.

    The caller trusts a file that can run code. `inputs` names the arrays that are example inputs, in order. Raises
    InvalidModel for a file that cannot be read.
    """
    given = [np.asarray(arrays[name]) for name in inputs]
    kind, file = ModelFormat(model_format), Path(path)
    if kind is ModelFormat.ONNX:
        found = list(_of_onnx(model, file, given))
    elif kind in (ModelFormat.PT2, ModelFormat.TORCHSCRIPT):
        found = list(_of_torch(file, kind, given))
    elif kind is ModelFormat.STABLEHLO:
        found = list(_of_stablehlo(model))
    else:
        found = []
    if not found and kind not in (ModelFormat.ONNX, ModelFormat.PT2, ModelFormat.TORCHSCRIPT):
        found = list(_of_import(model, kind, file))
    return [refusal.model_dump(mode="json") for refusal in found]


def _refused(error: PitchpipeError, operator: str | None = None, node: str | None = None) -> Refusal:
    return Refusal(operator=operator, node=node, reason=error.detail)


def _of_import(model: bytes, kind: ModelFormat, path: Path) -> Iterator[Refusal]:
    from tuner.ingest import ingest_bytes
    from tuner.ingest.local import convert_local

    try:
        if FRONTENDS[kind].is_local:
            convert_local(path, kind, trusted=True)
        else:
            ingest_bytes(model, kind)
    except InvalidModel as error:
        yield _refused(error)


def _of_onnx(data: bytes, path: Path, given: Sequence[np.ndarray]) -> Iterator[Refusal]:
    stripped = strip_onnx(data, external_dir=path.parent, examples=given).data
    for each in json.loads(run_child(stripped, ModelFormat.ONNX, DEFAULT_LIMITS, survey=True)):
        yield Refusal(operator=each["operator"] or None, node=each["node"] or None, reason=each["reason"])


def _of_torch(path: Path, kind: ModelFormat, given: Sequence[np.ndarray]) -> Iterator[Refusal]:
    import torch

    from tuner.ingest.pt2 import load_program
    from tuner.ingest.torch_export import export_decompositions, from_exported_program, quiet
    from tuner.minify import torch_graph

    script = kind is ModelFormat.TORCHSCRIPT
    try:
        program = torch_graph.program_of_torchscript(path, given) if script else load_program(path)
        torch_graph.specs_of(program)
    except InvalidModel as error:
        yield _refused(error)
        return
    with quiet(), torch.no_grad():
        taken_apart = program.run_decompositions(export_decompositions())
        found = False
        for node in taken_apart.graph.nodes:
            reason = torch_graph.refused(node)
            if reason is not None:
                found = True
                yield Refusal(operator=torch_graph.operator_name(node.target), node=node.name, reason=reason)
        if found:
            return
        try:
            from_exported_program(program)
        except InvalidModel as error:
            yield _refused(error)


def _of_stablehlo(data: bytes) -> Iterator[Refusal]:
    from tuner.ingest.stablehlo_reader import missing_operators

    for operator, node in missing_operators(data):
        yield Refusal(operator=operator, node=node, reason=f"operator {operator} is not supported")
