"""Tensor functions that sort runs of a line by a network of comparisons, and their kernel for a GPU.

    for every line along an axis, for every run of it:
        held[i] = the words of the run, and behind the end of the line the largest one
        for s = 0, 1, ..., for h = s, s - 1, ..., 0:  # after step s, all of 2^(s+1) neighbours are in order
            for every pair:  put the two words in order
        out[i] = held[i], for the first `count`

In the first turn of a step (h = s) element i of 2^(s+1) meets the one as far from their end, in each other turn the one 2^h
behind it; the smaller one goes to the lower place always (K. E. Batcher, "Sorting networks and their applications", 1968, in
the form in which all comparisons have one direction). A word of 64 bits is a key and a place, so no two are equal
(graph/run_sorts.py), and any schedule has the same result.

The pairs of a turn have no element in common, which TVM does not prove, so the workload is one opaque block. In its kernel
(`in_kernel`) a run is a thread block that holds it in shared memory. A thread does several turns at a time with the words in
registers: those that such turns put in order among themselves. Turns are in loops though they are known: one after the other
they are 46 KB of code, each instruction of which a multiprocessor would have to fetch to use it once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.statements import INDEX_TYPE, bound_to_threads, buffer, integer, loop, whole
from tuner.tvm_compat import IRModule, ir, tirx, tvm, tvm_ffi

WORD = "int64"
_PLACE = "int32"
"""Of a word in a run."""
RUN = 2048
"""Elements that a thread block sorts, at most."""
LONG, DEPTH, DEPTH_OF_SHORT = 512, 3, 2
"""A thread has 2^DEPTH words in registers in runs of LONG elements and more, and fewer in shorter ones, for a whole warp."""
PAD = 3
"""After every 2^PAD words of shared memory one is left out, so that threads that read every 2^PAD-th are in other banks."""

Each = Callable[[int, Callable[[Any], Any]], Any]
"""(extent, body) -> a statement that does body(i) for every i below the extent, in any order."""


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """What such a function sorts, and how much of it is asked for."""

    shape: tuple[int, ...]
    """Of the words."""
    axis: int
    count: int
    """Of the first elements in order of a run that are written, at most half of a run's; or all of a run."""

    @property
    def elements(self) -> int:
        """Of a line."""
        return self.shape[self.axis]

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
        """Elements that are written of a line."""
        return self.elements if self.count == self.run else self.runs * self.count

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of what is written."""
        return (*self.shape[: self.axis], self.written, *self.shape[self.axis + 1 :])


def workload(sorting: Sorting) -> Any:
    """A function (words, words in order)."""
    tensors = _Tensors.of(sorting)
    held = buffer("held", (sorting.run,), WORD)

    def lines(axes: Sequence[int], at: tuple[Any, ...]) -> Any:
        if axes:
            return loop(f"i{axes[0]}", sorting.shape[axes[0]], lambda i: lines(axes[1:], (*at, i)))
        return loop("run", sorting.runs, lambda run: sort(at, run))

    def sort(line: tuple[Any, ...], run: Any) -> Any:
        def step(s: Any) -> Any:
            back = ir.Var("back", INDEX_TYPE)
            return tirx.For(back, integer(0), s + integer(1), tirx.ForKind.SERIAL, turn(s, s - back))

        def turn(s: Any, h: Any) -> Any:
            def pair(p: Any) -> Any:
                one = integer(1)
                i = p + tirx.shift_left(tirx.shift_right(p, h), h)  # the bits above h make room for a zero
                mask = tirx.Select(tirx.EQ(s, h), tirx.shift_left(integer(2), h) - one, tirx.shift_left(one, h))
                return _in_order(held, i, tirx.bitwise_xor(i, mask))

            return loop("pair", sorting.run // 2, pair)

        return tirx.SeqStmt(
            [
                loop("i", sorting.run, lambda i: tirx.BufferStore(held, tensors.read(line, run, i), [i])),
                loop("step", sorting.run.bit_length() - 1, step),
                loop("i", sorting.count, lambda i: tensors.write(line, run, i, held[i])),
            ]
        )

    others = [axis for axis in range(len(sorting.shape)) if axis != sorting.axis]
    return tensors.function(tensors.block(lines(others, ()), [held]))


def find_sorting(function: Any) -> Sorting | None:
    """What a function sorts; None where it is no such function."""
    if len(function.params) != 2 or any(not hasattr(param, "shape") for param in function.params):
        return None
    shape, written = (tuple(map(int, each.shape)) for each in function.params)
    if len(written) != len(shape):
        return None
    for axis, extent in enumerate(written):
        found = Sorting(shape=shape, axis=axis, count=1)
        for count in {found.run, -(-extent // found.runs)}:
            found = Sorting(shape=shape, axis=axis, count=count)
            if count <= found.run and found.result == written and _is_of(found, function):
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
    tensors, steps = _Tensors.of(sorting), sorting.run.bit_length() - 1
    depth = min(DEPTH if sorting.run >= LONG else DEPTH_OF_SHORT, steps)
    threads = sorting.run >> depth
    held, words = buffer("held", (_padded(sorting.run),), WORD, "shared"), buffer("words", (1 << depth,), WORD, "local")
    group = _Group(held=held, words=words, first=buffer("first", (1,), _PLACE, "local"), depth=depth)

    def kernel(block: Any, thread: Any) -> Any:
        def each(extent: int, do: Callable[[Any], Any]) -> Any:
            def part(number: Any) -> Any:
                i = number * threads + thread
                return do(i) if extent % threads == 0 else tirx.IfThenElse(i < extent, do(i), None)

            return loop("part", -(-extent // threads), part)

        def step(number: Any) -> Any:
            """Step s = number + depth: its first turns, then the others, of which the last group may do some again."""
            s = tirx.Cast(_PLACE, number) + depth
            rest = ir.Var("rest", INDEX_TYPE)
            low = tirx.max(s - (2 * depth - 1) - depth * tirx.Cast(_PLACE, rest), tirx.const(0, _PLACE))
            others = group.in_order(thread, low, [(h, 1 << h) for h in reversed(range(depth))])
            count = tirx.floordiv(number, integer(depth)) + integer(1)
            turns = tirx.For(rest, integer(0), count, tirx.ForKind.SERIAL, others)
            return tirx.SeqStmt([group.mirrored(thread, s - (depth - 1)), turns])

        place, at = tirx.floordiv(block, sorting.runs), list[Any]()
        for axis in reversed([axis for axis in range(len(sorting.shape)) if axis != sorting.axis]):
            at.insert(0, tirx.floormod(place, integer(sorting.shape[axis])))
            place = tirx.floordiv(place, integer(sorting.shape[axis]))
        line, run = tuple(at), tirx.floormod(block, sorting.runs)
        within = [(h, (2 << h) - 1 if s == h else 1 << h) for s in range(depth) for h in reversed(range(s + 1))]
        statements = [
            each(sorting.run, lambda i: tirx.BufferStore(held, tensors.read(line, run, i), [_padded(i)])),
            group.in_order(thread, tirx.const(0, _PLACE), within),
            *([loop("step", steps - depth, step)] if steps > depth else []),
            each(sorting.count, lambda i: tensors.write(line, run, i, held[_padded(i)])),
        ]
        return tensors.block(tirx.SeqStmt(statements), [held, words, group.first])

    lines = math.prod(sorting.shape) // sorting.elements
    body = bound_to_threads({"blockIdx.x": lines * sorting.runs, "threadIdx.x": threads}, kernel)
    return IRModule({"main": tensors.function(body).with_attrs(dict(mod["main"].attrs or {}))})


def _padded(i: Any) -> Any:
    """The place in shared memory of a word of a run; also how many words are before it."""
    return i + (i >> PAD)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The words of a run that a thread has at a time: 2^depth, whose places differ in `depth` neighbouring bits, or in all
    bits below as well (`mirrored`)."""

    held: Any
    words: Any
    first: Any
    """The place of the first of them: all of the bits are zero."""
    depth: int

    def in_order(self, i: Any, low: Any, turns: Sequence[tuple[int, int]]) -> Any:
        """A statement that reads group i, the lowest of whose bits is `low`, does turns, and writes it.

        turns: (h, mask): compared are words whose numbers in the group differ by the mask, of which h is the highest bit.
        """
        pairs = [(k, k ^ mask) for h, mask in turns for k in self._numbers if not k >> h & 1]
        return self._done(i, low, lambda first, k: first + (k << low), pairs)

    def mirrored(self, i: Any, low: Any) -> Any:
        """The same for the first turns of a step, whose first one compares places that differ in all bits up to the group's
        highest one: what has that bit has the others turned over."""
        top = self.depth - 1
        mask = (tirx.const(2 << top, _PLACE) << low) - 1

        def place(first: Any, k: int) -> Any:
            own = first + ((k & ~(1 << top)) << low)
            return own ^ mask if k >> top else own

        rest = [
            (k, k ^ 1 << h) for h in reversed(range(top)) for k in self._numbers if (k >> h & 1) == k >> top
        ]  # the one at the lower place, whose bit is zero once it is turned over
        return self._done(i, low, place, [(k, k ^ 1 << top) for k in self._numbers if not k >> top] + rest)

    @property
    def _numbers(self) -> range:
        return range(1 << self.depth)

    def _done(self, i: Any, low: Any, place: Callable[[Any, int], Any], pairs: Sequence[tuple[int, int]]) -> Any:
        first, zero = self.first[integer(0)], integer(0)
        above = tirx.shift_right(tirx.Cast(_PLACE, i), low) << low
        room = tirx.BufferStore(self.first, tirx.Cast(_PLACE, i) + above * ((1 << self.depth) - 1), [zero])
        places = [(integer(k), _padded(place(first, k))) for k in self._numbers]
        return tirx.SeqStmt(
            [
                room,
                *(tirx.BufferStore(self.words, self.held[at], [k]) for k, at in places),
                *(_in_order(self.words, integer(one), integer(other)) for one, other in pairs),
                *(tirx.BufferStore(self.held, self.words[k], [at]) for k, at in places),
            ]
        )


