"""One workload prepared for measuring, and what a child does with one candidate of it.

A `Bench` is made once per workload, in the process whose forks measure: it holds the module, the inputs and the
reference outputs, which the forks share and cannot spoil for one another (copy on write). `Running` is a built
candidate with its arguments, inside such a fork. Nothing here starts TVM's thread pool before the fork.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import CheckVerdict, MeasureConfig
from pitchpipe.wire.target import Target
from tuner.measure.build import Built, build
from tuner.measure.check import (
    SETS,
    Facts,
    Reference,
    inspect,
    make_inputs,
    mostly_finite,
    numpy_dtype,
    poison,
    size_bytes,
    verdict,
)
from tuner.measure.timing import CONFIRM_SAMPLE_FACTOR, Sampled, calls_per_sample, sample
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import evict, load_ir, to_tvm_target, tvm

_FEW_CALLS = 8
"""Called from here: a call costs the interpreter under a microsecond, a sample of this few calls is far longer. TVM's
evaluator makes one more call each time."""
_WARM_SAMPLES = 5
"""Rounds of guessing how many calls fill a sample: the first calls are cold, and what is guessed from them differs between
processes of one candidate, which would then be timed differently."""
_COLD_WEIGHT_BYTES, _COLD_ACTIVATION_BYTES = 1 << 16, 1 << 20
"""Larger weights and activations are not in a cache near a core when a layer of a model runs: all other weights were read
since, and of what the layer before wrote more is lost than stays in the L2 cache. Smaller weights come within
microseconds."""
_COLD_DOES_NOT_MATTER_SECS = 0.02
"""Filling the caches takes about a millisecond: under a twentieth of such a call."""


class WrongOutput(Exception):
    """The outputs differ by more than the tolerance."""

    def __init__(self, found: CheckVerdict, input_set: str) -> None:
        super().__init__(
            f"on the {input_set} inputs the error is up to {found.max_abs_error:g}, tolerance {found.tolerance:g}"
        )
        self.verdict = found


class Bench:
    """A workload with its inputs, before any reference is known. Raises ValueError or InvalidModel if it has no use."""

    def __init__(self, ir: str, target: Target, seed: int) -> None:
        self.mod = load_ir(ir)
        self.target = target
        self.tvm_target = to_tvm_target(target)
        self.facts: Facts = inspect(self.mod)
        self.seed = seed
        self.positive = dict.fromkeys(SETS, False)
        self.inputs: dict[str, list[Any]] = {}
        self.references: dict[str, Reference] = {}

    def fill(self, name: str, *, positive: bool = False) -> None:
        """Allocates the inputs of a set."""
        self.positive[name] = positive
        self.inputs[name] = [
            _tensor(array, self.facts.params[i])
            for i, array in zip(
                self.facts.inputs, make_inputs(self.facts, name, self.seed, positive=positive), strict=True
            )
        ]

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Of the parameters that are written."""
        return tuple(self.facts.params[i] for i in self.facts.outputs)

    def output_bytes(self) -> int:
        """Size of one set's outputs."""
        return sum(size_bytes(found) for found in self.output_types)

    def cold(self) -> tuple[int, ...]:
        """Parameters that are in no cache near a core when the workload runs in a model."""
        constant = {int(i) for i in (self.mod["main"].attrs or {}).get("layout_free_buffers", [])}
        sizes = [size_bytes(found) for found in self.facts.params]
        limits = [_COLD_WEIGHT_BYTES if i in constant else _COLD_ACTIVATION_BYTES for i in range(len(sizes))]
        return tuple(i for i, size in enumerate(sizes) if size > limits[i])

    def cold_bytes(self) -> int:
        """Of those parameters."""
        return sum(size_bytes(self.facts.params[i]) for i in self.cold())

    def held_bytes(self) -> int:
        """Memory of all inputs, references and tolerances, about."""
        inputs = sum(size_bytes(self.facts.params[i]) for i in self.facts.inputs)
        return len(SETS) * (inputs + 2 * self.output_bytes())

    def run_reference(self, name: str, buffer: memoryview) -> bool:
        """In a fork: builds the untransformed workload, runs it on the set, and copies the outputs into `buffer`.

        False when so little of the outcome is finite that it compares nothing.
        """
        running = Running(self, build(*kind_of(self.target).host_reference(self.mod, self.tvm_target)))
        running.run(name)
        arrays = running.outputs()
        offset = 0
        for array in arrays:
            data = np.ascontiguousarray(array).tobytes()
            buffer[offset : offset + len(data)] = data
            offset += len(data)
        return mostly_finite(arrays)

    def set_reference(self, name: str, buffer: memoryview) -> None:
        """Takes the outputs that `run_reference` left."""
        outputs, offset = [], 0
        for found in self.output_types:
            size = size_bytes(found)
            flat = np.frombuffer(buffer[offset : offset + size], dtype=np.uint8)
            outputs.append(flat.view(numpy_dtype(found.dtype)).reshape(found.shape))
            offset += size
        self.references[name] = Reference(self.facts, name, outputs)


