"""One workload prepared for measuring, and what a child does with one candidate of it.

A `Bench` is made once per workload, in the process whose forks measure: it holds the module, the inputs and the
reference outputs, which the forks share and cannot change for one another (copy on write). The reference outputs are those
of the baseline; of a GPU workload, whose baseline has a schedule, those of the same unscheduled program on the host's
cores. `Running` is a compiled candidate with its arguments, inside such a fork. Nothing here starts TVM's thread pool
before the fork.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import CheckVerdict, MeasureConfig
from pitchpipe.wire.target import Target
from tuner.measure.build import CpuProgram, build, cpu_target_of_host
from tuner.measure.check import SETS, ReferenceOutputs, mostly_finite, numpy_dtype, poison, size_bytes, verdict
from tuner.measure.conditioning import CHANGE_TYPE, changes_of
from tuner.measure.eviction import evict
from tuner.measure.guards import Guards
from tuner.measure.input_sets import RANGES, make_inputs
from tuner.measure.properties import WorkloadProperties, inspect
from tuner.measure.timing import CONFIRM_SAMPLE_FACTOR, MAX_CALLS, Sampled, calls_per_sample, sample
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import load_ir, to_tvm_target, tvm

_FEW_CALLS = 8
"""A sample of at most so many calls is a loop in Python: the interpreter adds less than a microsecond a call, and such calls
are long. TVM's time evaluator would make one more call for each sample."""
_WARM_SAMPLES = 5
"""Samples taken to find out how many calls fill one. The first calls find cold caches, so a number derived from them alone
would differ between the processes that time one candidate."""
_COLD_WEIGHT_BYTES, _COLD_ACTIVATION_BYTES = 1 << 16, 1 << 20
"""Weights and activations larger than this are evicted before each call, since in a model they are in no cache near a core
when their layer runs: all other weights were read in between, and of a large activation more has left the L2 cache than is
still there. Smaller tensors are loaded within microseconds."""
_EVICTED_BYTES = 256 << 20
"""Evicted for one sample, at most, which takes ten to twenty milliseconds. A look-up of 64 rows in a table of 94 MB takes
8 us, and a sample of 125 such calls took a second: confirming it took as long as a job of a minute."""
_COLD_DOES_NOT_MATTER_SECS = 0.02
"""A call that takes longer needs no warm-up call before it: filling the caches takes about a millisecond, less than a
twentieth of it."""


class WrongOutput(Exception):
    """The outputs differ by more than the tolerance, or something was written beside them."""

    @classmethod
    def of(cls, found: CheckVerdict, input_set: str) -> WrongOutput:
        """For outputs that differ on an input set."""
        return cls(
            f"on the {input_set} inputs the error is up to {found.max_abs_error:g}, tolerance {found.tolerance:g}"
        )


