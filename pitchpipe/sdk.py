"""Submit, fetch, load: a model's way through a Pitchpipe service, from Python.

A model is an ONNX file (a path or its bytes) or a `torch.nn.Module` with example inputs. Its weights never leave this
process: what is sent is the graph.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pitchpipe import misses
from pitchpipe.artifact import CompiledModel, Manifest, cache_dir, linker, open_artifact, write
from pitchpipe.child import run_step
from pitchpipe.client import Client
from pitchpipe.errors import IntegrityError, InvalidInput, PitchpipeError
from pitchpipe.plugins import step
from pitchpipe.tune import LocalModel, detect_target, read_model
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.job import Budget, JobRequest, JobView, ModelFormat, ModelView
from pitchpipe.wire.record import LookupRequest, LookupResponse, ScheduleAnswer
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")
MAX_WORKLOADS = 4096
"""Of one look-up."""
_compiling = threading.Lock()
"""Held while a model is compiled in this process: the compiler keeps global state."""


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Schedules fetched for a model and a target: what `load` applies."""

    target: Target
    response: LookupResponse

    @property
    def traces(self) -> dict[str, str]:
        """Workload digest -> trace, for every workload that has a best."""
        return {answer.workload: answer.best.trace for answer in self.response.answers if answer.best is not None}


def local_model(model: Any, example_inputs: Sequence[Any] | None = None, *, trust: bool = False) -> LocalModel:
    """The graph and the weights of a model: a path, ONNX bytes, or a torch module with example inputs."""
    if isinstance(model, LocalModel):
        return model
    if isinstance(model, (str, Path)):
        return read_model(Path(model), trust=trust)
    if isinstance(model, bytes):
        stripped = step("strip_onnx")(model)
        return LocalModel(name="model", format=ModelFormat.ONNX, data=stripped.data, weights=stripped.weights)
    if example_inputs is None:
        raise InvalidInput(f"a {type(model).__name__} needs example inputs")
    data, weights = step("export_torch")(model, tuple(example_inputs))
    return LocalModel(name=type(model).__name__, format=ModelFormat.RELAX, data=data, weights=weights)


def submit(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    client: Client | None = None,
    trust: bool = False,
) -> JobView:
    """Exports the model here, sends its graph without weights, and starts a tuning job; returns at once.

    The budget is `trials`, `seconds` of tuning, or both (whichever ends first); without either it is 1,000 trials.
    Raises InvalidInput and its kinds for a model or target that is not valid, NoDevice when no worker serves the target.
    """
    service = client or Client()
    found = local_model(model, example_inputs, trust=trust)
    uploaded = service.upload_model(found.data, name=found.name, format=found.format)
    budget = Budget(trials=1000 if trials is None and seconds is None else trials, seconds=seconds)
    wanted = target if isinstance(target, Target) else detect_target(target)
    return service.submit(JobRequest(model=uploaded.id, targets=(wanted,), budget=budget, seed=seed))


def fetch(
    model_or_job: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    client: Client | None = None,
    trust: bool = False,
    report_misses: bool = False,
) -> Schedules:
    """The best known schedules for a job or an uploaded model (a view or an id), or for any model.

    The last may never have been submitted: its workloads are looked up by their digests. With the target "auto" an answer
    is `exact` where it was confirmed on hardware like this machine's, with the same compiler. `report_misses` tells the
    service what a model here is about to run without one, so that idle workers may tune it; a report that fails is logged.
    """
    service = client or Client()
    wanted = target if isinstance(target, Target) else detect_target(target)
    if isinstance(model_or_job, (JobView, ModelView)):
        return Schedules(target=wanted, response=service.fetch(model_or_job.id, wanted))
    if isinstance(model_or_job, str) and model_or_job.startswith(("job_", "mdl_")):
        return Schedules(target=wanted, response=service.fetch(model_or_job, wanted))
    found = local_model(model_or_job, example_inputs, trust=trust)
    identity = run_step("identify", found.data, model_format=found.format.value, target=wanted.key)
    here = step("fingerprint")("cuda" if wanted.kind == "cuda" else "cpu").device_class if target == "auto" else None
    answers: list[ScheduleAnswer] = []
    for start in range(0, len(identity["workloads"]), MAX_WORKLOADS):
        request = LookupRequest(
            target=wanted,
            workloads=tuple(identity["workloads"][start : start + MAX_WORKLOADS]),
            device_class=here,
            toolchain=identity["toolchain"],
        )
        answers += service.lookup(request, cache=cache_dir()).answers
    response = LookupResponse(answers=tuple(answers))
    if report_misses and (workloads := misses.missed(response)):
        try:
            misses.report(service, found, wanted, workloads)
        except PitchpipeError as error:
            log.warning("misses were not reported: %s", error.detail)
    return Schedules(target=wanted, response=response)


def load(
    model: Any,
    schedules: Schedules | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    weights: Mapping[str, Any] | None = None,
    target: Target | str = "auto",
    cache: Path | None = None,
    trust: bool = False,
) -> CompiledModel:
    """Builds the model with the fetched schedules, or takes it from the local cache, and binds its weights once.

    Without schedules, or where one is missing, a workload runs the compiler's default: correct, not fast. `weights` adds
    to those of the model, or replaces them, by parameter name. The result is called with NumPy or DLPack arrays.

    Building happens in a child process, which needs a linker (`pitchpipe doctor` says whether there is one). Without one
    the model is compiled in this process, anew each time. Raises InvalidInput for weights that are missing or misshapen.
    """
    found = local_model(model, example_inputs, trust=trust)
    wanted = schedules.target if schedules is not None else target
    wanted = wanted if isinstance(wanted, Target) else detect_target(wanted)
    traces = schedules.traces if schedules is not None else {}
    plan: dict[str, Any] = {"model_format": found.format.value, "target": wanted.key, "traces": traces}
    compiler = [version(name) for name in ("pitchpipe", "apache-tvm", "apache-tvm-ffi")]
    key = json_digest([sha256(found.data), found.format.value, wanted.key, sorted(traces.items()), compiler])
    folder = (cache or cache_dir()) / "artifacts" / key
    bound = {**found.weights, **(weights or {})}
    try:
        return open_artifact(folder, wanted, bound)
    except IntegrityError:
        pass  # absent or damaged: built below
    if linker() is None:
        with _compiling:
            manifest, executable = step("build_here")(found.data, **plan)
        return CompiledModel(Manifest.model_validate(manifest), executable, bound)

    def export(library: Path) -> Manifest:
        return Manifest.model_validate(run_step("build", found.data, **plan, library=str(library)))

    write(folder, export)
    return open_artifact(folder, wanted, bound)
