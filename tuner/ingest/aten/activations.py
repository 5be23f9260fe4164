"""Activations of neural networks."""

from __future__ import annotations

from typing import Any

from tuner.ingest.aten.binary import clamp
from tuner.ingest.aten.emitter import (
    Emitter,
    converter,
    dtype_of,
    elementwise,
    is_float,
    shape_of,
    wide,
)
from tuner.ingest.aten.unary import expm1_of, log1p_of, smooth
from tuner.tvm_compat import relax, tirx

op = relax.op


@converter("hardtanh.default")
def hardtanh(to: Emitter, x: Any, min_val: Any, max_val: Any) -> Any:
    return clamp(to, x, min_val, max_val)


@converter("relu6.default")
def relu6(to: Emitter, x: Any) -> Any:
    return to.emit(op.nn.relu6(x)) if is_float(to.dtype) else clamp(to, x, 0, 6)


@converter("leaky_relu.default")
def leaky_relu(to: Emitter, x: Any, negative_slope: Any) -> Any:
    return to.emit(op.nn.leakyrelu(x, float(negative_slope)))


@converter("rrelu_with_noise_functional.default")
def rrelu(to: Emitter, x: Any, noise: Any, lower: Any, upper: Any, **_: Any) -> Any:
    """With the mean of its slopes, as for inference; in training it draws them, and is refused as what draws."""
    return leaky_relu(to, x, (float(lower) + float(upper)) / 2), noise


@converter("gelu.default")
def gelu(to: Emitter, x: Any, approximate: str) -> Any:
    return smooth(to, {"none": op.nn.gelu, "tanh": op.nn.gelu_tanh}[approximate], x)


@converter("hardsigmoid.default")
def hardsigmoid(to: Emitter, x: Any) -> Any:
    def make(v: Any) -> Any:
        return op.divide(op.clip(op.add(v, to.const(3, dtype_of(v))), 0, 6), to.const(6, dtype_of(v)))

    return smooth(to, make, x)


@converter("hardswish.default")
def hardswish(to: Emitter, x: Any) -> Any:
    def make(v: Any) -> Any:
        dtype = dtype_of(v)
        return op.multiply(v, op.divide(op.clip(op.add(v, to.const(3, dtype)), 0, 6), to.const(6, dtype)))

    return smooth(to, make, x)


@converter("elu.default")
def elu(to: Emitter, x: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
    dtype = wide(to.dtype)

    def body(v: Any) -> Any:
        below = tirx.const(float(alpha * scale), dtype) * expm1_of(v * tirx.const(float(input_scale), dtype))
        return tirx.if_then_else(v > tirx.const(0, dtype), v * tirx.const(float(scale), dtype), below)

    return elementwise(to, "elu", body, dtype, x)


@converter("softplus.default")
def softplus(to: Emitter, x: Any, beta: Any, threshold: Any) -> Any:
    dtype = wide(to.dtype)
    if not beta:
        raise NotImplementedError("softplus with a beta of zero")

    def body(v: Any) -> Any:
        """log(1 + e^t) = max(t, 0) + log1p(e^-|t|), t = beta x."""
        b = tirx.const(float(beta), dtype)
        t = v * b
        soft = (tirx.max(t, tirx.const(0, dtype)) + log1p_of(tirx.exp(-tirx.abs(t)))) / b
        return tirx.if_then_else(t > tirx.const(float(threshold), dtype), v, soft)

    return elementwise(to, "softplus", body, dtype, x)


@converter("prelu.default", "_prelu_kernel.default")
def prelu(to: Emitter, x: Any, weight: Any) -> Any:
    shape, rank = shape_of(weight), len(to.shape)
    if len(shape) == 1 and rank > 1:
        weight = to.reshape(weight, [1, shape[0], *[1] * (rank - 2)])
    return elementwise(
        to, "prelu", lambda v, w: tirx.if_then_else(v > tirx.const(0, to.dtype), v, v * w), to.dtype, x, weight
    )
