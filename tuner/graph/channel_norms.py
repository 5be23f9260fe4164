"""Norms of groups and of instances whose channels come last become tensor functions that keep channels apart.

In memory a few channels of a group lie side by side, and then those of the next group: ten in the first block of a
diffusion model of 320 channels. A loop over one group's elements reads pieces of vectors, and so does one over a channel's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.image_norms import group_norm_of_channels

TYPES = ("float32", "float64")
"""Sums of half precision are made in float32 (half_precision.py), of norms that are operators still."""


def norms_of_channels(mod: Any) -> Any:
    """The module with such norms of main as calls of tensor functions. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in ("relax.nn.group_norm", "relax.nn.instance_norm"):
        for _, call in def_use.calls(name):
            shape = static_shape(call)
            if shape is None or str(call.ty.dtype) not in TYPES:
                continue
            if int(call.attrs.channel_axis) % len(shape) == len(shape) - 1:
                groups = int(call.attrs.num_groups) if name == "relax.nn.group_norm" else shape[-1]
                replacements[call] = _by_channel(call, len(shape), groups)
    return replace_calls(mod, replacements)


def _by_channel(call: Any, rank: int, groups: int) -> Replacement:
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    name = str(call.op.name).rpartition(".")[2]

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        arguments = [current(argument) for argument in call.args]
        settings = groups, axes, float(call.attrs.epsilon)
        return builder.call_te(group_norm_of_channels, *arguments, *settings, primfunc_name_hint=name)

    return replacement
