"""Sums, products, extrema, norms and counts along axes. Those of half precision are computed in float32
(tuner/graph/half_precision.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.ingest.aten.emitter import HALF, Emitter, converter, dtype_of, highest, is_float, lowest, shape_of, wide
from tuner.schedule.reducers import arg_combiner
from tuner.tvm_compat import relax, te, tirx

op = relax.op


def axes_of(x: Any, dim: Any) -> list[int]:
    """The axes that an argument `dim` names: none, one or several; all of them for none and for an empty list."""
    rank = len(shape_of(x))
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted({axis % rank for axis in ([dim] if isinstance(dim, int) else dim)}) if rank else []


def _dims(x: Any, dim: Any) -> Any:
    """For a Relax operator, which takes None for all axes."""
    if not shape_of(x) or dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return None
    return dim if isinstance(dim, int) else list(dim)


def reduced(to: Emitter, make: Callable[..., Any], x: Any, dim: Any, keepdim: bool, dtype: str) -> Any:
    """make of x in a type over axes, in the result's type."""
    x = to.cast(x, dtype)
    found = x if not shape_of(x) else to.emit(make(x, _dims(x, dim), keepdims=keepdim))
    return to.cast(found, to.dtype)


def _summed(to: Emitter, x: Any) -> str:
    """The type of a reduction's argument: half precision of half precision, which is reduced in float32."""
    return to.dtype if dtype_of(x) == to.dtype else wide(to.dtype)


