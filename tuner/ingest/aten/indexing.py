"""Reading and writing elements at places that are computed.

Places below zero count from the end wherever PyTorch says so; what is emitted are Relax's plain operators, which the
preparation of a model guards (a place beyond the end reads or writes nothing of others).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, highest, is_float, lowest, shape_of, wide
from tuner.tvm_compat import relax, te, tirx

op = relax.op


def _int64(value: int) -> Any:
    return tirx.const(value, "int64")


# Reading


@converter("embedding.default")
def embedding(to: Emitter, weight: Any, indices: Any, **_: Any) -> Any:
    places = to.cast(indices, "int32")
    shape = shape_of(indices)
    if len(shape) == 1:
        return to.emit(op.take(weight, places, axis=0, mode="clip"))
    found = to.emit(op.take(weight, to.emit(op.reshape(places, [-1])), axis=0, mode="clip"))
    return to.emit(op.reshape(found, [*shape, shape_of(weight)[-1]]))


@converter("index_select.default")
def index_select(to: Emitter, x: Any, dim: int, index: Any) -> Any:
    if not shape_of(x):
        return x
    flat = to.reshape(index, [math.prod(shape_of(index))])
    return to.emit(op.take(x, flat, dim))


@converter("take.default")
def take(to: Emitter, x: Any, index: Any) -> Any:
    size = math.prod(shape_of(x))
    return to.reshape(to.emit(op.take(to.reshape(x, [size]), index, 0)), to.shape)


@converter("gather.default")
def gather(to: Emitter, x: Any, dim: int, index: Any, **_: Any) -> Any:
    if not shape_of(x):
        return to.reshape(x, to.shape)
    if not shape_of(index):
        return to.reshape(to.emit(op.take(x, to.reshape(index, [1]), 0)), [])
    have, wanted = shape_of(x), shape_of(index)
    if dtype_of(x) == "bool" or any(
        a != b for at, (a, b) in enumerate(zip(have, wanted, strict=True)) if at != dim % len(have)
    ):
        return gathered(to, x, dim % len(have), index)
    return to.emit(op.gather_elements(x, to.cast(index, "int64"), axis=dim))


def gathered(to: Emitter, x: Any, dim: int, index: Any) -> Any:
    """The same where the places leave out a part of the other axes."""
    last = _int64(shape_of(x)[dim] - 1)

    def body(given: Any, at: Any) -> Any:
        place = tirx.max(tirx.min(given[1](*at).astype("int64"), last), _int64(0))
        return given[0](*at[:dim], place, *at[dim + 1 :])

    return to.compute("gather", body, to.shape, x, index)


@converter("index.Tensor", "_unsafe_index.Tensor")
def index(to: Emitter, x: Any, indices: Sequence[Any]) -> Any:
    """x[indices]: index tensors are broadcast together; None keeps an axis whole."""
    indices = [_places(each) for each in indices]
    given = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if not given:
        return x
    if len(given) == 1:
        axis, places = given[0]
        return to.emit(op.take(x, places, axis=axis))
    if len(given) == len(indices):
        return to.emit(op.index_tensor(x, [places for _, places in given]))
    return _indexed(to, x, given)


def _places(index: Any) -> Any:
    if index is not None and dtype_of(index) in ("bool", "uint8"):
        raise NotImplementedError("a mask as an index, which gives as many elements as it has")
    return index


def _indexed(to: Emitter, x: Any, given: Sequence[tuple[int, Any]]) -> Any:
    """Several index tensors among axes that stay: theirs stand where the first stood, or in front if they are apart."""
    have = shape_of(x)
    axes = [axis for axis, _ in given]
    common = list(np.broadcast_shapes(*(shape_of(places) for _, places in given)))
    together = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if together else 0
    kept = [axis for axis in range(len(have)) if axis not in axes]
    tensors = [places for _, places in given]

    def body(tensor: Any, at: Any) -> Any:
        inner, outer = at[before : before + len(common)], [*at[:before], *at[before + len(common) :]]
        place: list[Any] = [None] * len(have)
        for axis, each in zip(kept, outer, strict=True):
            place[axis] = each
        for axis, places in zip(axes, tensor[1:], strict=True):
            place[axis] = _wrapped(_broadcast_at(places, inner), have[axis])
        return tensor[0](*place)

    return to.compute("index", body, to.shape, x, *tensors)


def _broadcast_at(x: Any, at: Sequence[Any]) -> Any:
    offset = len(at) - len(x.shape)
    return x(*(_int64(0) if int(n) == 1 else at[offset + axis] for axis, n in enumerate(x.shape))).astype("int64")


def _wrapped(place: Any, extent: int) -> Any:
    """A place counted from the end where it is negative, inside in any case."""
    place = tirx.Select(place < _int64(0), place + _int64(extent), place)
    return tirx.max(tirx.min(place, _int64(extent - 1)), _int64(0))


# Writing


@converter("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(to: Emitter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, **_: Any) -> Any:
    have = shape_of(x)
    indices = [*indices, *[None] * (len(have) - len(indices))]
    values = to.cast(values, to.dtype)
    if len(indices) == 1 and indices[0] is not None and dtype_of(indices[0]) == "bool" and not accumulate:
        raise NotImplementedError("a mask as an index")
    masks = [at for at, each in enumerate(indices) if each is not None and dtype_of(each) in ("bool", "uint8")]
    if masks:
        return _put_where(to, x, indices, values, accumulate)
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


def _put_where(to: Emitter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Any:
    """x[mask] = value for a single value and a mask of the leading axes."""
    mask = indices[0]
    if any(each is not None for each in indices[1:]) or math.prod(shape_of(values)) != 1:
        raise NotImplementedError("a mask as an index")
    rank = len(shape_of(x))
    mask = to.reshape(to.cast(mask, "bool"), shape_of(mask) + [1] * (rank - len(shape_of(mask))))
    value = to.reshape(values, [1] * rank)
    return to.emit(op.where(mask, to.emit(op.add(x, value)) if accumulate else value, x))


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
    if not is_tensor_like(src):
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


def is_tensor_like(x: Any) -> bool:
    return isinstance(x, relax.Expr)


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
                place[axis] = tirx.min(at[axis], _int64(extent - 1))
        place[dim] = k
        return tirx.all(tirx.const(True, "bool"), *inside), place

    def of_all(body: Callable[[Any, Any], Any], make: Callable[..., Any]) -> Callable[..., Any]:
        def element(given: Any, at: Any) -> Any:
            k = te.reduce_axis((_int64(0), _int64(shape[dim])), "k")
            inside, place = reads(at, k.var)
            mine = tirx.all(inside, given[0](*place) == at[dim])
            return make(tirx.if_then_else(mine, *body(given, (place, k.var))), axis=k)

        return element

    if name == "last":
        last = to.compute("last", of_all(lambda _, at: (at[1], _int64(-1)), te.max), have, index)

        def choose(given: Any, at: Any) -> Any:
            k = given[2](*at)
            _, place = reads(at, tirx.max(k, _int64(0)))
            return tirx.if_then_else(k >= 0, given[1](*place), given[0](*at))

        return to.cast(to.compute("scatter", choose, have, x, src, last), out)
    combine, identity = REDUCTIONS[name]
    reducer = te.comm_reducer(lambda a, b: combine(a, b), lambda kind: identity(kind), name=name)
    found = to.compute(
        "scatter", of_all(lambda given, at: (given[1](*at[0]), identity(dtype)), reducer), have, index, src
    )
    one = tirx.const(1, "int64")
    count = to.compute("count", of_all(lambda *_: (one, _int64(0)), te.sum), have, index)
    mean = reduce == "mean"

    def finish(given: Any, at: Any) -> Any:
        own, all_, n = (each(*at) for each in given)
        total = combine(own, all_) if include_self else all_
        if mean:
            terms = n + (_int64(1) if include_self else _int64(0))
            terms = tirx.max(terms, _int64(1))
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
        place = tirx.max(tirx.min(given[3](*at) - _int64(1), _int64(count - 1)), _int64(0))
        return tirx.if_then_else(given[1](*at), given[2](place), given[0](*at))

    flat = to.reshape(to.broadcast(x, to.shape), [size])
    found = to.compute("masked_scatter", body, [size], flat, chosen, to.reshape(source, [count]), order)
    return to.reshape(found, to.shape)


@converter("_embedding_bag_forward_only.default", "_embedding_bag.default")
def embedding_bag(
    to: Emitter,
    weight: Any,
    indices: Any,
    offsets: Any,
    mode: int = 0,
    per_sample_weights: Any = None,
    padding_idx: int = -1,
    **_: Any,
) -> Any:
    """Sums (mode 0), means (1) or maxima (2) of rows of the weight; bag b has the indices from offsets[b] to the next."""
    if any(to.reads(at) for at in (1, 2, 3)):
        raise NotImplementedError("bags of which more than their values are read")
    bags = to.shape[0]
    (count,), given = shape_of(indices), shape_of(offsets)[0]
    dtype = wide(to.dtype)
    weight = to.cast(weight, dtype)
    scale = to.cast(per_sample_weights, dtype) if per_sample_weights is not None else None
    tensors = [weight, to.cast(indices, "int64"), to.cast(offsets, "int64"), *([] if scale is None else [scale])]
    rows = shape_of(weight)[0]

    def mine(tensor: Any, bag: Any, k: Any) -> Any:
        start = tensor[2](bag)
        following = bag + _int64(1)
        end = tirx.if_then_else(following < given, tensor[2](tirx.min(following, _int64(given - 1))), _int64(count))
        inside = [k >= start, k < end]
        if padding_idx >= 0:
            inside.append(tensor[1](k) != padding_idx)
        return tirx.all(*inside)

    identity = lowest(dtype) if mode == 2 else tirx.const(0, dtype)

    def body(tensor: Any, at: Any) -> Any:
        k = te.reduce_axis((_int64(0), _int64(count)), "k")
        value = tensor[0](_wrapped(tensor[1](k.var), rows), at[1])
        if scale is not None:
            value = value * tensor[3](k.var)
        return (te.max if mode == 2 else te.sum)(tirx.if_then_else(mine(tensor, at[0], k.var), value, identity), axis=k)

    def members(tensor: Any, at: Any) -> Any:
        k = te.reduce_axis((_int64(0), _int64(count)), "k")
        return te.sum(tirx.if_then_else(mine(tensor, at[0], k.var), _int64(1), _int64(0)), axis=k)

    total = to.compute("embedding_bag", body, to.shape, *tensors)
    if mode:
        number = to.compute("members", members, [bags], *tensors)

        def finish(tensor: Any, at: Any) -> Any:
            found, n = tensor[0](*at), tensor[1](at[0])
            if mode == 2:
                return tirx.if_then_else(n > 0, found, tirx.const(0, dtype))
            return found / tirx.max(n, _int64(1)).astype(dtype)

        total = to.compute("finish", finish, to.shape, total, number)
    return to.cast(total, to.dtype), None, None, None
