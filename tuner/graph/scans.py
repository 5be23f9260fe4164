"""Cumulative sums and products, and sorts, as reductions: a GPU runs them with the schedules of any other reduction.

    cumsum: y[i] = sum over k <= i of x[k]; beyond LONGEST elements over those of its part, behind that of all parts before
    sort:   rank[i] = number of k with x[k] before x[i];  y[r] = the x[i] of rank r, which is a sum with one term

An element comes before another one that is larger, or equal and behind it, so that equal elements keep their order; what is
no number is the largest. TVM's functions for a GPU are scheduled already, and call runtime functions that no program of ours
has. Ranks are for short lines, as their work grows with the square of the length; longer ones are sorted by run_sorts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, reshaped, static_shape
from tuner.graph.one_function import HALF, SUMS, dtype_of
from tuner.graph.run_sorts import is_long, places_in_order
from tuner.graph.sorts import Sort, elements_at, sorts
from tuner.tvm_compat import relax, te, tirx

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")
_SCANS = {"relax.cumprod": (_PRODUCT, 1), "relax.cumsum": (te.sum, 0)}
_SCANNED: dict[str, Callable[[Any, Any], Any]] = {
    "relax.cumprod": lambda a, b: a * b,
    "relax.cumsum": lambda a, b: a + b,
}
LONGEST = 256
"""Elements along an axis that are scanned by one kernel, each from the first one."""
CHUNK = 64
"""Elements of a part of a longer one."""


def decompose_scans(mod: Any) -> Any:
    """The module with cumulative operators and sorts of main as reductions. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {call: _sort(call) for call in sorts(mod)}
    for name in _SCANS:
        for _, call in def_use.calls(name):
            shape = static_shape(call.args[0])
            if shape and 0 not in shape and dtype_of(call.args[0]) != "bool":
                replacements[call] = _scan(call)
    return replace_calls(mod, replacements)


def _scan(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, dtype, name = current(call.args[0]), dtype_of(call), op_name(call)
        if call.attrs.axis is None:
            x = builder.emit(reshaped(x, static_shape(call) or []))
        axis = int(call.attrs.axis or 0) % len(static_shape(x) or [])
        sums = SUMS if dtype in HALF else dtype
        return _scanned(builder, name, x, axis, bool(call.attrs.exclusive or 0), sums, dtype)

    return replacement


def _scanned(builder: Any, name: str, x: Any, axis: int, exclusive: bool, sums: str, dtype: str) -> Any:
    """Of x along an axis, in parts of CHUNK elements if there are more, each behind the scan of the parts' results. Computed
    in the type `sums`."""
    (reduce, neutral), extent = _SCANS[name], (static_shape(x) or [])[axis]
    chunk = extent if extent <= LONGEST else CHUNK
    start = tirx.const(neutral, sums)

    def part(given: Any) -> Any:
        k = te.reduce_axis((0, chunk), name="k")

        def element(*at: Any) -> Any:
            place = at[axis] * chunk + k
            value = tirx.if_then_else(place < extent, given[_with(at, axis, place)].astype(sums), start)
            return reduce(value, axis=k)

        return te.compute(_with(tuple(given.shape), axis, -(-extent // chunk)), element, name="part")

    def scan(given: Any, *before: Any) -> Any:
        k = te.reduce_axis((0, chunk), name="k")

        def element(*at: Any) -> Any:
            place = at[axis] - at[axis] % chunk + k if before else k
            value = given[_with(at, axis, tirx.min(place, extent - 1) if before else place)].astype(sums)
            return reduce(tirx.Select(place < at[axis] if exclusive else place <= at[axis], value, start), axis=k)

        found = te.compute(given.shape, element, name="scan")
        if before:
            behind = _SCANNED[name]
            found = te.compute(
                given.shape, lambda *at: behind(before[0][_with(at, axis, at[axis] // chunk)], found[at])
            )
        return found if sums == dtype else te.compute(given.shape, lambda *at: found[at].astype(dtype), name="rounded")

    before = []
    if chunk < extent:
        parts = builder.emit(builder.call_te(part, x, primfunc_name_hint="parts"))
        before = [builder.emit(_scanned(builder, name, parts, axis, True, sums, sums))]
    return builder.call_te(scan, x, *before, primfunc_name_hint=name.removeprefix("relax."))


def _sort(call: Any) -> Replacement:
    sort = Sort.of(call)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x = current(call.args[0])
        if is_long(sort):
            places = places_in_order(builder, x, sort, str(call.attrs.dtype) if sort.places else "int64")
            if not sort.values:
                return places
            values = builder.call_te(elements_at, x, places, sort.axis, primfunc_name_hint="sorted")
            return relax.Tuple([builder.emit(values), places]) if sort.places else values

        def part(places: bool) -> Any:
            dtype = str(call.attrs.dtype) if places else dtype_of(x)
            hint = "argsort" if places else "sort"
            return builder.call_te(
                _sorted, x, sort.axis, sort.descending, sort.count, dtype, places, primfunc_name_hint=hint
            )

        if sort.values and sort.places:
            return relax.Tuple([builder.emit(part(places)) for places in (False, True)])
        return part(sort.places)

    return replacement


def _sorted(x: Any, axis: int, descending: bool, count: int, dtype: str, places: bool) -> Any:
    """The first `count` elements in order along an axis, or their places there."""
    extent = x.shape[axis]
    k, i = te.reduce_axis((0, extent), name="k"), te.reduce_axis((0, extent), name="i")

    def rank(*at: Any) -> Any:
        one, other = x[_with(at, axis, k)], x[at]
        low, high = (other, one) if descending else (one, other)
        equal, before = one == other, low < high
        if str(x.dtype).startswith(("float", "bfloat")):
            is_last = [tirx.isnan(each) for each in (high, low)]
            before = tirx.Or(before, tirx.And(is_last[0], tirx.Not(is_last[1])))
            equal = tirx.Or(equal, tirx.And(*is_last))
        first = tirx.Or(before, tirx.And(equal, k < at[axis]))
        return te.sum(tirx.Select(first, tirx.const(1, "int64"), tirx.const(0, "int64")), axis=k)

    ranks = te.compute(x.shape, rank, name="rank")

    def element(*at: Any) -> Any:
        value = i.astype(dtype) if places else x[_with(at, axis, i)]
        is_here = ranks[_with(at, axis, i)] == at[axis].astype("int64")
        return te.sum(tirx.Select(is_here, value, tirx.const(0, dtype)), axis=i)

    shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
    return te.compute(tuple(shape), element, name="sorted")


def _with(at: Sequence[Any], axis: int, index: Any) -> tuple[Any, ...]:
    return (*at[:axis], index, *at[axis + 1 :])
