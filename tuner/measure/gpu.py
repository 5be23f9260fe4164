"""A GPU that holds a workload's data (GpuDevice), and a built candidate loaded on it (DeviceProgram).

Timing. A sample is `calls` launches in a row between two events, after an L2-sized part of memory was overwritten on the
same stream: the first of these calls finds none of its data in the cache, as in a network whose other layers ran
before; the further ones find what the call before left. What is timed is the device's time, with the launches queued
ahead of it, not the interpreter's.

The reference kernel is arithmetic on all multiprocessors and nothing else, a tenth of a millisecond: its time follows
the clock, heat and other tenants.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from tuner.measure.candidate import Bench
from tuner.measure.check import SETS, numpy_dtype, poison, size_bytes
from tuner.measure.cuda_driver import Clock, Cuda, Kernel
from tuner.measure.gpu_code import GpuProgram
from tuner.schedule.tensor_type import TensorType

REFERENCE_SOURCE = """
extern "C" __global__ void reference(float* out) {
  float a = threadIdx.x, b = blockIdx.x;
  for (int i = 0; i < 4096; ++i) { a = a * 0.999f + b; b = b * 0.999f + a; }
  if (a + b == 1.5f) out[0] = a;
}
"""
_REFERENCE_BLOCKS, _REFERENCE_THREADS = 1056, 256
_BEAT_SAMPLES = 15
_SPOILED = b"\xff\xff\xff\xff"
"""What workspaces hold before a checked run: NaN as a float of any size."""
_LEAST_FLUSH_BYTES = 32 << 20


class GpuDevice:
    """The first visible GPU with the inputs of every set, the outputs, and the reference kernel.

    Belongs to one process and ends with it. Raises CudaError or OSError.
    """

    def __init__(self, bench: Bench, reference: bytes) -> None:
        """`reference` is the machine code of REFERENCE_SOURCE."""
        self.cuda = Cuda()
        self.bench = bench
        self.uuid = self.cuda.uuid
        self.clock = Clock(self.uuid)
        self.inputs = {
            name: [self._put(tensor) for tensor in bench.inputs[name]] for name in SETS if name in bench.references
        }
        self.outputs = [self.cuda.allocate(size_bytes(found)) for found in bench.output_types]
        self._flush_bytes = max(_LEAST_FLUSH_BYTES, self.cuda.l2_bytes)
        self._flush = self.cuda.allocate(self._flush_bytes)
        out = self.cuda.allocate(4)
        module = self.cuda.load(reference)
        self._reference = self.cuda.kernel(
            module, "reference", [out], (_REFERENCE_BLOCKS, 1, 1), (_REFERENCE_THREADS, 1, 1), 0
        )

    def _put(self, tensor: Any) -> int:
        array = tensor.numpy()
        address = self.cuda.allocate(array.nbytes)
        self.cuda.write(address, array)
        return address

    def beat(self) -> float:
        """Median seconds of the reference kernel: the heartbeat."""
        self.cuda.launch(self._reference)  # The clock rises with the first work after a pause.
        samples = []
        for _ in range(_BEAT_SAMPLES):
            self.cuda.start()
            self.cuda.launch(self._reference)
            samples.append(self.cuda.stop())
        return statistics.median(samples)

    def flush(self) -> None:
        """Drives everything out of the L2 cache, in stream order."""
        self.cuda.fill(self._flush, self._flush_bytes, b"\0\0\0\0")


class DeviceProgram:
    """A candidate's program loaded on a GPU, for `Measuring` to check and time. `close` frees its memory."""

    def __init__(self, device: GpuDevice, program: GpuProgram) -> None:
        self._device, self._cuda, self._bench = device, device.cuda, device.bench
        self._program = program
        self._module = self._cuda.load(program.code)
        self._sizes = program.workspaces
        self._workspaces = [self._cuda.allocate(size) for size in program.workspaces]
        self._types = self._bench.output_types
        self._poisons = [_pattern(found) for found in self._types]
        self._arrays = [np.empty(found.shape, numpy_dtype(found.dtype)) for found in self._types]
        self._kernels: dict[str, list[Kernel]] = {}

    def close(self) -> None:
        """Gives back its memory and code."""
        self._cuda.wait()
        for address in self._workspaces:
            self._cuda.free(address)
        self._cuda.unload(self._module)

    def _prepared(self, name: str) -> list[Kernel]:
        """The launches on a set."""
        if name not in self._kernels:
            facts = self._bench.facts
            pointers = [0] * len(facts.params)
            for index, address in zip(facts.inputs, self._device.inputs[name], strict=True):
                pointers[index] = address
            for index, address in zip(facts.outputs, self._device.outputs, strict=True):
                pointers[index] = address
            pointers += self._workspaces
            self._kernels[name] = [
                self._cuda.kernel(
                    self._module,
                    launch.kernel,
                    [pointers[index] for index in launch.buffers],
                    launch.grid,
                    launch.block,
                    launch.shared_bytes,
                )
                for launch in self._program.launches
            ]
        return self._kernels[name]

    def run(self, name: str) -> float:
        """Poisons outputs and workspaces, runs once on the set, and returns the device's seconds."""
        kernels = self._prepared(name)
        for address, found, pattern in zip(self._device.outputs, self._types, self._poisons, strict=True):
            self._cuda.fill(address, size_bytes(found), pattern)
        for address, size in zip(self._workspaces, self._sizes, strict=True):
            self._cuda.fill(address, size // 4 * 4, _SPOILED)
        self._cuda.start()
        for kernel in kernels:
            self._cuda.launch(kernel)
        return self._cuda.stop()

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """What the last run wrote."""
        for address, array in zip(self._device.outputs, self._arrays, strict=True):
            self._cuda.read(address, array)
        return self._arrays

    def call(self, calls: int) -> float:
        """Device seconds of `calls` calls in a row on the first set, the first of them with a cold cache."""
        kernels = self._prepared(next(iter(self._device.inputs)))
        launch = self._cuda.launch
        self._device.flush()
        self._cuda.start()
        for _ in range(calls):
            for kernel in kernels:
                launch(kernel)
        return self._cuda.stop()


def _pattern(found: TensorType) -> bytes:
    """The poison of an element type, as at most four bytes that repeat."""
    one = np.zeros(1, numpy_dtype(found.dtype))
    poison(one)
    data = one.tobytes()
    return data if len(data) <= 4 else data[-4:]  # The upper half of a NaN of eight bytes makes another one.
