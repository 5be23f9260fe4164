"""Reductions, running sums and products, sorted selections and one-hot tensors, whose axes may be known only at run time.

Where the axes are no constants, the shapes of operand and result leave few sets of axes possible. Where they leave one, it
is that; else all possible results are computed and the operand chooses between them.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from tuner.ingest.onnx.frontend import convert
from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.tvm_compat import relax, te, tirx

MAX_CHOICES = 64


@reader(
    *(f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"))
)
def reduction(node: Node) -> Any:
    """With axes that only a run knows, or of no element; None for the rest."""
    axes = node.integers(1) if node.given(1) else node.attribute("axes")
    rank = len(node.shape(0))
    if 0 in node.shape(0):
        return [_of_nothing(node)]
    if node.given(1) and axes is None:
        return _chosen(node, rank)
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return _elementwise(node)
    if node.operator in ("ReduceMax", "ReduceMin") and node.may_be_infinite and "float" in node.dtype(0):
        return _extreme(node, [node.axis(axis, rank) for axis in axes or range(rank)])
    if node.operator == "ReduceLogSumExp" and "float" in node.dtype(0):
        return _log_sum_exp(node, [node.axis(axis, rank) for axis in axes or range(rank)])
    if node.operator in ("ReduceMax", "ReduceMin") and node.dtype(0) == "bool":
        make = relax.op.max if node.operator == "ReduceMax" else relax.op.min
        wide = make(
            node.cast(node.tensor(0), "uint8"), list(axes) if axes else None, bool(node.attribute("keepdims", 1))
        )
        return relax.op.astype(node.emit(wide), "bool")
    return None


def _extreme(node: Node, axes: list[int]) -> Any:
    """The largest or smallest element, where all may be infinite: TVM's begins with the largest finite number."""
    shape, dtype, keep = node.shape(0), node.dtype(0), bool(node.attribute("keepdims", 1))
    largest = node.operator == "ReduceMax"
    result = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape) if keep or axis not in axes)
    combine = te.comm_reducer(
        (lambda a, b: te.max(a, b)) if largest else (lambda a, b: te.min(a, b)),
        lambda t: -tirx.infinity(t) if largest else tirx.infinity(t),
        name="extreme",
    )

    def make(x: Any) -> Any:
        over = {axis: te.reduce_axis((0, shape[axis]), f"r{axis}") for axis in axes}

        def element(*at: Any) -> Any:
            kept = iter(i for axis, i in enumerate(at) if axis not in axes) if keep else iter(at)
            where = [over[axis].var if axis in axes else next(kept) for axis in range(len(shape))]
            return combine(x(*where), axis=list(over.values()))

        return compute(result, element)

    if dtype in ("float16", "bfloat16"):
        return node.cast(node.te(make, node.cast(node.tensor(0), "float32")), dtype)
    return node.te(make, node.tensor(0))


def _log_sum_exp(node: Node, axes: list[int]) -> Any:
    """log of the sum of exp(x - m), plus m: the largest element, or zero where that is infinite, since infinity less itself
    is no number. Half precision is computed in float32."""
    dtype = node.dtype(0)
    wide = dtype if dtype == "float64" else "float32"
    x, zero = node.cast(node.tensor(0), wide), node.constant(0.0, wide)
    largest = node.emit(relax.op.max(x, axes, keepdims=True))
    base = node.emit(relax.op.where(node.emit(relax.op.isfinite(largest)), largest, zero))
    powers = node.emit(relax.op.exp(node.emit(relax.op.subtract(x, base))))
    total = node.emit(relax.op.sum(powers, axes, keepdims=True))
    found = node.emit(relax.op.add(node.emit(relax.op.log(total)), base))
    return node.cast(node.reshape(found, node.result_shape()), dtype)


def _of_nothing(node: Node) -> np.ndarray:
    """What a reduction gives where it has no element to reduce, whatever its axes."""
    kind, dtype = node.operator.removeprefix("Reduce"), np.dtype(node.dtype(0))
    if kind in ("Max", "Min"):
        largest = kind == "Min"
        if dtype.kind in "iu":
            return np.full(node.result_shape(), np.iinfo(dtype).max if largest else np.iinfo(dtype).min, dtype)
        value = float(largest) if dtype.kind == "b" else (np.inf if largest else -np.inf)
    else:
        value = {"Prod": 1.0, "Mean": np.nan, "LogSum": -np.inf, "LogSumExp": -np.inf}.get(kind, 0.0)
    return np.full(node.result_shape(), value, dtype)


