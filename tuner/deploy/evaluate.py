"""A whole model beside the framework that it came from, and the tuned build beside the default build and the best peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pitchpipe.model.comparison import agreement, drawn, less_precise
from pitchpipe.model.interleaved import interleaved
from pitchpipe.model.reference.expected import CannotRun, Expected
from pitchpipe.model.reference.peer import Peer
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from tuner.deploy.build import Defaults, Scheduled, compile_scheduled, schedule_model
from tuner.deploy.defaults import checked_defaults
from tuner.graph.precision import take_precision
from tuner.ingest import IngestedModel, TensorSpec, ingest
from tuner.tvm_compat import load_ir

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
    peer: str | None = None,
    defaults: str | None = None,
) -> dict[str, Any]:
    """Step: builds the model with the traces, compares its outputs, and times it in turn with the default build and a peer.

    The default build has no traces. `expected` is the path of an Expected, the framework's outputs; without one the tuned
    build is compared with the baseline build, the unscheduled program, on drawn inputs. `peer` is a folder that
    FileSource.ask has made; None where no peer is to be timed. `defaults` is the folder of verdicts on default schedules;
    None where what has no trace runs the baseline. Weights missing in `arrays` are drawn at random. Times are medians in
    seconds.

    With traces None nothing is timed, and the default build is compared with the framework.

    The answer's `agreement` is a comparison.Agreement; `incomparable` says why there is none with the framework. Where no
    peer was timed `peer_secs` is None, and `peer` says why.
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
        return {"agreement": asdict(source.agreement(found))}
    inputs = source.inputs if source is not None else ([_random(spec, rng) for spec in ingested.inputs],)
    plans: list[tuple[Mapping[str, str], Defaults | None]] = [({}, checking), (traces, checking)]
    if source is None:
        plans.append(({}, None))
    scheduled = [schedule_model(ingested, wanted, chosen, defaults=choose) for chosen, choose in plans]
    with ThreadPoolExecutor(2) as threads:
        default, tuned, *baseline = threads.map(lambda ready: _Runner(ready, ingested, weights), scheduled)
    outputs = source.outputs if source is not None else [baseline[0].outputs(inputs[0])]
    found = [tuned.outputs(one) for one in inputs]
    judged = source.agreement(found) if source is not None else agreement(found, outputs)
    answer: dict[str, Any] = {"agreement": asdict(judged), "incomparable": incomparable}
    if judged.difference is not None:
        return answer
    pairs = [pair for ours, theirs in zip(found, outputs, strict=True) for pair in zip(ours, theirs, strict=True)]
    return answer | {
        **_timed(default, tuned, inputs[0], incomparable or ("none was asked for" if peer is None else Path(peer))),
        "max_abs_error": max((_difference(ours, theirs) for ours, theirs in pairs), default=0.0),
        "reference": source.reference if source is not None else BASELINE,
    }


def _timed(default: _Runner, tuned: _Runner, inputs: Sequence[np.ndarray], peer: Path | str) -> dict[str, Any]:
    """Median seconds of the two builds, and of the peer unless `peer` says why there is none."""
    default.bind(inputs)
    tuned.bind(inputs)
    sides = [default.secs, tuned.secs]
    with ExitStack() as stack:
        name, secs = str(peer), list[float]()
        if isinstance(peer, Path):
            try:
                opened = stack.enter_context(Peer(peer, inputs))
                name, secs = opened.name, interleaved([*sides, opened.secs])
            except CannotRun as error:
                name = str(error)
        secs = secs or interleaved(sides)
    peer_secs = secs[2] if len(secs) > len(sides) else None
    return {
        "default_secs": secs[0],
        "tuned_secs": secs[1],
        "speedup": secs[0] / secs[1],
        "peer": name,
        "peer_secs": peer_secs,
        "peer_speedup": None if peer_secs is None else peer_secs / secs[1],
    }


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
