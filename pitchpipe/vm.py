"""A compiled model on a CPU: a shared library, or what was compiled in this process, run by TVM's virtual machine."""

from __future__ import annotations

import importlib
import itertools
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidInput
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import Step
from pitchpipe.wire.target import Target

DEVICE = "cpu"
RUNTIME = "vm.builtin."
"""How the names of the virtual machine's own functions begin."""


def load_library(path: Path, target: Target) -> Any:
    """The library in the file; opening it runs its code."""
    return _runtime(target).runtime.load_module(str(path))


class MachineModel:
    """A compiled model. Safe for concurrent calls, which take turns: until they are copied, its results lie in buffers that
    it uses again."""

    def __init__(self, module: Any, inputs: Sequence[Any], params: Sequence[Any], target: Target) -> None:
        """inputs, params: name, shape and NumPy dtype name of each."""
        tvm = _runtime(target)
        self._tvm, self._inputs, self._specs = tvm, inputs, params
        self._device, self._module = tvm.device(DEVICE, 0), module
        self._machine = importlib.import_module("tvm.relax").VirtualMachine(module, self._device)
        self._main = self._machine["main"]
        self._params: list[Any] = []
        self._turn = threading.Lock()

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Copies, transforms and keeps the weights (arrays by parameter name).

        Raises InvalidInput for one that is missing or misshapen; the model then keeps the weights it had.
        """
        params = []
        for param in self._specs:
            if param.name not in weights:
                raise InvalidInput(f"no weight named {param.name!r} was given")
            params.append(self._tensor(param, weights[param.name], copy=True))
        with self._turn:
            self._params = list(self._machine["main_transform_params"](params)) if params else []

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs. Raises InvalidInput."""
        if stream is not None:
            raise InvalidInput("a CPU has no streams")
        tensors = self._tensors(arrays)
        with self._turn:
            return _copied(self._main(*tensors, *self._params))

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs, without moving inputs or outputs; for benchmarks."""
        self._machine.set_input("main", *self._tensors(arrays), *self._params)
        timer = self._machine.time_evaluator("invoke_stateful", self._device, number=1, repeat=repeats)
        return [float(secs) for secs in timer("main").results]

    def timed(self, *arrays: Any) -> Callable[[int], list[float]]:
        """A function that runs the model so many times on these arrays and tells the wall seconds of each run."""
        self._machine.set_input("main", *self._tensors(arrays), *self._params)

        def secs(repeats: int) -> list[float]:
            found = []
            for _ in range(repeats):
                started = time.perf_counter()
                self._machine.invoke_stateful("main")
                found.append(time.perf_counter() - started)
            return found

        return secs

    def steps(self, *arrays: Any, repeats: int) -> list[Step]:
        """Every call that the virtual machine makes, in order, each timed from before it to after it.

        A machine of its own runs them, so that no later run of the model is watched. Watching costs about a microsecond a
        call, as much as the cheapest call takes, which does next to nothing: that much is taken off every one; calls of many
        arguments cost a little more. What lies between two calls, the machine's own dispatch, is in none of them.
        """
        machine = importlib.import_module("tvm.relax").VirtualMachine(self._module, self._device)
        events: list[tuple[float, str, bool]] = []

        def watched(_function: Any, name: str, before: bool, *_: Any) -> int:
            events.append((time.perf_counter(), name, before))
            return 0  # go on

        machine.set_input("main", *self._tensors(arrays), *self._params)
        machine.invoke_stateful("main")
        machine.set_instrument(watched)
        runs = []
        for _ in range(repeats):
            events.clear()
            machine.invoke_stateful("main")
            runs.append(_innermost(events))
        taken = [statistics.median(run[at][1] for run in runs) for at in range(len(runs[0]))]
        watching = min(taken, default=0.0)
        return [
            Step(name=name, kernel=not name.startswith(RUNTIME), secs=secs - watching)
            for (name, _), secs in zip(runs[0], taken, strict=True)
        ]

    def _tensors(self, arrays: Sequence[Any]) -> list[Any]:
        if len(arrays) != len(self._inputs):
            raise InvalidInput(f"the model takes {len(self._inputs)} arrays, not {len(arrays)}")
        return [self._tensor(spec, array) for spec, array in zip(self._inputs, arrays, strict=True)]

    def _tensor(self, spec: Any, array: Any, *, copy: bool = False) -> Any:
        """The array on the model's device: without a copy where DLPack and the compiled code's alignment allow."""
        try:
            found = self._adopted(array)
            fits = found.dtype == spec.dtype and found.shape == spec.shape  # a type that TVM does not know raises here
        except Exception as error:  # whatever an array library raises for an array that it cannot hand over
            raise InvalidInput(f"{spec.name} is no array that can be used: {error}") from error
        if not fits:
            has = f"{found.dtype}{list(found.shape)}"
            raise InvalidInput(f"{spec.name} must be {spec.dtype}{list(spec.shape)}, not {has}")
        return found.copyto(self._device) if copy or found.device != self._device else found

    def _adopted(self, array: Any) -> Any:
        import numpy as np

        runtime = self._tvm.runtime
        if not hasattr(array, "__dlpack__"):
            return runtime.tensor(_plain(array), self._device)
        if hasattr(array, "detach"):
            array = array.detach()
        try:
            return runtime.from_dlpack(array)
        except (RuntimeError, ValueError, BufferError):
            # Strided, read-only, big-endian, or not aligned as compiled code expects.
            if isinstance(array, np.ndarray):
                return runtime.tensor(_plain(array), self._device)
            if hasattr(array, "clone"):
                return runtime.from_dlpack(array.contiguous().clone())
            return runtime.tensor(np.array(np.from_dlpack(array), order="C"), self._device)


def _innermost(events: Sequence[tuple[float, str, bool]]) -> list[tuple[str, float]]:
    """Name and seconds of every call that made no other, from times before and after each call."""
    found = []
    for (began, name, before), (ended, other, still) in itertools.pairwise(events):
        if before and not still and name == other:
            found.append((name, ended - began))
    return found


def _plain(array: Any) -> Any:
    """NumPy's array in row-major order and in this machine's order of bytes."""
    import numpy as np

    found = np.asarray(array)
    native = found.dtype if found.dtype.isnative else found.dtype.newbyteorder("=")
    return found.astype(native, order="C", copy=False)


def _copied(result: Any) -> Any:
    """A result as NumPy's array, in memory of its own: the executable keeps what it gives back, and may give it again."""
    import numpy as np

    if not hasattr(result, "numpy"):
        return tuple(_copied(part) for part in result)
    try:
        return np.array(np.from_dlpack(result))
    except (RuntimeError, TypeError, BufferError):  # of a type that NumPy lacks
        return result.numpy()


def _runtime(target: Target) -> Any:
    """TVM with its thread count set before first use: on its own it would use half of the cores (see docs/operations.md)."""
    os.environ.setdefault("TVM_NUM_THREADS", str(target.num_cores or usable_cores()))
    if "torch" in sys.modules:
        return importlib.import_module("tvm")
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would import an installed torch: 2 s for nothing
    try:
        tvm = importlib.import_module("tvm")
    finally:
        del sys.modules["torch"]
    wanted = int(os.environ["TVM_NUM_THREADS"])
    if (got := int(tvm.runtime.num_threads())) != wanted:
        warnings.warn(f"TVM runs on {got} threads, not {wanted}: it was imported earlier", RuntimeWarning, stacklevel=3)
    return tvm
