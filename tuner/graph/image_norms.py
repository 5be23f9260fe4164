"""How norms of groups and of instances become tensor functions that are right where a row's elements are alike.

TVM takes the variance of a row as the mean of x^2 less the square of the mean of x. In float32 nothing is left of it where
the elements differ by little, compared with their size: the root is of noise, or of a negative number. Here every element
is less the first of its row, which changes no norm and makes the mean as precise as the differences are; then comes the
mean, and then the variance of what is left (Chan, Golub and LeVeque, The American Statistician 37, 1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.tvm_compat import te, tirx, topi


def group_norm(
    x: Any, gamma: Any, beta: Any, groups: int, channel_axis: int, axes: Sequence[int], epsilon: float
) -> Any:
    """x normed over `axes` and the channels of each group; gamma and beta have an element for each channel."""
    shape = [int(extent) for extent in x.shape]
    at = channel_axis % len(shape)
    channels = [groups, shape[at] // groups]
    within = [axis + (axis > at) for axis in (each % len(shape) for each in axes)]
    gamma, beta = topi.reshape(gamma, channels), topi.reshape(beta, channels)
    grouped = topi.reshape(x, [*shape[:at], *channels, *shape[at + 1 :]])
    return topi.reshape(_normed(grouped, gamma, beta, sorted([at + 1, *within]), (at, at + 1), epsilon), shape)


def group_norm_of_channels(x: Any, gamma: Any, beta: Any, groups: int, axes: Sequence[int], epsilon: float) -> Any:
    """x, whose last axis has the channels, normed over `axes` and the channels of each group.

    The sums over `axes` keep the channels apart, so that neighbours are a vector whatever the size of a group is.
    """
    shape = [int(extent) for extent in x.shape]
    last, size = len(shape) - 1, shape[-1] // groups
    rows = [axis for axis in range(last) if axis not in axes]
    batch = [shape[axis] for axis in rows]
    count = tirx.const(size * math.prod(shape[axis] for axis in axes), x.dtype)

    def of_row(at: Sequence[Any]) -> list[Any]:
        return [*(at[axis] for axis in rows), at[last]]

    def by_channel(term: Callable[..., Any], name: str) -> Any:
        return te.compute([*batch, shape[-1]], term, name=name)

    def total(term: Callable[..., Any], name: str) -> Any:
        """Over the axes, for each channel."""
        reduced = {axis: te.reduce_axis((0, shape[axis]), name=f"k{axis}") for axis in axes}

        def sum_of(*indices: Any) -> Any:
            at = {**dict(zip([*rows, last], indices, strict=True)), **reduced}
            return te.sum(term([at[axis] for axis in range(len(shape))]), axis=list(reduced.values()))

        return by_channel(sum_of, name)

    def mean_of_group(totals: Any, name: str) -> Any:
        member = te.reduce_axis((0, size), name="member")
        sums = te.compute(
            [*batch, groups],
            lambda *at: te.sum(totals(*at[:-1], at[-1] * size + member), axis=member),
            name=f"{name}_sum",
        )
        return te.compute([*batch, groups], lambda *at: sums(*at) / count, name=name)

    def first_of_group(*at: Any) -> Any:
        of = dict(zip(rows, at, strict=False))
        return x(*(of.get(axis, 0) for axis in range(last)), at[-1] // size * size)

    first = by_channel(first_of_group, "x_first")
    shifted_mean = mean_of_group(total(lambda at: x(*at) - first(*of_row(at)), "x_total"), "group_mean")
    mean = by_channel(lambda *at: shifted_mean(*at[:-1], at[-1] // size), "x_mean")

    def centred(at: Sequence[Any]) -> Any:
        return x(*at) - first(*of_row(at)) - mean(*of_row(at))

    variance = mean_of_group(total(lambda at: centred(at) * centred(at), "x_squares"), "group_variance")
    scale = by_channel(
        lambda *at: tirx.rsqrt(variance(*at[:-1], at[-1] // size) + tirx.const(epsilon, x.dtype)) * gamma(at[-1]),
        "x_scale",
    )
    return te.compute(shape, lambda *at: centred(at) * scale(*of_row(at)) + beta(at[-1]), name="T_norm")


def instance_norm(x: Any, gamma: Any, beta: Any, channel_axis: int, axes: Sequence[int], epsilon: float) -> Any:
    """x normed over `axes`; gamma and beta have an element for each channel."""
    rank = len(x.shape)
    return _normed(x, gamma, beta, sorted(axis % rank for axis in axes), [channel_axis % rank], epsilon)


def _normed(x: Any, gamma: Any, beta: Any, axes: Sequence[int], channels: Sequence[int], epsilon: float) -> Any:
    """x with mean zero and variance one over `axes`, times gamma plus beta, which have the axes `channels` of x."""
    shape = [int(extent) for extent in x.shape]
    rows = [axis for axis in range(len(shape)) if axis not in axes]

    def shifted_element(*at: Any) -> Any:
        return x(*at) - x(*(0 if axis in axes else each for axis, each in enumerate(at)))

    shifted = te.compute(shape, shifted_element, name="x_shifted")
    outer, count = [shape[axis] for axis in rows], tirx.const(math.prod(shape[axis] for axis in axes), x.dtype)

    def row(term: Callable[..., Any], name: str) -> Any:
        reduced = {axis: te.reduce_axis((0, shape[axis]), name=f"k{axis}") for axis in axes}

        def total(*indices: Any) -> Any:
            at = {**dict(zip(rows, indices, strict=True)), **reduced}
            return te.sum(term([at[axis] for axis in range(len(shape))], indices), axis=list(reduced.values()))

        return te.compute(outer, total, name=name)

    total = row(lambda at, _: shifted(*at), "x_sum")
    mean = te.compute(outer, lambda *at: total(*at) / count, name="x_mean")
    squares = row(lambda at, of: (shifted(*at) - mean(*of)) * (shifted(*at) - mean(*of)), "x_var_sum")

    def element(*at: Any) -> Any:
        of, channel = [at[axis] for axis in rows], [at[axis] for axis in channels]
        scale = tirx.rsqrt(squares(*of) / count + tirx.const(epsilon, x.dtype))
        return (shifted(*at) - mean(*of)) * scale * gamma(*channel) + beta(*channel)

    return te.compute(shape, element, name="T_norm")


def _legalised_group_norm(builder: Any, call: Any) -> Any:
    groups, channel_axis, axes, epsilon = int(call.attrs.num_groups), *_attributes(call)
    return builder.call_te(group_norm, *call.args, groups, channel_axis, axes, epsilon)


def _legalised_instance_norm(builder: Any, call: Any) -> Any:
    return builder.call_te(instance_norm, *call.args, *_attributes(call))


def _attributes(call: Any) -> tuple[int, list[int], float]:
    attrs = call.attrs
    return int(attrs.channel_axis), [int(axis) for axis in attrs.axes], float(attrs.epsilon)


LEGALISED: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.nn.group_norm": _legalised_group_norm,
    "relax.nn.instance_norm": _legalised_instance_norm,
}
"""For `relax.transform.LegalizeOps`."""