def _elementwise(node: Node) -> Any:
    """Nothing is summed: what the operator does to each element before and after its sum is left."""
    x = node.tensor(0)
    kind = node.operator.removeprefix("Reduce")
    if kind in ("L1", "L2"):
        return relax.op.abs(x)
    if kind == "SumSquare":
        return relax.op.multiply(x, x)
    if kind == "LogSum":
        return relax.op.log(x)
    return x


def _chosen(node: Node, rank: int) -> Any:
    source, result = node.shape(0), node.result_shape()
    keep, count = bool(node.attribute("keepdims", 1)), node.shape(1)[0]
    possible: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for axes in combinations(range(rank), count):
        kept = [1 if axis in axes else extent for axis, extent in enumerate(source) if keep or axis not in axes]
        # Axes of one element make no difference, so one set stands for all that differ in them.
        essence = tuple(axis for axis in axes if source[axis] != 1)
        if tuple(kept) == result and essence not in [other for other, _ in possible]:
            possible.append((essence, axes))
    if not possible or len(possible) > MAX_CHOICES:
        node.refuse("its axes are not constant")
    operand = node.inputs[1]
    found = None
    for essence, axes in possible:
        node.inputs[1] = np.array(axes, np.int64)
        value = reduction(node)
        value = node.emit(convert(node) if value is None else value)
        if found is None:
            found = value
            continue
        chosen = node.te(lambda given, essence=essence: _names(given, essence, rank), operand, name="axes_are")
        found = node.emit(relax.op.where(chosen, value, found))
    node.inputs[1] = operand
    return found


def _names(given: Any, essence: tuple[int, ...], rank: int) -> Any:
    """Whether every axis of `essence` is among the given ones."""

    def element() -> Any:
        found = tirx.const(True, "bool")
        for axis in essence:
            named = tirx.const(False, "bool")
            for index in range(int(given.shape[0])):
                named = tirx.Or(named, tirx.Or(given(index).equal(axis), given(index).equal(axis - rank)))
            found = tirx.And(found, named)
        return found

    return compute((), element)


@reader("CumSum", "CumProd")
def running(node: Node) -> Any:
    """A sum or product of the elements up to each, in its order, whatever the type."""
    rank = len(node.shape(0))
    axes = node.integers(1)
    if axes is not None:
        axis = node.axis(axes[0], rank)
        if node.operator == "CumSum" and "float" in node.dtype(0):
            node.inputs[1] = np.array(axis, np.int64)
            return None
        return _running(node, axis)
    given = node.reshape(node.cast(node.tensor(1), "int64"), [])
    found = _running(node, 0)
    for axis in range(1, rank):
        chosen = node.te(
            lambda g, axis=axis: compute((), lambda: tirx.Or(g().equal(axis), g().equal(axis - rank))),
            given,
            name="axis_is",
        )
        found = node.emit(relax.op.where(chosen, _running(node, axis), found))
    return found


def _running(node: Node, axis: int) -> Any:
    shape, dtype = node.shape(0), node.dtype(0)
    exclusive, reverse = bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0))
    product = node.operator == "CumProd"
    neutral = tirx.const(1 if product else 0, dtype)
    combine = te.comm_reducer(
        (lambda a, b: a * b) if product else (lambda a, b: a + b),
        lambda t: tirx.const(1 if product else 0, t),
        name="running",
    )

    def make(x: Any) -> Any:
        k = te.reduce_axis((0, shape[axis]), "k")

        def element(*at: Any) -> Any:
            i = at[axis]
            first, last = (i, k) if reverse else (k, i)
            inside = first < last if exclusive else first <= last
            where = [*at[:axis], k.var, *at[axis + 1 :]]
            return combine(tirx.Select(inside, x(*where), neutral), axis=k)

        return compute(shape, element)

    return node.te(make, node.tensor(0))


@reader("TopK")
def top_k(node: Node) -> Any:
    """With as many elements as the result has, where the operand is not known."""
    if node.opset >= 10 and node.known(1) is None:
        axis = node.axis(int(node.attribute("axis", -1)), len(node.shape(0)))
        node.inputs[1] = np.array([node.result_shape()[axis]], np.int64)
    dtype = node.dtype(0)
    if dtype not in (*SORTED_OTHERWISE, "uint64"):
        return None
    if dtype == "uint64":
        node.refuse("of numbers that no signed type holds")
    node.inputs[0] = node.cast(node.tensor(0), SORTED_OTHERWISE[dtype])
    found = node.emit(convert(node))
    values, places = (node.emit(relax.TupleGetItem(found, position)) for position in (0, 1))
    return [node.cast(values, dtype), places]


