"""GPU programs as bytes. A program has one encoding, and nothing else decodes:

    offset  bytes  what
    0       8      MAGIC, whose last byte is the version of the format
    8       4      bytes of the head, little-endian
    12      ...    the head: canonical JSON of everything but the machine code and the constants
    ...     ...    each machine code, then each constant, and nothing behind them

Everything is bounded before it is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from pitchpipe.gpu.program import (
    Argument,
    Buffer,
    InvalidProgram,
    Kernel,
    Launch,
    Place,
    Pointer,
    Program,
    Scalar,
    Span,
    Swizzle,
    TensorMap,
)

VERSION = 1
MAGIC = b"PITCHGP" + bytes([VERSION])
MAX_HEAD_BYTES = 32 << 20
_START = struct.Struct("<8sI")
_T = TypeVar("_T")


def encode(program: Program) -> bytes:
    """The bytes of a program."""
    head = _text(program)
    return b"".join([_START.pack(MAGIC, len(head)), head, *program.codes, *program.constants])


def decode(data: bytes) -> Program:
    """The program of these bytes. Raises InvalidProgram."""
    if len(data) < _START.size:
        raise InvalidProgram("a program that has no head")
    magic, size = _START.unpack_from(data)
    if magic[:-1] != MAGIC[:-1]:
        raise InvalidProgram("this is no GPU program")
    if magic != MAGIC:
        raise InvalidProgram(f"a GPU program of version {magic[-1]}, and {VERSION} is known here")
    if size > MAX_HEAD_BYTES or _START.size + size > len(data):
        raise InvalidProgram("the head of a program is too long")
    text = data[_START.size : _START.size + size]
    try:
        program = _program(json.loads(text), data[_START.size + size :])
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, InvalidProgram) else InvalidProgram(f"not JSON: {error}") from error
    if _text(program) != text:
        raise InvalidProgram("the head of a program is not in its canonical form")
    return program


def _text(program: Program) -> bytes:
    head = {
        "buffers": [[buffer.place.value, buffer.dtype, list(buffer.shape)] for buffer in program.buffers],
        "codes": [len(code) for code in program.codes],
        "in_tuple": program.in_tuple,
        "kernels": [[kernel.code, kernel.name] for kernel in program.kernels],
        "prepare": [_launch_told(launch) for launch in program.prepare],
        "run": [_launch_told(launch) for launch in program.run],
    }
    return json.dumps(head, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _launch_told(launch: Launch) -> list[Any]:
    return [
        launch.kernel,
        [_argument_told(one) for one in launch.arguments],
        list(launch.grid),
        list(launch.block),
        launch.shared_bytes,
        list(launch.cluster),
        launch.programmatic,
        [[span.buffer, span.offset, span.size_bytes] for span in launch.zeroed],
    ]


def _argument_told(one: Argument) -> list[Any]:
    match one:
        case Pointer():
            return ["pointer", one.buffer, one.offset]
        case Scalar():
            return ["scalar", one.data.hex()]
        case TensorMap():
            base, axes = [one.base.buffer, one.base.offset], [list(one.sizes), list(one.strides), list(one.box)]
            return ["map", *base, one.dtype, *axes, one.swizzle.value]


def _program(head: Any, rest: bytes) -> Program:
    if not isinstance(head, dict) or set(head) != {"buffers", "codes", "in_tuple", "kernels", "prepare", "run"}:
        raise InvalidProgram("the head of a program has other parts")
    buffers = tuple(_list(head["buffers"], _buffer))
    constants = [buffer.size_bytes for buffer in buffers if buffer.place is Place.CONSTANT]
    codes = _list(head["codes"], _int)
    sizes = [*codes, *constants]
    if min(sizes, default=0) < 0 or sum(sizes) != len(rest):
        raise InvalidProgram("a program does not have the size that its head names")
    parts, start = [], 0
    for size in sizes:
        parts.append(rest[start : start + size])
        start += size
    return Program(
        codes=tuple(parts[: len(codes)]),
        kernels=tuple(_list(head["kernels"], _kernel)),
        buffers=buffers,
        prepare=tuple(_list(head["prepare"], _launch)),
        run=tuple(_list(head["run"], _launch)),
        constants=tuple(parts[len(codes) :]),
        in_tuple=_bool(head["in_tuple"]),
    )


def _buffer(told: Any) -> Buffer:
    place, dtype, shape = _items(told, 3)
    return Buffer(place=Place(_str(place)), dtype=_str(dtype), shape=_ints(shape))


def _kernel(told: Any) -> Kernel:
    code, name = _items(told, 2)
    return Kernel(code=_int(code), name=_str(name))


def _launch(told: Any) -> Launch:
    kernel, arguments, grid, block, shared_bytes, cluster, programmatic, zeroed = _items(told, 8)
    return Launch(
        kernel=_int(kernel),
        arguments=tuple(_list(arguments, _argument)),
        grid=_three(grid),
        block=_three(block),
        shared_bytes=_int(shared_bytes),
        cluster=_three(cluster),
        programmatic=_bool(programmatic),
        zeroed=tuple(_list(zeroed, _span)),
    )


def _argument(told: Any) -> Argument:
    if not isinstance(told, list) or not told:
        raise InvalidProgram("an argument of a launch")
    match told[0]:
        case "pointer":
            _, buffer, offset = _items(told, 3)
            return Pointer(buffer=_int(buffer), offset=_int(offset))
        case "scalar":
            return Scalar(data=bytes.fromhex(_str(_items(told, 2)[1])))
        case "map":
            _, buffer, offset, dtype, sizes, strides, box, swizzle = _items(told, 8)
            return TensorMap(
                base=Pointer(buffer=_int(buffer), offset=_int(offset)),
                dtype=_str(dtype),
                sizes=_ints(sizes),
                strides=_ints(strides),
                box=_ints(box),
                swizzle=Swizzle(_str(swizzle)),
            )
        case _:
            raise InvalidProgram("an argument of a launch is of no kind that is known here")


def _span(told: Any) -> Span:
    buffer, offset, size_bytes = _ints(_items(told, 3))
    return Span(buffer=buffer, offset=offset, size_bytes=size_bytes)


def _list(told: Any, read: Callable[[Any], _T]) -> list[_T]:
    if not isinstance(told, list):
        raise InvalidProgram("a part of a program is no list")
    return [read(one) for one in told]


def _items(told: Any, count: int) -> list[Any]:
    if not isinstance(told, list) or len(told) != count:
        raise InvalidProgram(f"a part of a program has not {count} items")
    return told


def _int(told: Any) -> int:
    if type(told) is not int:
        raise InvalidProgram("a number of a program is no integer")
    return told


def _bool(told: Any) -> bool:
    if not isinstance(told, bool):
        raise InvalidProgram("a flag of a program is neither true nor false")
    return told


def _str(told: Any) -> str:
    if not isinstance(told, str):
        raise InvalidProgram("a name of a program is no text")
    return told


def _ints(told: Any) -> tuple[int, ...]:
    return tuple(_list(told, _int))


def _three(told: Any) -> tuple[int, int, int]:
    x, y, z = _ints(_items(told, 3))
    return x, y, z
