"""Long lines sorted for a GPU: runs of them by a network of comparisons (tuner/schedule/sorting.py), which are then joined.

    all in order    neighbouring runs are merged two by two: each element of the result finds by bisection how many of those
                    before it are of the first run (S. Odeh and others, "Merge path", 2012), once for each doubling
    the first k     of each run are kept, and sorted again in runs, until there is one; k is at most half of a run

Elements are compared by whole numbers in their order (sorts.py), turned over where the largest one is first. Equal elements
keep their order. Between the kernels are places in the line, from which keys are read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import static_shape
from tuner.graph.one_function import dtype_of
from tuner.graph.sorts import Sort, key_of
from tuner.schedule.sorting import RUN, Sorting, workload
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

SHORT = 64
"""Elements of a line of which every two are compared with each other (scans.py): no kernel more, and threads for every line
that are busy."""
_LONGEST = (1 << 31) - RUN
"""Places are int32."""


def is_long(sort: Sort) -> bool:
    """Whether lines are sorted in runs."""
    return SHORT < sort.extent <= _LONGEST


def places_in_order(builder: Any, x: Any, sort: Sort, dtype: str) -> Any:
    """The places of the first elements of each line in order; x, the result and what is between are bound."""
    shape, keys = static_shape(x) or [], _keys(builder, x, sort.descending)

    def in_runs(given: Any, count: int) -> Any:
        extent = None if given is None else (static_shape(given) or [])[sort.axis]
        sorting = Sorting(shape=tuple(shape), dtype=dtype_of(keys), axis=sort.axis, given=extent, count=count)
        arguments = (keys,) if given is None else (keys, given)
        written = relax.TensorType(sorting.along(sorting.written), "int32")
        return builder.emit(relax.call_tir(builder.add_func(workload(sorting), "sort"), arguments, written))

    if 2 * sort.count <= RUN:
        found = in_runs(None, sort.count)
        while (left := (static_shape(found) or [])[sort.axis]) > sort.count:
            found = in_runs(found, sort.count)
            assert (static_shape(found) or [])[sort.axis] < left
    elif sort.extent <= RUN:
        found = in_runs(None, sort.count)
    else:
        found, run = in_runs(None, RUN), RUN
        while run < sort.extent:
            merge = _merge(sort.axis, run)
            found, run = builder.emit(builder.call_te(merge, keys, found, primfunc_name_hint="merge")), 2 * run
    return builder.emit(builder.call_te(_first, found, sort.axis, sort.count, dtype, primfunc_name_hint="places"))


def _keys(builder: Any, x: Any, descending: bool) -> Any:
    """Whole numbers of 32 or 64 bits, of which the first in order is the smallest."""
    if not descending and dtype_of(x) in ("int32", "int64"):
        return x

    def key(value: Any) -> Any:
        return ~key_of(value) if descending else key_of(value)

    made = builder.call_te(
        lambda x: te.compute(x.shape, lambda *at: key(x(*at)), name="keys"), x, primfunc_name_hint="keys"
    )
    return builder.emit(made)


def _first(places: Any, axis: int, count: int, dtype: str) -> Any:
    shape = [*places.shape[:axis], count, *places.shape[axis + 1 :]]
    return te.compute(shape, lambda *at: places(*at).astype(dtype), name="places")


def _merge(axis: int, run: int) -> Callable[[Any, Any], Any]:
    """(keys, places) -> the places with every two runs of so many along the axis as one."""

    def merged(keys: Any, places: Any) -> Any:
        return te.extern(
            [places.shape],
            [keys, places],
            lambda ins, outs: _merging(ins[0], ins[1], outs[0], axis, run),
            dtype="int32",
            name="merge",
        )

    return merged


def _merging(keys: Any, places: Any, out: Any, axis: int, run: int) -> Any:
    shape = [int(extent) for extent in out.shape]
    extent = shape[axis]
    with ir_builder.IRBuilder() as builder:
        with contextlib.ExitStack() as nest:
            at = [nest.enter_context(tir_script.serial(0, tirx.const(each, "int64"))) for each in shape]

            def place(position: Any) -> Any:
                return places[(*at[:axis], position, *at[axis + 1 :])]

            def key(place: Any) -> Any:
                return keys[(*at[:axis], place.astype("int64"), *at[axis + 1 :])]

            def number(value: int) -> Any:
                return tirx.const(value, "int64")

            begin = tirx.floordiv(at[axis], number(2 * run)) * number(2 * run)
            before, middle = at[axis] - begin, begin + number(run)
            first = tirx.min(number(run), number(extent) - begin)
            second = tirx.max(tirx.min(number(run), number(extent) - middle), number(0))
            low, high = (tir_script.alloc_buffer((1,), "int64", scope="local") for _ in range(2))
            tir_script.buffer_store(low, tirx.max(before - second, number(0)), [0])
            tir_script.buffer_store(high, tirx.min(before, first), [0])
            with tir_script.serial(0, run.bit_length()):
                half = tir_script.bind((low[0] + high[0]) >> number(1))
                with tir_script.If(low[0] < high[0]), tir_script.Then():
                    behind = tir_script.bind(key(place(middle + before - half - number(1))) < key(place(begin + half)))
                    tir_script.buffer_store(high, tirx.Select(behind, half, high[0]), [0])
                    tir_script.buffer_store(low, tirx.Select(behind, low[0], half + number(1)), [0])
            one, other = begin + low[0], middle + before - low[0]
            last = number(extent - 1)
            ones, others = (tir_script.bind(place(tirx.min(each, last))) for each in (one, other))
            of_first = tirx.all(low[0] < first, tirx.any(before - low[0] >= second, key(ones) <= key(others)))
            tir_script.buffer_store(out, tirx.Select(of_first, ones, others), at)
        return builder.get()
