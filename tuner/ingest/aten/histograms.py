"""Histograms: bins of each dimension are between consecutive edges, open above but for the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tuner.ingest.aten.emitter import Emitter, converter, dtype_of, shape_of
from tuner.ingest.aten.iteration import Iteration, iterated_at
from tuner.tvm_compat import relax, tirx

op = relax.op


@converter("histogram.bin_ct")
def histogram(
    to: Emitter, x: Any, bins: int = 100, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[Any, Any]:
    points = _column(to, x)
    edges = _edges(to, points, [bins], range)
    return _counted(to, points, edges, weight, density), edges[0]


@converter("histogram.bins_tensor")
def histogram_of_edges(to: Emitter, x: Any, bins: Any, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    return _counted(to, _column(to, x), [bins], weight, density), bins


@converter("_histogramdd_bin_edges.default")
def histogramdd_edges(to: Emitter, x: Any, bins: Sequence[int], range: Any = None, **_: Any) -> tuple[Any, ...]:
    return tuple(_edges(to, _rows(to, x), bins, range))


@converter("_histogramdd_from_bin_cts.default")
def histogramdd(
    to: Emitter, x: Any, bins: Sequence[int], range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    points = _rows(to, x)
    return _counted(to, points, _edges(to, points, bins, range), weight, density)


@converter("_histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(to: Emitter, x: Any, bins: Sequence[Any], weight: Any = None, density: bool = False) -> Any:
    return _counted(to, _rows(to, x), bins, weight, density)


def _column(to: Emitter, x: Any) -> Any:
    return to.reshape(x, [math.prod(shape_of(x)), 1])


def _rows(to: Emitter, x: Any) -> Any:
    """[..., d] as [m, d]."""
    *batch, dimensions = shape_of(x)
    return to.reshape(x, [math.prod(batch), dimensions])


def _edges(to: Emitter, points: Any, bins: Sequence[int], range: Any) -> list[Any]:
    """For each dimension of points [m, d], bins + 1 edges from the least to the greatest of them, or of a given range."""
    dtype = dtype_of(points)
    if range is not None:
        found = []
        for count, low, high in zip(bins, range[::2], range[1::2], strict=True):
            widen = 0.5 if low == high else 0.0
            ends = torch.linspace(low - widen, high + widen, count + 1, dtype=getattr(torch, dtype))
            found.append(to.const(ends, dtype))
        return found
    least, greatest = (to.emit(make(points, 0)) for make in (op.min, op.max))
    return [_spaced(to, least, greatest, dimension, count) for dimension, count in enumerate(bins)]


def _spaced(to: Emitter, least: Any, greatest: Any, dimension: int, count: int) -> Any:
    """Edges at equal distances, counted from the nearer end as torch.linspace does; one value is widened by a half."""
    dtype = dtype_of(least)

    def body(given: Any, at: Any) -> Any:
        low, high = (one(tirx.const(dimension, "int64")) for one in given)
        widen = tirx.if_then_else(low == high, tirx.const(0.5, dtype), tirx.const(0, dtype))
        low, high = low - widen, high + widen
        step = (high - low) / tirx.const(count, dtype)
        below = low + step * tirx.Cast(dtype, at[0])
        above = high - step * tirx.Cast(dtype, tirx.const(count, "int64") - at[0])
        return tirx.if_then_else(at[0] < tirx.const((count + 1) // 2, "int64"), below, above)

    return to.compute("edges", body, [count + 1], least, greatest)


def _counted(to: Emitter, points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """points [m, d] and weights of m elements -> weights by bin; a point outside all bins counts nowhere."""
    size, _ = shape_of(points)
    dtype = dtype_of(points)
    counts = [shape_of(one)[0] - 1 for one in edges]
    total = math.prod(counts)
    places = [_places(to, points, each, dimension) for dimension, each in enumerate(edges)]

    def body(given: Any, at: Any) -> Any:
        flat: Any = tirx.const(0, "int64")
        inside = []
        for one, count in zip(given, counts, strict=True):
            flat = flat * count + one(*at)
            inside.append(one(*at) >= 0)
        return tirx.if_then_else(tirx.all(*inside), flat, tirx.const(total, "int64"))

    bins = to.compute("bin", body, [size], *places)
    weights = to.emit(op.ones([size], dtype)) if weight is None else to.reshape(weight, [size])
    empty = to.emit(op.zeros([total + 1], dtype))
    found = to.emit(op.scatter_elements(empty, bins, weights, 0, "add"))
    found = to.reshape(to.emit(op.strided_slice(found, [0], [0], [total])), counts)
    if density:
        found = to.emit(op.divide(found, to.emit(op.sum(found))))
        for dimension, each in enumerate(edges):
            upper, lower = (
                to.emit(op.strided_slice(each, [0], [start], [start + counts[dimension]])) for start in (1, 0)
            )
            widths = to.reshape(
                to.emit(op.subtract(upper, lower)),
                [count if axis == dimension else 1 for axis, count in enumerate(counts)],
            )
            found = to.emit(op.divide(found, widths))
    return found


def _places(to: Emitter, points: Any, edges: Any, dimension: int) -> Any:
    """The bin of every point in a dimension, -1 outside: a search by halves for the first edge above it."""
    size, _ = shape_of(points)
    (length,) = shape_of(edges)

    def number(value: int) -> Any:
        return tirx.const(value, "int64")

    def body(at: Sequence[Any], points: Any, edges: Any) -> Iteration:
        value = points(at[0], number(dimension))

        def step(_k: Any, first: Any, count: Any) -> tuple[Any, Any]:
            half = tirx.floordiv(count, number(2))
            below = edges(first + half) <= value
            return (
                tirx.Select(below, first + half + number(1), first),
                tirx.Select(below, count - half - number(1), half),
            )

        def result(first: Any, _count: Any) -> Any:
            inside = tirx.all(value >= edges(number(0)), value <= edges(number(length - 1)))
            return tirx.if_then_else(inside, tirx.min(first - number(1), number(length - 2)), number(-1))

        return Iteration(
            states=(number(0), number(length)),
            steps=number(length.bit_length()),
            step=step,
            goes_on=lambda _, count: count > number(0),
            result=result,
        )

    return iterated_at(to, "place", body, [size], "int64", points, edges)
