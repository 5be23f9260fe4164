"""How the functions of this package are written: arrays that are indexed and assigned to, loops, and branches.

An expression that reads an array reads what stands there where the expression is used, not where it was made: what is to
be overwritten is held first (`Kernel.hold`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.tvm_compat import ir, ir_builder, tir_script, tirx, tvm

INDEX = "int64"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A parameter or a result, without its batch."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Array:
    """A buffer, or what it holds for one matrix of the batch. Indices are integers or expressions."""

    buffer: Any
    prefix: tuple[Any, ...] = ()

    def __getitem__(self, at: Any) -> Any:
        return self.buffer[self._place(at)]

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(value, (int, float)):
            value = tirx.const(value, self.dtype)
        elif str(value.ty.dtype) != self.dtype:
            value = tirx.Cast(self.dtype, value)
        tir_script.buffer_store(self.buffer, value, list(self._place(at)))

    @property
    def dtype(self) -> str:
        return str(self.buffer.dtype)

    def _place(self, at: Any) -> tuple[Any, ...]:
        indices = at if isinstance(at, tuple) else (at,)
        return (*self.prefix, *(integer(i) if isinstance(i, int) else i for i in indices))


class Scalar:
    """A variable of the function."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def now(self) -> Any:
        """What it holds where the expression is used."""
        return self._array[0]

    def set(self, value: Any) -> None:
        self._array[0] = value


class Kernel:
    """A function that is being written, and the memory that it needs."""

    def __init__(self) -> None:
        self.allocated: list[Any] = []

    def array(self, shape: Sequence[int], dtype: str = "float64") -> Array:
        buffer = tirx.decl_buffer([integer(extent) for extent in shape], dtype, f"memory{len(self.allocated)}")
        self.allocated.append(buffer)
        return Array(buffer)

    def scalar(self, dtype: str = "float64") -> Scalar:
        return Scalar(self.array([1], dtype))

    def index(self, value: Any = None) -> Scalar:
        found = self.scalar(INDEX)
        if value is not None:
            found.set(value)
        return found

    def hold(self, value: Any) -> Any:
        """The value as it is here, whatever is written later."""
        found = self.scalar(str(value.ty.dtype))
        found.set(value)
        return found.now


Body = Callable[..., None]
"""Of a kernel, the parameters and the results of one matrix, as arrays: writes the results."""


def matrix_function(name: str, batch: int, parameters: Sequence[Tensor], results: Sequence[Tensor], body: Body) -> Any:
    """A tensor function of (parameters, results), each [batch, *shape], that does `body` for one matrix after another."""
    buffers = [
        tirx.decl_buffer([integer(batch), *map(integer, tensor.shape)], tensor.dtype, f"{letter}{at}")
        for letter, tensors in (("x", parameters), ("y", results))
        for at, tensor in enumerate(tensors)
    ]
    kernel = Kernel()
    with ir_builder.IRBuilder() as builder:
        with each(batch) as one:
            body(kernel, *(Array(buffer, (one,)) for buffer in buffers))
        loops = builder.get()
    written = buffers[len(parameters) :]
    reads, writes = ([_whole(buffer) for buffer in part] for part in (buffers[: len(parameters)], written))
    block = tvm.s_tir.SBlock([], reads, writes, name, loops, None, [], [], {})
    realized = tvm.s_tir.SBlockRealize([], True, block)
    root = tvm.s_tir.SBlock([], [], [], "root", realized, None, kernel.allocated, [], {})
    function = tirx.PrimFunc(buffers, tvm.s_tir.SBlockRealize([], True, root))
    return function.with_attrs({"tirx.noalias": True})


def _whole(buffer: Any) -> Any:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(integer(0), extent) for extent in buffer.shape])


def integer(value: int) -> Any:
    return tirx.const(value, INDEX)


def real(value: float) -> Any:
    return tirx.const(value, "float64")


# Statements


@contextlib.contextmanager
def each(*bounds: Any) -> Iterator[Any]:
    """A loop over [0, stop) or [start, stop): a context that gives the index. Empty where stop <= start.

    Loops begin at 0: TVM's CanonicalizeLoop takes the wrong variable where a loop begins at the variable of another that
    does not.
    """
    start, stop = bounds if len(bounds) == 2 else (0, bounds[0])
    start, stop = (integer(end) if isinstance(end, int) else end for end in (start, stop))
    if len(bounds) == 1:
        with tir_script.serial(0, stop) as index:
            yield index
    else:
        with tir_script.serial(0, tirx.max(stop - start, 0)) as step:
            yield start + step


@contextlib.contextmanager
def down(count: Any) -> Iterator[Any]:
    """A loop over count - 1, ..., 0."""
    with each(count) as turned:
        yield count - 1 - turned


@contextlib.contextmanager
def when(*conditions: Any) -> Iterator[None]:
    """What is written inside happens where all conditions hold."""
    with tir_script.If(tirx.all(*conditions)), tir_script.Then():
        yield


@contextlib.contextmanager
def branch(condition: Any) -> Iterator[tuple[Any, Any]]:
    """Two contexts: what happens where the condition holds, and what happens else."""
    with tir_script.If(condition):
        yield tir_script.Then(), tir_script.Else()


# Expressions


def choose(condition: Any, yes: Any, no: Any) -> Any:
    return tirx.Select(condition, yes, no)


def signed(size: Any, sign: Any) -> Any:
    """|size| with the sign of a number, which zeros have as well."""
    return tirx.copysign(tirx.abs(size), sign)


def root(value: Any) -> Any:
    return tirx.sqrt(value)


def hypotenuse(a: Any, b: Any) -> Any:
    return tirx.sqrt(a * a + b * b)


def roundoff(dtype: str) -> float:
    """LAPACK's eps: half the distance from 1 to the next number."""
    return math.ldexp(1.0, -53 if dtype == "float64" else -24)
