"""Writing elements at places that are computed.

Places below zero count from the end wherever PyTorch says so: the preparation of a model guards the places of Relax's
operators, and one beyond the end writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from tuner.tvm_compat import relax, tirx

op = relax.op


@converter("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(to: Emitter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, **_: Any) -> Any:
    have = shape_of(x)
    indices = [*indices, *[None] * (len(have) - len(indices))]
    values = to.cast(values, to.dtype)
    masks = [at for at, each in enumerate(indices) if each is not None and dtype_of(each) in ("bool", "uint8")]
    if masks:
        return _put_where(to, x, masks[0], indices, values, accumulate)
    given = [(axis, to.cast(each, "int64")) for axis, each in enumerate(indices) if each is not None]
    if not given:
        spread = to.broadcast(values, have)
        return to.emit(op.add(x, spread)) if accumulate else spread
    # The axes that are indexed come first, those that are not follow: what is put at an index is a slice.
    common = list(np.broadcast_shapes(*(shape_of(places) for _, places in given)))
    axes = [axis for axis, _ in given]
    kept = [axis for axis in range(len(have)) if axis not in axes]
    before = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    rest = [have[axis] for axis in kept]
    values = to.broadcast(values, [*rest[:before], *common, *rest[before:]])
    first, end = list(range(before, before + len(common))), len(common) + len(kept)
    values = to.permute(values, [*first, *(axis for axis in range(end) if axis not in first)])
    order = [*axes, *kept]
    moved = [have[axis] for axis in order]
    x, count = to.permute(x, order), math.prod(common)
    if len(axes) == 1:
        places = to.reshape(given[0][1], [count, *[1] * len(kept)])
        values = to.reshape(values, [count, *moved[1:]])
        found = scattered(to, x, 0, to.broadcast(places, [count, *moved[1:]]), values, "sum" if accumulate else None)
    else:
        each = [to.reshape(to.broadcast(places, common), [*common, 1]) for _, places in given]
        places = to.emit(op.concat(each, len(common)))
        found = to.emit(op.scatter_nd(x, places, values, "add" if accumulate else "update"))
    return to.permute(found, [order.index(axis) for axis in range(len(have))])


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


KINDS = {
    None: "update",
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
"""PyTorch's names of reductions to Relax's."""


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
    return to.reshape(scattered(to, x, dim, to.cast(index, "int64"), src, reduce, include_self), to.shape)


def scattered(
    to: Emitter, x: Any, dim: int, index: Any, src: Any, reduce: str | None, include_self: bool = True
) -> Any:
    """x with the elements of src of equal place put together; index and src are of one shape."""
    kind = KINDS[reduce]
    dtype = "int8" if to.dtype == "bool" else to.dtype if kind == "update" else wide(to.dtype)
    x, src = to.cast(x, dtype), to.cast(src, dtype)

    def put(before: Any, updates: Any, kind: str) -> Any:
        return to.emit(op.scatter_elements(before, index, updates, axis=dim, reduction=kind))

    def full(shape: Sequence[int], value: Any, dtype: str) -> Any:
        return to.broadcast(relax.const(value, dtype), shape)

    if not include_self and kind != "update":
        reached = put(full(shape_of(x), 0, "int8"), full(shape_of(index), 1, "int8"), "update")
        nothing = {"add": 0, "mul": 1, "min": highest(dtype).value, "max": lowest(dtype).value}[kind]
        x = to.emit(op.where(to.cast(reached, "bool"), to.const(nothing, dtype), x))
    found = put(x, src, kind)
    if reduce == "mean":
        count = put(full(shape_of(x), int(include_self), "int64"), full(shape_of(index), 1, "int64"), "add")
        count = to.cast(to.emit(op.maximum(count, relax.const(1, "int64"))), dtype)
        found = to.emit((op.divide if is_float(dtype) else op.floor_divide)(found, count))
    return to.cast(found, to.dtype)


@converter("index_add.default")
def index_add(to: Emitter, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    if alpha != 1:
        source = to.emit(op.multiply(source, to.const(alpha, to.dtype)))
    return _along_axis(to, x, dim, index, source, "sum")


@converter("index_copy.default")
def index_copy(to: Emitter, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _along_axis(to, x, dim, index, source, None)


@converter("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(to: Emitter, x: Any, dim: int, index: Any, value: Any) -> Any:
    count = math.prod(shape_of(index))
    shape = [*shape_of(x)] or [1]
    shape[dim % len(shape)] = count
    return _along_axis(to, x, dim, index, to.broadcast(to.tensor(value, to.dtype), shape), None)


@converter("index_reduce.default")
def index_reduce(to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    return _along_axis(to, x, dim, index, source, reduce, include_self)


def _along_axis(
    to: Emitter, x: Any, dim: int, index: Any, source: Any, reduce: str | None, include_self: bool = True
) -> Any:
    """The same place for a whole slice of the source."""
    have = shape_of(x) or [1]
    dim %= len(have)
    count = math.prod(shape_of(index))
    shape = [*have]
    shape[dim] = count
    places = to.reshape(to.cast(index, "int64"), [count if axis == dim else 1 for axis in range(len(have))])
    source = to.reshape(source, shape)
    found = scattered(to, to.reshape(x, have), dim, to.broadcast(places, shape), source, reduce, include_self)
    return to.reshape(found, to.shape)


@converter("put.default")
def put(to: Emitter, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    size, count = math.prod(shape_of(x)), math.prod(shape_of(index))
    places, values = to.reshape(to.cast(index, "int64"), [count]), to.reshape(source, [count])
    found = scattered(to, to.reshape(x, [size]), 0, places, values, "sum" if accumulate else None)
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