class Bench:
    """A workload with its inputs and, once `set_reference_outputs` was called, the outputs that candidates must give.

    The constructor raises InvalidModel when `ir` cannot be read, ValueError when a parameter is no buffer of static shape
    or none is written.
    """

    def __init__(self, ir: str, target: Target, seed: int) -> None:
        self.mod = load_ir(ir)
        self.target = target
        self.tvm_target = to_tvm_target(target)
        self.properties: WorkloadProperties = inspect(self.mod)
        self.seed = seed
        self.inputs: dict[str, list[Any]] = {}
        self.reference_outputs: dict[str, ReferenceOutputs] = {}

    def fill(self, name: str, within: str = RANGES[0]) -> None:
        """Allocates and fills the inputs of a set; `within` is one of RANGES."""
        arrays = make_inputs(self.properties, name, self.seed, within)
        types = [self.properties.params[i] for i in self.properties.inputs]
        self.inputs[name] = [_tensor(array, found) for array, found in zip(arrays, types, strict=True)]

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the parameters that the workload writes."""
        return tuple(self.properties.params[i] for i in self.properties.outputs)

    def output_bytes(self) -> int:
        """Bytes of all outputs together, for one input set."""
        return sum(size_bytes(found) for found in self.output_types)

    def reference_bytes(self) -> int:
        """Bytes that `compute_reference_outputs` writes: the outputs and their changes."""
        return self.output_bytes() + sum(size_bytes(found) for found in self._change_types)

    @property
    def _change_types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(shape=found.shape, dtype=CHANGE_TYPE) for found in self.output_types)

    def constant(self) -> frozenset[int]:
        """Indices of the parameters that hold weights, which are the same in every run of a model."""
        return frozenset(int(i) for i in (self.mod["main"].attrs or {}).get("layout_free_buffers", []))

    def cold(self) -> tuple[int, ...]:
        """Indices of the parameters that are in no cache near a core when the workload runs in a model."""
        constant = self.constant()
        sizes = [size_bytes(found) for found in self.properties.params]
        limits = [_COLD_WEIGHT_BYTES if i in constant else _COLD_ACTIVATION_BYTES for i in range(len(sizes))]
        return tuple(i for i, size in enumerate(sizes) if size > limits[i])

    def cold_bytes(self) -> int:
        """Bytes of those parameters together."""
        return sum(size_bytes(self.properties.params[i]) for i in self.cold())

    def held_bytes(self) -> int:
        """Bytes of all inputs, reference outputs and tolerances, approximately."""
        inputs = sum(size_bytes(self.properties.params[i]) for i in self.properties.inputs)
        return len(SETS) * (inputs + 2 * self.output_bytes())

    def reference_program(self) -> CpuProgram:
        """In a fork: what computes the reference outputs, compiled; the workload as it stands where TVM refuses another."""
        try:
            return build(*kind_of(self.target).reference_program(self.mod, self.tvm_target))
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met
            return build(self.mod, cpu_target_of_host())

    def compute_reference_outputs(self, program: CpuProgram, name: str, buffer: memoryview) -> bool:
        """In the same fork: runs the reference program on the set, and copies its outputs into `buffer`.

        False when fewer than half of the outputs' elements are finite: comparing with those would show too little.
        """
        outputs, changes = self.run_reference(program, name)
        written, offset = np.frombuffer(buffer, dtype=np.uint8), 0
        for array in (*outputs, *changes):
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            written[offset : offset + data.size] = data
            offset += data.size
        return mostly_finite(outputs)

    def run_reference(
        self, program: CpuProgram, name: str
    ) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
        """The program's outputs on the set and, where they matter, their changes: what `ReferenceOutputs` compares with."""
        running = Running(self, program)
        outputs = [np.array(array) for array in running.outputs_on(name)]
        if not mostly_finite(outputs):
            return outputs, []
        again = partial(running.outputs_on, name)
        return outputs, changes_of(self.properties, name, outputs, self.inputs[name], again, self.seed)

    def set_reference_outputs(self, name: str, buffer: memoryview) -> None:
        """Reads the outputs that `compute_reference_outputs` wrote into `buffer`."""
        arrays, offset = [], 0
        for found in (*self.output_types, *self._change_types):
            size = size_bytes(found)
            flat = np.frombuffer(buffer[offset : offset + size], dtype=np.uint8)
            arrays.append(flat.view(numpy_dtype(found.dtype)).reshape(found.shape))
            offset += size
        count = len(self.output_types)
        self.reference_outputs[name] = ReferenceOutputs(self.properties, name, arrays[:count], arrays[count:])