def _in_order(words: Any, i: Any, j: Any) -> Any:
    """A statement that puts the smaller of two words at i, the other one at j."""
    low, high = ir.Var("low", INDEX_TYPE), ir.Var("high", INDEX_TYPE)
    one, other = ir.Var("one", WORD), ir.Var("other", WORD)
    return tirx.SeqStmt(
        [
            *(tirx.Bind(low, i), tirx.Bind(high, j)),
            *(tirx.Bind(one, words[low]), tirx.Bind(other, words[high])),
            tirx.BufferStore(words, tirx.Select(other < one, other, one), [low]),
            tirx.BufferStore(words, tirx.Select(other < one, one, other), [high]),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """The parameters of such a function."""

    sorting: Sorting
    words: Any
    out: Any

    @classmethod
    def of(cls, sorting: Sorting) -> _Tensors:
        """New ones."""
        return cls(sorting=sorting, words=buffer("words", sorting.shape, WORD), out=buffer("out", sorting.result, WORD))

    def read(self, line: tuple[Any, ...], run: Any, i: Any) -> Any:
        """Word i of a run of a line, whose indices along the other axes are given."""
        position = run * self.sorting.run + i
        word = self.words[self._at(line, position)]
        if self.sorting.elements == self.sorting.runs * self.sorting.run:
            return word
        return tirx.if_then_else(position < self.sorting.elements, word, tirx.max_value(WORD))

    def write(self, line: tuple[Any, ...], run: Any, i: Any, word: Any) -> Any:
        """A statement that writes word i in order."""
        position = run * self.sorting.count + i
        written = tirx.BufferStore(self.out, word, self._at(line, position))
        if self.sorting.written == self.sorting.runs * self.sorting.count:
            return written
        return tirx.IfThenElse(position < self.sorting.written, written, None)

    def _at(self, line: tuple[Any, ...], index: Any) -> tuple[Any, ...]:
        return (*line[: self.sorting.axis], index, *line[self.sorting.axis :])

    def block(self, body: Any, held: Sequence[Any]) -> Any:
        """An opaque block around statements, with the buffers that it keeps meanwhile."""
        reads, writes = [whole(self.words)], [whole(self.out)]
        block = tvm.s_tir.SBlock([], reads, writes, "sorting", body, None, list(held), [], {})
        return tvm.s_tir.SBlockRealize([], True, block)

    def function(self, body: Any) -> Any:
        """The function of a body that holds such a block."""
        root = tvm.s_tir.SBlock([], [], [], "root", body, None, [], [], {})
        function = tirx.PrimFunc([self.words, self.out], tvm.s_tir.SBlockRealize([], True, root))
        return function.with_attrs({"tirx.noalias": True})
