"""What runs on a GPU, as data: machine code, buffers, and the launches of kernels on them.

A candidate of a search and a deployed model are the same thing here. A candidate has the launches of one workload; a model
has those of all its kernels in `run`, and in `prepare` those that are run once when weights are bound.

Whoever holds a GPU may get a program from someone it does not trust, so every index, size, offset and count is checked when
one of these objects is made: an argument of a launch lies inside its buffer, a tensor map inside the buffer that it
describes, and no launch exceeds what any device takes. What the machine code itself does to memory is not checked by
anyone: a program is tried in a process of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import prod

ALIGNMENT = 256
"""Bytes at whose multiples buffers begin that a runner allocates, and parts of the scratch memory."""
CALLER_ALIGNMENT = 16
"""Bytes at whose multiples buffers begin that a caller passes: the widest access of a thread."""
ITEM_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""Element types of buffers, and the bytes of an element."""
MAX_CODES, MAX_KERNELS, MAX_BUFFERS, MAX_LAUNCHES, MAX_ARGUMENTS = 1 << 14, 1 << 15, 1 << 16, 1 << 17, 512
MAX_CODE_BYTES = 64 << 20
MAX_BUFFER_BYTES = 1 << 40
MAX_AXES = 32
MAX_SHARED_BYTES = 1 << 20
MAX_ARGUMENT_BYTES = 32764
"""Of one launch: CUDA's own limit from compute capability 7.0 on."""
MAX_CLUSTER = 16
_MAX_GRID, _MAX_BLOCK, _MAX_THREADS = ((1 << 31) - 1, 65535, 65535), (1024, 1024, 64), 1024
_NAME = re.compile(r"[A-Za-z_$][\w$]{0,511}", re.ASCII)
_SCALAR_BYTES = (1, 2, 4, 8)
MAP_BYTES = 128
"""Of an encoded tensor map."""
MAP_TYPES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "tfloat32": 4,
}
"""Element types of tensor maps, and the bytes of an element."""


class InvalidProgram(ValueError):
    """It is no program, or one that reaches outside its buffers or beyond what any device takes."""


class Place(StrEnum):
    """Where a buffer lies, and who fills it."""

    INPUT = "input"
    """The caller's, passed with each call and read."""
    OUTPUT = "output"
    """The caller's, passed with each call and written."""
    WEIGHT = "weight"
    """Passed once, when weights are bound; kept on the device where `run` reads it."""
    RESIDENT = "resident"
    """Written by `prepare`, kept on the device and read by `run`."""
    CONSTANT = "constant"
    """Its contents are part of the program."""
    SCRATCH = "scratch"
    """Contents are undefined when `prepare` or `run` begins."""


