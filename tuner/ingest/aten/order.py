"""Places in sorted sequences, and results cumulated along an axis."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, int64, is_float, shape_of, wide
from tuner.ingest.aten.indexing import gathered
from tuner.ingest.aten.iteration import Iteration, iterated_at
from tuner.ingest.aten.sorting import keys
from tuner.ingest.aten.unary import log1p_of
from tuner.tvm_compat import ir_builder, relax, te, tir_script, tirx

op = relax.op


# Places in sorted sequences


@converter("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    to: Emitter, sorted_sequence: Any, x: Any, right: bool = False, side: Any = None, sorter: Any = None, **_: Any
) -> Any:
    """How many elements of the sequence, innermost axis, are before each value.

    By bisection in the steps that PyTorch takes, so that of a sequence that is not sorted, too, the result is PyTorch's.
    """
    if sorter is not None:
        sorted_sequence = gathered(to, sorted_sequence, len(shape_of(sorted_sequence)) - 1, sorter)
    dtype = dtype_of(sorted_sequence)
    values = to.tensor(x, dtype)
    if is_float(dtype):
        dtype = wide(dtype)
        sorted_sequence, values = to.cast(sorted_sequence, dtype), to.cast(values, dtype)
    right = right or side == "right"
    extent, common = shape_of(sorted_sequence)[-1], len(shape_of(sorted_sequence)) == 1

    def body(at: Any, sequence: Any, value: Any) -> Iteration:
        def step(_: Any, start: Any, end: Any) -> tuple[Any, Any]:
            middle = start + ((end - start) >> int64(1))
            inside = tirx.min(middle, int64(extent - 1))
            element = sequence(inside) if common else sequence(*at[:-1], inside)
            behind = element > value(*at) if right else element >= value(*at)
            # Where start meets end it is done, and stays.
            next_start = tirx.min(tirx.Select(behind, start, middle + int64(1)), end)
            return next_start, tirx.Select(behind, middle, end)

        return Iteration(
            states=(int64(0), int64(extent)),
            steps=int64(extent.bit_length()),
            step=step,
            result=lambda start, _: start,
        )

    return iterated_at(to, "searchsorted", body, shape_of(values), to.dtype, sorted_sequence, values)


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

    def place(given: Any, at: Any, before: Any) -> Any:
        best = given[0][(*at[:dim], before, *at[dim + 1 :])]
        return tirx.Select(given[0][at] >= best, tirx.Cast("int64", at[dim]), before)

    places = _one_after_another(to, "running", dim, "int64", place, lambda *_: int64(0), ordered)
    return gathered(to, x, dim, places), places


@converter("logcumsumexp.default")
def logcumsumexp(to: Emitter, x: Any, dim: int) -> Any:
    """log(e^a + e^b) = m + log1p(e^(l - m)) of the sum before and the next element, m the larger and l the smaller one."""
    dtype, shape = wide(to.dtype), shape_of(x)
    if not shape:
        return x
    dim %= len(shape)

    def step(given: Any, at: Any, before: Any) -> Any:
        value = given[0][at]
        larger, smaller = tirx.max(value, before), tirx.min(value, before)
        total = larger + log1p_of(tirx.exp(smaller - larger))
        total = tirx.if_then_else(tirx.EQ(larger, smaller), larger + tirx.const(math.log(2), dtype), total)
        return tirx.if_then_else(tirx.isnan(value), value, tirx.if_then_else(tirx.isnan(before), before, total))

    found = _one_after_another(to, "logsum", dim, dtype, step, lambda given, at: given[0][at], to.cast(x, dtype))
    return to.cast(found, to.dtype)


def _one_after_another(
    to: Emitter,
    name: str,
    dim: int,
    dtype: str,
    step: Callable[[Any, Any, Any], Any],
    first: Callable[[Any, Any], Any],
    *tensors: Any,
) -> Any:
    """A tensor whose elements along an axis are step(tensors, indices, the one before), and first(tensors, indices). All
    tensors have its shape. On a GPU each line along the axis is a thread."""
    shape = shape_of(tensors[0])
    others = [axis for axis in range(len(shape)) if axis != dim and shape[axis] > 1]

    def kernel(given: Any, out: Any) -> Any:
        with ir_builder.IRBuilder() as builder:
            with contextlib.ExitStack() as nest:
                at = [int64(0)] * len(shape)
                for axis in (*others, dim):
                    at[axis] = nest.enter_context(tir_script.serial(0, int64(shape[axis])))
                place = at[dim]
                last = out[(*at[:dim], tirx.max(place - 1, int64(0)), *at[dim + 1 :])]
                value = tirx.if_then_else(place > 0, step(given, tuple(at), last), first(given, tuple(at)))
                tir_script.buffer_store(out, value, at)
            return builder.get()

    def made(*given: Any) -> Any:
        return te.extern([shape], list(given), lambda ins, outs: kernel(ins, outs[0]), dtype=dtype, name=name)

    return to.te(name, made, *tensors)


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

    def place(given: Any, at: Any) -> Any:
        """Of an interval; behind them of an element outside."""
        value, first, last = given[0](*at), given[1](int64(0)), given[2](int64(0))
        found = tirx.floor((value - first) * tirx.const(bins, work) / (last - first))
        found = tirx.min(found, tirx.const(bins - 1, work))
        inside = tirx.all(value >= first, value <= last)
        return tirx.Select(inside, found, tirx.const(bins, work)).astype("int64")

    places = to.compute("places", place, [size], x, low, high)
    none, one = (
        to.emit(make(relax.ShapeExpr([count]), "int64")) for make, count in ((op.zeros, bins + 1), (op.ones, size))
    )
    counts = to.emit(op.scatter_elements(none, places, one, axis=0, reduction="add"))
    return to.cast(to.emit(op.strided_slice(counts, [0], [0], [bins])), to.dtype)
