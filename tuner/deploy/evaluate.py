"""A whole model beside the framework that it came from, and the tuned build beside the baseline build."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pitchpipe.model.comparison import agreement, drawn, less_precise
from pitchpipe.model.reference.expected import Expected
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from tuner.deploy.build import Scheduled, compile_scheduled, schedule_model
from tuner.deploy.defaults import checked_defaults
from tuner.graph.precision import take_precision
from tuner.ingest import IngestedModel, TensorSpec, ingest
from tuner.tvm_compat import load_ir

TIMING_SECS = 2.0
"""The two builds run in turn until so many seconds are spent on them."""
MAX_ROUNDS = 40
"""Runs of the baseline build, at most: enough for the median of a model that takes microseconds."""
TUNED_RUNS = 40
"""Runs of the tuned build before and after each run of the baseline build."""
WARM_RUNS = 5
"""Runs before those, not counted: the other build has filled the caches."""
BASELINE = "the baseline build"


def evaluate(
    model: bytes,
    arrays: Mapping[str, Any],
    *,
    model_format: str,
    target: str,
    traces: dict[str, str] | None,
    seed: int,
    expected: str | None,
    defaults: str | None = None,
) -> dict[str, Any]:
    """Step: builds the model with the traces, compares its outputs, and times it in turn with the baseline build.

    The baseline build has no traces. `expected` is the path of an Expected, the framework's outputs; without one the tuned
    build is compared with the baseline build on drawn inputs. Weights missing in `arrays` are drawn at random. Times are
    medians in seconds.

    With traces None nothing is timed, and the default build is compared with the framework: the model with the default
    schedules (tuner/space/default.py), which computes the same functions as the baseline in a hundredth of the time.

    The answer's `agreement` is a comparison.Agreement; `incomparable` says why there is none with the framework.
    """
    wanted = Target.parse(target)
    ingested = ingest(model, ModelFormat(model_format))
    checking = None if defaults is None else partial(checked_defaults, folder=Path(defaults))
    rng = np.random.default_rng(seed)
    source = Expected.read(Path(expected)) if expected is not None else None
    given = {**arrays, **(source.weights if source is not None else {})}
    weights = [np.asarray(given[p.name]) if p.name in given else _random(p, rng) for p in ingested.params]
    incomparable = _other_inputs(ingested, source) if source is not None else None
    if incomparable is not None:
        source = None
    if source is not None and kind_of(wanted).multiplies_tf32 and take_precision(load_ir(ingested.ir))[1]:
        source = replace(source, computed=less_precise(source.computed, "tf32"))
    if traces is None:
        if source is None:
            return {"incomparable": incomparable}
        default = _Runner(schedule_model(ingested, wanted, {}, defaults=checking), ingested, weights)
        found = [default.outputs(one) for one in source.inputs]
        return {"agreement": asdict(agreement(found, source.outputs, steps=source.steps, computed=source.computed))}
    inputs = source.inputs if source is not None else ([_random(spec, rng) for spec in ingested.inputs],)
    scheduled = [schedule_model(ingested, wanted, chosen) for chosen in ({}, traces)]
    with ThreadPoolExecutor(2) as threads:
        baseline, tuned = threads.map(lambda ready: _Runner(ready, ingested, weights), scheduled)
    outputs = source.outputs if source is not None else [baseline.outputs(inputs[0])]
    found = [tuned.outputs(one) for one in inputs]
    steps, least = (source.steps, source.computed) if source is not None else ((), None)
    judged = agreement(found, outputs, steps=steps, computed=least)
    answer: dict[str, Any] = {"agreement": asdict(judged), "incomparable": incomparable}
    if judged.difference is not None:
        return answer
    slow, fast = _timed(baseline, tuned, inputs[0])
    pairs = [pair for ours, theirs in zip(found, outputs, strict=True) for pair in zip(ours, theirs, strict=True)]
    return answer | {
        "untuned_secs": slow,
        "tuned_secs": fast,
        "speedup": slow / fast,
        "max_abs_error": max((_difference(ours, theirs) for ours, theirs in pairs), default=0.0),
        "reference": source.reference if source is not None else BASELINE,
    }


def _timed(baseline: _Runner, tuned: _Runner, inputs: Sequence[np.ndarray]) -> tuple[float, float]:
    """Median seconds of the two builds, which run in turn."""
    slow: list[float] = []
    fast: list[float] = []
    baseline.bind(inputs)
    tuned.bind(inputs)
    started = time.monotonic()
    while not slow or (time.monotonic() - started < TIMING_SECS and len(slow) < MAX_ROUNDS):
        fast += tuned.secs(WARM_RUNS + TUNED_RUNS)[WARM_RUNS:]
        slow += baseline.secs(1)
        fast += tuned.secs(WARM_RUNS + TUNED_RUNS)[WARM_RUNS:]
    return statistics.median(slow), statistics.median(fast)


class _Runner:
    """A build with its weights bound."""

    def __init__(self, scheduled: Scheduled, ingested: IngestedModel, weights: Sequence[np.ndarray]) -> None:
        compiled, kind = compile_scheduled(scheduled), kind_of(scheduled.target)
        self._running = kind.executable(compiled, ingested.inputs, ingested.params, scheduled.target)
        self._running.bind({spec.name: array for spec, array in zip(ingested.params, weights, strict=True)})
        self._secs: Callable[[int], list[float]] | None = None

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(_flat(self._running(*inputs)))

    def bind(self, inputs: Sequence[np.ndarray]) -> None:
        """Sets what `secs` runs on."""
        self._secs = self._running.timed(*inputs)

    def secs(self, runs: int) -> list[float]:
        """Seconds of each run."""
        assert self._secs is not None
        return self._secs(runs)


def _flat(result: Any) -> Iterator[np.ndarray]:
    """Every array of a result, which is one, or a tuple of results."""
    if isinstance(result, np.ndarray):
        yield result
    else:
        for part in result:
            yield from _flat(part)


def _other_inputs(model: IngestedModel, source: Expected) -> str | None:
    """How the inputs differ from the framework's: JAX, say, leaves those out that a function does not use."""
    ours = [(str(np.dtype(spec.dtype)), tuple(spec.shape)) for spec in model.inputs]
    theirs = [(str(array.dtype), array.shape) for array in source.inputs[0]]
    if ours == theirs:
        return None
    told = [", ".join(f"{dtype}{list(shape)}" for dtype, shape in found) for found in (ours, theirs)]
    return f"the graph takes {told[0]}, but {source.reference} {told[1]}"


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    return drawn(spec.shape, np.dtype(spec.dtype), rng)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest absolute difference; infinite where one side is not a number and the other is."""
    if ours.size == 0:
        return 0.0
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.abs(np.subtract(a, b, where=~same, out=np.zeros_like(a)))
    return float(np.nan_to_num(gap, nan=np.inf).max())
