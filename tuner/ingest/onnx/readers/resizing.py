"""Resize and Upsample in all their modes, one axis at a time.

Along an axis, each result is a sum of `taps` neighbours of its place in the operand, weighted. Scales that only a run
knows are read when it runs; the number of results is then the one that the file declares.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import te, tirx

KIND = "float64"
"""In which places and weights are computed: rounding decides which neighbour is the nearest."""


def _number(value: float) -> Any:
    return tirx.const(float(value), KIND)


@reader("Upsample")
def upsample(node: Node) -> Any:
    """The first form of resizing: places are divided by the scale, and the nearest is the one before."""
    if node.opset < 9:
        scales = np.array(node.attribute("scales"), np.float32)
        node.inputs = [node.inputs[0], None, scales]
    else:
        node.inputs = [node.inputs[0], None, node.inputs[1]]
    node.attributes = {
        "coordinate_transformation_mode": "asymmetric",
        "mode": str(node.attribute("mode", "nearest")),
        "nearest_mode": "floor",
    }
    return _resized(node)


@reader("Resize")
def resize(node: Node) -> Any:
    """TVM's operator for images where it agrees with the standard: nearest and linear, of constant whole enlargement."""
    if node.opset < 11:
        node.inputs = [node.inputs[0], None, node.inputs[1]]
        node.attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resized(node)
    # An operand of no element is one that is left out.
    node.inputs = [None if isinstance(v, np.ndarray) and v.size == 0 else v for v in node.inputs]
    if _as_tvm_has_it(node):
        return None
    return _resized(node)


def _as_tvm_has_it(node: Node) -> bool:
    source, result = node.shape(0), node.result_shape()
    known = all(node.known(position) is not None for position in (2, 3) if node.given(position))
    plain = not any(node.attribute(name) for name in ("antialias", "axes", "exclude_outside"))
    whole = all(b % a == 0 for a, b in zip(source, result, strict=True)) and source[:2] == result[:2]
    mode, place = (
        str(node.attribute("mode", "nearest")),
        str(node.attribute("coordinate_transformation_mode", "half_pixel")),
    )
    nearest = mode == "nearest" and place == "asymmetric" and str(node.attribute("nearest_mode", "")) == "floor"
    linear = mode == "linear" and place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    return known and plain and whole and len(source) == 4 and node.dtype(0) == "float32" and (nearest or linear)


def _resized(node: Node) -> Any:
    source, result = node.shape(0), node.result_shape()
    rank, dtype = len(source), node.dtype(0)
    axes = [axis % rank for axis in node.attribute("axes") or range(rank)]
    mode = str(node.attribute("mode", "nearest"))
    cropped = str(node.attribute("coordinate_transformation_mode", "half_pixel")) == "tf_crop_and_resize"
    wide = dtype if dtype == "float64" or mode == "nearest" else "float32"
    x = node.cast(node.tensor(0), wide)
    for place, axis in enumerate(axes):
        scale = _scale(node, place, axes, source, result)
        same = source[axis] == result[axis]
        if same and not cropped and (scale is None or (isinstance(scale, float) and math.isclose(scale, 1.0))):
            continue
        x = _along(node, x, axis, place, len(axes), scale)
    if cropped:
        x = _extrapolated(node, x, axes, result)
    if wide == dtype:
        return x
    if "int" in dtype:
        limits = np.iinfo(dtype)
        low, high = tirx.const(float(limits.min), wide), tirx.const(float(limits.max), wide)
        x = node.te(lambda v: compute(result, lambda *at: te.min(te.max(te.trunc(v(*at)), low), high)), x)
    return node.cast(x, dtype)


def _scale(node: Node, place: int, axes: list[int], source: tuple[int, ...], result: tuple[int, ...]) -> Any:
    """A float; None where only a run knows it."""
    axis = axes[place]
    if node.given(2):
        known = node.known(2)
        return None if known is None else float(known.reshape(-1)[place])
    policy = str(node.attribute("keep_aspect_ratio_policy", "stretch"))
    if policy == "stretch":
        return result[axis] / source[axis]
    sizes = node.integers(3)
    if sizes is None:
        node.refuse(f"the policy {policy} for sizes that are not constant")
    ratios = [size / source[each] for size, each in zip(sizes, axes, strict=True)]
    return min(ratios) if policy == "not_larger" else max(ratios)


def _operands(node: Node, scale: Any) -> list[Any]:
    found = []
    if scale is None:
        found.append(node.cast(node.tensor(2), KIND))
    if str(node.attribute("coordinate_transformation_mode", "half_pixel")) == "tf_crop_and_resize":
        found.append(node.cast(node.tensor(1), KIND))
    return found


def _origin(node: Node, i: Any, axis: int, place: int, count: int, scale: Any, region: Any) -> Any:
    """The place in the operand, a real number, of result i along an axis."""
    extent, length = node.shape(0)[axis], node.result_shape()[axis]
    mode = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    i = i.astype(KIND)
    width = scale * _number(extent)
    one = _number(1.0)
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        safe = tirx.Select(width.equal(one), _number(2.0), width)
        return tirx.Select(width.equal(one), _number(0.0), i * _number(extent - 1) / (safe - one))
    if mode == "tf_crop_and_resize":
        begin, end = region(place), region(place + count)
        safe = tirx.Select(width.equal(one), _number(2.0), width)
        middle = (end - begin) * _number((extent - 1) / 2)
        spread = i * (end - begin) * _number(extent - 1) / (safe - one)
        return tirx.Select(width.equal(one), middle, spread) + begin * _number(extent - 1)
    found = (i + _number(0.5)) / scale - _number(0.5)
    if mode == "pytorch_half_pixel":
        return tirx.Select(width.equal(one), _number(-0.5), found)
    if mode == "half_pixel_symmetric":
        return found + _number(extent / 2) * (one - _number(length) / width)
    if mode != "half_pixel":
        node.refuse(f"the coordinates {mode}")
    return found


