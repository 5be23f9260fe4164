"""Sorts for a CPU: a radix sort of keys, and for a few elements in order an insertion into those found so far.

Elements are compared by their keys, whole numbers in the same order (`key_of`): -0 equals 0, and what is no number is the
largest. Equal elements keep their order. Lines along the axis are sorted one by one; threads divide them. TVM's own
functions sort with one thread, by comparisons.

    radix sort    O(extent) for each digit of a key, the lowest first (H. H. Seward, 1954)
    the first k   an element that is not before the k-th so far costs one comparison, a whole block of such a fraction of one
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.one_function import dtype_of
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

SORTS = ("relax.argsort", "relax.sort", "relax.topk")
FEW = 64
"""Elements of a line that are inserted one after another instead of sorted by digits."""
BLOCK = 16
"""Elements that are compared at once with the last one of those found so far."""
LEAST_PARALLEL = 1 << 14
"""Elements whose lines threads divide among themselves."""
_LONG = 1 << 12
"""From this extent on digits have 11 bits, of which a table fits the first cache, and below it 8."""


@dataclass(frozen=True, kw_only=True)
class Sort:
    """What a sorting operator of Relax asks for."""

    axis: int
    extent: int
    count: int
    """Elements in order that the result has, at most the extent."""
    descending: bool
    values: bool
    places: bool
    """Which results there are: the elements, their places, or both in this order."""

    @classmethod
    def of(cls, call: Any) -> Sort:
        """Of a call whose operand has a known shape of one dimension or more."""
        name, attrs, shape = op_name(call), call.attrs, static_shape(call.args[0]) or []
        axis = int(attrs.axis) % len(shape)
        top = name == "relax.topk"
        results = str(attrs.ret_type) if top else ("values" if name == "relax.sort" else "indices")
        count = int(attrs.k) if top and int(attrs.k) > 0 else shape[axis]
        return cls(
            axis=axis,
            extent=shape[axis],
            count=min(count, shape[axis]),
            descending=bool(attrs.largest) if top else bool(attrs.descending),
            values=results in ("values", "both"),
            places=results in ("indices", "both"),
        )


def sorts(mod: Any) -> Iterator[Any]:
    """The sorting calls of the module's main that have elements, whose shapes are known and whose elements are numbers."""
    def_use = DefUse(mod["main"])
    for name in SORTS:
        for _, call in def_use.calls(name):
            shape = static_shape(call.args[0])
            if shape and 0 not in shape and dtype_of(call.args[0]) != "bool":
                yield call


def decompose_sorts(mod: Any) -> Any:
    """The module with sorts of main as tensor functions for a CPU; bindings canonical."""
    return replace_calls(mod, {call: _replacement(call) for call in sorts(mod)})


def key_of(value: Any) -> Any:
    """A whole number of 32 or 64 bits, signed, in the order of a number.

    Bits of floating-point numbers are in the order of their sizes; those of negative numbers are turned over.
    """
    dtype = str(value.ty.dtype)
    if dtype == "uint64":
        return value.astype("int64") ^ tirx.min_value("int64")
    if not dtype.startswith(("float", "bfloat")):
        return value if dtype in ("int32", "int64") else value.astype("int64" if dtype == "uint32" else "int32")
    value = value if dtype == "float64" else value.astype("float32")
    kind, mantissa, exponent = ("int64", 52, 11) if dtype == "float64" else ("int32", 23, 8)
    width = mantissa + exponent
    largest, infinity = (1 << width) - 1, ((1 << exponent) - 1) << mantissa

    def number(value: int) -> Any:
        return tirx.const(value, kind)

    bits = tirx.reinterpret(kind, value)
    size = bits & number(largest)
    ordered = bits ^ ((bits >> number(width)) & number(largest))
    ordered = tirx.Select(size == number(0), number(0), ordered)
    return tirx.Select(size > number(infinity), number(largest), ordered)


def _replacement(call: Any) -> Replacement:
    sort = Sort.of(call)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x = current(call.args[0])
        dtype = str(call.attrs.dtype) if sort.places else "int64"
        places = builder.emit(builder.call_te(lambda x: _places(x, sort, dtype), x, primfunc_name_hint="sort"))
        if not sort.values:
            return places
        values = builder.call_te(elements_at, x, places, sort.axis, primfunc_name_hint="sorted")
        return relax.Tuple([builder.emit(values), places]) if sort.places else values

    return replacement


def elements_at(x: Any, places: Any, axis: int) -> Any:
    """The elements of x at places of each line along an axis."""
    return te.compute(places.shape, lambda *at: x[(*at[:axis], places[at], *at[axis + 1 :])], name="sorted")


def _places(x: Any, sort: Sort, dtype: str) -> Any:
    shape = [int(extent) for extent in x.shape]
    shape[sort.axis] = sort.count
    return te.extern([shape], [x], lambda ins, outs: _kernel(sort, ins[0], outs[0]), dtype=dtype, name="sort")


def _kernel(sort: Sort, x: Any, out: Any) -> Any:
    shape = [int(extent) for extent in x.shape]
    others = [axis for axis in range(len(shape)) if axis != sort.axis and shape[axis] > 1]
    with ir_builder.IRBuilder() as builder:
        with tir_script.seq_scope(), contextlib.ExitStack() as nest:
            at: dict[int, Any] = dict.fromkeys(range(len(shape)), 0)
            for axis in others:
                divided = axis == others[0] and math.prod(shape) >= LEAST_PARALLEL
                loop = tir_script.parallel if divided else tir_script.serial
                at[axis] = nest.enter_context(loop(0, shape[axis]))
            line = _Line(sort, x, out, at)
            if sort.extent <= FEW or sort.count**2 <= 8 * sort.extent:
                line.insert()
            else:
                line.sort_by_digits()
        return builder.get()


