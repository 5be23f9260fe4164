"""The part of CUDA's driver API that measuring needs, called directly: memory, modules, launches, events, errors.

TVM's runtime is not used: a runner launches kernels that another process compiled, must tell a refused launch from a dead
context by the error code, and must not spend time in an interpreter between two launches. There is one context, one stream
(the default one) and one thread. Every call that fails raises CudaError; so does the next synchronisation after a kernel
that failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

_STICKY = {
    700: "illegal address",
    702: "launch timeout",
    709: "context destroyed",
    710: "assertion",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failure",
    720: "cooperative launch too large",
}
"""Sticky errors: after one of these the context answers every call with the same error."""
_DEVICE = {3, 4, 36, 46, 100, 101, 102, 214, 220, 226, 227, 802, 803, 804, 805, 999}
"""Errors that no kernel causes: no device, memory errors that the hardware could not correct, a broken link or driver."""
_OUT_OF_MEMORY = 2
_MAX_SHARED, _L2_BYTES = 8, 38
_SPIN = 1


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, reason: str) -> None:
        super().__init__(f"{call}: {reason} ({code})")
        self.code = code

    @property
    def sticky(self) -> bool:
        """Whether the context cannot be used any more."""
        return self.code in _STICKY or self.of_device

    @property
    def of_device(self) -> bool:
        """Whether the device or the driver is at fault, and not what was launched."""
        return self.code in _DEVICE


class Kernel:
    """A launch of a kernel with its arguments marshalled, for `Cuda.launch` to queue any number of times."""

    def __init__(
        self,
        function: ctypes.c_void_p,
        pointers: Sequence[int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
    ) -> None:
        self._values = [ctypes.c_uint64(pointer) for pointer in pointers]
        self._array = (ctypes.c_void_p * max(1, len(pointers)))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in self._values)
        )
        self.arguments = (function, *grid, *block, shared_bytes, None, self._array, None)


class Cuda:
    """The first visible device with its primary context. The driver starts threads: never make one before a fork.

    Raises CudaError when there is no such device, OSError when there is no driver.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device
        self._call("cuDevicePrimaryCtxSetFlags_v2", device, _SPIN)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._launch = self._library.cuLaunchKernel
        self._launch.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint] * 7,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._start, self._end = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._start, self._end):
            self._call("cuEventCreate", ctypes.byref(event), 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise self._error(name, code)

    def _error(self, call: str, code: int) -> CudaError:
        texts = []
        for ask in (self._library.cuGetErrorString, self._library.cuGetErrorName):
            text = ctypes.c_char_p()
            ask(code, ctypes.byref(text))
            texts.append((text.value or b"unknown error").decode())
        return CudaError(call, code, ", ".join(texts))

    # -- the device

    @property
    def uuid(self) -> str:
        """UUID of the physical device, 32 hexadecimal digits."""
        found = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid", found, self._device)
        return bytes(found).hex()

    @property
    def l2_bytes(self) -> int:
        """Bytes of the L2 cache, the device's last level."""
        return self._attribute(_L2_BYTES)

    def _attribute(self, number: int) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), number, self._device)
        return found.value

    # -- memory

    def allocate(self, size: int) -> int:
        """The device address of `size` new bytes (of one, where it is 0)."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, size)))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copies an array to the device."""
        data = np.ascontiguousarray(array)
        if data.nbytes:
            pointer = ctypes.c_void_p(data.ctypes.data)
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), pointer, ctypes.c_size_t(data.nbytes))

    def read(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Copies from the device into a contiguous array, after all kernels that were launched before have ended."""
        if array.nbytes:
            pointer = ctypes.c_void_p(array.ctypes.data)
            self._call("cuMemcpyDtoH_v2", pointer, ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes))

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Repeats a pattern of 1, 2 or 4 bytes over `size` bytes, in stream order."""
        kinds = {1: ("cuMemsetD8_v2", ctypes.c_ubyte), 2: ("cuMemsetD16_v2", ctypes.c_ushort)}
        name, kind = kinds.get(len(pattern), ("cuMemsetD32_v2", ctypes.c_uint))
        value = kind(int.from_bytes(pattern, "little"))
        if size:
            self._call(name, ctypes.c_uint64(address), value, ctypes.c_size_t(size // len(pattern)))

    # -- code

    def load(self, code: bytes) -> ctypes.c_void_p:
        """Loads machine code (a cubin) as a module."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), code)
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        self._call("cuModuleUnload", module)

    def kernel(
        self,
        module: ctypes.c_void_p,
        name: str,
        pointers: Sequence[int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
    ) -> Kernel:
        """A launch of the module's function `name`, with `shared_bytes` of dynamic shared memory allowed for it."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes:
            self._call("cuFuncSetAttribute", function, _MAX_SHARED, shared_bytes)
        return Kernel(function, pointers, grid, block, shared_bytes)

    def launch(self, kernel: Kernel) -> None:
        """Queues the launch and returns before the kernel has run."""
        code = self._launch(*kernel.arguments)
        if code:
            raise self._error("cuLaunchKernel", code)

    def wait(self) -> None:
        """Waits until everything queued has run."""
        self._call("cuCtxSynchronize")

    # -- time

    def start(self) -> None:
        """Records the event from which `stop` measures, in stream order."""
        self._call("cuEventRecord", self._start, None)

    def stop(self) -> float:
        """Waits for the stream, and returns the device's seconds since `start`; their resolution is half a microsecond."""
        self._call("cuEventRecord", self._end, None)
        self._call("cuEventSynchronize", self._end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), self._start, self._end)
        return milliseconds.value * 1e-3


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
