"""The tuned model against the untuned one: interleaved times, and the outputs against an independent reference."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from tuner.deploy import Scheduled, compile_scheduled, schedule_model
from tuner.ingest import IngestedModel, TensorSpec, ingest
from tuner.tvm_compat import relax, tvm

UNTUNED_SECS = 2.0
"""The two models run in turn until this much time is spent on them."""
MAX_ROUNDS = 40
"""Runs of the untuned model that end it earlier: enough for a median of a model of microseconds."""
TUNED_RUNS = 40
"""Runs of the tuned model before and after each run of the untuned one."""
WARM_RUNS = 5
"""Runs before those, not counted: the other model has had the caches."""


def evaluate(
    model: bytes,
    arrays: Mapping[str, Any],
    *,
    model_format: str,
    target: str,
    traces: dict[str, str],
    seed: int,
    reference_path: str | None,
) -> dict[str, Any]:
    """Step: builds the model with and without the traces, times both in turn, compares outputs.

    Weights missing in `arrays` are drawn at random. The reference is ONNX Runtime on the file at `reference_path` where it
    is installed, else the untuned build. Times are medians in seconds.
    """
    wanted = Target.parse(target)
    ingested = ingest(model, ModelFormat(model_format))
    rng = np.random.default_rng(seed)
    weights = [np.asarray(arrays[p.name]) if p.name in arrays else _random(p, rng) for p in ingested.params]
    inputs = [_random(spec, rng) for spec in ingested.inputs]
    scheduled = [schedule_model(ingested, wanted, chosen) for chosen in ({}, traces)]
    with ThreadPoolExecutor(2) as threads:
        untuned, tuned = threads.map(lambda ready: _Runner(ready, weights, inputs), scheduled)
    outputs = tuned.outputs()
    expected, reference = untuned.outputs, "the untuned build"
    if reference_path is not None and all(p.name in arrays for p in ingested.params):
        independent = _onnx_runtime(reference_path, ingested, inputs)
        if independent is not None:
            expected, reference = independent, "ONNX Runtime"
    error = max(_difference(ours, theirs) for ours, theirs in zip(outputs, expected(), strict=True))
    slow: list[float] = []
    fast: list[float] = []
    started = time.monotonic()
    while not slow or (time.monotonic() - started < UNTUNED_SECS and len(slow) < MAX_ROUNDS):
        fast += tuned.secs(WARM_RUNS + TUNED_RUNS)[WARM_RUNS:]
        slow += untuned.secs(1)
        fast += tuned.secs(WARM_RUNS + TUNED_RUNS)[WARM_RUNS:]
    return {
        "untuned_secs": statistics.median(slow),
        "tuned_secs": statistics.median(fast),
        "speedup": statistics.median(slow) / statistics.median(fast),
        "max_abs_error": error,
        "reference": reference,
    }


class _Runner:
    """A build with weights bound and inputs set."""

    def __init__(self, scheduled: Scheduled, weights: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> None:
        executable = compile_scheduled(scheduled)
        self._device = tvm.device("cuda" if scheduled.target.kind == "cuda" else "cpu", 0)
        self._machine = relax.VirtualMachine(executable, self._device)
        tensors = [tvm.runtime.tensor(array, self._device) for array in weights]
        params = list(self._machine["main_transform_params"](tensors)) if tensors else []
        self._arguments = [*(tvm.runtime.tensor(array, self._device) for array in inputs), *params]
        self._machine.set_input("main", *self._arguments)

    def outputs(self) -> list[np.ndarray]:
        found = self._machine["main"](*self._arguments)
        return [found.numpy()] if hasattr(found, "numpy") else [part.numpy() for part in found]

    def secs(self, runs: int) -> list[float]:
        """Wall seconds of each run, the device's queue emptied."""
        found = []
        for _ in range(runs):
            started = time.perf_counter()
            self._machine.invoke_stateful("main")
            self._device.sync()
            found.append(time.perf_counter() - started)
        return found


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """Standard normal floats; integers are 0 or 1, which any embedding or mask accepts."""
    if np.issubdtype(np.dtype(spec.dtype), np.floating):
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype)


def _onnx_runtime(
    path: str, model: IngestedModel, inputs: Sequence[np.ndarray]
) -> Callable[[], list[np.ndarray]] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = dict(zip((spec.name for spec in model.inputs), inputs, strict=True))
    return lambda: [np.asarray(array) for array in session.run(None, feed)]


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest absolute difference; infinite where one side is not a number and the other is."""
    if ours.size == 0:
        return 0.0
    gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    gap[np.isnan(ours) & np.isnan(theirs)] = 0.0
    return float(np.nan_to_num(gap, nan=np.inf).max())
