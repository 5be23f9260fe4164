"""Norms of groups of large images as three kernels: sums of parts of each image, their combination, and the norm itself.

One kernel computes such a norm with a block for each group of an image. With channels last a group has a few bytes of each
pixel, and the others that memory delivers with them are for other blocks. Here a block sums up some pixels of many channels,
which lie side by side:

    parts       [images, parts, 2, channels]: of each channel the mean m_i and the sum of squares q_i about it
    statistics  [images, 2, groups, channels of a group]: the mean m of a group, and gamma / sqrt(variance + epsilon), where
                count * variance = sum of q_i + n (m_i - m)^2 over the parts and channels of the group, each of n elements
                (Chan, Golub and LeVeque, The American Statistician 37, 1983)
    norm        (x - m) * that + beta, which is fused with what follows it

A channel's mean is kept in float32. That is precise enough for elements of half precision, and not for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.one_function import HALF, SUMS, cast, dtype_of
from tuner.tvm_compat import relax, te, tirx

LEAST_ELEMENTS = 1 << 20
"""Of a tensor. The launches of two more kernels cost more than a smaller one's norm."""
SECTOR_BYTES = 32
"""What memory delivers at once. A group of so many bytes of each pixel wastes nothing."""
MOST_BLOCKS = 512
"""Of the first kernel: some four for each multiprocessor."""
BLOCK_CHANNELS = 64
"""That a block of it sums up side by side."""
LEAST_PIXELS = 32
"""Of a part."""


def split_norms(mod: Any) -> Any:
    """The module with such norms of main as calls of three tensor functions each. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    calls = [call for _, call in def_use.calls("relax.nn.group_norm") if _is_worth_it(call)]
    return replace_calls(mod, {call: _in_parts(call) for call in calls})


def _is_worth_it(call: Any) -> bool:
    shape = static_shape(call)
    if shape is None or dtype_of(call) not in HALF or math.prod(shape) < LEAST_ELEMENTS:
        return False
    last = len(shape) - 1
    whole = sorted(int(axis) % len(shape) for axis in call.attrs.axes) == list(range(1, last))
    narrow = shape[-1] // int(call.attrs.num_groups) * 2 < SECTOR_BYTES
    return whole and narrow and int(call.attrs.channel_axis) % len(shape) == last


def _in_parts(call: Any) -> Replacement:
    images, *extents, channels = static_shape(call) or []
    pixels, size = math.prod(extents), channels // int(call.attrs.num_groups)
    part = part_of(images, pixels, channels)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def called(function: Any, *arguments: Any) -> Any:
            return builder.emit(builder.call_te(function, *arguments, primfunc_name_hint=function.__name__))

        x, gamma, beta = (current(each) for each in call.args)
        cut = builder.emit(relax.op.reshape(x, [images, pixels // part, part, channels]))
        gamma, beta = (cast(builder, each, SUMS) for each in (gamma, beta))
        found = called(norm_statistics, called(norm_parts, cut), gamma, size, part, float(call.attrs.epsilon))
        statistics = builder.emit(relax.op.reshape(found, [images, 2, channels]))
        return cast(builder, called(group_norm, x, statistics, beta), dtype_of(call))

    return replacement


def part_of(images: int, pixels: int, channels: int) -> int:
    """Pixels of a part: a divisor of those of an image, as few as MOST_BLOCKS allows."""
    beside = images * -(-channels // BLOCK_CHANNELS)
    counts = [n for n in range(1, pixels // LEAST_PIXELS + 1) if pixels % n == 0 and n * beside <= MOST_BLOCKS]
    return pixels // max(counts, default=1)


def norm_parts(x: Any) -> Any:
    """[images, parts, pixels, channels] -> the parts."""
    images, parts, pixels, channels = (int(extent) for extent in x.shape)
    k = [te.reduce_axis((0, pixels), name=name) for name in ("k", "l")]

    def shifted(n: Any, part: Any, pixel: Any, c: Any) -> Any:
        return x[n, part, pixel, c].astype(SUMS) - first(n, part, c)

    def first(n: Any, part: Any, c: Any) -> Any:
        return x[n, part, 0, c].astype(SUMS)

    shape = [images, parts, channels]
    total = te.compute(shape, lambda n, i, c: te.sum(shifted(n, i, k[0], c), axis=k[0]), name="total")
    mean = te.compute(shape, lambda *at: total(*at) / tirx.const(pixels, SUMS), name="mean")

    def square(n: Any, part: Any, pixel: Any, c: Any) -> Any:
        away = shifted(n, part, pixel, c) - mean(n, part, c)
        return away * away

    squares = te.compute(shape, lambda n, i, c: te.sum(square(n, i, k[1], c), axis=k[1]), name="squares")
    return te.compute(
        [images, parts, 2, channels],
        lambda n, i, s, c: tirx.Select(s == 0, mean(n, i, c) + first(n, i, c), squares(n, i, c)),
        name="parts",
    )


def norm_statistics(parts: Any, gamma: Any, size: int, pixels: int, epsilon: float) -> Any:
    """(the parts of so many pixels, gamma) -> the statistics of groups of `size` channels."""
    images, count, _, channels = (int(extent) for extent in parts.shape)
    shape = [images, channels // size]

    def total(term: Callable[..., Any], name: str) -> Any:
        """Over the parts and channels of a group."""
        i, c = te.reduce_axis((0, count), name="i"), te.reduce_axis((0, size), name="c")
        return te.compute(shape, lambda n, g: te.sum(term(n, i, g, c), axis=[i, c]), name=name)

    sums = total(lambda n, i, g, c: parts[n, i, 0, g * size + c], "sums")
    mean = te.compute(shape, lambda *at: sums(*at) / tirx.const(count * size, SUMS), name="mean")

    def square(n: Any, i: Any, g: Any, c: Any) -> Any:
        away = parts[n, i, 0, g * size + c] - mean(n, g)
        return parts[n, i, 1, g * size + c] + tirx.const(pixels, SUMS) * away * away

    squares = total(square, "squares")

    def statistic(n: Any, s: Any, g: Any, c: Any) -> Any:
        variance = squares(n, g) / tirx.const(count * pixels * size, SUMS)
        scale = tirx.rsqrt(variance + tirx.const(epsilon, SUMS)) * gamma[g * size + c]
        return tirx.Select(s == 0, mean(n, g), scale)

    return te.compute([images, 2, channels // size, size], statistic, name="statistics")


def group_norm(x: Any, statistics: Any, beta: Any) -> Any:
    """(x, the statistics of each channel [images, 2, channels], beta) -> the norm of x, in float32."""

    def element(n: Any, *at: Any) -> Any:
        c = at[-1]
        return (x[(n, *at)].astype(SUMS) - statistics[n, 0, c]) * statistics[n, 1, c] + beta[c]

    return te.compute(x.shape, element, name="norm")
