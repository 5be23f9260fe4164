"""Norms of float64 decomposed: TVM's tensor functions of them take float32 and float16 alone.

    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta

with the mean and the variance over the axes of a layer or an instance norm, or over the channels of a group and its axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.tvm_compat import relax

NORMS = tuple(f"relax.nn.{name}_norm" for name in ("group", "instance", "layer"))


def decompose_norms(mod: Any) -> Any:
    """The module with the norms of main that are computed in float64 decomposed. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {
        call: _decomposed(call)
        for name in NORMS
        for _, call in def_use.calls(name)
        if str(call.ty.dtype) == "float64" and static_shape(call) is not None
    }
    return replace_calls(mod, replacements)


def _decomposed(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        op, attrs, emit = relax.op, call.attrs, builder.emit
        x, gamma, beta = map(current, call.args)
        shape = [int(extent) for extent in static_shape(call) or ()]
        axes = [int(axis) % len(shape) for axis in attrs.axes]
        scaled = axes if op_name(call) == "relax.nn.layer_norm" else [int(attrs.channel_axis) % len(shape)]
        broadcast = [extent if axis in scaled else 1 for axis, extent in enumerate(shape)]
        if op_name(call) == "relax.nn.group_norm":
            x, axes = emit(op.reshape(x, _grouped(shape, scaled[0], int(attrs.num_groups)))), _group_axes(axes, *scaled)
        centred = emit(op.subtract(x, emit(op.mean(x, axes, keepdims=True))))
        variance = emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True))
        deviation = emit(op.sqrt(emit(op.add(variance, relax.const(float(attrs.epsilon), "float64")))))
        found = emit(op.reshape(emit(op.divide(centred, deviation)), shape))
        if attrs.scale:
            found = emit(op.multiply(found, emit(op.reshape(gamma, broadcast))))
        return op.add(found, op.reshape(beta, broadcast)) if attrs.center else found

    return replacement


def _grouped(shape: Sequence[int], channel_axis: int, groups: int) -> list[int]:
    """The shape with [groups, channels of one] in place of the channels."""
    return [*shape[:channel_axis], groups, shape[channel_axis] // groups, *shape[channel_axis + 1 :]]


def _group_axes(axes: Sequence[int], channel_axis: int) -> list[int]:
    """The axes of the grouped shape that a group's statistics are over."""
    return sorted([channel_axis + 1, *(axis + (axis > channel_axis) for axis in axes)])
