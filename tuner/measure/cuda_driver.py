"""The GPU of a runner: memory, programs, graphs, events and errors, through the driver's API (`pitchpipe/gpu/driver.py`).

TVM's runtime is not used: a runner launches kernels that another process compiled, must tell a refused launch from a dead
context by the error code, and must not spend time in an interpreter between two launches. There is one context, one stream
and one thread. Every call that fails raises CudaError; so does the next synchronisation after a kernel
that failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pitchpipe.gpu.driver import CudaError, Driver
from pitchpipe.gpu.launches import Code, Launches
from pitchpipe.gpu.program import Program

__all__ = ["Clock", "Cuda", "CudaError"]

_L2_BYTES = 38


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A captured graph and the instance of it that runs."""

    graph: int
    instance: int


class Cuda:
    """The first visible device with its primary context. The driver starts threads: never make one before a fork.

    Raises CudaError when there is no such device, NoDevice when there is no driver.
    """

    def __init__(self, ordinal: int = 0, driver: Driver | None = None) -> None:
        """`driver` is for tests; without it NVIDIA's."""
        self.driver, self._ordinal = driver or Driver(), ordinal
        self.driver.spin(ordinal)
        self.driver.push(self.driver.primary_context(ordinal))
        self._stream = self.driver.create_stream()  # Work on the default one cannot be captured.
        self._start, self._end = (self.driver.create_event(timing=True) for _ in range(2))

    # -- the device

    @property
    def uuid(self) -> str:
        """UUID of the physical device, 32 hexadecimal digits."""
        return self.driver.uuid(self._ordinal)

    @property
    def l2_bytes(self) -> int:
        """Bytes of the L2 cache, the device's last level."""
        return self.driver.attribute(self._ordinal, _L2_BYTES)

    # -- memory

    def allocate(self, size: int) -> int:
        """The device address of `size` new bytes (of one, where it is 0)."""
        return self.driver.allocate(size)

    def free(self, address: int) -> None:
        self.driver.free(address)

    def write(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copies an array to the device."""
        data = np.ascontiguousarray(array)
        self.driver.upload(address, data.ctypes.data, data.nbytes, self._stream)
        self.wait()

    def read(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copies from the device into a contiguous array, after all kernels that were launched before have ended."""
        self.driver.download(array.ctypes.data, address, array.nbytes, self._stream)
        self.wait()

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Repeats a pattern of 1, 2 or 4 bytes over `size` bytes, in stream order."""
        kinds = {1: ("cuMemsetD8Async", ctypes.c_ubyte), 2: ("cuMemsetD16Async", ctypes.c_ushort)}
        name, kind = kinds.get(len(pattern), ("cuMemsetD32Async", ctypes.c_uint))
        value = kind(int.from_bytes(pattern, "little"))
        if size:
            self.driver.call(
                name,
                ctypes.c_uint64(address),
                value,
                ctypes.c_size_t(size // len(pattern)),
                ctypes.c_void_p(self._stream),
            )

    def copy(self, to: int, address: int, size: int) -> None:
        """Copies within the device, in stream order."""
        self.driver.copy(to, address, size, self._stream)

    # -- code

    def load(self, program: Program) -> Code:
        """Loads a program's machine code."""
        return Code(self.driver, program)

    def launches(self, program: Program, code: Code, addresses: Mapping[int, int]) -> Launches:
        """The launches of a run, with the addresses of the program's buffers."""
        return Launches(self.driver, program.run, code.functions, addresses)

    def launch(self, launches: Launches) -> None:
        """Queues one run, and returns before it has ended."""
        launches.queue(self._stream)

    def capture(self, runs: Sequence[Launches]) -> Graph:
        """A graph of runs one after another, each kernel after the one before."""
        self.driver.begin_capture(self._stream)
        try:
            for launches in runs:
                launches.queue(self._stream)
        except BaseException:
            with suppress(CudaError):
                self.driver.end_capture(self._stream)
            raise
        graph = self.driver.end_capture(self._stream)
        return Graph(graph=graph, instance=self.driver.instantiate(graph))

    def replay(self, graph: Graph) -> None:
        """Queues the graph, and returns before it has run."""
        self.driver.launch_graph(graph.instance, self._stream)

    def destroy(self, graph: Graph) -> None:
        """Frees a graph that has run."""
        self.driver.destroy(graph.graph, graph.instance)

    def wait(self) -> None:
        """Waits until everything queued has run."""
        self.driver.synchronize(self._stream)

    # -- time

    def start(self) -> None:
        """Records the event from which `stop` measures, in stream order."""
        self.driver.record(self._start, self._stream)

    def stop(self) -> float:
        """Waits for the stream, and returns the device's seconds since `start`; their resolution is half a microsecond."""
        self.driver.record(self._end, self._stream)
        self.driver.synchronize_event(self._end)
        return self.driver.elapsed_secs(self._start, self._end)


class Clock:
    """Reads the present clock rate of a device's multiprocessors from NVIDIA's management library."""

    _SM = 1

    def __init__(self, uuid: str) -> None:
        self._library: Any = None
        self._device = ctypes.c_void_p()
        text = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            found = library.nvmlInit_v2() == 0 and (
                library.nvmlDeviceGetHandleByUUID(f"GPU-{text}".encode(), ctypes.byref(self._device)) == 0
            )
            self._library = library if found else None

    def hz(self) -> float | None:
        """The clock rate in Hz; None where the library is missing or does not tell it."""
        if self._library is None:
            return None
        found = ctypes.c_uint()
        code = self._library.nvmlDeviceGetClockInfo(self._device, self._SM, ctypes.byref(found))
        return found.value * 1e6 if code == 0 and found.value else None