@converter("sum.default", "sum.dim_IntList")
def sum_(to: Emitter, x: Any, dim: Any = None, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return reduced(to, op.sum, x, dims if dim is None else dim, keepdim, _summed(to, x))


@converter("nansum.default")
def nansum(to: Emitter, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    if is_float(dtype_of(x)):
        x = to.emit(op.where(op.isnan(to.cast(x, wide(dtype_of(x)))), to.const(0, dtype_of(x)), x))
    return sum_(to, x, dim, None, keepdim)


@converter("mean.default", "mean.dim")
def mean(to: Emitter, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return reduced(to, op.mean, x, dim, keepdim, _summed(to, x))


@converter("prod.default", "prod.dim_int")
def prod(to: Emitter, x: Any, dim: Any = None, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
    return reduced(to, op.prod, x, dims if dim is None else dim, keepdim, _summed(to, x))


def _extremum(make: Callable[..., Any]) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, dim: Any = None, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
        have = dtype_of(x)
        work = "int8" if have == "bool" else have
        return reduced(to, make, x, dims if dim in (None, []) else dim, keepdim, work)

    return convert


amax, amin = _extremum(op.max), _extremum(op.min)
converter("amax.default", "max.default")(amax)
converter("amin.default", "min.default")(amin)


@converter("any.default", "any.dim", "any.dims")
def any_(to: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return reduced(to, op.max, to.cast(x, "bool"), dim, keepdim, "int8")


@converter("all.default", "all.dim", "all.dims")
def all_(to: Emitter, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return reduced(to, op.min, to.cast(x, "bool"), dim, keepdim, "int8")


@converter("var.correction", "var.default")
def var(
    to: Emitter, x: Any, dim: Any = None, dims: Any = None, correction: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    """sum((x - mean)^2) / (n - correction), not a number where that has no degree of freedom."""
    dtype = wide(to.dtype)
    dim = dims if dim is None else dim
    count = math.prod(shape_of(x)[axis] for axis in axes_of(x, dim))
    free = count - (1 if correction is None else correction)
    x = to.cast(x, dtype)
    if not shape_of(x):
        x = to.reshape(x, [1])
        dim, keepdim = [0], False
    found = to.emit(op.variance(x, _dims(x, dim), keepdims=keepdim))
    if free != count:
        scale = count / free if free > 0 else math.nan if count <= 1 else math.inf
        found = to.emit(op.multiply(found, to.const(scale, dtype)))
    return to.cast(found, to.dtype)


@converter("linalg_vector_norm.default")
def vector_norm(to: Emitter, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    dtype = wide(to.dtype)
    x = to.cast(x, dtype)
    axes = None if not shape_of(x) else _dims(x, dim)
    if not shape_of(x):
        x = to.reshape(x, [1])
        axes, keepdim = [0], False
    size = to.emit(op.abs(x))
    order = float(ord)
    if order == 0:
        found = op.sum(to.cast(to.emit(op.not_equal(x, to.const(0, dtype))), dtype), axes, keepdims=keepdim)
    elif math.isinf(order):
        found = (op.max if order > 0 else op.min)(size, axes, keepdims=keepdim)
    elif order == 1:
        found = op.sum(size, axes, keepdims=keepdim)
    elif order == 2:
        found = op.sqrt(to.emit(op.sum(to.emit(op.multiply(x, x)), axes, keepdims=keepdim)))
    else:
        powers = to.emit(op.power(size, to.const(order, dtype)))
        found = op.power(to.emit(op.sum(powers, axes, keepdims=keepdim)), to.const(1 / order, dtype))
    return to.cast(to.emit(found), to.dtype)


@converter("_softmax.default", "softmax.int")
def softmax(to: Emitter, x: Any, dim: int, **_: Any) -> Any:
    return _along(to, op.nn.softmax, x, dim)


@converter("_log_softmax.default", "log_softmax.int")
def log_softmax(to: Emitter, x: Any, dim: int, **_: Any) -> Any:
    return _along(to, op.nn.log_softmax, x, dim)


def _along(to: Emitter, make: Callable[..., Any], x: Any, dim: int) -> Any:
    x = to.cast(x, to.dtype)
    if not to.shape:
        return to.reshape(to.emit(make(to.reshape(x, [1]), 0)), [])
    return to.emit(make(x, dim))


# Where the extremum stands


def arg_reducer(largest: bool, last: bool = False) -> Callable[..., Any]:
    """A reducer of (place, value) pairs, the first or the last of equal values; NaN is before all numbers."""

    def identity(place: str, value: str) -> tuple[Any, Any]:
        return tirx.const(-1, place), (lowest if largest else highest)(value)

    combine, name = arg_combiner(largest, last), "argmax" if largest else "argmin"
    reducer: Callable[..., Any] = te.comm_reducer(lambda a, b: tuple(combine(a, b)), identity, name=name)
    return reducer


def arg_extremum(to: Emitter, x: Any, dim: int, largest: bool, last: bool = False) -> tuple[Any, Any]:
    """(values, 64-bit places) of the extrema along an axis, which is kept with extent 1."""
    shape, dtype = shape_of(x), dtype_of(x)
    reducer = arg_reducer(largest, last)
    result = [*shape]
    result[dim] = 1

    def function(given: Any) -> Any:
        k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", shape[dim])), "k")

        def element(*at: Any) -> Any:
            index = list(at)
            index[dim] = k.var
            return reducer((k.var, given(*index)), axis=k)

        places, values = te.compute(tuple(tirx.IntImm("int64", n) for n in result), element, name="arg")
        return [values, places]

    assert dtype not in HALF
    found = to.te("argmax" if largest else "argmin", function, x)
    return to.emit(found[0]), to.emit(found[1])


def _working(to: Emitter, x: Any) -> Any:
    """x in a type that a reducer compares."""
    have = dtype_of(x)
    return to.cast(x, "int8" if have == "bool" else wide(have))


def _argument(largest: bool) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, dim: Any = None, **_: Any) -> Any:
        x = _working(to, x)
        size = math.prod(shape_of(x))
        if dim is None or not shape_of(x):
            return to.reshape(arg_extremum(to, to.reshape(x, [size]), 0, largest)[1], to.shape)
        return to.reshape(arg_extremum(to, x, dim % len(shape_of(x)), largest)[1], to.shape)

    return convert


converter("argmax.default")(_argument(True))
converter("argmin.default")(_argument(False))


def _with_places(largest: bool) -> Callable[..., Any]:
    def convert(to: Emitter, x: Any, dim: int, keepdim: bool = False) -> Any:
        if not to.reads(1):
            return (amax if largest else amin)(to, x, dim, None, keepdim), None
        have = dtype_of(x)
        x = _working(to, x)
        shape = shape_of(x) or [1]
        values, places = arg_extremum(to, to.reshape(x, shape), dim % len(shape), largest)
        return to.cast(to.reshape(values, to.shape), have), to.reshape(places, to.shape)

    return convert


converter("max.dim")(_with_places(True))
converter("min.dim")(_with_places(False))


@converter("count_nonzero.dim_IntList", "count_nonzero.default")
def count_nonzero(to: Emitter, x: Any, dim: Any = None) -> Any:
    return reduced(to, op.sum, to.cast(x, "bool"), dim, False, "int64")


@converter("hash_tensor.default")
def hash_tensor(to: Emitter, x: Any, dim: Any = None, **_: Any) -> Any:
    """The exclusive or of the elements' 64 bits: floating-point numbers as float64, whole numbers with their sign."""
    x = to.cast(x, "float64" if is_float(dtype_of(x)) else "int64")
    shape, axes = shape_of(x), axes_of(x, dim)
    kept = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    zero = tirx.const(0, "uint64")
    reducer = te.comm_reducer(lambda a, b: a ^ b, lambda _: zero, name="xor")

    def body(given: Any, at: Any) -> Any:
        inner = {
            axis: te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", shape[axis])), f"k{axis}")
            for axis in axes
        }
        bits = tirx.reinterpret("uint64", given[0](*(inner[a].var if a in inner else at[a] for a in range(len(shape)))))
        return reducer(bits, axis=list(inner.values())) if inner else bits

    return to.reshape(to.compute("hash", body, kept, x), to.shape)


def sum_over(extents: Sequence[int], body: Callable[..., Any]) -> Any:
    """The sum of body(indices) over ranges, for use inside a tensor function."""
    axes = [
        te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", n)), f"k{at}") for at, n in enumerate(extents)
    ]
    return te.sum(body(*(axis.var for axis in axes)), axis=axes)
