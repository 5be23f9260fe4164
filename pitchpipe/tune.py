"""`pitchpipe tune MODEL`: submit to the embedded service, watch, then build and compare with the untuned model."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitchpipe.child import run_step
from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.errors import InvalidInput, JobFailed, from_problem
from pitchpipe.plugins import step
from pitchpipe.wire.job import Budget, JobRequest, JobState, JobView, ModelFormat
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target

DEFAULT_SECONDS = 150.0
"""Budget of a `tune` that names none: enough to pass the untuned build several times over on two cores."""
MAX_EXAMPLE = 1 << 28
"""Elements of an example input."""
SUFFIXES = {
    ".onnx": ModelFormat.ONNX,
    ".json": ModelFormat.RELAX,
    ".mlir": ModelFormat.STABLEHLO,
    ".pt": ModelFormat.TORCHSCRIPT,
    ".pt2": ModelFormat.PT2,
    ".py": ModelFormat.TVMSCRIPT,
    ".stablehlo": ModelFormat.STABLEHLO,
    ".tflite": ModelFormat.TFLITE,
    ".torchscript": ModelFormat.TORCHSCRIPT,
}


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A model file as the service takes it (weights stripped), and the weights that stay here."""

    name: str
    format: ModelFormat
    data: bytes
    weights: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What the command line asks for."""

    path: Path
    database: str
    target: Target | None
    """None: what the worker finds."""
    budget: Budget
    seed: int
    trust: bool = False
    inputs: tuple[str, ...] = ()
    """Types and shapes of a TorchScript file's inputs; see parse_input."""
    log_level: str = "warning"


def parse_input(text: str) -> Any:
    """An array of zeros from a type and a shape, written as float32[1,3,224,224]; raises InvalidInput."""
    extents = r"[1-9]\d{0,8}(?:,[1-9]\d{0,8})*"
    found = re.fullmatch(rf"(bool|u?int(?:8|16|32|64)|float(?:16|32|64))\[({extents})?\]", text)
    if found is None:
        raise InvalidInput(f"the input {text[:80]!r} is no type and shape; write them as float32[1,3,224,224]")
    shape = [int(extent) for extent in (found[2] or "").split(",") if extent]
    if math.prod(shape) > MAX_EXAMPLE:
        raise InvalidInput(f"the input {text[:80]!r} has more than {MAX_EXAMPLE} elements")
    import numpy as np

    return np.zeros(shape, found[1])


def read_model(path: Path, *, trust: bool, example_inputs: Sequence[Any] | None = None) -> LocalModel:
    """Reads a model file; `example_inputs` are for TorchScript, which does not tell their shapes.

    Raises InvalidInput for an unknown suffix, and for a file that can run code and is not trusted.
    """
    model_format = SUFFIXES.get(path.suffix)
    if model_format is None:
        raise InvalidInput(f"{path.name}: the suffix must be one of {', '.join(sorted(SUFFIXES))}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    if model_format.is_local:
        if model_format.runs_code and not trust:
            raise InvalidInput(f"{path.name}: opening a {model_format} file can run code; pass --trust if you made it")
        data, weights = step("convert_local")(path, model_format, example_inputs, trusted=trust)
        return LocalModel(name=path.stem, format=ModelFormat.RELAX, data=data, weights=weights)
    weights = {}
    if model_format is ModelFormat.ONNX:
        stripped = step("strip_onnx")(data, external_dir=path.parent)
        data, weights = stripped.data, stripped.weights
    return LocalModel(name=path.stem, format=model_format, data=data, weights=weights)


def tune(options: TuneOptions, on_progress: Callable[[JobView], None]) -> dict[str, Any]:
    """Runs the whole chain and returns the object that `--json` prints. Times are in seconds.

    Raises the error of whatever failed; a KeyboardInterrupt leaves the database ready for the next run.
    """
    started = time.monotonic()
    model = read_model(options.path, trust=options.trust, example_inputs=[parse_input(text) for text in options.inputs])
    embedded = Embedded(options.database, options.target, log_level=options.log_level)
    with embedded as client:
        target = embedded.worker.target
        job = _submit(client, model, target, options)
        view = _watch(client, job, on_progress)
        schedules = client.job_schedules(view.id, target)
    traces = {answer.workload: answer.best.trace for answer in schedules.answers if answer.best is not None}
    evaluation = run_step(
        "evaluate",
        model.data,
        model.weights,
        model_format=model.format.value,
        target=target.key,
        traces=traces,
        seed=options.seed,
        reference_path=str(options.path) if options.path.suffix == ".onnx" else None,
    )
    return {
        "model": model.name,
        "target": target.attributes(),
        "device": embedded.worker.device.model,
        "tasks": [
            {
                "workload": task.workload,
                "name": task.name,
                "kind": task.kind.value,
                "weight": task.weight,
                "flops": task.flops,
                "bytes": task.bytes,
                "trials": task.trials,
                "untuned_secs": task.untuned_secs,
                "tuned_secs": task.tuned_secs,
                "bound_secs": task.bound_secs,
                "flops_per_sec": task.flops_per_sec,
                "bytes_per_sec": task.bytes_per_sec,
                "bound_share": task.bound_share,
                "replay": None if task.replay is None else task.replay.value,
                "replayed_from": _first_found(schedules, task.workload),
            }
            for task in view.tasks
        ],
        **evaluation,
        "trials": view.progress.trials,
        "failed_trials": view.progress.failed_trials,
        "reused_tasks": view.progress.reused_tasks,
        "replayed_tasks": sum(task.replay is not None for task in view.tasks),
        "seconds": time.monotonic() - started,
        "job": view.id,
    }


def _first_found(schedules: LookupResponse, workload: str) -> dict[str, Any] | None:
    """Where the schedule of a workload was found, if that was not where it was confirmed."""
    bests = (answer.best for answer in schedules.answers if answer.workload == workload)
    earlier = next((best.replayed_from for best in bests if best is not None), None)
    return None if earlier is None else earlier.model_dump(mode="json")


def _submit(client: Client, model: LocalModel, target: Target, options: TuneOptions) -> JobView:
    """The interrupted job for the same model, target, budget and seed if there is one, else a new job."""
    uploaded = client.upload_model(model.data, name=model.name, format=model.format)
    request = JobRequest(model=uploaded.id, targets=(target,), budget=options.budget, seed=options.seed)
    for job in client.jobs():
        same = (job.model, job.targets, job.budget, job.seed) == (
            request.model,
            request.targets,
            request.budget,
            request.seed,
        )
        if same and not job.state.ended:
            return job
    return client.submit(request)


def _watch(client: Client, job: JobView, on_progress: Callable[[JobView], None]) -> JobView:
    for _ in client.events(job.id):
        on_progress(client.job(job.id))
    view = client.job(job.id)
    if view.state is JobState.CANCELLED:
        raise JobFailed("the job was cancelled")
    if view.state is not JobState.DONE:
        raise from_problem(500, view.error_code or "", view.error or "the job failed")
    return view


def detect_target(value: str) -> Target:
    """`auto` asks this machine; anything else is JSON with TVM's attribute names."""
    if value != "auto":
        return Target.parse(value)
    found: Target = step("detect_target")("auto")
    return found
