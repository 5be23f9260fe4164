"""A GPU that holds a workload's data (GpuDevice), and a compiled candidate loaded on it (DeviceProgram).

Timing. A sample is `calls` calls in a row between two events, after as many bytes as the L2 cache holds were overwritten on
the same stream. So the first of these calls finds none of its data in the cache, as in a network whose other layers ran
before; each further call finds what the one before left there. The samples are device time: launches are queued ahead, so
the interpreter's time does not count.

The heartbeat kernel is the GPU's reference workload: a tenth of a millisecond of arithmetic on all multiprocessors, whose
time depends on the clock, heat and other tenants alone.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from pitchpipe.gpu.launches import Launches
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program
from tuner.measure.candidate import Bench
from tuner.measure.check import SETS, numpy_dtype, poison, size_bytes
from tuner.measure.cuda_driver import Clock, Cuda
from tuner.schedule.tensor_type import TensorType

HEARTBEAT_SOURCE = """
extern "C" __global__ void heartbeat(float* out) {
  float a = threadIdx.x, b = blockIdx.x;
  for (int i = 0; i < 4096; ++i) { a = a * 0.999f + b; b = b * 0.999f + a; }
  if (a + b == 1.5f) out[0] = a;
}
"""
_HEARTBEAT_BLOCKS, _HEARTBEAT_THREADS = 1056, 256
_BEAT_SAMPLES = 15
_SPOILED = b"\xff\xff\xff\xff"
"""The bytes that workspaces are filled with before a checked run: NaN as a float of any size."""
_LEAST_FLUSH_BYTES = 32 << 20


class GpuDevice:
    """The first visible GPU with the inputs of every set, the outputs, and the heartbeat kernel.

    Belongs to one process and ends with it. Raises CudaError or NoDevice.
    """

    def __init__(self, bench: Bench, heartbeat: bytes) -> None:
        """`heartbeat` is the machine code of HEARTBEAT_SOURCE."""
        self.cuda = Cuda()
        self.bench = bench
        self.uuid = self.cuda.uuid
        self.clock = Clock(self.uuid)
        self.inputs = {
            name: [self._put(tensor) for tensor in bench.inputs[name]]
            for name in SETS
            if name in bench.reference_outputs
        }
        self.outputs = [self.cuda.allocate(size_bytes(found)) for found in bench.output_types]
        self._flush_bytes = max(_LEAST_FLUSH_BYTES, self.cuda.l2_bytes)
        self._flush = self.cuda.allocate(self._flush_bytes)
        beat = _heartbeat_program(heartbeat)
        self._heartbeat = self.cuda.launches(beat, self.cuda.load(beat), {0: self.cuda.allocate(4)})

    def _put(self, tensor: Any) -> int:
        array = tensor.numpy()
        address = self.cuda.allocate(array.nbytes)
        self.cuda.write(address, array)
        return address

    def beat(self) -> float:
        """A beat: median seconds of the heartbeat kernel."""
        self.cuda.launch(self._heartbeat)  # The clock rises with the first work after a pause.
        samples = []
        for _ in range(_BEAT_SAMPLES):
            self.cuda.start()
            self.cuda.launch(self._heartbeat)
            samples.append(self.cuda.stop())
        return statistics.median(samples)

    def flush(self) -> None:
        """Evicts everything from the L2 cache, in stream order."""
        self.cuda.fill(self._flush, self._flush_bytes, b"\0\0\0\0")


class DeviceProgram:
    """A candidate's program loaded on a GPU, for `Measuring` to check and time. `close` frees its memory."""

    def __init__(self, device: GpuDevice, program: Program) -> None:
        """Raises ValueError for a program of another workload."""
        self._device, self._cuda, self._bench = device, device.cuda, device.bench
        self._program = program
        params = self._bench.properties.params
        found = [(buffer.dtype, buffer.shape) for buffer in program.buffers[: len(params)]]
        if found != [(param.dtype, param.shape) for param in params] or program.prepare:
            raise ValueError("the program is not one of this workload")
        scratch = [at for at in program.at(Place.SCRATCH) if at >= len(params)]
        if len(params) + len(scratch) != len(program.buffers):
            raise ValueError("the program of a workload has scratch memory beside its parameters, and nothing else")
        self._code = self._cuda.load(program)
        self._sizes = {at: program.buffers[at].size_bytes for at in scratch}
        self._workspaces = {at: self._cuda.allocate(size) for at, size in self._sizes.items()}
        self._types = self._bench.output_types
        self._poisons = [_pattern(found) for found in self._types]
        self._arrays = [np.empty(found.shape, numpy_dtype(found.dtype)) for found in self._types]
        self._runs: dict[str, Launches] = {}

    def close(self) -> None:
        """Frees its workspaces and unloads its code."""
        self._cuda.wait()
        for address in self._workspaces.values():
            self._cuda.free(address)
        self._code.close()

    def _prepared(self, name: str) -> Launches:
        """One call on the set."""
        if name not in self._runs:
            properties = self._bench.properties
            inputs = zip(properties.inputs, self._device.inputs[name], strict=True)
            outputs = zip(properties.outputs, self._device.outputs, strict=True)
            self._runs[name] = self._cuda.launches(
                self._program, self._code, {**dict(inputs), **dict(outputs), **self._workspaces}
            )
        return self._runs[name]

    def run(self, name: str) -> float:
        """Poisons outputs and workspaces, runs once on the set, and returns the device's seconds."""
        launches = self._prepared(name)
        for address, found, pattern in zip(self._device.outputs, self._types, self._poisons, strict=True):
            self._cuda.fill(address, size_bytes(found), pattern)
        for at, address in self._workspaces.items():
            self._cuda.fill(address, self._sizes[at] // 4 * 4, _SPOILED)
        self._cuda.start()
        self._cuda.launch(launches)
        return self._cuda.stop()

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """The outputs of the last run, copied from the device."""
        for address, array in zip(self._device.outputs, self._arrays, strict=True):
            self._cuda.read(address, array)
        return self._arrays

    def call(self, calls: int) -> float:
        """Device seconds of `calls` calls in a row on the first set, the first of them with a cold cache."""
        launches = self._prepared(next(iter(self._device.inputs)))
        launch = self._cuda.launch
        self._device.flush()
        self._cuda.start()
        for _ in range(calls):
            launch(launches)
        return self._cuda.stop()


def _heartbeat_program(code: bytes) -> Program:
    launch = Launch(
        kernel=0, arguments=(Pointer(buffer=0),), grid=(_HEARTBEAT_BLOCKS, 1, 1), block=(_HEARTBEAT_THREADS, 1, 1)
    )
    out = Buffer(place=Place.OUTPUT, dtype="float32", shape=(1,))
    return Program(codes=(code,), kernels=(Kernel(code=0, name="heartbeat"),), buffers=(out,), run=(launch,))


def _pattern(found: TensorType) -> bytes:
    """The poison of an element type, as a pattern of at most four bytes to repeat."""
    one = np.zeros(1, numpy_dtype(found.dtype))
    poison(one)
    data = one.tobytes()
    return data if len(data) <= 4 else data[-4:]  # The upper half of a NaN of 8 bytes, repeated, is a NaN again.