class Swizzle(StrEnum):
    """How a tensor map permutes 16-byte pieces in shared memory; the values say within how many bytes."""

    NONE = "none"
    BYTES_32 = "32"
    BYTES_64 = "64"
    BYTES_128 = "128"


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A tensor in row-major order, or so many bytes (`uint8`) that nobody outside the program looks into."""

    place: Place
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(self.dtype in ITEM_BYTES, f"no buffer has elements of type {self.dtype[:40]!r}")
        _require(len(self.shape) <= MAX_AXES, f"a buffer has at most {MAX_AXES} axes")
        _require(all(0 <= extent <= MAX_BUFFER_BYTES for extent in self.shape), "an extent of a buffer")
        _require(self.size_bytes <= MAX_BUFFER_BYTES, f"a buffer has at most {MAX_BUFFER_BYTES} bytes")

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A function of the machine code."""

    code: int
    """Index into `Program.codes`."""
    name: str

    def __post_init__(self) -> None:
        _require(_NAME.fullmatch(self.name) is not None, f"{self.name[:40]!r} is no name of a kernel")


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """An argument: the address of a place in a buffer."""

    buffer: int
    """Index into `Program.buffers`."""
    offset: int = 0
    """In bytes."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """An argument passed by value."""

    data: bytes
    """1, 2, 4 or 8 bytes as the device reads them, little-endian."""

    def __post_init__(self) -> None:
        _require(len(self.data) in _SCALAR_BYTES, "a scalar has 1, 2, 4 or 8 bytes")


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """An argument: a tiled tensor map, which the runner encodes with the driver (cuTensorMapEncodeTiled).

    The first axis is the innermost one, as in CUDA's own description.
    """

    base: Pointer
    dtype: str
    sizes: tuple[int, ...]
    """Elements along each axis, one to five of them."""
    strides: tuple[int, ...]
    """Bytes from one element to the next along each axis but the first, whose elements lie one after another."""
    box: tuple[int, ...]
    """Elements along each axis that one copy brings."""
    swizzle: Swizzle = Swizzle.NONE

    def __post_init__(self) -> None:
        item, rank = MAP_TYPES.get(self.dtype, 0), len(self.sizes)
        _require(item > 0, f"no tensor map has elements of type {self.dtype[:40]!r}")
        _require(1 <= rank <= 5 and len(self.box) == rank == len(self.strides) + 1, "a tensor map has 1 to 5 axes")
        _require(all(1 <= size <= 1 << 32 for size in self.sizes), "a size of a tensor map")
        _require(all(0 < stride < 1 << 40 and stride % 16 == 0 for stride in self.strides), "a stride of a tensor map")
        _require(all(1 <= extent <= 256 for extent in self.box), "the box of a tensor map")
        row = self.box[0] * item
        _require(row % 16 == 0, "the rows of a tensor map's box have a multiple of 16 bytes")
        _require(self.swizzle is Swizzle.NONE or row <= int(self.swizzle), "a row of the box is wider than its swizzle")
        _require(self.base.offset % 16 == 0, "a tensor map begins at a multiple of 16 bytes")

    @property
    def extent_bytes(self) -> int:
        """From the first byte to behind the last one that it describes."""
        outer = sum((size - 1) * stride for size, stride in zip(self.sizes[1:], self.strides, strict=True))
        return self.sizes[0] * MAP_TYPES[self.dtype] + outer


Argument = Pointer | Scalar | TensorMap


@dataclass(frozen=True, kw_only=True)
class Span:
    """Bytes of a buffer."""

    buffer: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel's launch."""

    kernel: int
    """Index into `Program.kernels`."""
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    """Dynamic shared memory of a thread block."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Thread blocks of a cluster."""
    programmatic: bool = False
    """Whether it may begin before the launch before it has ended (programmatic dependent launch): the kernel itself waits
    for what it needs."""
    zeroed: tuple[Span, ...] = ()
    """Scratch memory that is filled with zeros before it."""

    def __post_init__(self) -> None:
        _require(len(self.arguments) <= MAX_ARGUMENTS, f"a launch has at most {MAX_ARGUMENTS} arguments")
        _require(len(self.zeroed) <= MAX_ARGUMENTS, f"a launch has at most {MAX_ARGUMENTS} zeroed spans")
        sizes = (MAP_BYTES if isinstance(one, TensorMap) else 8 for one in self.arguments)
        _require(sum(sizes) <= MAX_ARGUMENT_BYTES, f"arguments have at most {MAX_ARGUMENT_BYTES} bytes")
        for extents, limits in ((self.grid, _MAX_GRID), (self.block, _MAX_BLOCK), (self.cluster, (MAX_CLUSTER,) * 3)):
            fits = len(extents) == 3 and all(1 <= one <= most for one, most in zip(extents, limits, strict=True))
            _require(fits, f"no device takes a grid, block or cluster of {extents}")
        _require(prod(self.block) <= _MAX_THREADS, f"a thread block has at most {_MAX_THREADS} threads")
        _require(prod(self.cluster) <= MAX_CLUSTER, f"a cluster has at most {MAX_CLUSTER} thread blocks")
        divides = all(blocks % one == 0 for blocks, one in zip(self.grid, self.cluster, strict=True))
        _require(divides, "the grid is no multiple of the cluster")
        _require(0 <= self.shared_bytes <= MAX_SHARED_BYTES, "the shared memory of a thread block")
        _require(not (self.programmatic and self.zeroed), "a launch that begins early cannot wait for zeros")

    @property
    def buffers(self) -> tuple[int, ...]:
        """Indices of the buffers that its arguments point to, and of those zeroed before it."""
        bases = (one.base if isinstance(one, TensorMap) else one for one in self.arguments)
        pointed = (one.buffer for one in bases if isinstance(one, Pointer))
        return tuple(dict.fromkeys([*pointed, *(span.buffer for span in self.zeroed)]))


