"""Resizing of images, one axis after another.

Along an axis a row of the result is a weighted sum of few rows of the image, whose places and weights are constants. TVM's
operator computes both for every element, and reads as many rows by as many columns for it. Before layouts are converted
the operator stays, since convolutions with channels last pass their layout through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.tvm_compat import relax, te, tirx

CUBIC = -0.75
"""The coefficient of R. Keys's cubic convolution (1981) in PyTorch and ONNX."""
SUMMED = 4
"""Rows that are added in one expression, which fuses with what follows; more are a reduction."""
MODES = ("half_pixel", "align_corners", "asymmetric")
LAYOUTS = {"NCHW": (2, 3), "NHWC": (1, 2)}


def separate_resizes(mod: Any) -> Any:
    """The module with calls of relax.image.resize2d in main taken apart. Bindings must be canonical."""
    replacements: dict[Any, Replacement] = {}
    for _, call in DefUse(mod["main"]).calls("relax.image.resize2d"):
        if (tables := _tables(call)) is not None:
            replacements[call] = _separated(call.args[0], tables)
    return replace_calls(mod, replacements)


Tables = list[tuple[int, np.ndarray, np.ndarray]]
"""(axis, places, weights), as `weighted` takes them."""


def _tables(call: Any) -> Tables | None:
    """Of a resize, the axes that change; None where it stays as it is."""
    attrs = call.attrs
    have, size = static_shape(call.args[0]), static_shape(call)
    method, mode = str(attrs.method), str(attrs.coordinate_transformation_mode)
    cubic = method == "cubic" and float(attrs.cubic_alpha) == CUBIC and not int(attrs.cubic_exclude)
    nearest = method == "nearest_neighbor" and (mode, str(attrs.rounding_method)) == ("asymmetric", "floor")
    axes = LAYOUTS.get(str(attrs.layout))
    if (
        have is None
        or size is None
        or axes is None
        or mode not in MODES
        or not (cubic or nearest or method == "linear")
    ):
        return None
    if str(call.ty.dtype) != "float32" or str(call.args[0].ty.dtype) != "float32":
        return None
    return [
        (axis, *taps(have[axis], size[axis], scale_of(have[axis], size[axis], align=mode == MODES[1]), method, mode))
        for axis in axes
        if have[axis] != size[axis]
    ]


def _separated(x: Any, tables: Tables) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        found = current(x)
        for axis, places, weights in tables:
            found = weighted(builder, found, axis, places, weights)
        return found

    return replacement


def scale_of(extent: int, out: int, *, align: bool) -> float:
    """Rows of the image for one of the result; `align`: the first and last rows of both lie on each other."""
    if align:
        return (extent - 1) / (out - 1) if out > 1 else 0.0
    return extent / out


def taps(extent: int, out: int, scale: float, method: str, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """int64[out, n] places and float32[out, n] weights along an axis: of 1 row (nearest_neighbor), 2 (linear) or 4 (cubic).
    Computed in float32, as PyTorch does."""
    rows, pace = np.arange(out, dtype=np.float32), np.float32(scale)
    source = (rows + np.float32(0.5)) * pace - np.float32(0.5) if mode == "half_pixel" else rows * pace
    if method == "nearest_neighbor":
        places = np.minimum(np.floor(source), extent - 1).astype(np.int64)
        return places[:, None], np.ones((out, 1), np.float32)
    if method == "linear":
        source = np.maximum(source, 0)
        low = np.minimum(np.floor(source).astype(np.int64), extent - 1)
        part = np.clip(source - low, 0, 1).astype(np.float32)
        return np.stack([low, np.minimum(low + 1, extent - 1)], 1), np.stack([1 - part, part], 1)
    low = np.floor(source).astype(np.int64)
    places = np.clip(low[:, None] + np.arange(-1, 3), 0, extent - 1)
    weights = [keys(source - low - offset, CUBIC) for offset in range(-1, 3)]
    return places, np.stack(weights, 1).astype(np.float32)


def keys(t: np.ndarray, a: float) -> np.ndarray:
    """Weights of rows at distances t from the place that is sought."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def weighted(builder: Any, x: Any, axis: int, places: np.ndarray, weights: np.ndarray) -> Any:
    """x with rows of an axis made anew: row i is the sum over k of weights[i, k] times x's row places[i, k]. Where
    there is one k the weights are ones."""
    dtype, count = str(x.ty.dtype), weights.shape[1]
    shape = [tirx.IntImm("int64", extent) for extent in static_shape(x) or ()]
    shape[axis] = tirx.IntImm("int64", len(places))

    tables = [relax.const(places)]
    if count > 1:
        tables.append(relax.const(weights.astype(dtype)))

    def function(image: Any, place: Any, *weight: Any) -> Any:
        def term(at: Any, k: Any) -> Any:
            row = image(*at[:axis], place(at[axis], k), *at[axis + 1 :])
            return row * weight[0](at[axis], k) if weight else row

        def element(*at: Any) -> Any:
            if count > SUMMED:
                k = te.reduce_axis((tirx.IntImm("int64", 0), tirx.IntImm("int64", count)), "k")
                return te.sum(term(at, k.var), axis=k)
            total = term(at, tirx.IntImm("int64", 0))
            for k in range(1, count):
                total = total + term(at, tirx.IntImm("int64", k))
            return total

        return te.compute(shape, element, name="resize")

    return builder.emit(builder.call_te(function, x, *tables, primfunc_name_hint="resize"))
