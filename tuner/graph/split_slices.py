"""Splits as slices: every part of a split tensor is a slice of it, which fuses with what reads it, or is a view.

TVM lowers a split to one function that copies all parts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.tvm_compat import relax


def split_slices(mod: Any) -> Any:
    """The module with the splits of main as slices. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.split"):
        if static_shape(call.args[0]) is not None:
            replacements[call] = _sliced(call)
    return replace_calls(mod, replacements)


def _sliced(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x = current(call.args[0])
        axis = int(call.attrs.axis) % len(x.ty.shape)
        extents = [int(part.shape.values[axis]) for part in call.ty.fields]
        bounds = [sum(extents[:at]) for at in range(len(extents) + 1)]
        ranges = pairwise(bounds)
        return relax.Tuple([builder.emit(relax.op.strided_slice(x, [axis], [low], [high])) for low, high in ranges])

    return replacement
