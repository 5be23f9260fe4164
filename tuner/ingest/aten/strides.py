"""Views by places in memory: windows, and strides that a model names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, shape_of
from tuner.tvm_compat import relax, tirx

op = relax.op


def lies_the_same(node: Any) -> bool:
    """Whether a node of as_strided gives its argument: each element where it was, so that only strides of axes of one
    element differ. Of images with their channels last torch.compile writes that behind a global average pool."""
    given, found = node.args[0].meta["val"], node.meta["val"]
    if given.shape != found.shape or given.storage_offset() != found.storage_offset():
        return False
    steps = zip(given.shape, given.stride(), found.stride(), strict=True)
    return all(extent == 1 or before == after for extent, before, after in steps)


@converter("as_strided.default", "as_strided_copy.default")
def as_strided(to: Emitter, x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None) -> Any:
    """Of a tensor that fills its memory, elements by their places in memory."""
    if lies_the_same(to.node):
        return x
    order = _order(to)
    places = _memory(to, size, stride, storage_offset)
    flat = to.reshape(to.permute(x, order), [math.prod(shape_of(x))])
    if places.size == flat.ty.shape.values[0] and (places.reshape(-1) == np.arange(places.size)).all():
        return to.reshape(flat, to.shape)
    start = 0 if storage_offset is None else storage_offset

    def body(given: Any, at: Any) -> Any:
        place = tirx.const(start, "int64")
        for index, step in zip(at, stride, strict=True):
            place = place + index * step
        return given[0](place)

    return to.compute("as_strided", body, to.shape, flat)


@converter("as_strided_scatter.default")
def as_strided_scatter(
    to: Emitter, x: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Any:
    order = _order(to)
    places = _memory(to, size, stride, storage_offset).reshape(-1)
    if order != sorted(order):
        raise NotImplementedError("memory that is not in the tensor's order")
    if len(np.unique(places)) < len(places):
        raise NotImplementedError("elements that share memory")
    count = math.prod(to.shape)
    source = np.full(count, -1, np.int64)
    source[places] = np.arange(len(places))
    flat, given = to.reshape(x, [count]), to.reshape(to.cast(src, to.dtype), [len(places)])

    def body(tensors: Any, at: Any) -> Any:
        place = tensors[2](at[0])
        return tirx.if_then_else(place >= 0, tensors[1](tirx.max(place, tirx.const(0, "int64"))), tensors[0](at[0]))

    return to.reshape(to.compute("as_strided_scatter", body, [count], flat, given, relax.const(source)), to.shape)


def _order(to: Emitter) -> list[int]:
    """The axes of the first argument from the one with the widest strides in memory to the one with the narrowest."""
    fake = to.node.args[0].meta["val"]
    order = sorted(range(fake.ndim), key=lambda axis: (-fake.stride(axis), fake.shape[axis] == 1, axis))
    if not fake.permute(order).is_contiguous() or fake.storage_offset():
        raise NotImplementedError("a tensor that does not fill its memory")
    return order


def _memory(to: Emitter, size: Sequence[int], stride: Sequence[int], storage_offset: Any) -> np.ndarray:
    """Places in memory of the elements, which must be among the first argument's."""
    places = np.full(tuple(size), 0 if storage_offset is None else storage_offset, np.int64)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(extent) * step).reshape([-1] + [1] * (len(size) - axis - 1))
    if places.max() >= to.node.args[0].meta["val"].numel():
        raise NotImplementedError("memory beyond the tensor's")
    return places


@converter("unfold.default", "unfold_copy.default")
def unfold(to: Emitter, x: Any, dimension: int, step: int, **_: Any) -> Any:
    have = shape_of(x)
    if not have:
        return to.reshape(x, to.shape)
    dim = dimension % len(have)

    def body(given: Any, at: Any) -> Any:
        index = list(at[:-1])
        index[dim] = index[dim] * step + at[-1]
        return given[0](*index)

    return to.compute("unfold", body, to.shape, x)


# Of nothing
