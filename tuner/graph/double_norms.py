"""Norms of float64 as arithmetic: TVM's own functions of layer, group, instance and RMS norms take no such numbers.

    (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * gamma + beta        without mean and beta for an RMS norm

with means over the axes of the norm, and over the channels of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.tvm_compat import relax

op = relax.op
Emit = Callable[[Any], Any]


def decompose_double_norms(mod: Any) -> Any:
    """The module with these norms of main decomposed. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name, made in _NORMS.items():
        for _, call in def_use.calls(name):
            if str(call.ty.dtype) == "float64" and static_shape(call) is not None:
                replacements[call] = _replacement(call, made)
    return replace_calls(mod, replacements)


def _replacement(call: Any, made: Callable[..., Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        shape = static_shape(call) or []
        return made(builder.emit, call.attrs, shape, *(current(each) for each in call.args))

    return replacement


def _layer(emit: Emit, attrs: Any, shape: list[int], x: Any, gamma: Any, beta: Any) -> Any:
    axes = _axes(attrs.axes, shape)
    return _affine(emit, attrs, _normed(emit, x, axes, attrs.epsilon), gamma, beta, _kept(shape, axes))


def _instance(emit: Emit, attrs: Any, shape: list[int], x: Any, gamma: Any, beta: Any) -> Any:
    normed = _normed(emit, x, _axes(attrs.axes, shape), attrs.epsilon)
    return _affine(emit, attrs, normed, gamma, beta, _kept(shape, _axes([attrs.channel_axis], shape)))


def _group(emit: Emit, attrs: Any, shape: list[int], x: Any, gamma: Any, beta: Any) -> Any:
    (channels,), groups = _axes([attrs.channel_axis], shape), int(attrs.num_groups)
    grouped = emit(op.reshape(x, [*shape[:channels], groups, shape[channels] // groups, *shape[channels + 1 :]]))
    axes = [channels + 1, *(axis + (axis > channels) for axis in _axes(attrs.axes, shape))]
    normed = emit(op.reshape(_normed(emit, grouped, axes, attrs.epsilon), shape))
    return _affine(emit, attrs, normed, gamma, beta, _kept(shape, [channels]))


def _rms(emit: Emit, attrs: Any, shape: list[int], x: Any, gamma: Any) -> Any:
    axes = _axes(attrs.axes, shape)
    return op.multiply(_scaled(emit, x, axes, attrs.epsilon), emit(op.reshape(gamma, _kept(shape, axes))))


_NORMS: dict[str, Callable[..., Any]] = {
    "relax.nn.layer_norm": _layer,
    "relax.nn.instance_norm": _instance,
    "relax.nn.group_norm": _group,
    "relax.nn.rms_norm": _rms,
}


def _axes(axes: Sequence[Any], shape: Sequence[int]) -> list[int]:
    return sorted(int(axis) % len(shape) for axis in axes)


def _kept(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The shape with extents of 1 along all but these axes."""
    return [extent if axis in axes else 1 for axis, extent in enumerate(shape)]


def _normed(emit: Emit, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    centred = emit(op.subtract(x, emit(op.mean(x, list(axes), keepdims=True))))
    return _scaled(emit, centred, axes, epsilon)


def _scaled(emit: Emit, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    squares = emit(op.mean(emit(op.multiply(x, x)), list(axes), keepdims=True))
    root = emit(op.sqrt(emit(op.add(squares, relax.const(float(epsilon), "float64")))))
    return emit(op.divide(x, root))


def _affine(emit: Emit, attrs: Any, x: Any, gamma: Any, beta: Any, shape: Sequence[int]) -> Any:
    """x gamma + beta, as far as the norm has them."""
    if attrs.scale:
        x = emit(op.multiply(x, emit(op.reshape(gamma, list(shape)))))
    return emit(op.add(x, emit(op.reshape(beta, list(shape))))) if attrs.center else x
