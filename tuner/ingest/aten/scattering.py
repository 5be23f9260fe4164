"""Writing elements at places that are computed.

Places below zero count from the end wherever PyTorch says so. Of Relax's plain operators the preparation of a model guards
the places (one beyond the end writes nothing); the reductions here ask of every element which updates are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import (
    Emitter,
    at_broadcast,
    converter,
    dtype_of,
    highest,
    int64,
    is_float,
    is_tensor,
    lowest,
    shape_of,
    wide,
)
from tuner.tvm_compat import relax, te, tirx

op = relax.op


@converter("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(to: Emitter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, **_: Any) -> Any:
    have = shape_of(x)
    indices = [*indices, *[None] * (len(have) - len(indices))]
    values = to.cast(values, to.dtype)
    masks = [at for at, each in enumerate(indices) if each is not None and dtype_of(each) in ("bool", "uint8")]
    if masks:
        return _put_where(to, x, masks[0], indices, values, accumulate)
    given = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if not given:
        spread = to.broadcast(values, have)
        return to.emit(op.add(x, spread)) if accumulate else spread
    common = list(np.broadcast_shapes(*(shape_of(places) for _, places in given)))
    axes = [axis for axis, _ in given]
    together = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if together else 0
    kept = [axis for axis in range(len(have)) if axis not in axes]
    # One index tensor an axis, all of the values' shape: kept axes count themselves.
    shape = [*(have[axis] for axis in kept[:before]), *common, *(have[axis] for axis in kept[before:])]
    every = []
    for axis in range(len(have)):
        if axis in axes:
            places = to.cast(dict(given)[axis], "int64")
            aligned = [1] * (len(common) - len(shape_of(places))) + shape_of(places)
            after = len(shape) - before - len(common)
            every.append(to.broadcast(to.reshape(places, [1] * before + aligned + [1] * after), shape))
        else:
            at = kept.index(axis)
            at = at if at < before else at + len(common)
            count = np.arange(have[axis], dtype=np.int64).reshape([-1] + [1] * (len(shape) - at - 1))
            every.append(relax.const(np.ascontiguousarray(np.broadcast_to(count, shape))))
    size = math.prod(shape)
    flat = [to.reshape(each, [size]) for each in every]
    return to.emit(op.index_put(x, relax.Tuple(flat), to.reshape(to.broadcast(values, shape), [size]), accumulate))


def _put_where(to: Emitter, x: Any, axis: int, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """x[..., mask] = values, the mask beginning at an axis: with one value for all places, or one for each in order."""
    if sum(each is not None for each in indices) > 1:
        raise NotImplementedError("a mask among other indices")
    have, mask = shape_of(x), to.cast(indices[axis], "bool")
    covered = len(shape_of(mask))
    extents = have[axis : axis + covered]
    size, after = math.prod(extents), have[axis + covered :]
    each = shape_of(values)
    each = [1] * (axis + 1 + len(after) - len(each)) + each
    count = each[axis]
    if count == 1:
        mask = to.reshape(mask, [*[1] * axis, *extents, *[1] * len(after)])
        value = to.reshape(values, [*each[:axis], *[1] * covered, *each[axis + 1 :]])
        return to.emit(op.where(mask, to.emit(op.add(x, value)) if accumulate else value, x))
    values, chosen = to.reshape(values, each), to.reshape(mask, [size])
    order = to.emit(op.cumsum(to.cast(chosen, "int64"), 0))

    def body(given: Any, at: Any) -> Any:
        flat = int64(0)
        for place, extent in zip(at[axis : axis + covered], extents, strict=True):
            flat = flat * extent + place
        number = tirx.max(tirx.min(given[3](flat) - int64(1), int64(count - 1)), int64(0))
        value = at_broadcast(given[1], [*at[:axis], number, *at[axis + covered :]])
        old = given[0](*at)
        return tirx.if_then_else(given[2](flat), old + value if accumulate else value, old)

    return to.compute("put", body, have, x, values, chosen, order)


@converter("scatter.src", "scatter.value", "scatter_add.default", "scatter.reduce", "scatter.value_reduce")
@converter("scatter_reduce.two")
def scatter(
    to: Emitter,
    x: Any,
    dim: int,
    index: Any,
    src: Any = None,
    value: Any = None,
    reduce: str | None = None,
    include_self: bool = True,
) -> Any:
    reduce = "add" if "scatter_add" in str(to.node.target) else reduce
    shape = shape_of(index)
    if not is_tensor(src):
        src = to.broadcast(to.const(value, to.dtype), shape)
    have = shape_of(x)
    if not have:
        x, index, src = to.reshape(x, [1]), to.reshape(index, [1]), to.reshape(src, [1])
        shape = have = [1]
    elif not shape:
        index, src = to.reshape(index, [1]), to.reshape(src, [1])
        shape = [1]
    dim %= len(have)
    if shape_of(src) != shape:
        src = to.emit(op.strided_slice(src, list(range(len(shape))), [0] * len(shape), shape))
    if reduce in (None, "add", "sum") and include_self and dtype_of(x) != "bool":
        kind = "update" if reduce is None else "add"
        found = to.emit(
            op.scatter_elements(x, to.cast(index, "int64"), to.cast(src, to.dtype), axis=dim, reduction=kind)
        )
    else:
        found = scattered(to, x, dim, index, src, reduce, include_self, shape)
    return to.reshape(found, to.shape)


REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[str], Any]]] = {
    "sum": (lambda a, b: a + b, lambda dtype: tirx.const(0, dtype)),
    "prod": (lambda a, b: a * b, lambda dtype: tirx.const(1, dtype)),
    "amax": (tirx.max, lowest),
    "amin": (tirx.min, highest),
}
NAMES = {"add": "sum", "multiply": "prod", "mean": "sum"}


def scattered(
    to: Emitter, x: Any, dim: int, index: Any, src: Any, reduce: str | None, include_self: bool, shape: Sequence[int]
) -> Any:
    """x with the elements of src of equal place put together; index and src are of `shape`.

    Every element asks all updates along the axis whether they are its own: no two threads write one.
    """
    have, out = shape_of(x), to.dtype
    name = "last" if reduce is None else NAMES.get(reduce, reduce)
    dtype = "int8" if out == "bool" else wide(out)
    x, src = to.cast(x, dtype), to.cast(src, dtype)
    index = to.cast(index, "int64")

    def reads(at: Any, k: Any) -> tuple[Any, list[Any]]:
        place = [*at]
        inside = []
        for axis, extent in enumerate(shape):
            if axis != dim and extent < have[axis]:
                inside.append(at[axis] < extent)
                place[axis] = tirx.min(at[axis], int64(extent - 1))
        place[dim] = k
        return tirx.all(tirx.const(True, "bool"), *inside), place

    def of_all(body: Callable[[Any, Any], Any], make: Callable[..., Any]) -> Callable[..., Any]:
        def element(given: Any, at: Any) -> Any:
            k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
            inside, place = reads(at, k.var)
            mine = tirx.all(inside, given[0](*place) == at[dim])
            return make(tirx.if_then_else(mine, *body(given, (place, k.var))), axis=k)

        return element

    if name == "last":
        last = to.compute("last", of_all(lambda _, at: (at[1], int64(-1)), te.max), have, index)

        def choose(given: Any, at: Any) -> Any:
            k = given[2](*at)
            _, place = reads(at, tirx.max(k, int64(0)))
            return tirx.if_then_else(k >= 0, given[1](*place), given[0](*at))

        return to.cast(to.compute("scatter", choose, have, x, src, last), out)
    combine, identity = REDUCTIONS[name]
    reducer = te.comm_reducer(lambda a, b: combine(a, b), lambda kind: identity(kind), name=name)
    found = to.compute(
        "scatter", of_all(lambda given, at: (given[1](*at[0]), identity(dtype)), reducer), have, index, src
    )
    one = tirx.const(1, "int64")
    count = to.compute("count", of_all(lambda *_: (one, int64(0)), te.sum), have, index)
    mean = reduce == "mean"

    def finish(given: Any, at: Any) -> Any:
        own, all_, n = (each(*at) for each in given)
        total = combine(own, all_) if include_self else all_
        if mean:
            terms = n + (int64(1) if include_self else int64(0))
            terms = tirx.max(terms, int64(1))
            total = total / terms.astype(dtype) if is_float(dtype) else tirx.floordiv(total, terms.astype(dtype))
        return tirx.if_then_else(n > 0, total, own)

    return to.cast(to.compute("finish", finish, have, x, found, count), out)


@converter("index_add.default")
def index_add(to: Emitter, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    if alpha != 1:
        source = to.emit(op.multiply(source, to.const(alpha, to.dtype)))
    return _along_axis(to, x, dim, index, source, "sum", True)


@converter("index_copy.default")
def index_copy(to: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _along_axis(to, x, dim, index, source, None, True)


@converter("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(to: Emitter, x: Any, dim: int, index: Any, value: Any) -> Any:
    count = math.prod(shape_of(index))
    shape = [*shape_of(x)] or [1]
    shape[dim % len(shape)] = count
    return _along_axis(to, x, dim, index, to.broadcast(to.tensor(value, to.dtype), shape), None, True)


@converter("index_reduce.default")
def index_reduce(to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    return _along_axis(to, x, dim, index, source, reduce, include_self)


def _along_axis(to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str | None, include_self: bool) -> Any:
    """The same place for a whole slice of the source."""
    have = shape_of(x) or [1]
    dim %= len(have)
    count = math.prod(shape_of(index))
    shape = [*have]
    shape[dim] = count
    places = to.reshape(to.cast(index, "int64"), [count if axis == dim else 1 for axis in range(len(have))])
    places = to.emit(
        op.where(op.less(places, to.const(0, "int64")), op.add(places, relax.const(have[dim], "int64")), places)
    )
    places = to.broadcast(places, shape)
    found = scattered(
        to, to.reshape(x, have), dim, places, to.reshape(to.cast(source, to.dtype), shape), reduce, include_self, shape
    )
    return to.reshape(found, to.shape)


@converter("put.default")
def put(to: Emitter, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    size, count = math.prod(shape_of(x)), math.prod(shape_of(index))
    flat = to.reshape(to.cast(index, "int64"), [count])
    flat = to.emit(op.where(op.less(flat, to.const(0, "int64")), op.add(flat, to.const(size, "int64")), flat))
    values = to.reshape(to.cast(source, to.dtype), [count])
    found = scattered(to, to.reshape(x, [size]), 0, flat, values, "sum" if accumulate else None, True, [count])
    return to.reshape(found, to.shape)


@converter("masked_scatter.default")
def masked_scatter(to: Emitter, x: Any, mask: Any, source: Any) -> Any:
    """The source's elements in order wherever the mask is True, in order."""
    size, count = math.prod(to.shape), math.prod(shape_of(source))
    chosen = to.reshape(to.broadcast(to.cast(mask, "bool"), to.shape), [size])
    order = to.emit(op.cumsum(to.cast(chosen, "int64"), 0))

    def body(given: Any, at: Any) -> Any:
        place = tirx.max(tirx.min(given[3](*at) - int64(1), int64(count - 1)), int64(0))
        return tirx.if_then_else(given[1](*at), given[2](place), given[0](*at))

    flat = to.reshape(to.broadcast(x, to.shape), [size])
    found = to.compute("masked_scatter", body, [size], flat, chosen, to.reshape(source, [count]), order)
    return to.reshape(found, to.shape)
