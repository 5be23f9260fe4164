"""Tensor functions that sort runs of a line by a network of comparisons, and their kernel for a GPU.

    for every line along an axis, for every run of RUN elements of it:
        held[i] = (key of the element, its place in the line)
        for s = 0, 1, ..., for h = s, s - 1, ..., 0:  # after step s, all of 2^(s+1) neighbours are in order
            for every pair:  put the two elements held in order
        out[i] = the place of held[i], for the first `count`

In the first turn of a step (h = s) element i of 2^(s+1) meets the one as far from their end, in each other turn the one 2^h
behind it; the earlier one goes to the lower place always (K. E. Batcher, "Sorting networks and their applications", 1968, in
the form in which all comparisons have one direction). Keys are whole numbers in the order of the elements (graph/sorts.py).
Elements with equal keys are in the order of their places, so no two are equal, and any schedule has the same result.

A function may be given which places of a line it sorts, as those that other runs have found. The place behind the line, an
extent, is none: it comes last.

The pairs of a turn have no element in common, which TVM does not prove, so the workload is one opaque block. In its kernel
(`in_kernel`) a run is a thread block that holds it in shared memory, and threads divide the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.statements import INDEX_TYPE, buffer, integer, loop, whole
from tuner.tvm_compat import IRModule, ir, tirx, tvm, tvm_ffi

RUN = 2048
"""Elements that a thread block sorts, at most."""
THREADS = 1024
"""Of a thread block, at most."""
_PLACE_BITS = 32

Each = Callable[[int, Callable[[Any], Any]], Any]
"""(extent, body) -> a statement that does body(i) for every i below the extent, in any order."""
Held = tuple[Any, ...]
"""What holds a run: one buffer of words, each a key above a place, or for keys of 64 bits one of keys and one of places."""
Turn = Callable[[Any, Any, Held, Held], Any]
"""(s, h, from, to) -> a statement that puts all pairs of a turn in order. Where it reads and where it writes may be one."""
Turns = Callable[[int, Turn], tuple[Any, Held]]
"""(steps, turn) -> a statement that does turn(s, h, ..., ...) for every s below the steps, and for h = s, s - 1, ..., 0; and
where the run is after it."""


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """What such a function sorts, and how much of it is asked for."""

    shape: tuple[int, ...]
    """Of the keys."""
    dtype: str
    """Of the keys: int32 or int64."""
    axis: int
    given: int | None
    """Places of each line that are given; None where all elements of a line are sorted."""
    count: int
    """Of the first elements in order of a run that are written, at most half of a run's; or all of a run."""

    @property
    def elements(self) -> int:
        """Elements of a line that are sorted."""
        return self.shape[self.axis] if self.given is None else self.given

    @property
    def run(self) -> int:
        """Elements of a run: a power of two."""
        return min(RUN, 1 << (self.elements - 1).bit_length())

    @property
    def runs(self) -> int:
        """Runs of a line."""
        return -(-self.elements // self.run)

    @property
    def written(self) -> int:
        """Places that are written of a line."""
        return self.elements if self.count == self.run else self.runs * self.count

    def along(self, extent: int) -> tuple[int, ...]:
        """The shape of the keys with another extent of the lines."""
        return (*self.shape[: self.axis], extent, *self.shape[self.axis + 1 :])


def workload(sorting: Sorting) -> Any:
    """A function (keys, places that are given, if any, places that are found); places are int32."""
    tensors = _Tensors.of(sorting)

    def lines(axes: Sequence[int], at: tuple[Any, ...]) -> Any:
        if axes:
            return loop(f"i{axes[0]}", sorting.shape[axes[0]], lambda i: lines(axes[1:], (*at, i)))
        return loop("run", sorting.runs, lambda run: _run(sorting, tensors, at, run, each, turns))

    def each(extent: int, do: Callable[[Any], Any]) -> Any:
        return loop("i", extent, do)

    def turns(steps: int, turn: Turn) -> tuple[Any, Held]:
        (held,) = tensors.held

        def step(s: Any) -> Any:
            back = ir.Var("back", INDEX_TYPE)
            return tirx.For(back, integer(0), s + integer(1), tirx.ForKind.SERIAL, turn(s, s - back, held, held))

        return loop("step", steps, step), held

    others = [axis for axis in range(len(sorting.shape)) if axis != sorting.axis]
    return tensors.function(lines(others, ()))


def find_sorting(function: Any) -> Sorting | None:
    """What a function sorts; None where it is no such function."""
    if len(function.params) not in (2, 3) or any(not hasattr(param, "shape") for param in function.params):
        return None
    keys, *given, out = function.params
    shape, written = (tuple(map(int, each.shape)) for each in (keys, out))
    if str(keys.dtype) not in ("int32", "int64") or len(written) != len(shape):
        return None
    for axis, extent in enumerate(written):
        of_line = int(given[0].shape[axis]) if given and len(given[0].shape) == len(shape) else None
        found = Sorting(shape=shape, dtype=str(keys.dtype), axis=axis, given=of_line, count=1)
        for count in {found.run, -(-extent // found.runs)}:
            found = Sorting(shape=shape, dtype=str(keys.dtype), axis=axis, given=of_line, count=count)
            if count <= found.run and found.along(found.written) == written and _is_of(found, function):
                return found
    return None


def _is_of(sorting: Sorting, function: Any) -> bool:
    made = workload(sorting).with_attrs(dict(function.attrs or {}))
    return bool(tvm_ffi.structural_equal(made, function))


def in_kernel(mod: Any) -> Any:
    """The workload `mod`, such a function, as one kernel; parameters and results stay the same.

    Deterministic: equal modules give equal modules. Raises InvalidTrace where the workload is another function.
    """
    sorting = find_sorting(mod["main"])
    if sorting is None:
        raise InvalidTrace("the workload sorts no runs")
    tensors = _Tensors.of(sorting, "shared", copies=2)
    threads = min(THREADS, max(sorting.run // 2, 1))
    block, thread = ir.Var("block", "int64"), ir.Var("thread", INDEX_TYPE)

    def each(extent: int, do: Callable[[Any], Any]) -> Any:
        def turn(number: Any) -> Any:
            i = number * threads + thread
            return do(i) if extent % threads == 0 else tirx.IfThenElse(i < extent, do(i), None)

        return loop("turn", -(-extent // threads), turn)

    def turns(steps: int, turn: Turn) -> tuple[Any, Held]:
        """Each turn on its own, so that the compiler computes what is known of it; from one buffer to the other and back, so
        that threads meet once a turn."""
        one, other, statements = *tensors.held, list[Any]()
        for s in range(steps):
            for h in reversed(range(s + 1)):
                statements.append(turn(integer(s), integer(h), one, other))
                one, other = other, one
        return tirx.SeqStmt(statements), one

    place, at = tirx.floordiv(block, sorting.runs), list[Any]()
    for axis in reversed([axis for axis in range(len(sorting.shape)) if axis != sorting.axis]):
        at.insert(0, tirx.floormod(place, integer(sorting.shape[axis])))
        place = tirx.floordiv(place, integer(sorting.shape[axis]))
    body = tensors.block(_run(sorting, tensors, tuple(at), tirx.floormod(block, sorting.runs), each, turns))
    lines = math.prod(sorting.shape) // sorting.shape[sorting.axis]
    for variable, extent, name in ((thread, threads, "threadIdx.x"), (block, lines * sorting.runs, "blockIdx.x")):
        bound = tirx.IterVar(None, ir.Var(name, "int64"), tirx.IterVar.ThreadIndex, name)
        body = tirx.For(variable, integer(0), integer(extent), tirx.ForKind.THREAD_BINDING, body, bound)
    return IRModule({"main": tensors.function(body, held=()).with_attrs(dict(mod["main"].attrs or {}))})


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """The buffers of such a function."""

    keys: Any
    given: Any | None
    out: Any
    held: tuple[Held, ...]
    """Of which the first one gets the run."""

    @classmethod
    def of(cls, sorting: Sorting, scope: str = "global", copies: int = 1) -> _Tensors:
        types = ("int64",) if sorting.dtype == "int32" else ("int64", "int32")

        def held(copy: int) -> Held:
            return tuple(buffer(f"held{copy}_{at}", (sorting.run,), dtype, scope) for at, dtype in enumerate(types))

        return cls(
            keys=buffer("keys", sorting.shape, sorting.dtype),
            given=None if sorting.given is None else buffer("given", sorting.along(sorting.given), "int32"),
            out=buffer("out", sorting.along(sorting.written), "int32"),
            held=tuple(map(held, range(copies))),
        )

    def block(self, body: Any) -> Any:
        """An opaque block around statements, with the buffers that hold a run."""
        reads = [whole(each) for each in (self.keys, self.given) if each is not None]
        held = [each for copy in self.held for each in copy]
        block = tvm.s_tir.SBlock([], reads, [whole(self.out)], "sorting", body, None, held, [], {})
        return tvm.s_tir.SBlockRealize([], True, block)

    def function(self, body: Any, held: Sequence[Any] | None = None) -> Any:
        """The function of a body, which is put into a block unless it holds one."""
        body = self.block(body) if held is None else body
        root = tvm.s_tir.SBlock([], [], [], "root", body, None, [], [], {})
        params = [each for each in (self.keys, self.given, self.out) if each is not None]
        return tirx.PrimFunc(params, tvm.s_tir.SBlockRealize([], True, root)).with_attrs({"tirx.noalias": True})


def _run(sorting: Sorting, tensors: _Tensors, line: tuple[Any, ...], run: Any, each: Each, turns: Turns) -> Any:
    """Statements that sort a run of a line; line: its indices along the other axes."""
    extent, elements, last = sorting.shape[sorting.axis], sorting.elements, sorting.runs * sorting.run

    def at(index: Any) -> tuple[Any, ...]:
        return (*line[: sorting.axis], index, *line[sorting.axis :])

    def load(i: Any) -> Any:
        position, place = run * sorting.run + i, ir.Var("place", "int32")
        found = tirx.Cast("int32", position) if tensors.given is None else tensors.given[at(position)]
        if elements < last:
            found = tirx.if_then_else(position < elements, found, tirx.const(extent, "int32"))
        key = tensors.keys[at(tirx.Cast("int64", place))]
        if elements < last or tensors.given is not None:
            key = tirx.if_then_else(place < extent, key, tirx.max_value(sorting.dtype))
        held = tensors.held[0]
        if len(held) == 1:
            word = (tirx.Cast("int64", key) << tirx.const(_PLACE_BITS, "int64")) | tirx.Cast("int64", place)
            stores = [tirx.BufferStore(held[0], word, [i])]
        else:
            stores = [tirx.BufferStore(held[0], key, [i]), tirx.BufferStore(held[1], place, [i])]
        return tirx.SeqStmt([tirx.Bind(place, found), *stores])

    def turn(s: Any, h: Any, source: Held, to: Held) -> Any:
        def pair(p: Any) -> Any:
            one, above = integer(1), tirx.shift_right(p, h)
            i = p + tirx.shift_left(above, h)  # the bits above h make room for a zero
            mask = tirx.Select(tirx.EQ(s, h), tirx.shift_left(integer(2), h) - one, tirx.shift_left(one, h))
            return _in_order(source, to, i, tirx.bitwise_xor(i, mask))

        return each(sorting.run // 2, pair)

    def store(i: Any) -> Any:
        place = held[-1][i]
        place = tirx.Cast("int32", place & tirx.const((1 << _PLACE_BITS) - 1, "int64")) if len(held) == 1 else place
        position = run * sorting.count + i
        written = tirx.BufferStore(tensors.out, place, at(position))
        if sorting.written < sorting.runs * sorting.count:
            return tirx.IfThenElse(position < sorting.written, written, None)
        return written

    in_order, held = turns(sorting.run.bit_length() - 1, turn)
    return tirx.SeqStmt([each(sorting.run, load), in_order, each(sorting.count, store)])


def _in_order(source: Held, to: Held, i: Any, j: Any) -> Any:
    """A statement that writes two elements, the one before the other first."""
    low, high = ir.Var("low", INDEX_TYPE), ir.Var("high", INDEX_TYPE)
    binds: list[Any] = [tirx.Bind(low, i), tirx.Bind(high, j)]
    ones, others = list[Any](), list[Any]()
    for at, each in enumerate(source):
        one, other = (ir.Var(f"{name}{at}", str(each.dtype)) for name in ("one", "other"))
        binds += [tirx.Bind(one, each[low]), tirx.Bind(other, each[high])]
        ones.append(one)
        others.append(other)
    swaps = others[0] < ones[0]
    if len(source) == 2:
        swaps = tirx.any(swaps, tirx.all(tirx.EQ(ones[0], others[0]), others[1] < ones[1]))
    stores = list[Any]()
    for each, one, other in zip(to, ones, others, strict=True):
        stores.append(tirx.BufferStore(each, tirx.Select(swaps, other, one), [low]))
        stores.append(tirx.BufferStore(each, tirx.Select(swaps, one, other), [high]))
    return tirx.SeqStmt([*binds, *stores])
