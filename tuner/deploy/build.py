"""From a model and the best known traces to a compiled model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.deploy.finish import finish
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.ingest import IngestedModel, ingest, parse_container
from tuner.schedule.trace import apply_trace
from tuner.tasks import signature, workload_functions
from tuner.tvm_compat import IRModule, load_ir, save_ir, to_tvm_target, toolchain


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A model whose tensor functions have their schedules: ready to compile."""

    module: Any
    target: Target
    tuned: tuple[str, ...]
    """Digests of the workloads that run a schedule of the given traces."""
    untuned: tuple[str, ...]
    """Digests of those that run the baseline."""
    refused: Mapping[str, str]
    """Digest -> reason, of those whose schedule did not apply: it may be another target's."""


def schedule_model(
    model: IngestedModel, target: Target, traces: Mapping[str, str], *, default_schedules: bool = False
) -> Scheduled:
    """Prepares the model and applies a trace (by workload digest) wherever one is given; with `default_schedules` the
    default schedule (tuner/space/default.py) wherever none is.

    Other workloads run the baseline, and so do those whose trace the allow-list refuses or which does not apply. One thread
    at a time: TVM builds tensor expressions in global state.
    """
    kind = kind_of(target)
    kind.load_intrinsics()
    prepared = prepare(load_ir(model.ir), target)
    tuned: list[str] = []
    untuned: list[str] = []
    refused: dict[str, str] = {}
    for variable, function, digest in workload_functions(prepared):
        trace = traces.get(digest)
        if trace is None and default_schedules and kind.runs_unscheduled:
            workload = Workload(digest=digest, ir=save_ir(workload_module(function)))
            trace = kind.default_trace(workload, target)
        if trace is None or trace == BASELINE_TRACE:
            untuned.append(digest)
            continue
        try:
            scheduled = apply_trace(IRModule({"main": function.with_attr("global_symbol", "main")}), trace).mod["main"]
        except InvalidTrace as error:
            untuned.append(digest)
            refused[digest] = error.detail
            continue
        prepared.update_func(variable, scheduled.with_attr("global_symbol", variable.name_hint))
        tuned.append(digest)
    with to_tvm_target(target):
        module = finish(prepared, target)
    return Scheduled(module=module, target=target, tuned=tuple(tuned), untuned=tuple(untuned), refused=refused)


def compile_scheduled(scheduled: Scheduled) -> Any:
    """The compiled model, as its target's kind makes it; threads may compile several at once.

    Raises UnsupportedOperator for what cannot run on such devices, PitchpipeError when the compiler refuses.
    """
    return kind_of(scheduled.target).compile(scheduled.module, scheduled.target)


def identify(
    model: bytes, _arrays: Mapping[str, Any], *, model_format: str, target: str, own: bool = False
) -> dict[str, Any]:
    """Step: the model's workloads on the target (its key), how often each occurs, signatures, the toolchain's key.

    own: the caller made the model itself, in the `relax` format, so that it is read without a child.
    """
    wanted = Target.parse(target)
    read = parse_container(model) if own else ingest(model, ModelFormat(model_format))
    prepared = prepare(load_ir(read.ir), wanted)
    counts, weights, signatures, functions = call_counts(prepared), Counter[str](), {}, {}
    for variable, function, digest in workload_functions(prepared):
        functions[variable.name_hint] = digest
        weights[digest] += counts[variable.name_hint]
        signatures[digest] = signature(variable.name_hint, function).model_dump(mode="json")
    return {
        "workloads": sorted(weights),
        "weights": dict(weights),
        "signatures": signatures,
        "functions": functions,
        "toolchain": toolchain(wanted.kind).key,
    }


def build(
    model: bytes,
    _arrays: Mapping[str, Any],
    *,
    model_format: str,
    target: str,
    traces: dict[str, str],
    library: str,
) -> dict[str, Any]:
    """Step: compiles the model into the file `library`; returns what the artifact's manifest needs.

    Raises PitchpipeError when a shared library cannot be linked.
    """
    manifest, compiled = build_here(model, model_format=model_format, target=target, traces=traces)
    kind_of(Target.parse(target)).save(compiled, Path(library))
    return manifest


def build_here(
    model: bytes, *, model_format: str, target: str, traces: Mapping[str, str]
) -> tuple[dict[str, Any], Any]:
    """Step for the calling process, where there is no linker: what the manifest needs, and the compiled model.

    A schedule that the compiler refuses on this target is left out too. One thread at a time.
    """
    wanted = Target.parse(target)
    ingested = ingest(model, ModelFormat(model_format))
    scheduled = schedule_model(ingested, wanted, traces)
    try:
        compiled = compile_scheduled(scheduled)
    except PitchpipeError as error:
        # Rare, so it may cost a second compilation; which of the schedules it was, the compiler does not say.
        refused = dict.fromkeys(scheduled.tuned, f"not used: {error.detail}"[:300])
        scheduled = replace(schedule_model(ingested, wanted, {}), refused={**scheduled.refused, **refused})
        compiled = compile_scheduled(scheduled)
    manifest = {
        "target": wanted.attributes(),
        "inputs": [asdict(spec) for spec in ingested.inputs],
        "params": [asdict(spec) for spec in ingested.params],
        "tuned": sorted(scheduled.tuned),
        "untuned": sorted(scheduled.untuned),
        "refused": dict(scheduled.refused),
        "toolchain": toolchain(wanted.kind).model_dump(),
    }
    return manifest, compiled


def describe_toolchain(_model: bytes, _arrays: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """Step: versions of what compiles for targets of this kind."""
    return toolchain(kind).model_dump()
