"""Resizing of images and sampling at computed places. Weights are computed in float32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.graph.resizes import CUBIC, keys, scale_of, taps, weighted
from tuner.ingest.aten.emitter import Emitter, converter, int64, is_float, rounded, shape_of, wide
from tuner.tvm_compat import relax, tirx

op = relax.op
CUBIC_SMOOTH = -0.5
"""The coefficient of R. Keys's cubic convolution (1981) that PyTorch takes when it smooths."""


# Resizing: along each axis a row of the result is a weighted sum of few rows, whose places and weights are constants.

METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def _scales(size: Sequence[int], have: Sequence[int], align: bool, given: Any) -> list[float]:
    scales = []
    for at, (out, extent) in enumerate(zip(size, have, strict=True)):
        factor = given[at] if given is not None and len(given) > at else None
        scales.append(1 / factor if factor and not align else scale_of(extent, out, align=align))
    return scales


def _mode(kind: str, align: bool) -> str:
    """TVM's name for where the rows of the result lie in the image."""
    return "asymmetric" if kind == "nearest" else "align_corners" if align else "half_pixel"


def _taps(extent: int, out: int, scale: float, align: bool, kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Places [out, taps] and weights [out, taps] along an axis."""
    if kind == "nearest-exact":
        rows = np.arange(out, dtype=np.float32)
        places = np.minimum(np.floor((rows + np.float32(0.5)) * np.float32(scale)), extent - 1).astype(np.int64)
        return places[:, None], np.ones((out, 1), np.float32)
    number = np.float64 if dtype == "float64" and kind != "nearest" else np.float32
    return taps(extent, out, scale, METHODS[kind], _mode(kind, align), number)


def _smooth_taps(extent: int, out: int, scale: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """With a filter as wide as what becomes one row, so that nothing is skipped (antialiasing)."""
    width = {"linear": 1.0, "cubic": 2.0}[kind]
    stretch = max(scale, 1.0)
    support = width * stretch
    count = math.ceil(support) * 2 + 1
    places, weights = np.zeros((out, count), np.int64), np.zeros((out, count), np.float32)
    for row in range(out):
        centre = scale * (row + 0.5)
        first = max(int(centre - support + 0.5), 0)
        size = min(int(centre + support + 0.5), extent) - first
        at = (np.arange(size) + first - centre + 0.5) / stretch
        found = np.maximum(1 - np.abs(at), 0) if kind == "linear" else keys(at, CUBIC_SMOOTH)
        places[row] = min(max(first, 0), extent - 1)
        places[row, :size] = first + np.arange(size)
        weights[row, :size] = found / (found.sum() or 1)
    return places, weights


def _resized(
    to: Emitter, x: Any, kind: str, size: Sequence[int], scales: Sequence[float], align: bool, smooth: bool
) -> Any:
    rank = len(size)
    have = shape_of(x)
    result = to.dtype
    if not is_float(result):
        if not kind.startswith("nearest"):
            return _of_bytes(to, x, kind, size, scales, align, smooth)
        dtype = result
    else:
        dtype = wide(result)
    x = to.cast(x, dtype)
    plain = [scale_of(extent, out, align=align) for extent, out in zip(have[-rank:], size, strict=True)]
    if rank == 2 and len(have) == 4 and dtype == "float32" and kind in METHODS and not smooth and list(scales) == plain:
        resized = op.image.resize2d(
            x,
            relax.ShapeExpr(list(size)),
            method=METHODS[kind],
            coordinate_transformation_mode=_mode(kind, align),
            rounding_method="floor",
            cubic_alpha=CUBIC,
        )
        return to.cast(to.emit(resized), result)
    for axis in range(rank):
        at = len(have) - rank + axis
        extent, out = shape_of(x)[at], size[axis]
        if smooth:
            places, weights = _smooth_taps(extent, out, scales[axis], kind)
        else:
            places, weights = _taps(extent, out, scales[axis], align, kind, dtype)
        if extent == out and (places[:, 0] == np.arange(out)).all() and (weights[:, 0] == 1).all():
            continue
        x = weighted(to.builder, x, at, places, weights)
    return to.cast(x, result)


def _of_bytes(
    to: Emitter, x: Any, kind: str, size: Sequence[int], scales: Sequence[float], align: bool, smooth: bool
) -> Any:
    raise NotImplementedError(f"{kind} resizing of whole numbers")


def _resize(kind: str, rank: int, smooth: bool) -> Callable[..., Any]:
    def convert(
        to: Emitter,
        x: Any,
        align_corners: bool | None = False,
        scale_factors: Any = None,
        **more: Any,
    ) -> Any:
        size = to.shape[-rank:]
        given = scale_factors
        if given is None and any(name.startswith("scales") for name in more):
            given = [more.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales") if name in more]
            given = given[-rank:]
        scales = _scales(size, shape_of(x)[-rank:], bool(align_corners), given)
        return _resized(to, x, kind, size, scales, bool(align_corners), smooth)

    return convert


for _kind, _ranks in {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1, 2, 3), "cubic": (2,)}.items():
    for _rank in _ranks:
        _name = {
            "nearest": f"upsample_nearest{_rank}d",
            "nearest-exact": f"_upsample_nearest_exact{_rank}d",
            "linear": f"upsample_{('', 'linear1d', 'bilinear2d', 'trilinear3d')[_rank]}",
            "cubic": "upsample_bicubic2d",
        }[_kind]
        converter(f"{_name}.vec", f"{_name}.default")(_resize(_kind, _rank, False))
for _kind, _name in (("linear", "_upsample_bilinear2d_aa"), ("cubic", "_upsample_bicubic2d_aa")):
    converter(f"{_name}.vec", f"{_name}.default")(_resize(_kind, 2, True))


# Sampling at places of the grid


@converter("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sample(to: Emitter, x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """x [n, c, (d,) h, w], grid [n, ..., 2 or 3] in [-1, 1], its last axis from the innermost -> [n, c, ...].

    Modes: 0 linear, 1 nearest, 2 cubic; padding: 0 zeros, 1 the border, 2 reflection. Where x is of half precision PyTorch
    rounds places to it, step by step, and so does this: one of bfloat16 beyond 16 is off by up to a sixteenth, which shows
    in what is read there; its linear sums are rounded as well. Channels are the last axis of the tensor functions: what one
    reads at a place lies together, and the place is computed once.
    """
    spatial = shape_of(x)[2:]
    rank = len(spatial)
    result = to.dtype
    if result == "bfloat16" and interpolation_mode == 2:
        raise NotImplementedError("cubic sampling in bfloat16, whose weights PyTorch rounds away")
    dtype = wide(result)
    x = to.permute(to.cast(x, dtype), [0, *range(2, rank + 2), 1])
    grid = to.cast(grid, dtype)
    shape = [to.shape[0], *to.shape[2:], to.shape[1]]

    def near(value: Any) -> Any:
        return value if dtype == result else rounded(value, result)

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def in_pixels(value: Any, extent: int) -> Any:
        moved = near(value + number(1))
        if align_corners:
            return near(moved * number((extent - 1) / 2))
        return near(near(near(moved * number(extent)) - number(1)) * number(0.5))

    def bounded(place: Any, extent: int) -> Any:
        if padding_mode == 2:
            place = reflected(place, extent)
        if padding_mode:
            place = tirx.Select(place > number(0), tirx.min(place, number(extent - 1)), number(0))
        return place

    def reflected(place: Any, extent: int) -> Any:
        """Between the middles of the first and the last element, or their outer edges."""
        low, span = (0.0, extent - 1.0) if align_corners else (-0.5, float(extent))
        if span == 0:
            return number(0)
        away, period = tirx.abs(place - number(low)), number(2 * span)
        rest = away - tirx.trunc(near(away / period)) * period
        return near(tirx.min(rest, period - rest) + number(low))

    def position(place: Any, extent: int) -> Any:
        """A whole place as an index; one outside, at most two from the ends, where it is outside or no number."""
        return tirx.Select(place > number(-2), tirx.min(place, number(extent)), number(-2)).astype("int32")

    def positions(places: Sequence[Any]) -> list[Any]:
        return [position(*each) for each in zip(places, spatial, strict=True)]

    def read(given: Any, at: Any, indices: Sequence[Any]) -> Any:
        """The element, 0 outside. Both sides of a Select are evaluated, and TVM, which takes the condition to hold where the
        element is read, would drop the bounds of an index there: of the index as an unsigned number it concludes nothing."""
        inside = [
            index.astype("uint32") < tirx.const(extent, "uint32")
            for index, extent in zip(indices, spatial, strict=True)
        ]
        safe = [
            tirx.max(tirx.min(index, extent - 1), 0).astype("int64")
            for index, extent in zip(indices, spatial, strict=True)
        ]
        return tirx.Select(tirx.all(*inside), given[0](at[0], *safe, at[-1]), number(0))

    def place_of(tensor: Any, at: Any, axis: int) -> Any:
        return in_pixels(tensor(*at, int64(rank - 1 - axis)), spatial[axis])

    def places_along(axis: int) -> Any:
        """As a tensor of its own, where places written out in the sum below would be a large expression."""
        shape = shape_of(grid)[:-1]
        found = to.compute("place", lambda given, at: place_of(given[0], at, axis), shape, grid)
        if interpolation_mode == 2 or not padding_mode:
            return found
        return to.compute("place", lambda given, at: bounded(given[0](*at), spatial[axis]), shape, found)

    def indices_along(axis: int, places: Any) -> Any:
        """Of the four elements around places that a cubic sum reads, the first axis."""

        def index(given: Any, at: Any) -> Any:
            near_by = tirx.floor(given[0](*at[1:])) + (at[0] - 1).astype(dtype)
            return position(bounded(near_by, spatial[axis]), spatial[axis])

        return to.compute("index", index, [4, *shape_of(places)], places)

    def body(given: Any, at: Any) -> Any:
        own = at[:-1]
        if of_their_own:
            places = [tensor(*own) for tensor in given[1 : rank + 1]]
        else:
            places = [bounded(place_of(given[1], own, axis), spatial[axis]) for axis in range(rank)]
        if interpolation_mode == 2:
            return _cubic(places, lambda y, x: read(given, at, [given[3](y, *own), given[4](x, *own)]), number)
        if interpolation_mode == 1:
            return read(given, at, positions([tirx.nearbyint(place) for place in places]))
        lows = [tirx.floor(place) for place in places]
        first = positions(lows)
        total = number(0)
        for corner in itertools.product((0, 1), repeat=rank):
            weight = number(1)
            for place, low, side in zip(places, lows, corner, strict=True):
                weight = weight * (place - low if side else number(1) - (place - low))
            total = total + weight * read(given, at, [low + side for low, side in zip(first, corner, strict=True)])
        return total

    def rounded_sum(places: Sequence[Any]) -> Any:
        """Corner after corner, tensors of their own for the same reason; weights multiplied from the innermost axis."""
        total: list[Any] = []
        for corner in itertools.product((0, 1), repeat=rank):

            def add(given: Any, at: Any, corner: Any = corner) -> Any:
                here = [tensor(*at[:-1]) for tensor in given[1 : rank + 1]]
                lows = [tirx.floor(place) for place in here]
                parts = [
                    place - low if side else number(1) - (place - low)
                    for place, low, side in zip(here, lows, corner, strict=True)
                ]
                weight = parts[-1]
                for part in parts[-2::-1]:
                    weight = near(weight * part)
                value = read(given, at, [low + side for low, side in zip(positions(lows), corner, strict=True)])
                before = [tensor(*at) for tensor in given[rank + 1 :]]
                return near(sum(before, number(0)) + near(weight * value))

            total = [to.compute("corner", add, shape, x, *places, *total)]
        return total[0]

    of_their_own = dtype != result or interpolation_mode == 2 or padding_mode == 2
    where = [places_along(axis) for axis in range(rank)] if of_their_own else [grid]
    if interpolation_mode == 2:
        where += [indices_along(axis, where[axis]) for axis in range(rank)]
    if dtype != result and interpolation_mode == 0:
        found = rounded_sum(where)
    else:
        found = to.compute("grid_sample", body, shape, x, *where)
    return to.cast(to.permute(found, [0, rank + 1, *range(1, rank + 1)]), result)


def _cubic(places: Sequence[Any], read: Callable[[int, int], Any], number: Callable[[float], Any]) -> Any:
    a = CUBIC

    def weights(t: Any) -> list[Any]:
        def near(v: Any) -> Any:
            return ((number(a + 2) * v - number(a + 3)) * v * v) + number(1)

        def far(v: Any) -> Any:
            return ((number(a) * v - number(5 * a)) * v + number(8 * a)) * v - number(4 * a)

        one, two = number(1), number(2)
        return [far(t + one), near(t), near(one - t), far(two - t)]

    parts = [weights(place - tirx.floor(place)) for place in places]
    total = number(0)
    for y, x in itertools.product(range(4), repeat=2):
        total = total + parts[0][y] * parts[1][x] * read(y, x)
    return total