class Running:
    """A built candidate on the CPU with its arguments. Belongs to one process."""

    def __init__(self, bench: Bench, built: Built) -> None:
        self._bench, self._built = bench, built
        self._outputs = [_empty(found) for found in bench.output_types]
        self._views = [_view(tensor) for tensor in self._outputs]
        self._arguments: dict[str, list[Any]] = {}
        self._evaluators: dict[int, Any] = {}
        self._cold = bench.cold()

    def _prepare(self, name: str) -> list[Any]:
        """The argument list of a set, weights packed."""
        if name not in self._arguments:
            arguments: list[Any] = [None] * len(self._bench.facts.params)
            for index, given in zip(self._bench.facts.inputs, self._bench.inputs[name], strict=True):
                arguments[index] = given
                if (pack := self._built.packings.get(index)) is not None:
                    arguments[index] = _empty(self._built.packed[index])
                    pack(given, arguments[index])
            for index, tensor in zip(self._bench.facts.outputs, self._outputs, strict=True):
                arguments[index] = tensor
            self._arguments[name] = arguments
        return self._arguments[name]

    def touch(self) -> None:
        """Does what the first check would do, but for the run: fresh pages are given while others may compute."""
        first = next(iter(self._bench.references))
        self._prepare(first)
        self._poison()
        self._bench.references[first].compare(self.outputs())

    def run(self, name: str) -> float:
        """Poisons the outputs, runs once on the set, and returns the seconds of the call."""
        arguments = self._prepare(name)
        self._poison()
        start = time.perf_counter()
        self._built.main(*arguments)
        return time.perf_counter() - start

    def _poison(self) -> None:
        for tensor, view in zip(self._outputs, self._views, strict=True):
            if view is not None:
                poison(view)
            else:
                array = np.empty([int(extent) for extent in tensor.shape], numpy_dtype(str(tensor.dtype)))
                poison(array)
                tensor.copyfrom(array)

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """What the last run wrote."""
        return [
            view if view is not None else tensor.numpy()
            for tensor, view in zip(self._outputs, self._views, strict=True)
        ]

    def call(self, calls: int) -> float:
        """Seconds of `calls` calls in a row on the first set; what is cold in a model is evicted before each."""
        arguments = self._prepare(SETS[0])
        if cold := [arguments[i] for i in self._cold]:
            return sum(self._cold_call(arguments, cold) for _ in range(calls))
        if calls <= _FEW_CALLS:
            main = self._built.main
            start = time.perf_counter()
            for _ in range(calls):
                main(*arguments)
            return time.perf_counter() - start
        if calls not in self._evaluators:
            self._evaluators[calls] = self._built.module.time_evaluator("main", tvm.cpu(), number=calls, repeat=1)
        return float(self._evaluators[calls](*arguments).results[0]) * calls

    def _cold_call(self, arguments: list[Any], cold: list[Any]) -> float:
        evict(cold)
        start = time.perf_counter()
        self._built.main(*arguments)
        return time.perf_counter() - start


