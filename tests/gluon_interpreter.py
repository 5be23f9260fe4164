"""What kernels in Gluon call, for Triton's interpreter, which knows Triton alone: tiles in shared memory that are copied by
the tensor memory accelerator, barriers that count the bytes, and products of tiles.

It is strict about the order: who reads a tile whose copy was not waited for, or has a tile copied over one whose product was
not waited for, fails.
"""

from __future__ import annotations

import re
from typing import Any

import triton.language as tl

from pitchpipe.gpu.program import MAP_TYPES
from tuner.templates.kernel_source import KernelSource, Matrix

_LAYOUT = r"(?:sums|lines|asked|shared_out)\d*"
_REWRITTEN = (
    (re.compile(r"^from triton\.experimental.*\n|^import triton\.experimental.*\n", re.MULTILINE), ""),
    (re.compile(rf"^    (?:layout\d|{_LAYOUT}): tl\.constexpr = .*\n", re.MULTILINE), ""),
    (re.compile(rf", layout=(?:{_LAYOUT}|tl\.SliceLayout\(\d, {_LAYOUT}\))"), ""),
    (re.compile(r"@gluon\.jit"), "@triton.jit"),
    (re.compile(r"tl\.allocate_shared_memory\(tl\.\w+, \[(\d+), .*\)"), r"GLUON.Slots(\1)"),
    (re.compile(r"tma\.async_copy_global_to_shared\(m(\d), "), r"GLUON.copy(m\1, MATRICES[\1], "),
    (re.compile(r"mbarrier\.(\w+)\("), r"GLUON.\1("),
    (re.compile(r"tl\.convert_layout\((total\d*), lines\d*\)"), r"\1"),
    (re.compile(r"warpgroup_mma\(|warpgroup_mma_wait\("), lambda found: f"GLUON.{found[0]}"),
)
"""What changes in a kernel's text."""


def in_triton(kernel: KernelSource) -> str:
    """The kernel's text for the interpreter. GLUON is this module, MATRICES what the kernel takes."""
    text = kernel.text
    for found, other in _REWRITTEN:
        text = found.sub(other, text)
    head = "import triton\nimport triton.language as tl\nimport tests.gluon_interpreter as GLUON\n"
    head += f"from tuner.templates.kernel_source import Matrix\nMATRICES = {kernel.matrices!r}\n"
    return head + text


class Slots:
    """An array of tiles, or of barriers."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot() for _ in range(count)]

    def index(self, at: Any) -> Slot:
        return self._slots[_number(at)]


class Slot:
    """A tile, or a barrier."""

    def __init__(self) -> None:
        self.value: Any = None
        self.read = True
        self.pending = 0
        """Bytes that a barrier waits for."""
        self.completed = 0
        self.waited = 0
        self.barrier: Slot | None = None
        self.turns: Slot | None = None
        """The tile that this one is, turned."""

    def permute(self, order: tuple[int, int]) -> Slot:
        assert tuple(_number(at) for at in order) == (1, 0)
        other = Slot()
        other.turns = self
        return other


def init(barrier: Slot, count: int) -> None:
    assert _number(count) == 1


def expect(barrier: Slot, size_bytes: int, pred: Any = True) -> None:
    if _number(pred):
        assert barrier.pending == 0
        barrier.pending = _number(size_bytes)


def wait(barrier: Slot, parity: Any) -> None:
    """A device would wait for ever where nothing is on its way."""
    assert barrier.pending == 0
    assert barrier.completed > barrier.waited
    assert barrier.waited % 2 == _number(parity)
    barrier.waited += 1


def copy(pointer: Any, matrix: Matrix, at: Any, barrier: Slot, slot: Slot, pred: Any = True) -> None:
    """Reads a tile of a matrix; zeros beyond its ends."""
    if not _number(pred):
        return
    assert slot.read, "a tile is copied over one whose product was not waited for"
    rows = _number(at[0]) + tl.arange(0, matrix.tile[0])[:, None]
    columns = _number(at[1]) + tl.arange(0, matrix.tile[1])[None, :]
    inside = (rows < matrix.rows) & (columns < matrix.columns)
    slot.value = tl.load(pointer + rows * matrix.stride + columns, mask=inside, other=0)
    slot.read, slot.barrier = False, barrier
    if matrix.dtype == "tfloat32":
        slot.value = _nearest(slot.value)
    barrier.pending -= matrix.tile[0] * matrix.tile[1] * MAP_TYPES[matrix.dtype]
    assert barrier.pending >= 0, "more bytes than were expected"
    barrier.completed += barrier.pending == 0


_RUNNING: list[tuple[Slot, Slot]] = []
"""Operands of products that were not waited for, the oldest first."""


def warpgroup_mma(a: Slot, b: Slot, total: Any, is_async: bool) -> Any:
    _RUNNING.append((a.turns or a, b.turns or b))
    return tl.dot(_multiplied(a), _multiplied(b), total)


def warpgroup_mma_wait(outstanding: Any, deps: Any) -> Any:
    done = max(0, len(_RUNNING) - _number(outstanding))
    ended, _RUNNING[:] = _RUNNING[:done], _RUNNING[done:]
    for slot in {id(slot): slot for pair in ended for slot in pair}.values():
        slot.read = not any(slot in pair for pair in _RUNNING)
    return deps[0] if len(deps) == 1 else tuple(deps)


def _multiplied(slot: Slot) -> Any:
    tile = slot.turns or slot
    assert tile.barrier is not None
    assert tile.barrier.waited == tile.barrier.completed, "a tile is read before it was waited for"
    value = tile.value.to(tl.float32)  # The interpreter multiplies bfloat16 as if it were whole numbers.
    return value if tile is slot else tl.trans(value)


def _nearest(tile: Any) -> Any:
    bits = (tile.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(tile == tile, bits.to(tl.float32, bitcast=True), tile)


def _number(value: Any) -> int:
    """A scalar of the interpreter as a number."""
    handle = getattr(value, "handle", None)
    if handle is not None:
        return int(handle.data.reshape(-1)[0])
    return int(getattr(value, "value", value))
