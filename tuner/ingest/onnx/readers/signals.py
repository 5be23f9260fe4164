"""Fourier transforms and what goes with them: windows and mel weights.

A transform of length n is a sum over n elements times roots of unity, which are a table of n entries; a fast algorithm
would be another operator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tuner.ingest.onnx.node import Node, compute
from tuner.ingest.onnx.registry import reader
from tuner.ingest.onnx.values import shape_of
from tuner.tvm_compat import relax, te, tirx

MAX_LENGTH = 1 << 16
"""Of a transform."""


def _table(node: Node, length: int, dtype: str, inverse: bool) -> tuple[Any, Any]:
    """cos and sin of 2 pi j / n for j < n; the sine's sign is the transform's."""
    angle = 2 * np.pi * np.arange(length) / length
    sine = np.sin(angle) if inverse else -np.sin(angle)
    return node.constant(np.cos(angle).astype(dtype)), node.constant(sine.astype(dtype))


@reader("DFT")
def transform(node: Node) -> Any:
    """Along an axis that is known, or that only a run knows: then the possible ones are computed and it chooses."""
    if node.dtype(0) not in ("float32", "float64"):
        node.refuse(f"transforms of {node.dtype(0)}")
    rank = len(node.shape(0))
    if node.opset < 20:
        return _along(node, int(node.attribute("axis", 1)) % rank)
    axes = node.integers(2) if node.given(2) else [-2]
    if axes is not None:
        return _along(node, node.axis(axes[0], rank))
    shape, result = node.shape(0)[:-1], node.result_shape()[:-1]
    changed = [axis for axis in range(rank - 1) if shape[axis] != result[axis]]
    possible = changed or [axis for axis in range(rank - 1) if _length(node, axis) == shape[axis]]
    if len(changed) > 1 or not possible:
        node.refuse("its axis is not constant")
    operand = node.reshape(node.cast(node.tensor(2), "int64"), [])
    found = _along(node, possible[0])
    for axis in possible[1:]:
        is_this = node.te(
            lambda given, axis=axis: compute(
                (), lambda: tirx.Or(given().equal(_i64(axis)), given().equal(_i64(axis - rank)))
            ),
            operand,
            name="axis_is",
        )
        found = node.emit(relax.op.where(is_this, _along(node, axis), found))
    return found


def _i64(value: int) -> Any:
    return tirx.const(value, "int64")


def _length(node: Node, axis: int) -> int:
    """Of the transform along an axis."""
    one_sided, inverse = bool(node.attribute("onesided", 0)), bool(node.attribute("inverse", 0))
    lengths = node.integers(1) if node.given(1) else None
    if node.given(1) and lengths is None and one_sided:
        node.refuse("its length is not constant")
    if lengths:
        return lengths[0]
    extent = node.shape(0)[axis]
    if one_sided:
        return 2 * (extent - 1) if inverse else extent
    return node.result_shape()[axis]


def _along(node: Node, axis: int) -> Any:
    one_sided, inverse = bool(node.attribute("onesided", 0)), bool(node.attribute("inverse", 0))
    length = _length(node, axis)
    if length > MAX_LENGTH:
        node.refuse(f"transforms longer than {MAX_LENGTH}")
    return _transformed(node, node.tensor(0), axis, length, one_sided=one_sided, inverse=inverse)


def _transformed(node: Node, x: Any, axis: int, length: int, *, one_sided: bool, inverse: bool) -> Any:
    shape, result, dtype = shape_of(x), node.result_shape(), node.dtype(0)
    parts, known = shape[-1], min(shape[axis], length)
    half_given = inverse and one_sided
    terms = length if half_given else known

    def make(data: Any, cosine: Any, sine: Any) -> Any:
        j = te.reduce_axis((0, terms), "j")

        def element(*at: Any) -> Any:
            at, part = at[:-1], at[-1]
            phase = tirx.floormod(at[axis].astype("int64") * j.var.astype("int64"), tirx.const(length, "int64"))
            source, sign = j.var.astype("int64"), tirx.const(1, dtype)
            if half_given:  # The second half of a real signal's transform is the first one's, mirrored and conjugated.
                mirrored = source >= tirx.const(shape[axis], "int64")
                source = tirx.Select(mirrored, tirx.const(length, "int64") - source, source)
                sign = tirx.Select(mirrored, tirx.const(-1, dtype), sign)
            where = (*at[:axis], source, *at[axis + 1 :])
            real = data(*where, 0)
            imaginary = data(*where, 1) * sign if parts == 2 else tirx.const(0, dtype)
            first = real * cosine(phase) - imaginary * sine(phase)
            second = real * sine(phase) + imaginary * cosine(phase)
            return te.sum(tirx.Select(part.equal(0), first, second), axis=j)

        found = compute(result, element)
        if not inverse:
            return found
        return compute(result, lambda *at: found(*at) * tirx.const(1.0 / length, dtype))

    return node.te(make, x, *_table(node, length, dtype, inverse))


@reader("STFT")
def short_time_transform(node: Node) -> Any:
    """Frames of the signal, times the window, transformed."""
    shape, result, dtype = node.shape(0), node.result_shape(), node.dtype(0)
    steps = node.integers(1)
    length = node.shape(2)[0] if node.given(2) else (node.integers(3) or [0])[0]
    if not length or dtype not in ("float32", "float64"):
        node.refuse("its frames have no known length, or their type is no single or double one")
    pace = (
        node.reshape(node.cast(node.tensor(1), "int64"), [])
        if steps is None
        else node.constant(np.array(steps[0], np.int64))
    )
    window = node.tensor(2) if node.given(2) else node.constant(np.ones(length, dtype))
    parts = shape[2] if len(shape) > 2 else 1
    signal = node.reshape(node.tensor(0), [*shape[:2], parts])

    def make(data: Any, step: Any, weights: Any, cosine: Any, sine: Any) -> Any:
        j = te.reduce_axis((0, length), "j")

        def element(b: Any, frame: Any, k: Any, part: Any) -> Any:
            phase = tirx.floormod(k.astype("int64") * j.var.astype("int64"), tirx.const(length, "int64"))
            where = te.min(frame.astype("int64") * step() + j.var.astype("int64"), tirx.const(shape[1] - 1, "int64"))
            real = data(b, where, 0) * weights(j)
            imaginary = data(b, where, 1) * weights(j) if parts == 2 else tirx.const(0, dtype)
            first = real * cosine(phase) - imaginary * sine(phase)
            second = real * sine(phase) + imaginary * cosine(phase)
            return te.sum(tirx.Select(part.equal(0), first, second), axis=j)

        return compute(result, element)

    return node.te(make, signal, pace, window, *_table(node, length, dtype, False))


_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@reader(*_WINDOWS)
def window(node: Node) -> Any:
    """a - b cos(2 pi i / n) + c cos(4 pi i / n), where n is one less for a symmetric window."""
    (count,), dtype = node.result_shape(), node.result_dtype()
    a, b, c = _WINDOWS[node.operator]
    length = max(count if node.attribute("periodic", 1) else count - 1, 1)
    angle = 2 * math.pi * np.arange(count) / length
    return [(a - b * np.cos(angle) + c * np.cos(2 * angle)).astype(dtype)]
