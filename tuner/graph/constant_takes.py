"""Takes as slices, where their indices are the constants i, i + 1, ..., i + n - 1: nothing is looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.tvm_compat import relax


def constant_takes(mod: Any) -> Any:
    """The module with such takes of main replaced. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.take"):
        shape, indices = static_shape(call.args[0]), constant_value(def_use.definition(call.args[1]))
        if shape is None or indices is None or not indices.size or call.attrs.axis is None:
            continue
        axis = int(call.attrs.axis) % len(shape)
        extent, flat = shape[axis], indices.reshape(-1).astype(np.int64)
        first, count = int(flat[0]), flat.size
        if 0 <= first <= extent - count and np.array_equal(flat, np.arange(first, first + count)):
            replacements[call] = _slice(call, axis, first, count)
    return replace_calls(mod, replacements)


def _slice(call: Any, axis: int, first: int, count: int) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        part = builder.emit(relax.op.strided_slice(current(call.args[0]), [axis], [first], [first + count]))
        return relax.op.reshape(part, static_shape(call) or ())

    return replacement
