"""Reshapes before the element-wise operators whose result a reduction reads: sum(reshape(f(x))) becomes sum(f(reshape(x))).

The reshape of a tensor that is stored is a view, and f is computed where the reduction reads. Between the two a reshape
would have f's result stored, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.epilogue import ELEMENTWISE, MAX_EPILOGUE
from tuner.graph.group_rows import ANCHORS, NORMS, REDUCTIONS
from tuner.graph.sink_reshapes import in_shape
from tuner.tvm_compat import relax


def lift_reshapes(mod: Any) -> Any:
    """The module with such reshapes of main before the operators. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.reshape"):
        readers = {op_name(def_use.values.get(user)) for user in def_use.users.get(variable, [])}
        if not readers or def_use.from_weights(variable) or not readers <= REDUCTIONS | NORMS:
            continue
        if region := _region(def_use, variable, call.args[0]):
            replacements[call] = _lifted(def_use, call, region)
    return replace_calls(mod, replacements)


def _region(def_use: DefUse, reshape: Any, x: Any) -> list[Any]:
    """The element-wise operators that nothing but the reshape needs, in order; none where they follow a product, or where an
    operand cannot be reshaped as they are."""
    found: set[Any] = set()
    waiting = [x]
    while waiting:
        y = waiting.pop()
        call: Any = def_use.values.get(y)
        shape = static_shape(y)
        if y in found or (shape is not None and math.prod(shape) == 1):
            continue
        if shape != static_shape(x) or len(found) > MAX_EPILOGUE:
            return []
        needed = set(def_use.users.get(y, [])) <= {reshape, *found}
        if op_name(call) in ELEMENTWISE and needed:
            found.add(y)
            waiting += list(call.args)
        elif needed and op_name(call) in ANCHORS:
            return []
    return [each for each in def_use.values if each in found]


def _lifted(def_use: DefUse, reshape: Any, region: list[Any]) -> Replacement:
    shape = static_shape(reshape) or []

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        written: dict[Any, Any] = {}

        for variable in region:
            call = def_use.values[variable]
            arguments = [
                written[each] if each in written else in_shape(builder, current(each), shape) for each in call.args
            ]
            written[variable] = builder.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        return written[region[-1]]

    return replacement
