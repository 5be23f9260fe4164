"""Reading elements at places that are computed.

Places below zero count from the end wherever PyTorch says so; what is emitted are Relax's plain operators, which the
preparation of a model guards (a place beyond the end reads nothing of others).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, at_broadcast, converter, dtype_of, int64, lowest, shape_of, wide
from tuner.tvm_compat import relax, te, tirx

op = relax.op


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
    last = int64(shape_of(x)[dim] - 1)

    def body(given: Any, at: Any) -> Any:
        place = tirx.max(tirx.min(given[1](*at).astype("int64"), last), int64(0))
        return given[0](*at[:dim], place, *at[dim + 1 :])

    return to.compute("gather", body, shape_of(index), x, index)


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
            place[axis] = _wrapped(at_broadcast(places, inner).astype("int64"), have[axis])
        return tensor[0](*place)

    return to.compute("index", body, to.shape, x, *tensors)


def _wrapped(place: Any, extent: int) -> Any:
    """A place counted from the end where it is negative, inside in any case."""
    place = tirx.Select(place < int64(0), place + int64(extent), place)
    return tirx.max(tirx.min(place, int64(extent - 1)), int64(0))


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
    """Sums (mode 0), means (1) or maxima (2) of rows of the weight; bag b has the indices from offsets[b] to the next. Where
    that are equally many of each, as of indices with two axes, a bag reads its own alone, and else all."""
    if any(to.reads(at) for at in (1, 2, 3)):
        raise NotImplementedError("bags of which more than their values are read")
    bags = to.shape[0]
    (count,), given = shape_of(indices), shape_of(offsets)[0]
    each = _of_each_bag(to.node.args[2], bags, count)
    dtype = wide(to.dtype)
    named = {"rows": to.cast(weight, dtype), "indices": to.cast(indices, "int64")}
    if each is None:
        named["offsets"] = to.cast(offsets, "int64")
    if per_sample_weights is not None:
        named["scale"] = to.cast(per_sample_weights, dtype)
    tensors, rows = list(named.values()), shape_of(weight)[0]

    def members_of(bag: Any) -> tuple[Any, Any]:
        """The axis of what may be in a bag, and its place among all indices."""
        k = te.reduce_axis((int64(0), int64(count if each is None else each)), "k")
        return k, k.var if each is None else bag * int64(each) + k.var

    def mine(of: dict[str, Any], bag: Any, place: Any) -> list[Any]:
        """What must hold for the index at the place to be in the bag."""
        inside = []
        if each is None:
            following = bag + int64(1)
            last = of["offsets"](tirx.min(following, int64(given - 1)))
            inside = [place >= of["offsets"](bag), place < tirx.if_then_else(following < given, last, int64(count))]
        return [*inside, of["indices"](place) != padding_idx] if padding_idx >= 0 else inside

    identity = lowest(dtype) if mode == 2 else tirx.const(0, dtype)

    def body(tensor: Any, at: Any) -> Any:
        of = dict(zip(named, tensor, strict=True))
        k, place = members_of(at[0])
        value = of["rows"](_wrapped(of["indices"](place), rows), at[1])
        if "scale" in of:
            value = value * of["scale"](place)
        if inside := mine(of, at[0], place):
            value = tirx.if_then_else(tirx.all(*inside), value, identity)
        return (te.max if mode == 2 else te.sum)(value, axis=k)

    def members(tensor: Any, at: Any) -> Any:
        of = dict(zip(named, tensor, strict=True))
        k, place = members_of(at[0])
        inside = mine(of, at[0], place)
        return te.sum(tirx.if_then_else(tirx.all(*inside), int64(1), int64(0)) if inside else int64(1), axis=k)

    total = to.compute("embedding_bag", body, to.shape, *tensors)
    if mode:
        number = to.compute("members", members, [bags], *tensors)

        def finish(tensor: Any, at: Any) -> Any:
            found, n = tensor[0](*at), tensor[1](at[0])
            if mode == 2:
                return tirx.if_then_else(n > 0, found, tirx.const(0, dtype))
            return found / tirx.max(n, int64(1)).astype(dtype)

        total = to.compute("finish", finish, to.shape, total, number)
    return to.cast(total, to.dtype), None, None, None


def _of_each_bag(offsets: Any, bags: int, count: int) -> int | None:
    """How many of the `count` indices each bag has, where the node of the offsets says that these are equally many."""
    if offsets.op != "call_function" or str(offsets.target) != "aten.arange.start_step":
        return None
    start, _, step = (*offsets.args, 1)[:3]
    return step if start == 0 and bags * step == count else None
