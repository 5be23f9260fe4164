"""Sorts, and the elements that stand at given places in order.

Values are sorted by whole numbers in the same order, their keys: -0 equals 0, and what is no number is the largest, as in
PyTorch. Equal values stay in the order of their places. PyTorch promises that where `stable` asks for it, and leaves the
order open elsewhere (pitchpipe/torch_operators/ties.py).
"""

from __future__ import annotations

import math
from typing import Any

from tuner.graph.sorts import key_of
from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, int64, is_float, shape_of, wide
from tuner.ingest.aten.indexing import gathered
from tuner.ingest.aten.reductions import arg_extremum
from tuner.tvm_compat import relax, te

op = relax.op


def keys(to: Emitter, x: Any) -> Any:
    """Whole numbers of 32 or 64 bits in the order of the elements."""
    have = dtype_of(x)
    if have == "bool":
        return to.cast(x, "int32")
    if have in ("int32", "int64"):
        return x
    if is_float(have):
        x = to.cast(x, wide(have))
    return to.compute("keys", lambda given, at: key_of(given[0](*at)), shape_of(x), x)


def _sorted(to: Emitter, x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    if not shape_of(x):
        return x, to.const(0, "int64")
    dim %= len(shape_of(x))
    places = to.emit(op.argsort(keys(to, x), dim, descending, dtype="int64"))
    return _values(to, x, dim, places), places


def _values(to: Emitter, x: Any, dim: int, places: Any) -> Any:
    """Elements of x along an axis, for places that leave no part of the other axes out."""
    if dtype_of(x) == "bool":
        return gathered(to, x, dim, places)
    return to.cast(to.emit(op.gather_elements(to.cast(x, wide(dtype_of(x))), places, axis=dim)), dtype_of(x))


@converter("sort.default", "sort.stable")
def sort(to: Emitter, x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return _sorted(to, x, dim, descending)


@converter("argsort.default", "argsort.stable")
def argsort(to: Emitter, x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return _sorted(to, x, dim, descending)[1]


@converter("topk.default")
def topk(to: Emitter, x: Any, k: int, dim: int = -1, largest: bool = True, **_: Any) -> Any:
    if not shape_of(x):
        return x, to.const(0, "int64")
    dim %= len(shape_of(x))
    places = to.emit(op.topk(keys(to, x), k=k, axis=dim, largest=largest, ret_type="indices", dtype="int64"))
    return _values(to, x, dim, places), places


@converter("kthvalue.default")
def kthvalue(to: Emitter, x: Any, k: int, dim: int = -1, **_: Any) -> Any:
    return _nth(to, x, dim, k - 1)


@converter("median.dim")
def median_dim(to: Emitter, x: Any, dim: int, **_: Any) -> Any:
    shape = shape_of(x) or [1]
    return _nth(to, x, dim, (shape[dim] - 1) // 2, spreads=True)


@converter("median.default")
def median(to: Emitter, x: Any) -> Any:
    size = math.prod(shape_of(x))
    return _nth(to, to.reshape(x, [size]), 0, (size - 1) // 2, spreads=True)[0]


def _nth(to: Emitter, x: Any, dim: int, n: int, *, spreads: bool = False) -> tuple[Any, ...]:
    """Element n in ascending order along an axis, and its place.

    `spreads`: where something is no number, the first such element is the result.
    """
    shape = shape_of(x) or [1]
    dim %= len(shape)
    x = to.reshape(x, shape)
    _, places = _sorted(to, x, dim, False)
    place = to.emit(op.strided_slice(places, [dim], [n], [n + 1]))
    if spreads and is_float(dtype_of(x)):
        some, first = arg_extremum(to, to.cast(_no_numbers(to, x), "int32"), dim, True)
        place = to.emit(op.where(to.cast(some, "bool"), first, place))
    return _results(to, gathered(to, x, dim, place), place)


def _no_numbers(to: Emitter, x: Any) -> Any:
    return to.emit(op.isnan(to.cast(x, wide(dtype_of(x)))))


def _results(to: Emitter, *found: Any) -> tuple[Any, ...]:
    """In the shapes of the node's results."""
    return tuple(
        to.reshape(one, [int(extent) for extent in each.shape]) for one, each in zip(found, to.results, strict=False)
    )


@converter("nanmedian.default", "nanmedian.dim")
def nanmedian(to: Emitter, x: Any, dim: Any = None, **_: Any) -> Any:
    """The middle of the numbers, the lower of two; no number where there is none."""
    if not is_float(dtype_of(x)):
        return median(to, x) if dim is None else median_dim(to, x, dim)
    shape = [math.prod(shape_of(x))] if dim is None or not shape_of(x) else shape_of(x)
    axis = 0 if dim is None else dim % len(shape)
    x = to.reshape(x, shape)
    values, places = _sorted(to, x, axis, False)
    numbers = to.cast(to.emit(op.logical_not(_no_numbers(to, x))), "int64")
    count = to.emit(op.sum(numbers, axis, keepdims=True))
    lower = op.floor_divide(op.subtract(count, to.const(1, "int64")), to.const(2, "int64"))
    middle = to.emit(op.maximum(lower, to.const(0, "int64")))
    found = _results(to, *(gathered(to, each, axis, middle) for each in (values, places)))
    return found[0] if dim is None else found


@converter("mode.default")
def mode(to: Emitter, x: Any, dim: int = -1, **_: Any) -> Any:
    """The smallest of the most frequent values, and the last place of it."""
    shape = shape_of(x) or [1]
    dim %= len(shape)
    x = to.reshape(x, shape)
    own = keys(to, x)
    ordered = gathered(to, own, dim, _sorted(to, x, dim, False)[1])

    def count(given: Any, at: Any) -> Any:
        k = te.reduce_axis((int64(0), int64(shape[dim])), "k")
        other = given[0](*at[:dim], k.var, *at[dim + 1 :])
        return te.sum((other == given[0](*at)).astype("int32"), axis=k)

    _, first = arg_extremum(to, to.compute("count", count, shape, ordered), dim, True)
    most = gathered(to, ordered, dim, first)
    _, place = arg_extremum(to, to.cast(to.emit(op.equal(own, most)), "int32"), dim, True, last=True)
    return _results(to, gathered(to, x, dim, place), place)
