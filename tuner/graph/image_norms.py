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


def _group_norm(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    groups, epsilon = int(attrs.num_groups), float(attrs.epsilon)

    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        shape = [int(extent) for extent in x.shape]
        at = int(attrs.channel_axis) % len(shape)
        channels = [groups, shape[at] // groups]
        axes = [at + 1, *(axis + (axis > at) for axis in (int(each) % len(shape) for each in attrs.axes))]
        gamma, beta = topi.reshape(gamma, channels), topi.reshape(beta, channels)
        grouped = topi.reshape(x, [*shape[:at], *channels, *shape[at + 1 :]])
        return topi.reshape(_normed(grouped, gamma, beta, sorted(axes), (at, at + 1), epsilon), shape)

    return builder.call_te(norm, *call.args, primfunc_name_hint="group_norm")


def _instance_norm(builder: Any, call: Any) -> Any:
    attrs = call.attrs

    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        axes, channel = ([int(axis) % len(x.shape) for axis in each] for each in (attrs.axes, [attrs.channel_axis]))
        return _normed(x, gamma, beta, sorted(axes), channel, float(attrs.epsilon))

    return builder.call_te(norm, *call.args, primfunc_name_hint="instance_norm")


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


LEGALISED: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
}
"""For `relax.transform.LegalizeOps`."""