class Running:
    """A compiled candidate on the CPU with its arguments. Belongs to one process."""

    def __init__(self, bench: Bench, program: CpuProgram) -> None:
        self._bench, self._program = bench, program
        self._guards = Guards()
        self._outputs = [self._guards.allocate(found) for found in bench.output_types]
        self._views = [_view(tensor) for tensor in self._outputs]
        self._arguments: dict[str, list[Any]] = {}
        self._evaluators: dict[int, Any] = {}
        self._cold = bench.cold()
        self.most_calls = max(1, _EVICTED_BYTES // bench.cold_bytes()) if self._cold else MAX_CALLS
        self.own_secs = 0.0
        """Processor time of this thread in the last `run`."""

    def _prepare(self, name: str) -> list[Any]:
        """The arguments of a call on the set, with weights packed as the schedule wants them."""
        if name not in self._arguments:
            arguments: list[Any] = [None] * len(self._bench.properties.params)
            for index, given in zip(self._bench.properties.inputs, self._bench.inputs[name], strict=True):
                arguments[index] = given
                if (pack := self._program.packings.get(index)) is not None:
                    arguments[index] = _empty(self._program.packed[index])
                    pack(given, arguments[index])
            for index, tensor in zip(self._bench.properties.outputs, self._outputs, strict=True):
                arguments[index] = tensor
            self._arguments[name] = arguments
        return self._arguments[name]

    def touch(self) -> None:
        """Does all that the first check does except running the candidate, so that the kernel assigns the pages now, while
        other candidates may still be compiled, and not while the device must be quiet."""
        first = next(iter(self._bench.reference_outputs))
        self._prepare(first)
        self._poison()
        self._bench.reference_outputs[first].compare(self.outputs())

    def run(self, name: str) -> float:
        """Poisons the outputs, runs once on the set, and returns the seconds of the call."""
        arguments = self._prepare(name)
        self._poison()
        own, start = time.thread_time(), time.perf_counter()
        self._program.main(*arguments)
        secs, self.own_secs = time.perf_counter() - start, time.thread_time() - own
        return secs

    def _poison(self) -> None:
        for tensor, view in zip(self._outputs, self._views, strict=True):
            if view is not None:
                poison(view)
            else:
                array = np.empty([int(extent) for extent in tensor.shape], numpy_dtype(str(tensor.dtype)))
                poison(array)
                tensor.copyfrom(array)

    def outputs_on(self, name: str) -> list[np.ndarray[Any, Any]]:
        """Those of a run on the set."""
        self.run(name)
        return self.outputs()

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """The outputs of the last run."""
        return [
            view if view is not None else tensor.numpy()
            for tensor, view in zip(self._outputs, self._views, strict=True)
        ]

    @property
    def stays_inside(self) -> bool:
        """Whether no run so far has written beside the outputs."""
        return self._guards.intact

    def call(self, calls: int) -> float:
        """Seconds of `calls` calls in a row on the first set; the parameters that `cold` names are evicted before each."""
        arguments = self._prepare(SETS[0])
        if cold := [arguments[i] for i in self._cold]:
            return sum(self._cold_call(arguments, cold) for _ in range(calls))
        if calls <= _FEW_CALLS:
            main = self._program.main
            start = time.perf_counter()
            for _ in range(calls):
                main(*arguments)
            return time.perf_counter() - start
        if calls not in self._evaluators:
            self._evaluators[calls] = self._program.module.time_evaluator("main", tvm.cpu(), number=calls, repeat=1)
        return float(self._evaluators[calls](*arguments).results[0]) * calls

    def _cold_call(self, arguments: list[Any], cold: list[Any]) -> float:
        evict(cold)
        start = time.perf_counter()
        self._program.main(*arguments)
        return time.perf_counter() - start


class Runnable(Protocol):
    """A compiled candidate with its arguments, on any kind of device."""

    most_calls: int
    """Of a sample."""

    def run(self, name: str) -> float:
        """Poisons the outputs, runs once on the set, and returns the seconds of the call."""

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """The outputs of the last run."""

    @property
    def stays_inside(self) -> bool:
        """Whether the last run wrote beside no output, as far as that can be seen."""

    def call(self, calls: int) -> float:
        """Seconds of `calls` calls in a row on the first set."""


class Measuring:
    """Check and timing of one candidate. A wrong or slow candidate is recognised before the expensive steps."""

    def __init__(self, bench: Bench, running: Runnable) -> None:
        self._bench, self._running = bench, running
        self._results: list[tuple[bool, float, float]] = []
        self._last_secs = 0.0
        self.check_secs = 0.0
        """Spent in `check` so far."""

    def check(self, names: Sequence[str]) -> float:
        """Runs and compares the sets; returns the seconds of the last run. Raises WrongOutput."""
        secs, began = 0.0, time.perf_counter()
        for name in names:
            secs = self._running.run(name)
            self._compare(name)
        self.check_secs += time.perf_counter() - began
        return secs

    def _compare(self, name: str) -> None:
        self._results.append(self._bench.reference_outputs[name].compare(self._running.outputs()))
        if not (found := self.verdict()).passed:
            raise WrongOutput.of(found, name)
        if not self._running.stays_inside:
            raise WrongOutput(f"on the {name} inputs something was written beside the outputs")

    def verdict(self) -> CheckVerdict:
        """The verdict over all comparisons so far; a set that was compared twice counts once."""
        found = verdict(self._results)
        return found.model_copy(update={"input_sets": min(len(self._results), len(self._bench.reference_outputs))})

    def search(self, config: MeasureConfig, incumbent_secs: float | None, limit_secs: float) -> Sampled:
        """Checks the first set, then takes samples; checks the other sets once the candidate has proved not to be slow.

        incumbent_secs: the task's best time so far. limit_secs: bounds the time that is spent. Raises WrongOutput.
        """
        self._results.clear()
        self.check_secs = 0.0
        first, *rest = self._bench.reference_outputs
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
            most_calls=self._running.most_calls,
        )
        if checked:  # Once more after many calls: a race between threads does not show in every run.
            self.check([first])
        return sampled

    def warm(self, config: MeasureConfig, first_secs: float) -> tuple[int, float]:
        """(how many calls fill a sample of a confirming run, seconds of one of them). first_secs: of the call before.

        Several rounds are taken, so that all processes of one candidate arrive at the same number.
        """
        longer = config.model_copy(update={"target_sample_secs": CONFIRM_SAMPLE_FACTOR * config.target_sample_secs})
        if first_secs >= 10 * longer.target_sample_secs:
            self._last_secs = first_secs
            return 1, first_secs
        calls, secs = 1, first_secs
        for _ in range(_WARM_SAMPLES):  # The first ones are cold.
            secs = self._running.call(calls) / calls
            calls = max(calls, calls_per_sample(longer, secs, self._running.most_calls))
        return calls, secs

    def warmed_sample(self, calls: int) -> float:
        """Mean seconds of one call over `calls` calls, after as many calls that are not counted.

        One call is not enough to warm up after other programs ran: it takes about a millisecond until caches, threads and
        clocks are as they are within a row of calls. With one call, a program of 78 us seemed to take 90 us.
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
