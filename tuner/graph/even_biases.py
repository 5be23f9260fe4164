"""Biases of zero for those of several projections of one tensor that have none, while others have one.

Horizontal fusion (merge_matmuls.py) merges what the epilogues have in common, and a sum behind a part of a merged product is
a kernel of its own. Whisper's keys have no bias, its queries and values have one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.one_function import dtype_of
from tuner.tvm_compat import relax


def even_biases(mod: Any) -> Any:
    """The module in which such projections of main have biases alike. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    groups: dict[Any, list[tuple[Any, bool]]] = {}
    for variable, call in def_use.calls("relax.matmul"):
        x, weight = call.args
        shape = static_shape(weight)
        if shape is not None and len(shape) == 2 and def_use.from_weights(weight) and not def_use.from_weights(x):
            groups.setdefault((x, tuple(shape), dtype_of(call)), []).append((variable, _has_bias(def_use, variable)))
    replacements: dict[Any, Replacement] = {}
    for (_, (_, columns), dtype), group in groups.items():
        if any(has_bias for _, has_bias in group):
            for variable, has_bias in group:
                if not has_bias:
                    replacements[def_use.values[variable]] = _with_zeros(def_use.values[variable], columns, dtype)
    return replace_calls(mod, replacements)


def _has_bias(def_use: DefUse, product: Any) -> bool:
    """Whether the only use of a product is a sum with one weight for each column."""
    call: Any = def_use.values.get(def_use.users[product][-1]) if def_use.has_one_use(product) else None
    if op_name(call) != "relax.add" or not call.args[0].same_as(product) or not def_use.from_weights(call.args[1]):
        return False
    return static_shape(call.args[1]) == (static_shape(product) or [])[-1:]


def _with_zeros(call: Any, columns: int, dtype: str) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        product = relax.Call(call.op, [current(each) for each in call.args], call.attrs, call.ty_args)
        return relax.op.add(builder.emit(product), relax.const(np.zeros(columns), dtype))

    return replacement