class _Line:
    """Statements that sort one line of a tensor along the axis; what is written is the places."""

    def __init__(self, sort: Sort, x: Any, out: Any, at: dict[int, Any]) -> None:
        self._sort, self._x, self._out, self._at = sort, x, out, at
        self._kind = str(self._key(0).ty.dtype)
        self._bits = 64 if self._kind == "int64" else 32

    def _indices(self, place: Any) -> tuple[Any, ...]:
        return tuple(place if axis == self._sort.axis else index for axis, index in self._at.items())

    def _key(self, place: Any) -> Any:
        """Of what comes earlier, the smaller one."""
        key = key_of(self._x[self._indices(place)])
        return ~key if self._sort.descending else key

    def _write(self, position: Any, place: Any) -> None:
        tir_script.buffer_store(self._out, place.astype(str(self._out.dtype)), self._indices(position))

    def insert(self) -> None:
        """Those found so far are in order behind a key that is before all; each element moves those it is before."""
        count, extent = self._sort.count, self._sort.extent
        keys, places = _local(count + 2, self._kind), _local(count + 2, "int32")
        here = _local(1, "int32")
        tir_script.buffer_store(keys, tirx.min_value(self._kind), [0])

        def put(place: Any, start: int) -> None:
            """Found so far: `start` at most, of which one more leaves those that are kept."""
            key = tir_script.bind(self._key(place))
            tir_script.buffer_store(here, start, [0])
            with tir_script.While(keys[here[0]] > key):
                tir_script.buffer_store(keys, keys[here[0]], [here[0] + 1])
                tir_script.buffer_store(places, places[here[0]], [here[0] + 1])
                tir_script.buffer_store(here, here[0] - 1, [0])
            tir_script.buffer_store(keys, key, [here[0] + 1])
            tir_script.buffer_store(places, place, [here[0] + 1])

        with tir_script.serial(0, count) as place:
            put(place, place)
        with tir_script.serial(0, (extent - count) // BLOCK) as block:
            self._where_one_is_before(keys[count], count + block * BLOCK, BLOCK, lambda place: put(place, count))
        if rest := (extent - count) % BLOCK:
            self._where_one_is_before(keys[count], extent - rest, rest, lambda place: put(place, count))
        with tir_script.serial(0, count) as position:
            self._write(position, places[position + 1])

    def _where_one_is_before(self, last: Any, begin: Any, extent: int, put: Callable[[Any], None]) -> None:
        """Puts those of a block that are before the last one, where there is one."""
        least = _local(1, self._kind)
        tir_script.buffer_store(least, tirx.max_value(self._kind), [0])
        with tir_script.serial(0, extent) as step:
            tir_script.buffer_store(least, tirx.min(least[0], self._key(begin + step)), [0])
        with contextlib.ExitStack() as nest:
            nest.enter_context(tir_script.If(least[0] < last))
            nest.enter_context(tir_script.Then())
            place = begin + nest.enter_context(tir_script.serial(0, extent))
            nest.enter_context(tir_script.If(self._key(place) < last))
            nest.enter_context(tir_script.Then())
            put(place)

    def sort_by_digits(self) -> None:
        """By the lowest digit first, each time in order of the digits before; the last time into the result."""
        extent, digit = self._sort.extent, 11 if self._sort.extent >= _LONG else 8
        turns, size = -(-self._bits // digit), 1 << digit
        keys = [_local(extent, self._kind) for _ in range(2)]
        places = [_local(extent, "int32") for _ in range(2)]
        starts, sum_so_far = _local(turns * size, "int32"), _local(1, "int32")

        def bin_of(key: Any, turn: int) -> Any:
            shifted = key >> tirx.const(turn * digit, self._kind) if turn else key
            return turn * size + (shifted & tirx.const(size - 1, self._kind)).astype("int32")

        def add(bin: Any, number: Any) -> None:
            tir_script.buffer_store(starts, starts[bin] + number, [bin])

        with tir_script.serial(0, turns * size) as bin:
            tir_script.buffer_store(starts, 0, [bin])
        with tir_script.serial(0, extent) as place:
            key = tir_script.bind(self._key(place) ^ tirx.min_value(self._kind))
            tir_script.buffer_store(keys[0], key, [place])
            for turn in range(turns):
                add(bin_of(key, turn), 1)
        for turn in range(turns):
            tir_script.buffer_store(sum_so_far, 0, [0])
            with tir_script.serial(0, size) as bin:
                here = tir_script.bind(starts[turn * size + bin])
                tir_script.buffer_store(starts, sum_so_far[0], [turn * size + bin])
                tir_script.buffer_store(sum_so_far, sum_so_far[0] + here, [0])
        for turn in range(turns):
            (key_from, key_to), (place_from, place_to) = (
                keys[:: -1 if turn % 2 else 1],
                places[:: -1 if turn % 2 else 1],
            )
            with tir_script.serial(0, extent) as step:
                key = tir_script.bind(key_from[step])
                bin = tir_script.bind(bin_of(key, turn))
                position = tir_script.bind(starts[bin])
                place = place_from[step] if turn else step
                add(bin, 1)
                if turn < turns - 1:
                    tir_script.buffer_store(key_to, key, [position])
                    tir_script.buffer_store(place_to, place, [position])
                elif self._sort.count == extent:
                    self._write(position, place)
                else:
                    with tir_script.If(position < self._sort.count), tir_script.Then():
                        self._write(position, place)


def _local(extent: int, dtype: str) -> Any:
    return tir_script.alloc_buffer((extent,), dtype)