@dataclass(frozen=True, kw_only=True)
class Program:
    """Machine code, buffers and launches. Raises InvalidProgram when they do not fit together."""

    codes: tuple[bytes, ...]
    """Cubins, as cuModuleLoadData takes them."""
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    run: tuple[Launch, ...]
    """Of each call, one after another."""
    prepare: tuple[Launch, ...] = ()
    """Run once whenever weights are bound; they touch neither inputs nor outputs."""
    constants: tuple[bytes, ...] = ()
    """Contents of the constant buffers, in the order of `buffers`."""
    in_tuple: bool = False
    """Whether the caller gets the outputs as a tuple even where there is one."""

    def __post_init__(self) -> None:
        counts = (
            (self.codes, MAX_CODES),
            (self.kernels, MAX_KERNELS),
            (self.buffers, MAX_BUFFERS),
            (self.run + self.prepare, MAX_LAUNCHES),
        )
        _require(all(len(of) <= most for of, most in counts), "a program has too many parts")
        _require(all(0 < len(code) <= MAX_CODE_BYTES for code in self.codes), "the size of the machine code")
        _require(all(0 <= kernel.code < len(self.codes) for kernel in self.kernels), "a kernel of code that is missing")
        sizes = [self.buffers[at].size_bytes for at in self.at(Place.CONSTANT)]
        _require([len(data) for data in self.constants] == sizes, "constants do not have the sizes of their buffers")
        for launch in self.prepare:
            self._check(launch, (Place.WEIGHT, Place.RESIDENT, Place.CONSTANT, Place.SCRATCH))
        for launch in self.run:
            self._check(launch, tuple(Place))

    def at(self, place: Place) -> tuple[int, ...]:
        """Indices of the buffers that lie there, in order."""
        return tuple(at for at, buffer in enumerate(self.buffers) if buffer.place is place)

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the weights that `run` reads as they were given."""
        read = {at for launch in self.run for at in launch.buffers}
        return tuple(at for at in self.at(Place.WEIGHT) if at in read)

    def _check(self, launch: Launch, places: tuple[Place, ...]) -> None:
        _require(0 <= launch.kernel < len(self.kernels), "a launch of a kernel that is missing")
        for one in launch.arguments:
            if isinstance(one, Pointer):
                self._inside(one.buffer, one.offset, 0, places)
            elif isinstance(one, TensorMap):
                self._inside(one.base.buffer, one.base.offset, one.extent_bytes, places)
        for span in launch.zeroed:
            self._inside(span.buffer, span.offset, span.size_bytes, (Place.SCRATCH,))

    def _inside(self, at: int, offset: int, size_bytes: int, places: tuple[Place, ...]) -> None:
        _require(0 <= at < len(self.buffers), "an argument in a buffer that is missing")
        buffer = self.buffers[at]
        _require(buffer.place in places, f"a launch takes the buffer {at}, which is of place {buffer.place}")
        fits = offset >= 0 and size_bytes >= 0 and offset + size_bytes <= buffer.size_bytes
        _require(fits, f"an argument outside the buffer {at}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidProgram(otherwise)