class Runnable(Protocol):
    """A built candidate with its arguments, on whatever device."""

    def run(self, name: str) -> float:
        """Poisons the outputs, runs once on the set, and returns the seconds of the call."""

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """What the last run wrote."""

    def call(self, calls: int) -> float:
        """Seconds of `calls` calls in a row on the first set."""


class Measuring:
    """Check and timing of one candidate, in the order that costs least when the candidate is no good."""

    def __init__(self, bench: Bench, running: Runnable) -> None:
        self._bench, self._running = bench, running
        self._results: list[tuple[bool, float, float]] = []
        self._last_secs = 0.0

    def check(self, names: Sequence[str]) -> float:
        """Runs and compares the sets; returns the duration of the last run. Raises WrongOutput."""
        secs = 0.0
        for name in names:
            secs = self._running.run(name)
            self._compare(name)
        return secs

    def _compare(self, name: str) -> None:
        self._results.append(self._bench.references[name].compare(self._running.outputs()))
        if not (found := self.verdict()).passed:
            raise WrongOutput(found, name)

    def verdict(self) -> CheckVerdict:
        """Over what was compared so far; every set counts once."""
        found = verdict(self._results)
        return found.model_copy(update={"input_sets": min(len(self._results), len(self._bench.references))})

    def search(self, config: MeasureConfig, incumbent_secs: float | None, limit_secs: float) -> Sampled:
        """Checks one set, samples while it is promising, checks the other sets when it is."""
        self._results.clear()
        first, *rest = self._bench.references
        first_secs = self.check([first])
        checked = False

        def promising() -> None:
            nonlocal checked
            checked = True
            self.check(rest)

        sampled = sample(
            self._running.call,
            config,
            incumbent_secs=incumbent_secs,
            first_secs=first_secs,
            promising=promising,
            limit_secs=limit_secs - first_secs * (1 + len(rest)),
        )
        if checked:  # Once more after many calls: a race between threads does not show in every run.
            self.check([first])
        return sampled

    def warm(self, config: MeasureConfig, *, one_set: bool) -> int:
        """Checks all sets, or one; returns how many calls fill a sample, the same in every process of a candidate."""
        names = list(self._bench.references)
        secs = self.check(names[:1] if one_set else names)
        longer = config.model_copy(update={"target_sample_secs": CONFIRM_SAMPLE_FACTOR * config.target_sample_secs})
        if secs >= 10 * longer.target_sample_secs:
            return 1
        calls = 1
        for _ in range(_WARM_SAMPLES):  # The first ones are cold.
            calls = max(calls, calls_per_sample(longer, self._running.call(calls) / calls))
        return calls

    def warmed_sample(self, calls: int) -> float:
        """Seconds of one call, over `calls` of them, after as many that are not counted.

        One call is not enough where other programs ran since: caches, threads and clocks took a millisecond to be as they
        are in a row of calls, and a program of 78 us seemed to take 90 beside others.
        """
        if not (calls == 1 and self._last_secs > _COLD_DOES_NOT_MATTER_SECS):
            self._running.call(calls)
        self._last_secs = max(self._running.call(calls) / calls, 1e-9)
        return self._last_secs


def _empty(found: TensorType) -> Any:
    return tvm.runtime.empty(found.shape, found.dtype)


def _tensor(array: np.ndarray[Any, Any], found: TensorType) -> Any:
    tensor = _empty(found)
    tensor.copyfrom(np.asarray(array, order="C"))  # ascontiguousarray gives a scalar an axis
    return tensor


def _view(tensor: Any) -> np.ndarray[Any, Any] | None:
    """A writable view of a tensor on the host; None for types NumPy does not exchange."""
    try:
        return np.from_dlpack(tensor)
    except (RuntimeError, TypeError, BufferError):
        return None
