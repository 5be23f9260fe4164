"""A program's machine code on a device, and its launches with the addresses of buffers filled in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from pitchpipe.gpu.driver import Driver, PreparedLaunch
from pitchpipe.gpu.program import MAP_BYTES, Argument, Launch, Pointer, Program, Scalar

_MAP_ALIGNMENT = 64


class Code:
    """The machine code of a program, loaded in the context that is current. `close` unloads it."""

    def __init__(self, driver: Driver, program: Program) -> None:
        """Raises CudaError when the device does not take it."""
        self._driver, self._modules = driver, [driver.load(code) for code in program.codes]
        shared_bytes, blocks = [0] * len(program.kernels), [1] * len(program.kernels)
        for launch in (*program.prepare, *program.run):
            shared_bytes[launch.kernel] = max(shared_bytes[launch.kernel], launch.shared_bytes)
            blocks[launch.kernel] = max(blocks[launch.kernel], prod(launch.cluster))
        self.functions = [
            driver.function(self._modules[kernel.code], kernel.name, shared_bytes=most, cluster_blocks=largest)
            for kernel, most, largest in zip(program.kernels, shared_bytes, blocks, strict=True)
        ]

    def close(self) -> None:
        for module in self._modules:
            self._driver.unload(module)
        self._modules = []


class Launches:
    """Launches of a program, for a set of addresses of its buffers that may change between two runs.

    Not thread-safe. Whoever queues them has made the device's context current.
    """

    def __init__(
        self, driver: Driver, launches: Sequence[Launch], functions: Sequence[int], addresses: Mapping[int, int]
    ) -> None:
        """addresses: of every buffer that the launches take, by its index in the program."""
        self._driver, self._launches = driver, launches
        self._addresses = dict(addresses)
        self._places: dict[int, list[tuple[int, Any, Argument]]] = {}
        """By buffer: which launch takes it, and where in its arguments."""
        self.prepared: list[PreparedLaunch] = []
        for at, launch in enumerate(launches):
            arguments = [self._argument(at, one) for one in launch.arguments]
            shape = (launch.grid, launch.block, launch.shared_bytes, launch.cluster, launch.programmatic)
            self.prepared.append(PreparedLaunch(functions[launch.kernel], arguments, *shape))
        for buffer, address in self._addresses.items():
            self._fill(buffer, address)

    def _argument(self, at: int, one: Argument) -> Any:
        if isinstance(one, Scalar):
            return (ctypes.c_ubyte * len(one.data)).from_buffer_copy(one.data)
        room: Any
        if isinstance(one, Pointer):
            room, buffer = ctypes.c_uint64(), one.buffer
        else:
            room, buffer = _aligned(MAP_BYTES), one.base.buffer
        self._places.setdefault(buffer, []).append((at, room, one))
        return room

    def _fill(self, buffer: int, address: int) -> None:
        for _, room, one in self._places.get(buffer, ()):
            if isinstance(one, Pointer):
                room.value = address + one.offset
            elif not isinstance(one, Scalar):
                self._driver.encode_map(ctypes.addressof(room), one, address + one.base.offset)

    def place(self, addresses: Mapping[int, int]) -> list[int]:
        """Fills in addresses of buffers; the launches whose arguments changed, in order."""
        changed: set[int] = set()
        for buffer, address in addresses.items():
            if self._addresses.get(buffer) != address:
                self._addresses[buffer] = address
                self._fill(buffer, address)
                changed.update(at for at, _, _ in self._places.get(buffer, ()))
        return sorted(changed)

    def queue(self, stream: int, queued: Callable[[], None] = lambda: None) -> None:
        """Queues all of them; calls `queued` after each launch."""
        driver, addresses = self._driver, self._addresses
        for launch, prepared in zip(self._launches, self.prepared, strict=True):
            for span in launch.zeroed:
                driver.zero(addresses[span.buffer] + span.offset, span.size_bytes, stream)
            driver.launch(prepared, stream)
            queued()


def _aligned(size: int) -> Any:
    """Bytes at a multiple of 64, as the driver wants tensor maps."""
    room = (ctypes.c_ubyte * (size + _MAP_ALIGNMENT))()
    start = -ctypes.addressof(room) % _MAP_ALIGNMENT
    return (ctypes.c_ubyte * size).from_buffer(room, start)
