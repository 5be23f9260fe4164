"""Submit, fetch, load: a model's way through a Pitchpipe service, from Python.

A model is a file's path, the bytes of an ONNX file, a `torch.nn.Module`, TorchScript or a `jax.jit` function with example
inputs, or what `jax.export` made. Its weights never leave this process: what is sent is the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pitchpipe import telemetry
from pitchpipe.client import Client
from pitchpipe.deploy.artifact import CompiledModel, Manifest, cache_dir, intact, lacks_linker
from pitchpipe.deploy.building import BuildSpec, make
from pitchpipe.deploy.evidence import Evidence, compared, gather
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.identity import defaults_folder
from pitchpipe.deploy.lookup import Schedules, resolve_target, service_of
from pitchpipe.deploy.named_target import named_target
from pitchpipe.deploy.proof import open_proved
from pitchpipe.deploy.verify import ASKED_NOT_TO, compare_default, with_operator
from pitchpipe.errors import IntegrityError, NotFound, WrongResult
from pitchpipe.model.comparison import Agreement
from pitchpipe.model.local import local_model
from pitchpipe.model.reference import NoSource
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import step
from pitchpipe.target_kind import ordinal_named
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.job import Budget, JobRequest, JobView
from pitchpipe.wire.target import Target

_compiling = threading.Lock()
"""Held while a model is compiled in this process: the compiler keeps global state."""


@telemetry.span("submit")
def submit(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    trials: int | None = None,
    seconds: float | None = None,
    until_gain: float | None = None,
    seed: int = 0,
    precision: str = "ieee",
    client: Client | None = None,
    trust: bool = False,
    compare: bool = True,
    cache: Path | None = None,
) -> JobView:
    """Exports the model, compares it with its framework, sends its graph without weights, and starts a tuning job.

    The comparison builds the model here, once (see verify.py); the service is told of it with the model. `compare=False`
    leaves it out.

    `precision` "tf32" allows float32 products and convolutions to be computed by TF32 on a GPU, as PyTorch's switches do;
    `fetch` and `load` are then told the same.

    The budget is `trials`, `seconds` of tuning, or both (whichever ends first); without either it is 1,000 trials. With
    `until_gain` (0.01 is 1 %) no more trials are spent once another minute of them is expected to save less of the model's
    time than that.
    Raises InvalidInput and its kinds for a model or target that is not valid, NoDevice when no worker serves the target,
    WrongResult for a model that, compiled, does not compute what its framework does.
    """
    with service_of(client) as service:
        found = local_model(model, example_inputs, trust=trust, precision=precision)
        some = 1000 if trials is None and seconds is None else trials
        budget = Budget(trials=some, seconds=seconds, until_gain=until_gain)
        wanted = target if isinstance(target, Target) else named_target(target, service)
        told = compare_default(found, wanted, cache or cache_dir()) if compare else not_compared(ASKED_NOT_TO)
        uploaded = service.upload_model(found.data, name=found.name, format=found.format)
        service.tell_comparison(uploaded.id, told)
        return service.submit(JobRequest(model=uploaded.id, targets=(wanted,), budget=budget, seed=seed))


def load(
    model: Any,
    schedules: Schedules | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    weights: Mapping[str, Any] | None = None,
    target: Target | str = "auto",
    cache: Path | None = None,
    trust: bool = False,
    lock: str | Path | None = None,
    precision: str = "ieee",
) -> CompiledModel:
    """Builds the model with the fetched schedules, or takes it from the local cache, and binds its weights once.

    Without schedules, or where one is missing, a workload runs its default schedule, which no one has timed; it is checked
    here, once, and the baseline runs where it is not right (`CompiledModel.manifest` tells). `weights` adds
    to those of the model, or replaces them, by parameter name. `lock` is as for `fetch`.
    The result is called with NumPy or DLPack arrays. Of several GPUs `target="cuda:1"` names the one for weights and NumPy
    arrays; arrays that lie on another run there.

    Building happens in a child process, which for a CPU needs a linker (`pitchpipe doctor` says whether there is one).
    Without one the model is compiled in this process, anew each time. What was built is opened and run in another child
    before this process opens it, once per machine, and compared there with the model's framework, where that is installed
    (`CompiledModel.comparison` tells). Raises InvalidInput for weights that are missing or misshapen, ArtifactRefused when
    that proof run fails, WrongResult when the outputs differ; `load_safely` runs something else instead.
    """
    found = local_model(model, example_inputs, trust=trust, precision=precision)
    folder, ordinal = cache or cache_dir(), ordinal_named(target)
    if schedules is None and lock is not None:
        schedules = fetch(found, target=target, lock=lock, cache=folder)
    wanted = schedules.target if schedules is not None else resolve_target(target, folder)
    compiler = schedules.compiler if schedules is not None else None
    traces = schedules.traces if schedules is not None else {}
    spec = BuildSpec(model=found, target=wanted, traces=traces, compiler=compiler)
    bound = {**found.weights, **(weights or {})}
    try:
        return open_proved(spec.folder(folder), wanted, bound, source=found.source, ordinal=ordinal)
    except (IntegrityError, NotFound):
        pass  # absent, damaged, or not tried and compared on this machine
    if schedules is not None:
        schedules.install(spec, folder)

    spare = schedules.expected(found) if schedules is not None else None

    def evidence() -> Evidence | Comparison:
        return gather(found, weights or {}, spare)

    if lacks_linker(wanted) and not intact(spec.folder(folder)):
        return _built_here(spec, folder, bound, evidence())
    alone = isinstance(found.source, NoSource) and spare is None
    try:
        made = make(spec, folder, evidence=None if alone else evidence)
    except WrongResult as error:
        raise WrongResult(with_operator(error.detail, found.source, wanted)) from error
    return open_proved(made, wanted, bound, source=found.source, ordinal=ordinal)


def _built_here(
    spec: BuildSpec, cache: Path, bound: Mapping[str, Any], evidence: Evidence | Comparison
) -> CompiledModel:
    """Compiled and compared in this process, after a child has checked the default schedules. Raises WrongResult."""
    plan: dict[str, Any] = {
        "model_format": spec.model.format.value,
        "target": spec.target.key,
        "traces": dict(spec.traces),
        "defaults": str(defaults_folder(cache)),
    }
    run_step("build", spec.model.data, **plan, library=None)
    with _compiling:
        manifest, compiled = step("build_here")(spec.model.data, **plan)
    model = CompiledModel(Manifest.model_validate(manifest), compiled, bound)
    if isinstance(evidence, Evidence):
        model.bind(evidence.weights)
        found = compared(model, evidence)
        model.bind(bound)
        if isinstance(found, Agreement) and found.difference is not None:
            raise WrongResult(f"{found.difference}, compared with {evidence.expected.reference}")
        model.comparison = evidence.expected.comparison(found) if isinstance(found, Agreement) else found
    else:
        model.comparison = evidence
    return model
