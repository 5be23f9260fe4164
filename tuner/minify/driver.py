"""A model, from what it is to what is wrong with it: try it whole, cut it down, ask which step is at fault, write it up.

Runs in a process of its own (pitchpipe/processes/child.py), as a model may crash the framework, too, and forks for every
attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pitchpipe.model.comparison import drawn, input_sets
from pitchpipe.model.onnx_shapes import fix_shapes
from pitchpipe.model.strip import parse_onnx
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import TensorShape
from tuner.ingest import TensorSpec, parse_container
from tuner.ingest.local import convert_local
from tuner.measure.check import numpy_dtype
from tuner.minify import Node, Part, Source
from tuner.minify.attempts import Outcome, Say, attempt, in_fork, outcome_of, run_naively
from tuner.minify.blame import CODE, IMPORT, Blame, blame
from tuner.minify.reduction import reduce
from tuner.minify.relax_graph import RelaxSource
from tuner.minify.script import Evidence, write_script
from tuner.tvm_compat import load_ir

DEEPEST = 200
"""Attempts after which the part that was found so far is told."""
FEW = 8
"""Operators of a part within which the compiler may be blamed for a difference that no step shows."""
AS_IT_STANDS = "the imported module, as it stands"
"""Crashes when it is compiled operator by operator, without a step of ours."""
GRADUAL = "no single step: the error grows over the operators of this part"

SourceOf = Callable[[Sequence[np.ndarray]], Source]
"""Inputs of the model, in order -> the model, run on them."""


def minify(
    model: bytes,
    arrays: Mapping[str, Any],
    *,
    model_format: str,
    path: str | None,
    inputs: Sequence[str] | None,
    target: str,
    out: str | None,
    wall_secs: float = WALL_SECS,
) -> dict[str, Any]:
    """Step: a Finding as JSON, of the file at `path`, which is trusted, or of `model` with its weights in `arrays`.

    `inputs` names those of `arrays` that are example inputs, in order; without any they are drawn. Raises InvalidInput and
    its kinds for what cannot be read at all.
    """
    given = None if inputs is None else [np.asarray(arrays[name]) for name in inputs]
    weights = {name: array for name, array in arrays.items() if name not in set(inputs or ())}
    make, specs, brought = _opened(model, ModelFormat(model_format), path, weights, given)
    examples = given or brought or [_drawn(spec) for spec in specs]
    found = find(
        make, input_sets(examples), Target.parse(target), Path(out) if out is not None else None, wall_secs=wall_secs
    )
    return found.model_dump(mode="json")


def find(
    make: SourceOf,
    sets: Sequence[Sequence[np.ndarray]],
    target: Target,
    out: Path | None,
    *,
    wall_secs: float = WALL_SECS,
) -> Finding:
    """What is wrong with a model, on the first of several input sets on which anything is.

    Writes its script into the folder `out`. Raises InvalidModel for a model that its framework does not run.
    """
    sources = [make(inputs) for inputs in sets]
    outcome = attempt([source.model() for source in sources], target, wall_secs=wall_secs)
    source = sources[outcome.at]
    del sources
    if outcome.kind in (FindingKind.NOTHING, FindingKind.REFUSED):
        detail = outcome.detail or f"builds, runs, and agrees with {source.framework} on {len(sets)} sets of inputs"
        return Finding(kind=outcome.kind, detail=detail, reference=source.framework)
    return _reduced(source, outcome, target, out, wall_secs)


def _reduced(source: Source, whole: Outcome, target: Target, out: Path | None, wall_secs: float) -> Finding:
    tries = 0
    told = whole

    def fails(nodes: Sequence[Node]) -> bool:
        nonlocal tries, told
        part = source.cut({node.name for node in nodes}) if tries < DEEPEST else None
        if part is None:
            return False
        tries += 1
        outcome = attempt([part], target, wall_secs=wall_secs)
        if outcome.like(whole):
            told = outcome
            return True
        return False

    kept = list(source.nodes)
    part = source.model()
    if fails(kept):
        kept = reduce(kept, fails)
        cut = source.cut({node.name for node in kept})
        if cut is not None:
            part = cut
            told = attempt([part], target, wall_secs=wall_secs)
    last = kept[-1] if kept else None
    at_fault, model = _cause(part, told, target, wall_secs)
    finding = Finding(
        kind=told.kind,
        detail=told.detail,
        reference=source.framework,
        operator=last.operator if last else None,
        node=last.label if last else None,
        arguments=tuple(TensorShape(shape=array.shape, dtype=array.dtype.name) for array in part.inputs),
        nodes=tuple(node.operator for node in part.nodes),
        cause=_in_words(at_fault, told, part),
    )
    if out is None:
        return finding
    shown = at_fault if at_fault is not None and at_fault.cause != CODE else None
    evidence = Evidence(finding=finding, part=part, blame=shown, model=model, timeout_secs=wall_secs)
    return finding.model_copy(update={"script": str(write_script(out, evidence))})


def _cause(part: Part, told: Outcome, target: Target, wall_secs: float) -> tuple[Blame | None, str | None]:
    """The step at fault with a module that shows it, where there is one; and the part in the `relax` format, where it can be
    imported."""
    with TemporaryDirectory(prefix="pitchpipe-minify-") as folder:
        file = Path(folder) / "part.json"
        imported = in_fork(lambda _: file.write_bytes(part.convert()[0]), wall_secs=wall_secs)
        model = file.read_text() if imported.result else None
    if told.kind is FindingKind.WRONG:
        return blame(part, target), model
    if model is None:
        return None, None
    ingested = parse_container(model.encode())
    names = [spec.name for spec in ingested.params]

    def naive(say: Say) -> str:
        say("build")
        run_naively(load_ir(ingested.ir), part.inputs, [part.weights.get(name) for name in names])
        return ""

    if (
        set(names) <= set(part.weights)
        and outcome_of(in_fork(naive, wall_secs=wall_secs)).kind is not FindingKind.NOTHING
    ):
        weights = {name: part.weights[name] for name in names}
        return Blame(cause=AS_IT_STANDS, module=ingested.ir, before=None, weights=weights), model
    return None, model


def _in_words(found: Blame | None, told: Outcome, part: Part) -> str | None:
    """The step at fault, for people."""
    if found is not None:
        return GRADUAL if found.cause == CODE and len(part.nodes) > FEW else found.cause
    return None if told.kind is FindingKind.WRONG else {"import": IMPORT, "build": CODE}.get(told.stage, told.stage)


def _drawn(spec: TensorSpec) -> np.ndarray:
    """An example input: standard normal, or whole numbers that any embedding, mask or class takes."""
    return drawn(spec.shape, numpy_dtype(spec.dtype), np.random.default_rng(0))


def _opened(
    data: bytes,
    model_format: ModelFormat,
    path: str | None,
    weights: Mapping[str, np.ndarray],
    given: Sequence[np.ndarray] | None,
) -> tuple[SourceOf, Sequence[TensorSpec], Sequence[np.ndarray] | None]:
    """What makes a source of the model, what it takes, and the example inputs that it brought along."""
    if model_format is ModelFormat.ONNX:
        return _onnx(data, path, given)
    if model_format in (ModelFormat.PT2, ModelFormat.TORCHSCRIPT):
        return _torch(str(path), model_format, given)
    if model_format is not ModelFormat.RELAX:
        data, weights = convert_local(Path(str(path)), model_format, trusted=True)
    model = parse_container(data)
    bound = {spec.name: weights[spec.name] if spec.name in weights else _drawn(spec) for spec in model.params}
    return lambda inputs: RelaxSource(model, inputs, bound), model.inputs, None


def _onnx(
    data: bytes, path: str | None, given: Sequence[np.ndarray] | None
) -> tuple[SourceOf, Sequence[TensorSpec], None]:
    import onnx

    from tuner.ingest.child import reader
    from tuner.minify.onnx_graph import OnnxSource, specs_of

    reader(ModelFormat.ONNX)  # imported here, no attempt imports it
    model = parse_onnx(data)
    if given:
        fix_shapes(model, given)
    if path is not None:
        onnx.load_external_data_for_model(model, str(Path(path).parent))
    specs = specs_of(model)
    names = [spec.name for spec in specs]
    return lambda inputs: OnnxSource(model, dict(zip(names, inputs, strict=True))), specs, None


def _torch(
    path: str, model_format: ModelFormat, given: Sequence[np.ndarray] | None
) -> tuple[SourceOf, Sequence[TensorSpec], Sequence[np.ndarray] | None]:
    import torch

    from tuner.ingest.pt2 import load_program
    from tuner.ingest.torch_export import export_decompositions
    from tuner.minify import torch_graph

    torch.set_num_threads(1)  # a fork after threads were started could wait for them for ever
    export_decompositions()  # kept, so no attempt makes them
    if model_format is ModelFormat.TORCHSCRIPT:
        program = torch_graph.program_of_torchscript(Path(path), given)
    else:
        program = load_program(Path(path))
    specs = torch_graph.specs_of(program)
    return lambda inputs: torch_graph.TorchSource(program, inputs), specs, torch_graph.example_arrays(program)
