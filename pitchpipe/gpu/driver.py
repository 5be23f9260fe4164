"""The part of CUDA's driver API that programs need, called directly through ctypes.

Handles (contexts, streams, modules, ...) and device addresses are plain integers. Every call that fails raises CudaError; so
does the next synchronisation after a kernel that failed. Calls act on the context that is current in the calling thread.
`testing.FakeDriver` has the same methods without a GPU.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from pitchpipe.errors import NoDevice
from pitchpipe.gpu.abi import (
    CAPTURE_INFO,
    ELEMENTS,
    SIGNATURES,
    SWIZZLES,
    Attribute,
    AttributeValue,
    LaunchConfig,
    NodeParams,
    PoolProps,
)
from pitchpipe.gpu.program import TensorMap

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
_OUT_OF_MEMORY = 2
_DEVICE = {3, 4, 36, 46, 100, 101, 102, 214, 220, 226, 227, 802, 803, 804, 805, 999}
"""Errors that no kernel causes: no device, memory errors that the hardware could not correct, a broken link or driver."""
_MAX_SHARED, _ANY_CLUSTER = 8, 14
"""Attributes of functions: bytes of dynamic shared memory, clusters of more than eight thread blocks."""
_CLUSTER, _PROGRAMMATIC = 4, 6
"""Attributes of launches."""
_NON_BLOCKING, _NO_TIMING, _RELAXED = 1, 2, 2
_RELEASE_THRESHOLD = 4
_L2_256_BYTES = 3
_SPIN = 1
PORTABLE_CLUSTER = 8
"""Thread blocks of a cluster that every device with clusters takes."""


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
    def spent(self) -> bool:
        """Whether the process that met it had better end: its context cannot be used, or its memory is full."""
        return self.sticky or self.code == _OUT_OF_MEMORY

    @property
    def of_device(self) -> bool:
        """Whether the device or the driver is at fault, and not what was launched."""
        return self.code in _DEVICE


class PreparedLaunch:
    """A kernel's launch with its arguments marshalled, to be queued any number of times.

    `arguments` are ctypes objects, which may be written to between two launches: a launch copies them.
    """

    def __init__(
        self,
        function: int,
        arguments: list[Any],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        cluster: tuple[int, int, int] = (1, 1, 1),
        programmatic: bool = False,
    ) -> None:
        self.function, self.arguments = function, arguments
        self.pointers = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        attributes = []
        if cluster != (1, 1, 1):
            attributes.append(Attribute(id=_CLUSTER, value=AttributeValue(cluster=cluster)))
        if programmatic:
            attributes.append(Attribute(id=_PROGRAMMATIC, value=AttributeValue(flag=1)))
        self._attributes = (Attribute * max(1, len(attributes)))(*attributes)
        self.config = LaunchConfig(
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            attributes=self._attributes,
            count=len(attributes),
        )
        self.node = NodeParams(
            function=function,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            arguments=ctypes.addressof(self.pointers),
        )


class Driver:
    """NVIDIA's driver in this process. It starts threads: never make one before a fork.

    Raises NoDevice where it is missing, CudaError where it does not start.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDevice("NVIDIA's driver (libcuda.so.1) is not on this machine") from error
        for name, signature in (SIGNATURES | CAPTURE_INFO).items():
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes, function.restype = signature, c_int
            elif name not in CAPTURE_INFO:
                raise NoDevice(f"NVIDIA's driver on this machine is too old: it lacks {name}")
        self._capture_info = next(name for name in CAPTURE_INFO if hasattr(self._library, name))
        self._launch, self._launch_graph = self._library.cuLaunchKernelEx, self._library.cuGraphLaunch
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver, of those above or another one."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise self._error(name, code)

    def _error(self, call: str, code: int) -> CudaError:
        texts = []
        for ask in (self._library.cuGetErrorString, self._library.cuGetErrorName):
            text = c_char_p()
            ask(code, byref(text))
            texts.append((text.value or b"unknown error").decode())
        return CudaError(call, code, ", ".join(texts))

    def _handle(self, name: str, *arguments: Any) -> int:
        """What the call writes to its first argument, a pointer."""
        found = c_void_p()
        self.call(name, byref(found), *arguments)
        return found.value or 0

    # -- devices and contexts

    @property
    def devices(self) -> int:
        """Number of devices that this process may see."""
        found = c_int()
        self.call("cuDeviceGetCount", byref(found))
        return found.value

    def device(self, ordinal: int) -> int:
        found = c_int()
        self.call("cuDeviceGet", byref(found), ordinal)
        return found.value

    def attribute(self, ordinal: int, number: int) -> int:
        """An attribute of a device (CUdevice_attribute)."""
        found = c_int()
        self.call("cuDeviceGetAttribute", byref(found), number, self.device(ordinal))
        return found.value

    def uuid(self, ordinal: int) -> str:
        """UUID of the physical device, 32 hexadecimal digits."""
        found = (c_ubyte * 16)()
        self.call("cuDeviceGetUuid", found, self.device(ordinal))
        return bytes(found).hex()

    def spin(self, ordinal: int) -> None:
        """Whoever waits for the device from now on does so without giving up its core."""
        self.call("cuDevicePrimaryCtxSetFlags_v2", self.device(ordinal), _SPIN)

    def primary_context(self, ordinal: int) -> int:
        """The context that every library in this process shares on the device; kept until the process ends."""
        return self._handle("cuDevicePrimaryCtxRetain", self.device(ordinal))

    def current(self) -> int:
        """The context that is current in this thread; 0 where none is."""
        return self._handle("cuCtxGetCurrent")

    def push(self, context: int) -> None:
        """Makes the context current in this thread, until `pop`."""
        self.call("cuCtxPushCurrent_v2", context)

    def pop(self) -> None:
        self.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    # -- code

    def load(self, code: bytes) -> int:
        """Loads machine code (a cubin) as a module."""
        return self._handle("cuModuleLoadData", code)

    def unload(self, module: int) -> None:
        self.call("cuModuleUnload", module)

    def function(self, module: int, name: str, *, shared_bytes: int = 0, cluster_blocks: int = 1) -> int:
        """The module's function, allowed that much dynamic shared memory and clusters of so many thread blocks."""
        found = self._handle("cuModuleGetFunction", module, name.encode())
        if shared_bytes:
            self.call("cuFuncSetAttribute", found, _MAX_SHARED, shared_bytes)
        if cluster_blocks > PORTABLE_CLUSTER:
            self.call("cuFuncSetAttribute", found, _ANY_CLUSTER, 1)
        if hasattr(self._library, "cuFuncLoad"):  # else it would be loaded at its first launch, which may be captured
            self.call("cuFuncLoad", c_void_p(found))
        return found

    def encode_map(self, place: int, described: TensorMap, address: int) -> None:
        """Writes the tensor map of what lies at a device address to `place`, 128 bytes at a multiple of 64."""
        rank = len(described.sizes)
        self.call(
            "cuTensorMapEncodeTiled",
            c_void_p(place),
            ELEMENTS[described.dtype],
            rank,
            address,
            (c_uint64 * rank)(*described.sizes),
            (c_uint64 * max(1, rank - 1))(*described.strides),
            (c_uint * rank)(*described.box),
            (c_uint * rank)(*([1] * rank)),
            0,  # rows are not interleaved
            SWIZZLES[described.swizzle],
            _L2_256_BYTES,
            0,  # zeros beyond the tensor's end
        )

    def launch(self, prepared: PreparedLaunch, stream: int) -> None:
        """Queues a kernel and returns before it has run."""
        prepared.config.stream = stream
        code = self._launch(byref(prepared.config), prepared.function, prepared.pointers, None)
        if code:
            raise self._error("cuLaunchKernelEx", code)

    # -- memory

    def allocate(self, size: int) -> int:
        """The device address of `size` new bytes (of one, where it is 0), at a multiple of 256."""
        return self._handle("cuMemAlloc_v2", max(1, size))

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def create_pool(self, ordinal: int, *, keeps: bool = True) -> int:
        """A pool of the device's memory. keeps: what is freed, for the next allocation; else the device has it back at the
        next synchronisation."""
        props = PoolProps(kind=1, place=1, ordinal=ordinal)
        pool = self._handle("cuMemPoolCreate", byref(props))
        if keeps:
            self.call("cuMemPoolSetAttribute", pool, _RELEASE_THRESHOLD, byref(c_uint64(2**64 - 1)))
        return pool

    def destroy_pool(self, pool: int) -> None:
        """Once all that was queued has run: with a free that is still queued, drivers of CUDA 13 crash here, or at the
        next allocation."""
        self.call("cuMemPoolDestroy", pool)

    def allocate_from(self, pool: int, size: int, stream: int) -> int:
        """Memory of a pool, in stream order."""
        return self._handle("cuMemAllocFromPoolAsync", max(1, size), pool, stream)

    def free_on(self, address: int, stream: int) -> None:
        """Gives memory back to its pool, in stream order."""
        self.call("cuMemFreeAsync", address, stream)

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        """From the host's memory, which may change once this returns unless it is page-locked."""
        if size:
            self.call("cuMemcpyHtoDAsync_v2", address, host, size, stream)

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        if size:
            self.call("cuMemcpyDtoHAsync_v2", host, address, size, stream)

    def copy(self, to: int, address: int, size: int, stream: int) -> None:
        """On one device, or between two whose memory is in one address space."""
        if size:
            self.call("cuMemcpyDtoDAsync_v2", to, address, size, stream)

    def copy_peer(self, to: int, context: int, address: int, of: int, size: int, stream: int) -> None:
        """To a device's memory (its context) from another's (`of`)."""
        if size:
            self.call("cuMemcpyPeerAsync", to, context, address, of, size, stream)

    def zero(self, address: int, size: int, stream: int) -> None:
        if size:
            self.call("cuMemsetD8Async", address, 0, size, stream)

    # -- streams and events

    def create_stream(self) -> int:
        """One that does not wait for the default stream."""
        return self._handle("cuStreamCreate", _NON_BLOCKING)

    def synchronize(self, stream: int) -> None:
        """Waits until everything queued there has run."""
        self.call("cuStreamSynchronize", stream)

    def is_capturing(self, stream: int) -> bool:
        """Whether what is queued there goes into a graph."""
        found = c_int()
        self.call("cuStreamIsCapturing", stream, byref(found))
        return found.value != 0

    def create_event(self, *, timing: bool = False) -> int:
        return self._handle("cuEventCreate", 0 if timing else _NO_TIMING)

    def destroy_event(self, event: int) -> None:
        self.call("cuEventDestroy_v2", event)

    def destroy_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", stream)

    def record(self, event: int, stream: int) -> None:
        self.call("cuEventRecord", event, stream)

    def wait_for(self, event: int, stream: int) -> None:
        """What is queued on the stream from now on waits for what the event recorded."""
        self.call("cuStreamWaitEvent", stream, event, 0)

    def synchronize_event(self, event: int) -> None:
        self.call("cuEventSynchronize", event)

    def elapsed_secs(self, start: int, end: int) -> float:
        """The device's seconds between two events with timing, which have passed."""
        found = c_float()
        self.call("cuEventElapsedTime", byref(found), start, end)
        return found.value * 1e-3

    # -- graphs

    def begin_capture(self, stream: int) -> None:
        """What is queued there goes into a graph until `end_capture`."""
        self.call("cuStreamBeginCapture_v2", stream, _RELAXED)

    def end_capture(self, stream: int) -> int:
        """The graph of what was queued there."""
        found = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(found))
        return found.value or 0

    def last_node(self, stream: int) -> int:
        """The node of what was queued last on a stream that is captured."""
        status, number, graph = c_int(), c_uint64(), c_void_p()
        nodes, edges, count = POINTER(c_void_p)(), c_void_p(), c_size_t()
        more = (byref(edges),) if self._capture_info.endswith("v3") else ()
        self.call(self._capture_info, stream, *map(byref, (status, number, graph, nodes)), *more, byref(count))
        return int(nodes[0] or 0)

    def instantiate(self, graph: int) -> int:
        return self._handle("cuGraphInstantiateWithFlags", graph, 0)

    def update(self, instance: int, node: int, prepared: PreparedLaunch) -> None:
        """Later launches of the instantiated graph have the launch's present arguments at the node."""
        self.call("cuGraphExecKernelNodeSetParams_v2", instance, node, byref(prepared.node))

    def launch_graph(self, instance: int, stream: int) -> None:
        code = self._launch_graph(instance, stream)
        if code:
            raise self._error("cuGraphLaunch", code)

    def destroy(self, graph: int, instance: int) -> None:
        """Frees a graph and its instance, once it has run."""
        self.call("cuGraphExecDestroy", instance)
        self.call("cuGraphDestroy", graph)


@cache
def driver() -> Driver:
    """The one of this process. Raises as Driver does."""
    return Driver()
