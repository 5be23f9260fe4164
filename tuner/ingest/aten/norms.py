"""Batch, group and layer norms with all their results. Those of half precision are computed in float32
(tuner/graph/half_precision.py)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tuner.ingest.aten.emitter import Emitter, converter, dtype_name, dtype_of, shape_of, wide
from tuner.tvm_compat import relax

op = relax.op


def _affine(to: Emitter, given: Any, shape: Sequence[int], default: float, dtype: str) -> Any:
    """A weight or bias in the type computed in, or ones or zeros."""
    return relax.const(np.full(tuple(shape), default), dtype) if given is None else to.cast(given, dtype)


LAYER_NORM = frozenset(("bfloat16", "float16", "float32", "float64"))
GROUP_NORM = LAYER_NORM - {"bfloat16"}
"""Types that Relax's operators take."""


def _computed(to: Emitter, takes: Collection[str], x: Any, *affine: Any) -> str:
    """The type of a norm's operands: the result's where they have it and `takes` it, else float32 for half precision."""
    same = all(each is None or dtype_of(each) == to.dtype for each in (x, *affine))
    return to.dtype if same and to.dtype in takes else wide(to.dtype)


def _statistics(to: Emitter, x: Any, axes: Sequence[int], eps: float, at: int, shape: Sequence[int]) -> tuple[Any, Any]:
    """Mean and reciprocal deviation of x over axes, as results number `at` and the next, if they are read."""
    if not (to.reads(at) or to.reads(at + 1)):
        return None, None
    mean = to.emit(op.mean(x, list(axes)))
    deviation = to.emit(op.rsqrt(op.add(op.variance(x, list(axes)), to.const(eps, dtype_of(x)))))
    names = [dtype_name(one.dtype) for one in to.results[at : at + 2]]
    return to.cast(to.reshape(mean, shape), names[0]), to.cast(to.reshape(deviation, shape), names[1])


@converter("native_layer_norm.default", "layer_norm.default")
def layer_norm(
    to: Emitter, x: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float, **_: Any
) -> Any:
    dtype = _computed(to, LAYER_NORM, x, weight, bias)
    axes = list(range(-len(normalized_shape), 0))
    gamma, beta = (_affine(to, each, normalized_shape, n, dtype) for each, n in ((weight, 1.0), (bias, 0.0)))
    found = to.cast(to.emit(op.nn.layer_norm(to.cast(x, dtype), gamma, beta, axes=axes, epsilon=eps)), to.dtype)
    if len(to.results) == 1:
        return found
    x = to.cast(x, wide(to.dtype))
    return (found, *_statistics(to, x, axes, eps, 1, [int(n) for n in to.results[1].shape]))


@converter("_fused_rms_norm.default")
def rms_norm(to: Emitter, x: Any, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Any:
    """(x / sqrt(mean of x^2 + eps) times the weight, that root's reciprocal). What PyTorch makes of it on a GPU, and no
    release takes apart there. Without an eps it is the distance of 1 to the next number of the type that it is computed
    in."""
    dtype = wide(to.dtype)
    x = to.cast(x, dtype)
    mean = to.emit(op.mean(to.emit(op.multiply(x, x)), list(range(-len(normalized_shape), 0)), keepdims=True))
    least = to.const(np.finfo(dtype).eps if eps is None else eps, dtype)
    scale = to.emit(op.rsqrt(to.emit(op.add(mean, least))))
    found = to.emit(op.multiply(x, scale))
    if weight is not None:
        found = to.emit(op.multiply(found, to.cast(weight, dtype)))
    return to.cast(found, to.dtype), scale


@converter("native_group_norm.default")
def group_norm(to: Emitter, x: Any, weight: Any, bias: Any, N: int, C: int, group: int, eps: float, **_: Any) -> Any:
    dtype = _computed(to, GROUP_NORM, x, weight, bias)
    x = to.cast(x, dtype)
    shape = shape_of(x)
    gamma, beta = (_affine(to, each, [C], n, dtype) for each, n in ((weight, 1.0), (bias, 0.0)))
    if len(shape) > 2:
        normed = op.nn.group_norm(
            x, gamma, beta, num_groups=group, channel_axis=1, axes=list(range(2, len(shape))), epsilon=eps
        )
    else:
        wide_x = to.reshape(x, [*shape, 1])
        normed = op.nn.group_norm(wide_x, gamma, beta, num_groups=group, channel_axis=1, axes=[2], epsilon=eps)
    found = to.cast(to.reshape(to.emit(normed), shape), to.dtype)
    if not (to.reads(1) or to.reads(2)):
        return found, None, None
    grouped = to.reshape(to.cast(x, wide(to.dtype)), [N, group, math.prod(shape) // (N * group)])
    return (found, *_statistics(to, grouped, [2], eps, 1, [N, group]))


@converter("_native_batch_norm_legit_no_training.default")
def batch_norm(
    to: Emitter,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> Any:
    """With given statistics. Its other results have no elements."""
    dtype = wide(to.dtype)
    channels = shape_of(x)[1]
    gamma, beta = (_affine(to, each, [channels], n, dtype) for each, n in ((weight, 1.0), (bias, 0.0)))
    normed = to.emit(
        op.nn.batch_norm(
            data=to.cast(x, dtype),
            gamma=gamma,
            beta=beta,
            moving_mean=to.cast(running_mean, dtype),
            moving_var=to.cast(running_var, dtype),
            axis=1,
            epsilon=eps,
            scale=weight is not None,
            center=bias is not None,
            momentum=momentum,
            training=False,
        )
    )
    return to.cast(to.emit(normed[0]), to.dtype), None, None


@converter("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(to: Emitter, x: Any, weight: Any, bias: Any, eps: float, **_: Any) -> Any:
    """With the statistics of the batch itself: x over all axes but the channels'."""
    dtype = wide(to.dtype)
    shape = shape_of(x)
    channels = shape[1]
    gamma, beta = (_affine(to, each, [channels], n, dtype) for each, n in ((weight, 1.0), (bias, 0.0)))
    x = to.cast(x, dtype)
    axes = [0, *range(2, len(shape))]
    normed = op.nn.instance_norm(x, gamma, beta, channel_axis=1, axes=axes, epsilon=eps)
    return (to.cast(to.emit(normed), to.dtype), *_statistics(to, x, axes, eps, 1, [channels]))
