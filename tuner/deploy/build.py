"""From a model and the best known traces to a compiled model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.context import contexts_of
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.deploy.default_check import Checked, Named, linked_name
from tuner.deploy.defaults import checked_defaults, remembered_defaults
from tuner.deploy.finish import finish
from tuner.deploy.gpu_model import FunctionRefused
from tuner.graph.precision import TF32, multiplies_tf32
from tuner.graph.prepare import MAIN, calls, prepare, workload_module
from tuner.ingest import IngestedModel, ingest, parse_container
from tuner.measure.build import with_packings
from tuner.schedule.trace import apply_trace
from tuner.tasks import signature, workload_functions
from tuner.templates.text import is_template
from tuner.tvm_compat import load_ir, save_ir, to_tvm_target, toolchain

Defaults = Callable[[Sequence[Named], Target], Mapping[str, Checked]]
"""Gives default schedules by workload digest, none for what could not be checked; see tuner/deploy/defaults.py."""


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A model whose tensor functions have their schedules: ready to compile."""

    module: Any
    target: Target
    tuned: tuple[str, ...]
    """Digests of the workloads that run a schedule of the given traces."""
    untuned: tuple[str, ...]
    """Digests of the others."""
    defaults: tuple[str, ...]
    """Of those, the ones that run a default schedule that was checked; the rest run the baseline."""
    computed: str | None = None
    """`tf32` where a tensor function may multiply in it, else None."""
    refused: Mapping[str, str]
    """Digest -> reason, of those whose schedule did not apply, since it may be another target's, or whose default schedule
    was not right."""
    unscheduled: tuple[tuple[Any, Any, str], ...] = ()
    """The tensor functions as they were before, as `workload_functions` has them."""
    checked: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Digest -> name and scheduled tensor function, of `defaults`: what `Named.name` named, and what was checked."""


def schedule_model(
    model: IngestedModel, target: Target, traces: Mapping[str, str], *, defaults: Defaults | None = None
) -> Scheduled:
    """Prepares the model and applies a trace (by workload digest) wherever one is given, elsewhere what `defaults` gives.

    A trace that the allow-list refuses or that does not apply counts as not given. What then has none runs the baseline,
    and so does what is given the trace of the baseline. One thread at a time: TVM builds tensor expressions in global state.
    """
    kind = kind_of(target)
    kind.load_intrinsics()
    prepared = prepare(load_ir(model.ir), target)
    tuned, untuned, refused = list[str](), list[str](), dict[str, str]()
    missing: list[tuple[Any, Any, str]] = []
    workloads = workload_functions(prepared)
    for variable, function, digest in workloads:
        try:
            if (trace := traces.get(digest)) is not None and trace != BASELINE_TRACE:
                if is_template(trace) and not kind.has_templates:
                    raise InvalidTrace(f"{kind.title} target has no templates")
                prepared.update_func(variable, applied(function, variable, trace))
                tuned.append(digest)
                continue
        except InvalidTrace as error:
            refused[digest], trace = error.detail, None
        untuned.append(digest)
        if trace is None:
            missing.append((variable, function, digest))
    chosen: Mapping[str, Checked] = {}
    if defaults is not None:
        first = {digest: (variable.name_hint, function) for variable, function, digest in reversed(missing)}
        asked = [
            Named(name=name, workload=Workload(digest=digest, ir=save_ir(workload_module(function))))
            for digest, (name, function) in reversed(first.items())
        ]
        chosen = defaults(asked, target)
    used, inapplicable, functions = list[str](), dict(refused), dict[str, tuple[str, Any]]()
    for variable, function, digest in missing:
        if (checked := chosen.get(digest)) is None:
            continue
        if checked.fault is not None:
            named = f"the default schedule of {signature(variable.name_hint, function).operators} is not used"
            before = [inapplicable[digest]] if digest in inapplicable else []
            refused[digest] = "; ".join([*before, f"{named}: {checked.fault}"])
        elif checked.trace != BASELINE_TRACE:
            prepared.update_func(variable, applied(function, variable, checked.trace))
            functions.setdefault(digest, (variable.name_hint, prepared[variable]))
            used.append(digest)
    with to_tvm_target(target):
        module = finish(prepared, target)
    return Scheduled(
        module=module,
        target=target,
        tuned=tuple(tuned),
        untuned=tuple(untuned),
        defaults=tuple(used),
        computed=TF32 if any(multiplies_tf32(function) for _, function, _ in workloads) else None,
        refused=refused,
        unscheduled=tuple(workloads),
        checked=functions,
    )


def applied(function: Any, variable: Any, trace: str) -> Any:
    """A tensor function of a prepared model after a trace. Raises InvalidTrace."""
    scheduled = apply_trace(workload_module(function), trace).mod["main"]
    return scheduled.with_attr("global_symbol", variable.name_hint)


def compile_scheduled(scheduled: Scheduled) -> Any:
    """The compiled model, as its target's kind makes it; threads may compile several at once.

    Raises UnsupportedOperator for what cannot run on such devices, PitchpipeError when the compiler refuses.
    """
    return kind_of(scheduled.target).compile(scheduled.module, scheduled.target)


def compile_to_save(scheduled: Scheduled, made: Mapping[str, bytes]) -> Any:
    """The same on all cores, to be saved and not to be run. Forks; at most one thread of the process calls it.

    made: object code of default schedules by workload digest, as their checks made it.
    """
    ready = {}
    for digest, code in made.items():
        if digest in scheduled.checked:
            name, function = scheduled.checked[digest]
            whole, packings = with_packings(workload_module(function))
            ready[linked_name(name, packings)] = (whole[MAIN], code)
    return kind_of(scheduled.target).compile_side_by_side(scheduled.module, scheduled.target, ready)


def identify(
    model: bytes, _arrays: Mapping[str, Any], *, model_format: str, target: str, own: bool = False
) -> dict[str, Any]:
    """Step: the model's workloads on the target (its key), how often each occurs, signatures, the toolchain's key, and
    where models are tuned inside, what stands around each workload.

    own: the caller made the model itself, in the `relax` format, so that it is read without a child.
    """
    wanted = Target.parse(target)
    read = parse_container(model) if own else ingest(model, ModelFormat(model_format))
    prepared = prepare(load_ir(read.ir), wanted)
    order = calls(prepared)
    counts, weights, signatures, functions = Counter(order), Counter[str](), {}, {}
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
        "contexts": {
            digest: context.model_dump(mode="json")
            for digest, context in contexts_of([functions[name] for name in order]).items()
        }
        if kind_of(wanted).tunes_inside
        else {},
    }


def build(
    model: bytes,
    _arrays: Mapping[str, Any],
    *,
    model_format: str,
    target: str,
    traces: dict[str, str],
    library: str | None,
    defaults: str | None = None,
) -> dict[str, Any]:
    """Step: compiles the model into the file `library`; returns what the artifact's manifest needs.

    defaults: the folder of verdicts on default schedules; what is missing there is checked now. None: what has no trace
    runs the baseline. library: None where the caller compiles in its own process (`build_here`): default schedules are
    checked, and that is all.

    Raises PitchpipeError when a shared library cannot be linked.
    """
    wanted, ingested = Target.parse(target), ingest(model, ModelFormat(model_format))
    made: dict[str, bytes] = {}
    checking = None if defaults is None else partial(checked_defaults, folder=Path(defaults), made=made)
    if library is None:
        return _manifest(ingested, schedule_model(ingested, wanted, traces, defaults=checking))
    scheduled, compiled = compiled_model(ingested, wanted, traces, checking, partial(compile_to_save, made=made))
    kind_of(wanted).save(compiled, Path(library))
    return _manifest(ingested, scheduled)


def build_here(
    model: bytes, *, model_format: str, target: str, traces: Mapping[str, str], defaults: str | None = None
) -> tuple[dict[str, Any], Any]:
    """Step for the calling process, where there is no linker: what the manifest needs, and the compiled model.

    defaults: as for `build`, but nothing is checked here: what has no verdict in the folder runs the baseline. One thread
    at a time.
    """
    wanted, ingested = Target.parse(target), ingest(model, ModelFormat(model_format))
    known = None if defaults is None else partial(remembered_defaults, folder=Path(defaults))
    scheduled, compiled = compiled_model(ingested, wanted, traces, known, compile_scheduled)
    return _manifest(ingested, scheduled), compiled


def compiled_model(
    ingested: IngestedModel,
    target: Target,
    traces: Mapping[str, str],
    defaults: Defaults | None,
    compiling: Callable[[Scheduled], Any],
) -> tuple[Scheduled, Any]:
    """The model, compiled; what the compiler refuses with given schedules, or with default ones, without these."""
    refused: dict[str, str] = {}
    while True:
        scheduled = schedule_model(ingested, target, traces, defaults=defaults)
        scheduled = replace(scheduled, refused={**scheduled.refused, **refused})
        try:
            return scheduled, compiling(scheduled)
        except PitchpipeError as error:
            # Rare, so it may cost another compilation. Which of the schedules it was, not every compiler says.
            named = error.function if isinstance(error, FunctionRefused) else None
            tuned = {
                digest
                for variable, _, digest in scheduled.unscheduled
                if digest in scheduled.tuned and named in (None, variable.name_hint)
            }
            if not (tuned or scheduled.defaults):
                raise
            reason = f"not used: {error.detail}"[:300]
            if tuned:
                refused |= dict.fromkeys(tuned, reason)
                traces = {digest: trace for digest, trace in traces.items() if digest not in tuned}
            else:
                refused |= dict.fromkeys(scheduled.defaults, reason)
                defaults = None


def _manifest(ingested: IngestedModel, scheduled: Scheduled) -> dict[str, Any]:
    return {
        "target": scheduled.target.attributes(),
        "inputs": [asdict(spec) for spec in ingested.inputs],
        "params": [asdict(spec) for spec in ingested.params],
        "tuned": sorted(scheduled.tuned),
        "untuned": sorted(scheduled.untuned),
        "defaults": sorted(scheduled.defaults),
        "computed": scheduled.computed,
        "refused": dict(scheduled.refused),
        "toolchain": toolchain(scheduled.target.kind).model_dump(),
    }


def describe_toolchain(_model: bytes, _arrays: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """Step: versions of what compiles for targets of this kind."""
    return toolchain(kind).model_dump()
