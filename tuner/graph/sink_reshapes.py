"""Reshapes behind the element-wise operators that follow them: f(reshape(x)) becomes reshape(f(x)).

FuseOps fuses f behind the convolution that computes x, but not behind a reshape of it. Transformers on images reshape
between a depthwise convolution and its activation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.epilogue import UNARY
from tuner.tvm_compat import relax


def sink_reshapes(mod: Any) -> Any:
    """The module with such chains of unary operators of main before the reshape. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.reshape"):
        chain: list[Any] = []
        x = variable
        while def_use.has_one_use(x) and _is_unary(def_use.values.get(def_use.last_users[x])):
            x = def_use.last_users[x]
            chain.append(def_use.values[x])
        if chain and static_shape(call.args[0]) is not None and not def_use.from_weights(variable):
            replacements[chain[-1]] = _sunk(call, chain)
    return replace_calls(mod, replacements)


def _is_unary(call: Any) -> bool:
    return op_name(call) in UNARY and len(call.args) == 1 and static_shape(call) is not None


def _sunk(reshape: Any, chain: list[Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        y = current(reshape.args[0])
        for call in chain:
            y = builder.emit(relax.Call(call.op, [y], call.attrs, call.ty_args))
        return relax.op.reshape(y, static_shape(reshape))

    return replacement
