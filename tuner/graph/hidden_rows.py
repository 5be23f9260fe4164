"""Rows of scores that a mask hides whole, as a model asks for them: whether minus infinity is added to all of a row.

pitchpipe/torch_operators/attention.py writes `where(all(mask == -inf), 0, read)`, since a softmax of minus infinities is
undefined. As a graph, all(x) is not any(not x), and `any` the maximum of numbers.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.graph.def_use import DefUse, op_name, static_shape
from tuner.graph.fold_constants import constant_value

_OF_ANY = (
    *("relax.logical_not", "relax.not_equal", "relax.astype", "relax.max"),
    *("relax.astype", "relax.astype", "relax.logical_not", "relax.equal"),
)
"""The operators of such a condition, the last one first."""
_COMPARED = {"relax.not_equal": 0.0, "relax.equal": -math.inf}
"""With what they compare."""


def hidden_where(def_use: DefUse, condition: Any) -> tuple[Any, list[Any]]:
    """(mask, the variables of the condition) where a condition [..., rows, 1] is true if all of a row of the mask is minus
    infinity; (None, []) for any other, and where something else reads one of the variables."""
    x, found, left = condition, list[Any](), list(_OF_ANY)
    while left:
        call: Any = def_use.values.get(x) if def_use.has_one_use(x) else None
        if op_name(call) == left[0] and _fits(call):
            left.pop(0)
        elif not keeps_rows(call):
            return None, []
        found.append(x)
        x = call.args[0]
    return x, found


def _fits(call: Any) -> bool:
    """Whether a call of one of these operators asks what it does in such a condition."""
    if op_name(call) == "relax.max":
        rank = len(static_shape(call.args[0]) or ())
        return bool(call.attrs.keepdims) and [int(axis) % rank for axis in call.attrs.axis or ()] == [rank - 1]
    return len(call.args) == 1 or number(call.args[1]) == _COMPARED.get(op_name(call))


def keeps_rows(call: Any) -> bool:
    """Whether a call is a reshape of other dimensions than the last two."""
    if op_name(call) != "relax.reshape":
        return False
    shape, source = (static_shape(each) or [] for each in (call, call.args[0]))
    return len(shape) > 1 and shape[-2:] == source[-2:]


def number(x: Any) -> float:
    """The number that a constant is; NaN for any other expression."""
    values = constant_value(x)
    return values.item() if values is not None and values.size == 1 else math.nan
