"""Attention decomposed: softmax(q k^T * scale + bias) v as matmuls and a softmax, which the other passes optimise.

TVM lowers relax.nn.attention to one function of seven stages that no design space has a schedule for. Notation: q is
[batch, rows, heads, size], k and v have `columns` in place of rows; the bias broadcasts to [batch, heads, rows, columns].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.fold_constants import MAX_ELEMENTS
from tuner.tvm_compat import relax

_BY_HEAD = [0, 2, 1, 3]


def decompose_attention(mod: Any) -> Any:
    """The module with the attention operators of main decomposed. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in ("relax.nn.attention", "relax.nn.attention_bias"):
        for _, call in def_use.calls(name):
            if _is_plain(call):
                replacements[call] = _decomposed(call)
    return replace_calls(mod, replacements)


def _is_plain(call: Any) -> bool:
    query, key = (static_shape(argument) for argument in call.args[:2])
    if query is None or key is None or call.attrs.window_size is not None or query[2] != key[2]:
        return False
    known = call.attrs.causal_mask in (None, "TopLeft", "BottomRight")
    return known and (call.attrs.causal_mask is None or query[1] * key[1] <= MAX_ELEMENTS)


def _decomposed(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        query, key, value = (emit(relax.op.permute_dims(current(each), _BY_HEAD)) for each in call.args[:3])
        *_, rows, size = static_shape(query) or []
        columns, dtype = (static_shape(key) or [])[2], str(call.ty.dtype)
        scale = float(call.attrs.scale) if call.attrs.scale is not None else size**-0.5
        scores = emit(relax.op.matmul(query, emit(relax.op.permute_dims(key, [0, 1, 3, 2]))))
        scores = emit(relax.op.multiply(scores, relax.const(scale, dtype)))
        if len(call.args) > 3:
            scores = emit(relax.op.add(scores, current(call.args[3])))
        if call.attrs.causal_mask is not None:
            ahead = abs(rows - columns) if call.attrs.causal_mask == "BottomRight" else 0
            hidden = np.triu(np.full((rows, columns), -np.inf), ahead + 1)
            scores = emit(relax.op.add(scores, relax.const(hidden.astype(dtype), dtype)))
        read = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), value))
        return relax.op.permute_dims(read, _BY_HEAD)

    return replacement
