"""A compiled model on a CPU: a shared library, or what was compiled in this process.

TVM's virtual machine runs any model. One that is a straight line of kernels has a function beside it that calls them all
(run_function.py), and is run by that.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
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
from pitchpipe.processes.cores import with_tvm_threads
from pitchpipe.processes.lost_threads import guard_forks, with_threads
from pitchpipe.processes.shared_threads import share_threads
from pitchpipe.run_function import ALIGNMENT, RunFunction, aligned
from pitchpipe.target_kind import Step
from pitchpipe.wire.target import Target

DEVICE = "cpu"
RUNTIME = "vm.builtin."
"""How the names of the virtual machine's own functions begin."""
COPIED_BYTES = 1 << 20
"""Results of at most so many bytes are copied out of memory that every run writes. With a larger one, all are written where
they are given: new memory costs less than a copy."""
STAGED_BYTES = 16 << 10
"""NumPy's arrays of at most so many bytes are copied into memory of ours: that costs no more than to share theirs, which
rarely begins where compiled code needs it to."""


def load_library(path: Path, target: Target) -> Any:
    """The library in the file; opening it runs its code."""
    library = _runtime(target).runtime.load_module(str(path))
    share_threads(library)
    return library


class MachineModel:
    """A compiled model. Safe for concurrent calls, which take turns: what it computes lies in buffers that it uses again,
    small results among it until they are copied."""

    def __init__(self, module: Any, inputs: Sequence[Any], params: Sequence[Any], target: Target) -> None:
        """inputs, params: name, shape and NumPy dtype name of each."""
        tvm = _runtime(target)
        self._tvm, self._inputs, self._specs = tvm, inputs, params
        self._device, self._module = tvm.device(DEVICE, 0), module
        self._machine = importlib.import_module("tvm.relax").VirtualMachine(module, self._device)
        self._main = with_threads(self._machine["main"])
        self._params: list[Any] = []
        self._turn = threading.Lock()
        self._whole = _WholeRun.of(self._machine, inputs)

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
            self._params = list(with_threads(self._machine["main_transform_params"])(params))
            if self._whole is not None:
                self._whole.bind(self._params)

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs. Raises InvalidInput."""
        if stream is not None:
            raise InvalidInput("a CPU has no streams")
        if self._whole is not None and len(arrays) == len(self._inputs):
            with self._turn:
                found = self._whole(arrays)
            if found is not None:
                return found
        tensors = self._tensors(arrays)
        with self._turn:
            return _copied(self._main(*tensors, *self._params))

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs, without moving inputs or outputs; for benchmarks."""
        return self.timed(*arrays)(1 + repeats)[1:]

    def timed(self, *arrays: Any) -> Callable[[int], list[float]]:
        """A function that runs the model so many times on these arrays and tells the wall seconds of each run."""
        tensors = self._tensors(arrays)
        if self._whole is not None:
            run = self._whole.prepared(tensors)
        else:
            self._machine.set_input("main", *tensors, *self._params)
            run = functools.partial(with_threads(self._machine.invoke_stateful), "main")

        def secs(repeats: int) -> list[float]:
            found = []
            for _ in range(repeats):
                started = time.perf_counter()
                run()
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
        run = with_threads(machine.invoke_stateful)
        run("main")
        machine.set_instrument(watched)
        runs = []
        for _ in range(repeats):
            events.clear()
            run("main")
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
            array = array.detach().resolve_neg()
        try:
            return runtime.from_dlpack(array)
        except (RuntimeError, ValueError, BufferError):
            # Strided, read-only, big-endian, or not aligned as compiled code expects.
            if isinstance(array, np.ndarray):
                return runtime.tensor(_plain(array), self._device)
            if hasattr(array, "clone"):
                return runtime.from_dlpack(array.contiguous().clone())
            return runtime.tensor(np.array(np.from_dlpack(array), order="C"), self._device)


