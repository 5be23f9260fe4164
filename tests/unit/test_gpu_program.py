"""GPU programs as data: what is encoded comes back, and what reaches too far is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitchpipe.gpu.encoding import MAGIC, VERSION, decode, encode
from pitchpipe.gpu.program import (
    ITEM_BYTES,
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

BUFFERS = (
    Buffer(place=Place.INPUT, dtype="float16", shape=(64, 64)),
    Buffer(place=Place.OUTPUT, dtype="float32", shape=(64, 4)),
    Buffer(place=Place.WEIGHT, dtype="float16", shape=(64, 4)),
    Buffer(place=Place.RESIDENT, dtype="uint8", shape=(512,)),
    Buffer(place=Place.CONSTANT, dtype="float32", shape=(2,)),
    Buffer(place=Place.SCRATCH, dtype="uint8", shape=(4096,)),
)
MAP = TensorMap(
    base=Pointer(buffer=0),
    dtype="float16",
    sizes=(64, 64),
    strides=(128,),
    box=(64, 8),
    swizzle=Swizzle.BYTES_128,
)
LAUNCH = Launch(
    kernel=0,
    arguments=(Pointer(buffer=0), Pointer(buffer=5, offset=1024), Scalar(data=b"\x07\0\0\0"), MAP),
    grid=(4, 2, 1),
    block=(128, 1, 1),
    shared_bytes=65536,
    cluster=(2, 1, 1),
    zeroed=(Span(buffer=5, offset=0, size_bytes=64),),
)
LAYING = Launch(kernel=1, arguments=(Pointer(buffer=2), Pointer(buffer=3)), grid=(1, 1, 1), block=(32, 1, 1))
PROGRAM = Program(
    codes=(b"\x7fELF code", b"\x7fELF more"),
    kernels=(Kernel(code=0, name="fused_matmul_kernel"), Kernel(code=1, name="lay_out_kernel")),
    buffers=BUFFERS,
    run=(LAUNCH, replace(LAUNCH, zeroed=(), programmatic=True)),
    prepare=(LAYING,),
    constants=(struct.pack("<2f", 1.0, -0.0),),
)


@st.composite
def programs(draw: Any) -> Program:
    """Programs with anything in them that a program may have."""
    shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
    buffers = [
        Buffer(place=draw(st.sampled_from(Place)), dtype=draw(st.sampled_from(sorted(ITEM_BYTES))), shape=draw(shapes))
        for _ in range(draw(st.integers(0, 6)))
    ]
    scratch = len(buffers)
    buffers.append(Buffer(place=Place.SCRATCH, dtype="uint8", shape=(draw(st.integers(1 << 12, 1 << 40)),)))
    codes = tuple(draw(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3)))
    names = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True)
    kernels = tuple(
        Kernel(code=draw(st.integers(0, len(codes) - 1)), name=draw(names)) for _ in range(draw(st.integers(1, 3)))
    )

    def argument(places: tuple[Place, ...]) -> Any:
        kind = draw(st.integers(0, 2))
        if kind == 0:
            return Scalar(data=draw(st.sampled_from([1, 2, 4, 8]).flatmap(lambda n: st.binary(min_size=n, max_size=n))))
        if kind == 1:
            rank = draw(st.integers(1, 5))
            return TensorMap(
                base=Pointer(buffer=scratch, offset=16 * draw(st.integers(0, 4))),
                dtype="float32",
                sizes=tuple(draw(st.integers(1, 3)) for _ in range(rank)),
                strides=tuple(16 * draw(st.integers(1, 8)) for _ in range(rank - 1)),
                box=(4 * draw(st.integers(1, 64)), *(draw(st.integers(1, 256)) for _ in range(rank - 1))),
            )
        at = draw(st.sampled_from([i for i, buffer in enumerate(buffers) if buffer.place in places]))
        return Pointer(buffer=at, offset=draw(st.integers(0, buffers[at].size_bytes)))

    def launch(places: tuple[Place, ...]) -> Launch:
        cluster = (draw(st.integers(1, 4)), draw(st.integers(1, 4)), 1)
        return Launch(
            kernel=draw(st.integers(0, len(kernels) - 1)),
            arguments=tuple(argument(places) for _ in range(draw(st.integers(0, 4)))),
            grid=(cluster[0] * draw(st.integers(1, 1000)), cluster[1] * draw(st.integers(1, 1000)), 3),
            block=(draw(st.integers(1, 64)), draw(st.integers(1, 16)), 1),
            shared_bytes=draw(st.integers(0, 232448)),
            cluster=cluster,
            zeroed=(Span(buffer=scratch, offset=8, size_bytes=draw(st.integers(0, 100))),) * draw(st.integers(0, 2)),
        )

    inner = (Place.WEIGHT, Place.RESIDENT, Place.CONSTANT, Place.SCRATCH)
    return Program(
        codes=codes,
        kernels=kernels,
        buffers=tuple(buffers),
        run=tuple(launch(tuple(Place)) for _ in range(draw(st.integers(0, 4)))),
        prepare=tuple(launch(inner) for _ in range(draw(st.integers(0, 2)))),
        in_tuple=draw(st.booleans()),
        constants=tuple(
            draw(st.binary(min_size=buffer.size_bytes, max_size=buffer.size_bytes).map(bytes))
            for buffer in buffers
            if buffer.place is Place.CONSTANT and buffer.size_bytes < 1 << 16
        ),
    )


@settings(max_examples=60, deadline=None)
@given(programs())
def test_a_program_survives_as_bytes_and_has_one_encoding(program: Program) -> None:
    data = encode(program)
    assert decode(data) == program
    assert encode(decode(data)) == data


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(encode(PROGRAM)) - 1), st.integers(1, 255))
def test_a_damaged_program_is_refused_or_is_another_valid_one(at: int, change: int) -> None:
    data = bytearray(encode(PROGRAM))
    data[at] ^= change
    try:
        found = decode(bytes(data))
    except InvalidProgram:
        return
    assert encode(found) == bytes(data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.booleans())
def test_what_is_no_program_is_refused(data: bytes, begun: bool) -> None:
    with pytest.raises(InvalidProgram):
        decode(MAGIC + struct.pack("<I", len(data)) + data if begun else data)


def told(program: Program) -> Any:
    data = encode(program)
    (size,) = struct.unpack_from("<I", data, 8)
    return json.loads(data[12 : 12 + size]), data[12 + size :]


def packed(head: Any, rest: bytes, *, canonical: bool = True) -> bytes:
    text = json.dumps(head, sort_keys=True, separators=(",", ":") if canonical else (", ", ": ")).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + rest


@pytest.mark.parametrize(
    "place",
    [
        ("kernels", 0, 0, 2),
        ("kernels", 0, 0, -1),
        ("kernels", 0, 1, "no name"),
        ("kernels", 0, 1, 7),
        ("codes", 0, True),
        ("codes", 0, 10**9),
        ("codes", 0, -1),
        ("buffers", 0, 0, "elsewhere"),
        ("buffers", 0, 1, "float4"),
        ("buffers", 0, 2, [1 << 41]),
        ("buffers", 0, 2, [-1]),
        ("buffers", 0, 2, [1 << 30, 1 << 30]),
        ("run", 0, 0, 2),
        ("run", 0, 1, 0, ["pointer", 6, 0]),
        ("run", 0, 1, 0, ["pointer", 0, 8193]),
        ("run", 0, 1, 0, ["pointer", 0, -1]),
        ("run", 0, 1, 0, ["pointer", 0]),
        ("run", 0, 1, 0, ["pointer", 0, 0.0]),
        ("run", 0, 1, 0, ["address", 0, 0]),
        ("run", 0, 1, 0, []),
        ("run", 0, 1, 2, ["scalar", "070000"]),
        ("run", 0, 1, 2, ["scalar", "zz"]),
        ("run", 0, 1, 2, ["scalar", "07 00 00 00"]),
        ("run", 0, 1, 3, 4, [64, 65]),
        ("run", 0, 1, 3, 4, [0, 64]),
        ("run", 0, 1, 3, 5, [120]),
        ("run", 0, 1, 3, 5, [-16]),
        ("run", 0, 1, 3, 6, [128, 8]),
        ("run", 0, 1, 3, 6, [4, 8]),
        ("run", 0, 1, 3, 6, [64, 257]),
        ("run", 0, 1, 3, 6, [64]),
        ("run", 0, 1, 3, 7, "256"),
        ("run", 0, 1, 3, 2, 8),
        ("run", 0, 2, [1 << 31, 1, 1]),
        ("run", 0, 2, [4, 65536, 1]),
        ("run", 0, 2, [4, 2]),
        ("run", 0, 2, [0, 2, 1]),
        ("run", 0, 2, [5, 2, 1]),
        ("run", 0, 3, [1024, 2, 1]),
        ("run", 0, 3, [1, 1, 65]),
        ("run", 0, 4, -1),
        ("run", 0, 4, 1 << 21),
        ("run", 0, 5, [17, 1, 1]),
        ("run", 0, 6, 1),
        ("run", 0, 6, True),
        ("run", 0, 7, [[5, 4090, 7]]),
        ("run", 0, 7, [[5, 0, -1]]),
        ("run", 0, 7, [[1, 0, 4]]),
        ("prepare", 0, 1, 0, ["pointer", 0, 0]),
        ("prepare", 0, 1, 0, ["pointer", 1, 0]),
        ("in_tuple", 1),
        ("more", 1),
    ],
    ids=str,
)
def test_what_reaches_too_far_is_refused(place: tuple[Any, ...]) -> None:
    head, rest = told(PROGRAM)
    *path, last, value = place
    part = head
    for step in path:
        part = part[step]
    part[last] = value
    with pytest.raises(InvalidProgram):
        decode(packed(head, rest))


def test_other_forms_of_the_same_program_are_refused() -> None:
    head, rest = told(PROGRAM)
    assert decode(packed(head, rest)) == PROGRAM
    with pytest.raises(InvalidProgram, match="canonical"):
        decode(packed(head, rest, canonical=False))
    with pytest.raises(InvalidProgram, match="size"):
        decode(packed(head, rest + b"\0"))
    with pytest.raises(InvalidProgram, match="size"):
        decode(packed(head, rest[:-1]))
    later = bytes([*MAGIC[:-1], VERSION + 1])
    with pytest.raises(InvalidProgram, match=f"version {VERSION + 1}"):
        decode(later + packed(head, rest)[8:])


def test_a_head_of_nested_lists_is_refused() -> None:
    text = b"[" * 200_000
    with pytest.raises(InvalidProgram):
        decode(MAGIC + struct.pack("<I", len(text)) + text)


def test_weights_that_runs_read_as_they_were_given_are_kept() -> None:
    assert PROGRAM.kept == ()
    reads = replace(LAUNCH, arguments=(Pointer(buffer=2),))
    assert replace(PROGRAM, run=(reads,)).kept == (2,)