SORTED_OTHERWISE = {"uint16": "int64", "uint32": "int64", "int16": "int64", "bfloat16": "float32"}
"""Type -> another in the same order, in which it is sorted."""


@reader("OneHot")
def one_hot(node: Node) -> Any:
    """Indices from -depth to depth - 1 are on; any other is nowhere."""
    result, dtype = node.result_shape(), node.dtype(2)
    axis = node.axis(int(node.attribute("axis", -1)), len(result))
    depth = result[axis]
    kind = node.dtype(0)

    def element(indices: Any, values: Any, at: tuple[Any, ...]) -> Any:
        index = indices(*at[:axis], *at[axis + 1 :])
        place = at[axis].astype(kind)
        on = index.equal(place)
        if not kind.startswith("uint"):
            on = tirx.Or(on, (index + tirx.const(depth, kind)).equal(place))
        return tirx.Select(on, values(1), values(0))

    assert dtype
    return node.te(
        lambda indices, values: compute(result, lambda *at: element(indices, values, at)),
        node.tensor(0),
        node.tensor(2),
    )


@reader("ArgMax", "ArgMin")
def extreme_index(node: Node) -> Any:
    """The first or the last index of the largest or smallest element."""
    shape, dtype = node.shape(0), node.dtype(0)
    axis = node.axis(int(node.attribute("axis", 0)), len(shape))
    last, keep = bool(node.attribute("select_last_index", 0)), bool(node.attribute("keepdims", 1))
    if not last and dtype in ("float32", "float64", "int32", "int64", "float16", "int8", "uint8"):
        return None
    node.refuse("this type") if dtype == "bool" else None
    flipped = relax.op.flip(node.tensor(0), axis)
    make = relax.op.argmax if node.operator == "ArgMax" else relax.op.argmin
    if not last:
        return make(node.tensor(0), axis, keep)
    index = node.emit(make(node.emit(flipped), axis, keep))
    return relax.op.subtract(node.constant(np.array(shape[axis] - 1, np.int64)), node.cast(index, "int64"))


@reader("LpNormalization")
def lp_normalization(node: Node) -> Any:
    """Divided by the norm along an axis; where that is zero, zero."""
    x, dtype = node.tensor(0), node.dtype(0)
    axis, order = int(node.attribute("axis", -1)), int(node.attribute("p", 2))
    if order not in (1, 2):
        node.refuse(f"the norm of order {order}")
    wide = node.cast(x, "float32") if dtype in ("float16", "bfloat16") else x
    if order == 1:
        norm = node.emit(relax.op.sum(node.emit(relax.op.abs(wide)), axis, True))
    else:
        norm = node.emit(relax.op.sqrt(node.emit(relax.op.sum(node.emit(relax.op.multiply(wide, wide)), axis, True))))
    kind = str(wide.ty.dtype)
    zero = node.emit(relax.op.equal(norm, relax.const(0, kind)))
    safe = node.emit(relax.op.where(zero, relax.const(1, kind), norm))
    found = node.emit(relax.op.divide(wide, safe))
    return node.cast(node.emit(relax.op.where(zero, relax.const(0, kind), found)), dtype)


@reader("Det")
def determinant(node: Node) -> Any:
    """By the Leibniz formula for matrices up to four rows; larger ones are refused."""
    shape, dtype = node.shape(0), node.dtype(0)
    count = shape[-1]
    if count > 4:
        node.refuse("determinants of more than four rows")

    def minor(x: Any, at: tuple[Any, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
        if not rows:
            return tirx.const(1, dtype)
        found = tirx.const(0, dtype)
        for place, column in enumerate(columns):
            rest = minor(x, at, rows[1:], columns[:place] + columns[place + 1 :])
            term = x(*at, rows[0], column) * rest
            found = found - term if place % 2 else found + term
        return found

    numbers = tuple(range(count))
    return node.te(lambda x: compute(shape[:-2], lambda *at: minor(x, at, numbers, numbers)), node.tensor(0))
