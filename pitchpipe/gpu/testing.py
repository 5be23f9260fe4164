"""A driver without a GPU: device memory is the host's, kernels are functions of Python's.

    driver = FakeDriver({"double_kernel": double})       # double(memory, launch, *arguments)

What is queued runs at once, unless the stream is captured, and takes a microsecond a kernel; `calls` records what was
asked for, so that a test can say what was not: a synchronisation, a copy, a second graph. A graph keeps the arguments with
which it was recorded or updated, and memory that was freed is no memory any more.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pitchpipe.gpu.driver import CudaError, Driver, PreparedLaunch
from pitchpipe.gpu.program import ALIGNMENT, MAP_BYTES, TensorMap

Kernel = Callable[..., None]
_ILLEGAL_ADDRESS, _INVALID_HANDLE, _CAPTURED, _UNKNOWN_FUNCTION = 700, 400, 900, 500


class FakeDriver(Driver):
    """The driver's methods. Kernels are called with the driver, the launch, and their arguments: addresses as integers,
    scalars and tensor maps as bytes."""

    def __init__(self, kernels: Mapping[str, Kernel], *, devices: int = 1) -> None:
        self._kernels, self._devices = kernels, devices
        self._numbers = itertools.count(0x1000, 8)
        self._memory: dict[int, Any] = {}
        self._functions: dict[int, str] = {}
        self._captured: dict[int, list[Any]] = {}
        self._graphs: dict[int, list[Any]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.contexts: list[int] = []
        self._ran = 0
        self._recorded: dict[int, int] = {}
        self.foreign_captures: set[int] = set()
        """Streams that somebody else captures."""

    @contextmanager
    def watched(self) -> Iterator[list[tuple[Any, ...]]]:
        """Only the calls of this block."""
        before, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = before + self.calls

    def names(self) -> list[str]:
        """What was called, in order."""
        return [call[0] for call in self.calls]

    @property
    def held(self) -> int:
        """Pieces of device memory that are allocated."""
        return len(self._memory)

    def view(self, address: int, size: int) -> Any:
        """`size` bytes of device memory. Raises CudaError where no such memory is allocated."""
        for start, room in self._memory.items():
            if start <= address and address + size <= start + len(room):
                return (ctypes.c_ubyte * size).from_buffer(room, address - start) if size else b""
        raise CudaError("kernel", _ILLEGAL_ADDRESS, f"{size} bytes at {address:#x} are not allocated")

    def _told(self, name: str, *arguments: Any) -> None:
        if not self.contexts:
            raise CudaError(name, 201, "no context is current")
        self.calls.append((name, *arguments))

    def _queue(self, stream: int, work: Callable[[], None] | PreparedLaunch) -> None:
        if stream in self._captured:
            snapshot = self._snapshot(work) if isinstance(work, PreparedLaunch) else work
            self._captured[stream].append([next(self._numbers), snapshot])
        elif stream in self.foreign_captures:
            pass
        elif isinstance(work, PreparedLaunch):
            self._snapshot(work)()
        else:
            work()

    def _snapshot(self, prepared: PreparedLaunch) -> Callable[[], None]:
        """The kernel with the arguments that the launch has now."""
        kernel = self._kernels[self._functions[prepared.function]]
        values = [one.value if isinstance(one, ctypes.c_uint64) else bytes(one) for one in prepared.arguments]

        def run() -> None:
            self._ran += 1
            kernel(self, prepared, *values)

        return run

    # -- devices and contexts

    @property
    def devices(self) -> int:
        return self._devices

    def uuid(self, ordinal: int) -> str:
        return f"{ordinal:032x}"

    def primary_context(self, ordinal: int) -> int:
        if ordinal >= self._devices:
            raise CudaError("cuDeviceGet", 101, "invalid device ordinal")
        return 0xC0 + ordinal

    def current(self) -> int:
        return self.contexts[-1] if self.contexts else 0

    def push(self, context: int) -> None:
        self.contexts.append(context)

    def pop(self) -> None:
        self.contexts.pop()

    # -- code

    def load(self, code: bytes) -> int:
        self._told("load", code)
        return next(self._numbers)

    def unload(self, module: int) -> None:
        self._told("unload", module)

    def function(self, module: int, name: str, *, shared_bytes: int = 0, cluster_blocks: int = 1) -> int:
        self._told("function", name, shared_bytes, cluster_blocks)
        if name not in self._kernels:
            raise CudaError("cuModuleGetFunction", _UNKNOWN_FUNCTION, f"no kernel is named {name}")
        found = next(self._numbers)
        self._functions[found] = name
        return found

    def encode_map(self, place: int, described: TensorMap, address: int) -> None:
        """The address, and zeros."""
        if place % 64:
            raise CudaError("cuTensorMapEncodeTiled", 1, "a tensor map that is not aligned")
        ctypes.memmove(place, address.to_bytes(8, "little") + bytes(MAP_BYTES - 8), MAP_BYTES)

    def launch(self, prepared: PreparedLaunch, stream: int) -> None:
        self._told("launch", self._functions[prepared.function], stream)
        self._queue(stream, prepared)

    # -- memory

    def allocate(self, size: int) -> int:
        self._told("allocate", size)
        return self._new(size)

    def _new(self, size: int) -> int:
        room = (ctypes.c_ubyte * (max(1, size) + ALIGNMENT))()
        start = ctypes.addressof(room)
        aligned = start + -start % ALIGNMENT
        self._memory[aligned] = (ctypes.c_ubyte * max(1, size)).from_buffer(room, aligned - start)
        return aligned

    def free(self, address: int) -> None:
        self._told("free", address)
        del self._memory[address]

    def create_pool(self, ordinal: int, *, keeps: bool = True) -> int:
        self._told("create_pool", ordinal, keeps)
        return next(self._numbers)

    def destroy_pool(self, pool: int) -> None:
        self._told("destroy_pool", pool)

    def allocate_from(self, pool: int, size: int, stream: int) -> int:
        self._told("allocate_from", pool, size, stream)
        return self._new(size)

    def free_on(self, address: int, stream: int) -> None:
        self._told("free_on", address, stream)
        del self._memory[address]

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        self._told("upload", size, stream)
        data = ctypes.string_at(host, size) if size else b""
        self._queue(stream, lambda: self._write(address, data))

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        self._told("download", size, stream)
        if size:
            self._queue(stream, lambda: self._read(host, address, size))

    def copy(self, to: int, address: int, size: int, stream: int) -> None:
        self._told("copy", size, stream)
        self._queue(stream, lambda: self._write(to, bytes(self.view(address, size))))

    def copy_peer(self, to: int, context: int, address: int, of: int, size: int, stream: int) -> None:
        self._told("copy_peer", context, of, size)
        self._queue(stream, lambda: self._write(to, bytes(self.view(address, size))))

    def zero(self, address: int, size: int, stream: int) -> None:
        self._told("zero", size, stream)
        self._queue(stream, lambda: self._write(address, bytes(size)))

    def _read(self, host: int, address: int, size: int) -> None:
        ctypes.memmove(host, bytes(self.view(address, size)), size)

    def _write(self, address: int, data: bytes) -> None:
        if data:
            self.view(address, len(data))[:] = data

    # -- streams and events

    def create_stream(self) -> int:
        self._told("create_stream")
        return next(self._numbers)

    def destroy_stream(self, stream: int) -> None:
        self._told("destroy_stream", stream)

    def synchronize(self, stream: int) -> None:
        self._told("synchronize", stream)

    def is_capturing(self, stream: int) -> bool:
        return stream in self._captured or stream in self.foreign_captures

    def create_event(self, *, timing: bool = False) -> int:
        self._told("create_event", timing)
        return next(self._numbers)

    def destroy_event(self, event: int) -> None:
        self._told("destroy_event", event)

    def record(self, event: int, stream: int) -> None:
        self._told("record", event, stream)
        self._recorded[event] = self._ran

    def wait_for(self, event: int, stream: int) -> None:
        self._told("wait_for", event, stream)
        if stream in self.foreign_captures:
            raise CudaError("cuStreamWaitEvent", _CAPTURED, "an event from outside the capture")

    def synchronize_event(self, event: int) -> None:
        self._told("synchronize_event", event)

    def elapsed_secs(self, start: int, end: int) -> float:
        """A microsecond for each kernel in between."""
        return 1e-6 * (self._recorded[end] - self._recorded[start])

    # -- graphs

    def begin_capture(self, stream: int) -> None:
        self._told("begin_capture", stream)
        self._captured[stream] = []

    def end_capture(self, stream: int) -> int:
        self._told("end_capture", stream)
        found = next(self._numbers)
        self._graphs[found] = self._captured.pop(stream)
        return found

    def last_node(self, stream: int) -> int:
        node: int = self._captured[stream][-1][0]
        return node

    def instantiate(self, graph: int) -> int:
        self._told("instantiate", graph)
        found = next(self._numbers)
        self._graphs[found] = [list(node) for node in self._graphs[graph]]
        return found

    def update(self, instance: int, node: int, prepared: PreparedLaunch) -> None:
        self._told("update", node)
        for one in self._graphs[instance]:
            if one[0] == node:
                one[1] = self._snapshot(prepared)
                return
        raise CudaError("cuGraphExecKernelNodeSetParams", _INVALID_HANDLE, "no such node")

    def launch_graph(self, instance: int, stream: int) -> None:
        self._told("launch_graph", stream)
        for _, work in self._graphs[instance]:
            work()

    def destroy(self, graph: int, instance: int) -> None:
        self._told("destroy", graph, instance)
        del self._graphs[graph], self._graphs[instance]