class _WholeRun:
    """The function that calls all kernels of a model, on arrays of any library. One thread at a time."""

    def __init__(self, function: RunFunction, inputs: Sequence[Any]) -> None:
        """Raises TypeError or BufferError for a type that NumPy lacks or does not hand over."""
        self._function, self._run = function, function.call
        self._inputs = [_Input(spec) for spec in inputs]
        room = self._new_room()
        self._kept = room if all(array.nbytes <= COPIED_BYTES for array, _ in room) else None
        """Where every run writes; None where each has memory of its own."""
        self._memory: list[Any] = []

    @staticmethod
    def of(machine: Any, inputs: Sequence[Any]) -> _WholeRun | None:
        """None where the library has no such function, or an array is of a type that NumPy does not hand over."""
        function = RunFunction.of(machine)
        try:
            return None if function is None else _WholeRun(function, inputs)
        except (BufferError, TypeError):
            return None

    def bind(self, params: Sequence[Any]) -> None:
        """params: weights as main takes them."""
        self._memory = self._function.memory(params)

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """The results; None where the virtual machine has to look more closely at what was given."""
        try:
            tensors = [one.taken(array) for one, array in zip(self._inputs, arrays, strict=True)]
        except Exception:  # noqa: BLE001 - whatever an array library raises; who is asked next says what is wrong
            return None
        room = self._kept or self._new_room()
        if self._run(*tensors, *[tensor for _, tensor in room], *self._memory):
            return None
        results = [array.copy() if self._kept else array for array, _ in room]
        return tuple(results) if self._function.in_tuple else results[0]

    def prepared(self, tensors: Sequence[Any]) -> Callable[[], int]:
        """A run on tensors that fit, whose results nobody gets."""
        room = self._kept or self._new_room()
        return functools.partial(self._run, *tensors, *[tensor for _, tensor in room], *self._memory)

    def _new_room(self) -> list[tuple[Any, Any]]:
        """An array, and TVM's tensor of its memory, for each result. Raises TypeError or BufferError as said above."""
        return [_aligned_array(shape, dtype) for shape, dtype in self._function.results]


class _Input:
    """An input, and memory of ours for arrays that cannot be read where they lie."""

    def __init__(self, spec: Any) -> None:
        import numpy as np
        from tvm_ffi import from_dlpack

        self._array_type, self._from_dlpack = np.ndarray, from_dlpack
        self._shape, self._dtype = spec.shape, np.dtype(spec.dtype)
        self._size_bytes = math.prod(spec.shape) * self._dtype.itemsize
        self._copy: tuple[Any, Any] | None = None

    def taken(self, array: Any) -> Any:
        """TVM's tensor of the array, in whose place there may be a copy. Its shape and type are looked at by whom it is
        given to. Raises whatever the array's library raises for one that cannot be read as it is."""
        if type(array) is not self._array_type:
            if hasattr(array, "is_neg") and array.is_neg():
                raise BufferError("its sign is changed when it is read")
            return self._from_dlpack(array, require_alignment=ALIGNMENT, require_contiguous=True)
        if array.shape != self._shape or array.dtype != self._dtype:
            raise BufferError("an array of another shape or type")
        if self._size_bytes > STAGED_BYTES:
            try:
                return self._from_dlpack(array, require_alignment=ALIGNMENT, require_contiguous=True)
            except (RuntimeError, ValueError, BufferError):
                pass  # strided, read-only, or not aligned
        if self._copy is None:
            self._copy = _aligned_array(self._shape, self._dtype)
        copy, tensor = self._copy
        copy[...] = array
        return tensor


def _aligned_array(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """An array, and TVM's tensor of its memory. Raises TypeError or BufferError for a type that has none."""
    import numpy as np
    from tvm_ffi import from_dlpack

    wanted = np.dtype(dtype)
    array = aligned(math.prod(shape) * wanted.itemsize).view(wanted).reshape(shape)
    return array, from_dlpack(array)


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
    """TVM with its threads told before first use: on its own it would use half of the cores (see docs/operations.md)."""
    guard_forks()
    os.environ.update(with_tvm_threads(os.environ, target.num_cores))
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
