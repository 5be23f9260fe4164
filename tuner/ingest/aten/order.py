"""Places in sorted sequences, and results cumulated along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, int64, is_float, lowest, shape_of, wide
from tuner.ingest.aten.indexing import gathered
from tuner.ingest.aten.sorting import keys
from tuner.tvm_compat import relax, te, tirx

op = relax.op


# Places in sorted sequences


@converter("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    to: Emitter, sorted_sequence: Any, x: Any, right: bool = False, side: Any = None, sorter: Any = None, **_: Any
) -> Any:
    """How many elements of the sequence, innermost axis, are before each value."""
    if sorter is not None:
        sorted_sequence = gathered(to, sorted_sequence, len(shape_of(sorted_sequence)) - 1, sorter)
    dtype = dtype_of(sorted_sequence)
    values = to.tensor(x, dtype)
    if is_float(dtype):
        dtype = wide(dtype)
        sorted_sequence, values = to.cast(sorted_sequence, dtype), to.cast(values, dtype)
    right = right or side == "right"
    extent, common = shape_of(sorted_sequence)[-1], len(shape_of(sorted_sequence)) == 1

    def body(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(extent)), "k")
        element = given[0](k.var) if common else given[0](*at[:-1], k.var)
        value = given[1](*at)
        before = element <= value if right else element < value
        if is_float(dtype):
            before = tirx.Or(before, tirx.isnan(value))
        return te.sum(before.astype("int64"), axis=k)

    return to.cast(to.compute("searchsorted", body, shape_of(values), sorted_sequence, values), to.dtype)


@converter("bucketize.Tensor", "bucketize.Scalar")
def bucketize(to: Emitter, x: Any, boundaries: Any, right: bool = False, **_: Any) -> Any:
    return searchsorted(to, boundaries, x, right)


# Cumulated


@converter("cumsum.default")
def cumsum(to: Emitter, x: Any, dim: int, **_: Any) -> Any:
    return _cumulated(to, op.cumsum, x, dim)


@converter("cumprod.default")
def cumprod(to: Emitter, x: Any, dim: int, **_: Any) -> Any:
    return _cumulated(to, op.cumprod, x, dim)


def _cumulated(to: Emitter, make: Callable[..., Any], x: Any, dim: int) -> Any:
    x = to.cast(x, wide(to.dtype))
    if not shape_of(x):
        return to.cast(x, to.dtype)
    return to.cast(to.emit(make(x, dim % len(to.shape))), to.dtype)


@converter("cummax.default")
def cummax(to: Emitter, x: Any, dim: int) -> Any:
    return _running(to, x, dim, True)


@converter("cummin.default")
def cummin(to: Emitter, x: Any, dim: int) -> Any:
    return _running(to, x, dim, False)


def _running(to: Emitter, x: Any, dim: int, largest: bool) -> tuple[Any, Any]:
    """The extremum of an element and all before it, and its last place; what is no number is the extremum."""
    shape = shape_of(x)
    if not shape:
        return x, to.const(0, "int64")
    dim %= len(shape)
    if largest:
        ordered = keys(to, x)
    elif is_float(dtype_of(x)):
        ordered = keys(to, to.emit(op.negative(to.cast(x, wide(dtype_of(x))))))
    else:
        ordered = to.emit(op.bitwise_not(keys(to, x)))

    def body(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
        value = given[0](*at[:dim], k.var, *at[dim + 1 :])
        return te.max(tirx.if_then_else(k.var <= at[dim], value, lowest(dtype_of(ordered))), axis=k)

    best = to.compute("running", body, shape, ordered)

    def place(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
        equal = given[0](*at[:dim], k.var, *at[dim + 1 :]) == given[1](*at)
        return te.max(tirx.if_then_else(tirx.all(k.var <= at[dim], equal), k.var, int64(-1)), axis=k)

    places = to.compute("place", place, shape, ordered, best)
    return gathered(to, x, dim, places), places


@converter("logcumsumexp.default")
def logcumsumexp(to: Emitter, x: Any, dim: int) -> Any:
    dtype, shape = wide(to.dtype), shape_of(x)
    if not shape:
        return x
    dim %= len(shape)
    x = to.cast(x, dtype)
    peak, _ = _running_max(to, x, dim, dtype, shape)

    def body(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
        value = given[0](*at[:dim], k.var, *at[dim + 1 :])
        top = given[1](*at)
        term = tirx.if_then_else(value == top, tirx.const(1, dtype), tirx.exp(value - top))
        return te.sum(tirx.if_then_else(k.var <= at[dim], term, tirx.const(0, dtype)), axis=k)

    total = to.compute("sum", body, shape, x, peak)
    return to.cast(to.emit(op.add(to.emit(op.log(total)), peak)), to.dtype)


def _running_max(to: Emitter, x: Any, dim: int, dtype: str, shape: Sequence[int]) -> tuple[Any, Any]:
    def body(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
        value = given[0](*at[:dim], k.var, *at[dim + 1 :])
        return te.max(tirx.if_then_else(k.var <= at[dim], value, lowest(dtype)), axis=k)

    return to.compute("running", body, shape, x), None


@converter("histc.default")
def histc(to: Emitter, x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """How many elements fall into each of `bins` equal intervals of [min, max], the last closed."""
    size, dtype = math.prod(shape_of(x)), wide(dtype_of(x))
    work = dtype if is_float(dtype) else "float32"
    x = to.reshape(to.cast(x, work), [size])
    if min == max:
        low, high = (to.emit(make(x, keepdims=True)) for make in (op.min, op.max))
        equal = to.emit(op.equal(low, high))
        one = to.const(1, work)
        low, high = (
            to.emit(op.where(equal, op.subtract(low, one), low)),
            to.emit(op.where(equal, op.add(high, one), high)),
        )
    else:
        low, high = (to.reshape(to.const(float(end), work), [1]) for end in (min, max))

    def body(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(size)), "k")
        value, first, last = given[0](k.var), given[1](int64(0)), given[2](int64(0))
        inside = tirx.all(value >= first, value <= last)
        place = tirx.floor((value - first) * tirx.const(bins, work) / (last - first))
        place = tirx.min(place, tirx.const(bins - 1, work))
        mine = tirx.all(inside, place == at[0].astype(work))
        return te.sum(tirx.if_then_else(mine, tirx.const(1, "int64"), int64(0)), axis=k)

    return to.cast(to.compute("histc", body, [bins], x, low, high), to.dtype)
