"""Resize and Upsample in all their modes, one axis at a time.

Along an axis, each result is a sum of `taps` neighbours of its place in the operand, weighted. Scales that only a run
knows are read when it runs; the number of results is then the one that the file declares.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tuner.graph.resizes import CUBIC
from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import relax, te, tirx

KIND = "float64"
"""In which weights are computed."""
PLACE = "float32"
"""In which places are, as in ONNX Runtime."""


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
    if node.opset < 11:
        node.inputs = [node.inputs[0], None, node.inputs[1]]
        node.attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resized(node)
    # An operand of no element is one that is left out.
    node.inputs = [None if isinstance(v, np.ndarray) and v.size == 0 else v for v in node.inputs]
    found = _of_images(node)
    return _resized(node) if found is None else node.emit(found)


def _of_images(node: Node) -> Any:
    """TVM's operator, which keeps its layout between convolutions and is taken apart later (tuner/graph/resizes.py), where
    it agrees with the standard; None elsewhere."""
    source, result = node.shape(0), node.result_shape()
    if len(source) != 4 or source[:2] != result[:2] or node.dtype(0) != "float32":
        return None
    if any(node.attribute(name) for name in ("antialias", "axes", "exclude_outside")):
        return None
    if node.given(3) and node.known(3) is None:
        return None
    if node.given(2):  # scales count as they are where they are not those of the extents
        scales = node.known(2)
        if scales is None or not np.allclose(scales, np.divide(result, source), rtol=1e-6):
            return None
    mode = str(node.attribute("mode", "nearest"))
    place = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    if place == "pytorch_half_pixel" and min(result[2:]) > 1:
        place = "half_pixel"
    nearest = mode == "nearest" and place == "asymmetric" and str(node.attribute("nearest_mode", "")) == "floor"
    linear = mode == "linear" and place in ("half_pixel", "asymmetric", "align_corners")
    cubic = mode == "cubic" and place in ("half_pixel", "align_corners")
    if not (nearest or linear or (cubic and math.isclose(float(node.attribute("cubic_coeff_a", CUBIC)), CUBIC))):
        return None
    return relax.op.image.resize2d(
        node.tensor(0),
        relax.ShapeExpr(list(result[2:])),
        method="nearest_neighbor" if nearest else mode,
        coordinate_transformation_mode=place,
        rounding_method="floor",
        cubic_alpha=CUBIC,
    )


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


def _origins(node: Node, axis: int, place: int, count: int, scale: Any) -> Any:
    """float32[result's extent]: the place in the operand, a real number, of each result along an axis.

    Rounding decides which neighbour is the nearest, so it is computed as ONNX Runtime does, in its type and order, and
    beforehand where all of it is known."""
    length = node.result_shape()[axis]
    cropped = str(node.attribute("coordinate_transformation_mode", "half_pixel")) == "tf_crop_and_resize"
    region = node.known(1) if cropped else None
    if scale is not None and (region is not None or not cropped):
        given = None if region is None else region.reshape(-1).astype(PLACE)
        with np.errstate(all="ignore"):
            steps = np.arange(length, dtype=PLACE)
            return node.constant(_origin(node, steps, axis, place, count, np.float32(scale), given), PLACE)
    operands = [node.cast(node.tensor(at), PLACE) for at, needed in ((2, scale is None), (1, cropped)) if needed]

    def make(*given: Any) -> Any:
        pace = given[0](place) if scale is None else tirx.const(float(scale), PLACE)
        ends = {at: given[-1](at) for at in (place, place + count)} if cropped else None
        return compute((length,), lambda i: _origin(node, i.astype(PLACE), axis, place, count, pace, ends), "origins")

    return node.te(make, *operands)


def _origin(node: Node, i: Any, axis: int, place: int, count: int, scale: Any, region: Any) -> Any:
    """The place of result i, of numbers or of expressions.

    Corners are aligned by whole lengths, as PyTorch and ONNX Runtime have it; for a scale that only a run knows by
    `scale * extent`, as ONNX's reference, whose tests give such scales."""
    extent, length = node.shape(0)[axis], node.result_shape()[axis]
    mode = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        last = length - 1.0 if isinstance(i, np.ndarray) else scale * float(extent) - 1.0
        return i * float(extent - 1) / last if length > 1 else i * 0.0
    if mode == "tf_crop_and_resize":
        begin, end = region[place], region[place + count]
        if length == 1:
            return i * 0.0 + (begin + end) * (0.5 * (extent - 1))
        return i * (end - begin) * float(extent - 1) / float(length - 1) + begin * float(extent - 1)
    found = (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return found if length > 1 else i * 0.0
    if mode == "half_pixel_symmetric":
        return found + (1.0 - length / (scale * float(extent))) * (extent / 2)
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

    paces = [node.cast(node.tensor(2), KIND)] if scale is None else []

    def make(data: Any, origins: Any, *given: Any) -> Any:
        pace = given[0](place) if scale is None else _number(scale)

        def origin(i: Any) -> Any:
            return origins(i).astype(KIND)

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

    return node.te(make, x, _origins(node, axis, place, count, scale), *paces)


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
    tables = [
        _origins(node, axis, place, len(axes), _scale(node, place, axes, source, result))
        for place, axis in enumerate(axes)
    ]

    def make(data: Any, *origins: Any) -> Any:
        def element(*at: Any) -> Any:
            outside = tirx.const(False, "bool")
            for axis, table in zip(axes, origins, strict=True):
                where = table(at[axis])
                beyond = tirx.Or(where < 0.0, where > float(source[axis] - 1))
                outside = tirx.Or(outside, beyond)
            return tirx.Select(outside, tirx.const(value, wide), data(*at))

        return compute(result, element)

    return node.te(make, x, *tables)
