"""A GPU that holds a workload's data (GpuDevice), and a compiled candidate loaded on it (DeviceProgram).

Timing. A model runs as one CUDA graph, so a candidate is timed inside one, among stand-ins for its neighbours:

    stand-in, call, stand-in, call, ...        PAIRS of each; T its time
    stand-in, stand-in, ...                    the same without the calls; S its time

and a call takes (T - S) / PAIRS: what the graph of a model takes longer with this kernel in it, the boundary to its
neighbour included. A stand-in reads and writes the activations that the call reads, as the kernel before it in a model does,
so these lie in the L2 cache if they fit. Weights do not: every call of a graph has a copy of its own, and the whole cache is
overwritten between two graphs. Where launches may begin early, those of stand-ins do, and a call's may begin within one, as
in a model. Each time is that between two events around a graph, so the interpreter does not count.

The heartbeat kernel is the GPU's reference workload: a tenth of a millisecond of arithmetic on all multiprocessors, whose
time depends on the clock, heat and other tenants alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pitchpipe.gpu.launches import Launches
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program, Scalar
from tuner.lowering import early_launch
from tuner.measure.candidate import Bench
from tuner.measure.check import SETS, numpy_dtype, poison, size_bytes
from tuner.measure.cuda_driver import Clock, Cuda, Graph
from tuner.measure.guards import DeviceGuards
from tuner.schedule.tensor_type import TensorType

HEARTBEAT_SOURCE = """
extern "C" __global__ void heartbeat(float* out) {
  float a = threadIdx.x, b = blockIdx.x;
  for (int i = 0; i < 4096; ++i) { a = a * 0.999f + b; b = b * 0.999f + a; }
  if (a + b == 1.5f) out[0] = a;
}
extern "C" __global__ void stand_in(uint4* data, unsigned long long count) {
#if __CUDA_ARCH__ >= 900
  BEGIN
#endif
  for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(data + i));
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
        :: "l"(data + i), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
  }
}
""".replace("BEGIN", early_launch.BEGIN)
_HEARTBEAT_BLOCKS, _HEARTBEAT_THREADS = 1056, 256
_BEAT_SAMPLES = 15
_SPOILED = b"\xff\xff\xff\xff"
"""The bytes that workspaces are filled with before a checked run: NaN as a float of any size."""
_LEAST_FLUSH_BYTES = 32 << 20
_PAIRS = (1, 4, 16)
"""Calls of a graph: as many as the calls of a sample fill. In longer graphs the resolution of events matters less."""
_MOST_GRAPHS = 8
"""Graphs of a sample."""
_COPIES_BYTES = 1 << 30
"""Of all copies of the weights together, at most; beyond it, calls of a graph share them. They exceed any cache then."""
_LEAST_CALL_SECS = 1e-8
_STAND_IN_BLOCKS, _STAND_IN_THREADS, _VECTOR_BYTES = 528, 256, 16


class GpuDevice:
    """The first visible GPU with the inputs of every set, the outputs, and the heartbeat kernel.

    Belongs to one process and ends with it. Raises CudaError or NoDevice.
    """

    def __init__(self, bench: Bench, heartbeat: bytes, cuda: Cuda | None = None) -> None:
        """`heartbeat` is the machine code of HEARTBEAT_SOURCE; `cuda` is for tests."""
        self.cuda = cuda or Cuda()
        self.bench = bench
        self.uuid = self.cuda.uuid
        self.clock = Clock(self.uuid)
        self.inputs = {
            name: [self._put(tensor) for tensor in bench.inputs[name]]
            for name in SETS
            if name in bench.reference_outputs
        }
        self.guards = DeviceGuards(self.cuda)
        self.outputs = [self.guards.allocate(size_bytes(found)) for found in bench.output_types]
        self._flush_bytes = max(_LEAST_FLUSH_BYTES, self.cuda.l2_bytes)
        self._flush = self.cuda.allocate(self._flush_bytes)
        beat = _program(heartbeat, "heartbeat", (_HEARTBEAT_BLOCKS, 1, 1), (_HEARTBEAT_THREADS, 1, 1))
        self._heartbeat = self.cuda.launches(beat, self.cuda.load(beat), {0: self.cuda.allocate(4)})
        self._stand_ins = self._make_stand_ins(heartbeat)
        self._weights = {index: [address] for index, address in self._inputs_of(bench.constant())}
        self._alone: dict[int, Graph] = {}

    def _inputs_of(self, indices: Collection[int]) -> list[tuple[int, int]]:
        """(index, address) of the inputs of the first set that have one of these indices."""
        first = next(iter(self.inputs.values()))
        return [pair for pair in zip(self.bench.properties.inputs, first, strict=True) if pair[0] in indices]

    def _make_stand_ins(self, code: bytes) -> list[Launches]:
        """One for each activation, or one for nothing much where there is none."""
        activations = self._inputs_of(set(self.bench.properties.inputs) - self.bench.constant())
        sizes = {index: size_bytes(self.bench.properties.params[index]) for index, _ in activations}
        places = [(address, sizes[index]) for index, address in activations if sizes[index] >= _VECTOR_BYTES]
        found = []
        for address, size in places or [(self._flush, 1 << 12)]:
            vectors = size // _VECTOR_BYTES
            blocks = min(_STAND_IN_BLOCKS, math.ceil(vectors / _STAND_IN_THREADS))
            count = Scalar(data=vectors.to_bytes(8, "little"))
            early = early_launch.launches_early(self.bench.target.arch or "")
            made = _program(code, "stand_in", (blocks, 1, 1), (_STAND_IN_THREADS, 1, 1), count, early=early)
            found.append(self.cuda.launches(made, self.cuda.load(made), {0: address}))
        return found

    def weights(self, copy: int) -> dict[int, int]:
        """Index -> address of the weights, in a copy of their own for each number as far as there is room."""
        sizes = {index: size_bytes(self.bench.properties.params[index]) for index in self._weights}
        copy %= max(1, _COPIES_BYTES // max(1, sum(sizes.values())))
        for index, addresses in self._weights.items():
            while len(addresses) <= copy:
                addresses.append(self.cuda.allocate(sizes[index]))
                self.cuda.copy(addresses[-1], addresses[0], sizes[index])
        return {index: addresses[copy] for index, addresses in self._weights.items()}

    def stand_ins_alone(self, pairs: int) -> Graph:
        """The graph of as many stand-ins, without anything between them."""
        if pairs not in self._alone:
            self._alone[pairs] = self.cuda.capture(self._stand_ins * pairs)
        return self._alone[pairs]

    def among_stand_ins(self, calls: Sequence[Launches]) -> Graph:
        """The graph of calls with stand-ins before each."""
        return self.cuda.capture([each for call in calls for each in (*self._stand_ins, call)])

    def graph_secs(self, graph: Graph) -> float:
        """Device seconds of a graph that finds nothing in the L2 cache."""
        self.flush()
        self.cuda.start()
        self.cuda.replay(graph)
        return self.cuda.stop()

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

    most_calls = _MOST_GRAPHS * _PAIRS[-1]

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
        self._guards = DeviceGuards(self._cuda)
        self._workspaces = {at: self._guards.allocate(size) for at, size in self._sizes.items()}
        self._types = self._bench.output_types
        self._poisons = [_pattern(found) for found in self._types]
        self._arrays = [np.empty(found.shape, numpy_dtype(found.dtype)) for found in self._types]
        self._runs: dict[str, Launches] = {}
        self._graphs: dict[int, Graph] = {}

    def close(self) -> None:
        """Frees its graphs and workspaces and unloads its code."""
        self._cuda.wait()
        for graph in self._graphs.values():
            self._cuda.destroy(graph)
        self._guards.close()
        self._code.close()

    def _launches(self, name: str, weights: Mapping[int, int]) -> Launches:
        """One call on the set, with weights from these addresses."""
        properties = self._bench.properties
        inputs = dict(zip(properties.inputs, self._device.inputs[name], strict=True))
        outputs = dict(zip(properties.outputs, self._device.outputs, strict=True))
        return self._cuda.launches(self._program, self._code, inputs | dict(weights) | outputs | self._workspaces)

    def _prepared(self, name: str) -> Launches:
        """One call on the set."""
        if name not in self._runs:
            self._runs[name] = self._launches(name, {})
        return self._runs[name]

    def run(self, name: str) -> float:
        """Poisons outputs and workspaces, runs once on the set, and returns the device's seconds."""
        launches = self._prepared(name)
        for address, found, pattern in zip(self._device.outputs, self._types, self._poisons, strict=True):
            self._cuda.fill(address, size_bytes(found), pattern)
        for at, address in self._workspaces.items():
            self._cuda.fill(address, self._sizes[at] // 4 * 4, _SPOILED)
        self._device.guards.set_up()
        self._guards.set_up()
        self._cuda.start()
        self._cuda.launch(launches)
        return self._cuda.stop()

    def outputs(self) -> list[np.ndarray[Any, Any]]:
        """The outputs of the last run, copied from the device."""
        for address, array in zip(self._device.outputs, self._arrays, strict=True):
            self._cuda.read(address, array)
        return self._arrays

    @property
    def stays_inside(self) -> bool:
        """Whether the last run has written neither beside the outputs nor beside the workspaces."""
        return self._device.guards.intact and self._guards.intact

    def call(self, calls: int) -> float:
        """Device seconds of `calls` calls on the first set, derived from so many or a few more inside graphs.

        A call that takes less than events resolve counts as a hundredth of a microsecond.
        """
        pairs = max(number for number in _PAIRS if number <= calls)
        if pairs not in self._graphs:
            first = next(iter(self._device.inputs))
            runs = [self._launches(first, self._device.weights(copy)) for copy in range(pairs)]
            self._graphs[pairs] = self._device.among_stand_ins(runs)
        alone = self._device.stand_ins_alone(pairs)
        graphs = math.ceil(calls / pairs)
        secs = sum(self._device.graph_secs(self._graphs[pairs]) - self._device.graph_secs(alone) for _ in range(graphs))
        return max(secs / (graphs * pairs), _LEAST_CALL_SECS) * calls


def _program(
    code: bytes,
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    *more: Scalar,
    early: bool = False,
) -> Program:
    """One kernel that writes to one buffer."""
    launch = Launch(kernel=0, arguments=(Pointer(buffer=0), *more), grid=grid, block=block, programmatic=early)
    out = Buffer(place=Place.OUTPUT, dtype="float32", shape=(1,))
    return Program(codes=(code,), kernels=(Kernel(code=0, name=kernel),), buffers=(out,), run=(launch,))


def _pattern(found: TensorType) -> bytes:
    """The poison of an element type, as a pattern of at most four bytes to repeat."""
    one = np.zeros(1, numpy_dtype(found.dtype))
    poison(one)
    data = one.tobytes()
    return data if len(data) <= 4 else data[-4:]  # The upper half of a NaN of 8 bytes, repeated, is a NaN again.