def _along(node: Node, x: Any, axis: int, place: int, count: int, scale: Any) -> Any:
    """x with one axis resized, the `place`-th of `count` that are; `scale` is the result's extent over x's, None where only
    a tensor tells it."""
    extent, length = node.shape(0)[axis], node.result_shape()[axis]
    mode, antialias = str(node.attribute("mode", "nearest")), bool(node.attribute("antialias", 0))
    if mode not in ("nearest", "linear", "cubic"):
        node.refuse(f"the mode {mode}")
    reach = {"nearest": 1, "linear": 1, "cubic": 2}[mode]
    if antialias and mode != "nearest":
        # Where the scale is not known the footprint is at most what one result of the whole axis would need.
        least = min(scale, 1.0) if isinstance(scale, float) else length / (extent + 1.0)
        begin = math.floor(-reach / least) + 1 - (0 if isinstance(scale, float) else 1)
        taps = list(range(begin, reach + 1 - begin - (reach - 1)))
    else:
        taps = [0] if mode == "nearest" else list(range(1 - reach, reach + 1))
    exclude, bent = bool(node.attribute("exclude_outside", 0)), float(node.attribute("cubic_coeff_a", -0.75))
    result = list(shape_of(x))
    result[axis] = length
    wide = str(x.ty.dtype)

    def make(data: Any, *given: Any) -> Any:
        pace = given[0](place) if scale is None else _number(scale)
        region = given[-1] if given else None

        def origin(i: Any) -> Any:
            return _origin(node, i, axis, place, count, pace, region)

        if mode == "nearest":
            at_most = tirx.const(extent - 1, "int64")
            places = compute(
                (length,),
                lambda i: te.min(te.max(_nearest(node, origin(i)), tirx.const(0, "int64")), at_most),
                "places",
            )
            return compute(result, lambda *at: data(*at[:axis], places(at[axis]), *at[axis + 1 :]))
        before = compute((length,), lambda i: te.floor(origin(i)), "before")
        first = taps[0]
        slow = te.min(pace, _number(1.0)) if antialias else _number(1.0)

        def weight(i: Any, k: Any) -> Any:
            distance = te.abs((before(i) + (k + first).astype(KIND) - origin(i)) * slow)
            found = _linear(distance) if mode == "linear" else _cubic(distance, bent)
            if exclude:
                j = before(i) + (k + first).astype(KIND)
                inside = tirx.And(j >= _number(0.0), j <= _number(extent - 1))
                found = tirx.Select(inside, found, _number(0.0))
            return found

        weights = compute((length, len(taps)), weight, "weights")
        if exclude or antialias:
            t = te.reduce_axis((0, len(taps)), "t")
            total = compute((length,), lambda i: te.sum(weights(i, t), axis=t), "total")
            raw = weights
            weights = compute((length, len(taps)), lambda i, k: raw(i, k) / total(i), "normalised")
        k = te.reduce_axis((0, len(taps)), "k")

        def element(*at: Any) -> Any:
            i = at[axis]
            j = before(i).astype("int64") + k.var + tirx.const(first, "int64")
            j = te.max(te.min(j, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))
            return te.sum(data(*at[:axis], j, *at[axis + 1 :]) * weights(i, k).astype(wide), axis=k)

        return compute(result, element)

    return node.te(make, x, *_operands(node, scale))


def _nearest(node: Node, origin: Any) -> Any:
    mode = str(node.attribute("nearest_mode", "round_prefer_floor"))
    half = _number(0.5)
    if mode == "round_prefer_floor":
        found = te.ceil(origin - half)
    elif mode == "round_prefer_ceil":
        found = te.floor(origin + half)
    elif mode == "floor":
        found = te.floor(origin)
    elif mode == "ceil":
        found = te.ceil(origin)
    else:
        node.refuse(f"the rounding {mode}")
    return found.astype("int64")


def _linear(distance: Any) -> Any:
    return te.max(_number(0.0), _number(1.0) - distance)


def _cubic(d: Any, a: float) -> Any:
    """Keys' kernel, with its parameter a."""
    near = ((_number(a + 2) * d - _number(a + 3)) * d) * d + _number(1.0)
    far = ((_number(a) * d - _number(5 * a)) * d + _number(8 * a)) * d - _number(4 * a)
    return tirx.Select(d <= _number(1.0), near, tirx.Select(d < _number(2.0), far, _number(0.0)))


def _extrapolated(node: Node, x: Any, axes: list[int], result: tuple[int, ...]) -> Any:
    """The given value where a place lies outside of the operand along any axis."""
    value = float(node.attribute("extrapolation_value", 0.0))
    wide, source = str(x.ty.dtype), node.shape(0)
    scales = [_scale(node, place, axes, source, result) for place in range(len(axes))]
    runtime = any(scale is None for scale in scales)

    def make(data: Any, *given: Any) -> Any:
        def element(*at: Any) -> Any:
            outside = tirx.const(False, "bool")
            for place, axis in enumerate(axes):
                pace = given[0](place) if scales[place] is None else _number(scales[place])
                where = _origin(node, at[axis], axis, place, len(axes), pace, given[-1])
                beyond = tirx.Or(where < _number(0.0), where > _number(source[axis] - 1))
                outside = tirx.Or(outside, beyond)
            return tirx.Select(outside, tirx.const(value, wide), data(*at))

        return compute(result, element)

    return node.te(make, x, *_operands(node, None if runtime else 1.0))
