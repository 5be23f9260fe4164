"""A compiled model on GPUs, called with arrays: what `pitchpipe.load` gives for a CUDA target.

Arrays on a GPU give results on that GPU: nothing is copied, and the host waits for nothing. The run goes to torch's current
stream, or to the stream that the caller names; results of torch's belong to torch's allocator. Arrays of the host alone give
arrays of NumPy's, and the call waits.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pitchpipe.errors import InvalidInput
from pitchpipe.gpu.arrays import (
    DeviceArray,
    Given,
    Spec,
    given,
    host_array,
    on_stream,
    one_ordinal,
    torch_empty,
    torch_here,
)
from pitchpipe.gpu.driver import Driver, driver
from pitchpipe.gpu.loaded import LoadedProgram, Replay
from pitchpipe.gpu.program import Place, Program
from pitchpipe.target_kind import Step


class GpuModel:
    """A program with its weights, on each GPU whose arrays it was called with. Thread-safe."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Spec],
        params: Sequence[Spec],
        *,
        graphs: bool = True,
        ordinal: int | None = None,
        using: Callable[[], Driver] = driver,
    ) -> None:
        """inputs, params: of the program's inputs and weights, in their order. graphs: whether launches are recorded as a
        graph. ordinal: of the GPU for weights and arrays of the host; None: the one that this program uses.

        Raises InvalidInput when the program takes other arrays, NoDevice where the driver is missing.
        """
        self.program, self._inputs, self._params = program, inputs, params
        self._graphs, self._ordinal, self._driver = graphs, ordinal, using()
        self._inputs_at, self._outputs_at = program.at(Place.INPUT), program.at(Place.OUTPUT)
        self._weights_at = program.at(Place.WEIGHT)
        self._loaded: dict[int, LoadedProgram] = {}
        self._lock = threading.RLock()
        self._bound_on: int | None = None
        for place, specs in ((Place.INPUT, inputs), (Place.WEIGHT, params)):
            takes = [(program.buffers[at].dtype, program.buffers[at].shape) for at in program.at(place)]
            if takes != [(spec.dtype, tuple(spec.shape)) for spec in specs]:
                raise InvalidInput(f"the program has other tensors of place {place} than its manifest")

    # -- weights

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Copies, transforms and keeps the weights (arrays by parameter name). With torch's tensors on the GPU alone
        nothing waits: that is queued, and so is everything that reads them later. Else it waits for the copies.

        Raises InvalidInput for one that is missing or misshapen; the model then keeps the weights it had.
        """
        missing = [param.name for param in self._params if param.name not in weights]
        if missing:
            raise InvalidInput(f"no weight named {missing[0]!r} was given")
        arrays = [weights[param.name] for param in self._params]
        found, ordinal = one_ordinal(self._params, arrays)
        with self._lock:
            loaded = self._on(self._default_ordinal() if ordinal is None else ordinal)
            taken = [
                given(spec, array, at, loaded.stream)
                for spec, array, at in zip(self._params, arrays, found, strict=True)
            ]
            self._wait_for_torch(loaded, taken)
            with loaded.binding() as addresses:
                for at, one in zip(self._weights_at, taken, strict=True):
                    self._copy_in(addresses[at], one, self.program.buffers[at].size_bytes, loaded.stream)
            self._release(loaded, arrays)
            self._bound_on = loaded.ordinal
            for other in self._loaded.values():
                if other is not loaded:
                    other.take_over(loaded)

    def _default_ordinal(self) -> int:
        """Of the GPU that was named, or that this program uses, as far as one can tell."""
        if self._ordinal is not None:
            return self._ordinal
        if self._loaded:
            return next(iter(self._loaded))
        torch = torch_here()
        return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0

    def _wait_for_torch(self, loaded: LoadedProgram, taken: Sequence[Given]) -> None:
        """What makes torch's tensors is queued on torch's stream."""
        if any(one.ordinal is not None for one in taken):
            with loaded.current():
                loaded.wait_for(self._current_stream(loaded.ordinal))

    def _release(self, loaded: LoadedProgram, arrays: Sequence[Any]) -> None:
        """The arrays may be changed or freed from now on: torch's memory in the order of its stream, any other at once."""
        torch = torch_here()
        if torch is not None and all(isinstance(array, torch.Tensor) and array.is_cuda for array in arrays):
            with loaded.current():
                loaded.hold_up(self._current_stream(loaded.ordinal))
        else:
            loaded.synchronize()

    def _copy_in(self, address: int, one: Given, size: int, stream: int) -> None:
        (self._driver.upload if one.ordinal is None else self._driver.copy)(address, one.address, size, stream)

    def _on(self, ordinal: int) -> LoadedProgram:
        """The program on that GPU, with its weights if they are bound."""
        with self._lock:
            found = self._loaded.get(ordinal)
            if found is None:
                found = LoadedProgram(self._driver, self.program, ordinal)
                if self._bound_on is not None:
                    found.take_over(self._loaded[self._bound_on])
                self._loaded[ordinal] = found
            return found

    # -- runs

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs.

        stream: the handle of the stream that the run goes to; default: torch's current one where torch is imported, else
        the default stream. Raises InvalidInput, CudaError.
        """
        if len(arrays) != len(self._inputs):
            raise InvalidInput(f"the model takes {len(self._inputs)} arrays, not {len(arrays)}")
        places, ordinal = one_ordinal(self._inputs, arrays)
        if ordinal is None:
            results = self._run_on_host_arrays(arrays, places)
        else:
            results = self._run_on_gpu_arrays(arrays, places, ordinal, stream)
        return tuple(results) if self.program.in_tuple or len(results) != 1 else results[0]

    def _run_on_gpu_arrays(
        self, arrays: Sequence[Any], places: Sequence[int | None], ordinal: int, stream: int | None
    ) -> list[Any]:
        torch, current = torch_here(), self._current_stream(ordinal)
        of_torch = torch is not None and any(isinstance(array, torch.Tensor) and array.is_cuda for array in arrays)
        stream = current if stream is None else stream
        with on_stream(torch, stream, ordinal) if of_torch and stream != current else nullcontext():
            return self._queue(arrays, places, ordinal, stream, torch if of_torch else None)

    def _queue(
        self, arrays: Sequence[Any], places: Sequence[int | None], ordinal: int, stream: int, torch: Any
    ) -> list[Any]:
        """A run on the stream. torch: where results are to be torch's, whose current stream it is; else None."""
        loaded, buffers, outputs = self._on(ordinal), self.program.buffers, self._outputs_at
        taken = [given(spec, array, at, stream) for spec, array, at in zip(self._inputs, arrays, places, strict=True)]
        with loaded.lock, loaded.current():
            captured = self._driver.is_capturing(stream)
            if captured and (torch is None or None in places):
                raise InvalidInput("a run that is captured takes tensors of torch's that lie on the GPU")
            addresses = {
                at: one.address if one.ordinal is not None else self._staged(loaded, at, one, stream)
                for at, one in zip(self._inputs_at, taken, strict=True)
            }
            if torch is None:
                results: list[Any] = [DeviceArray(loaded, buffers[at], stream) for at in outputs]
                addresses |= {at: one.address for at, one in zip(outputs, results, strict=True)}
            else:
                results = [torch_empty(torch, buffers[at], ordinal) for at in outputs]
                addresses |= {at: one.data_ptr() for at, one in zip(outputs, results, strict=True)}
            if captured:
                scratch = {at: torch_empty(torch, buffers[at], ordinal) for at in loaded.scratch}
                loaded.run_captured(addresses, {at: one.data_ptr() for at, one in scratch.items()}, stream)
            else:
                loaded.queue(addresses, stream, graph=self._graphs)
        return results

    def _run_on_host_arrays(self, arrays: Sequence[Any], places: Sequence[int | None]) -> list[Any]:
        loaded = self._on(self._default_ordinal())
        stream, buffers = loaded.stream, self.program.buffers
        taken = [given(spec, array, at, stream) for spec, array, at in zip(self._inputs, arrays, places, strict=True)]
        results = [host_array(buffers[at]) for at in self._outputs_at]
        with loaded.lock, loaded.current():
            addresses = self._stage(loaded, taken)
            loaded.run(addresses, stream, graph=self._graphs)
            for at, one in zip(self._outputs_at, results, strict=True):
                self._driver.download(one.ctypes.data, addresses[at], one.nbytes, stream)
            self._driver.synchronize(stream)
        return results

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """The device's seconds of each of `repeats` runs, without moving inputs or outputs; for benchmarks."""
        return self.timed(*arrays)(repeats)

    def timed(self, *arrays: Any) -> Callable[[int], list[float]]:
        """A function that runs the model so many times on these arrays and tells the device's seconds of each run."""
        loaded, addresses = self._staged_inputs(arrays)
        return lambda repeats: loaded.secs(addresses, repeats)

    def steps(self, *arrays: Any, repeats: int) -> list[Step]:
        """Every launch, in order: by how much a run is shorter without it.

        So the gap before a kernel counts as its own, and overlap with its neighbours as nobody's.
        """
        loaded, addresses = self._staged_inputs(arrays)
        whole, without = loaded.secs_without(addresses, repeats)
        names = [self.program.kernels[launch.kernel].name for launch in self.program.run]
        return [
            Step(
                name=name,
                kernel=True,
                secs=statistics.median(
                    one - other
                    for one, other in zip(whole[at * repeats : (at + 1) * repeats], without[at], strict=True)
                ),
            )
            for at, name in enumerate(names)
        ]

    @contextmanager
    def variants(self, lists: Sequence[Sequence[int]], *arrays: Any) -> Iterator[Replay]:
        """Parts of the program's `run` as graphs, to be timed in turns on these arrays; see `LoadedProgram.variants`."""
        loaded, addresses = self._staged_inputs(arrays)
        with loaded.variants(addresses, lists) as replay:
            yield replay

    def _staged_inputs(self, arrays: Sequence[Any]) -> tuple[LoadedProgram, dict[int, int]]:
        """The program where the arrays lie, or by default, and addresses of inputs and outputs of its own."""
        places, ordinal = one_ordinal(self._inputs, arrays)
        loaded = self._on(self._default_ordinal() if ordinal is None else ordinal)
        taken = [
            given(spec, array, at, loaded.stream) for spec, array, at in zip(self._inputs, arrays, places, strict=True)
        ]
        self._wait_for_torch(loaded, taken)
        with loaded.lock, loaded.current():
            addresses = self._stage(loaded, taken)
        return loaded, addresses

    def _current_stream(self, ordinal: int) -> int:
        torch = torch_here()
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.current_stream(ordinal).cuda_stream)

    def _stage(self, loaded: LoadedProgram, taken: Sequence[Given]) -> dict[int, int]:
        """Memory of our own for all inputs and outputs, and the inputs in it."""
        for at, one in zip(self._inputs_at, taken, strict=True):
            self._staged(loaded, at, one, loaded.stream)
        return {at: loaded.staging(at) for at in (*self._inputs_at, *self._outputs_at)}

    def _staged(self, loaded: LoadedProgram, at: int, one: Given, stream: int) -> int:
        """The address of a copy in memory of our own, once earlier runs have read what was there."""
        address = loaded.staging(at)
        with loaded.current():
            self._driver.wait_for(loaded.done, stream)
            self._copy_in(address, one, self.program.buffers[at].size_bytes, stream)
        return address
