"""Reshapes behind the element-wise operators that follow them: f(reshape(x), y) becomes reshape(f(x, reshape(y))).

FuseOps fuses f behind what computes x, but not behind a reshape of it. Transformers on images reshape between a depthwise
convolution and its activation, and between a norm and the sum with its operand. A reshape of y is a view where y is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, reshaped, static_shape
from tuner.graph.epilogue import BINARY, UNARY, is_convolution, is_product
from tuner.tvm_compat import relax


def sink_reshapes(mod: Any) -> Any:
    """The module with such chains of operators of main before the reshape. Bindings must be canonical."""
    return _sink(mod, lambda _def_use, _x: True)


def sink_reshapes_of_products(mod: Any) -> Any:
    """The same behind products and convolutions alone."""
    return _sink(mod, lambda def_use, x: is_product(x, def_use.definition) or is_convolution(x, def_use.definition))


def _sink(mod: Any, wanted: Callable[[DefUse, Any], bool]) -> Any:
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.reshape"):
        if static_shape(call.args[0]) is None or def_use.from_weights(variable) or not wanted(def_use, call.args[0]):
            continue
        chain = [variable]
        while def_use.has_one_use(chain[-1]) and _follows(def_use, call, chain):
            chain.append(def_use.users[chain[-1]][-1])
        if len(chain) > 1:
            replacements[def_use.values[chain[-1]]] = _sunk(def_use, call, chain)
    return _merged(replace_calls(mod, replacements))


def _merged(mod: Any) -> Any:
    """The module in which no reshape reads another: FuseOps would make one function of both, which is no view any more."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.reshape"):
        source = call.args[0]
        while op_name(before := def_use.definition(source)) == "relax.reshape":
            source = before.args[0]
        if not source.same_as(call.args[0]) and static_shape(call) is not None:
            replacements[call] = partial(_of_source, call, source)
    return replace_calls(mod, replacements)


def _of_source(call: Any, source: Any, _builder: Any, current: Callable[[Any], Any]) -> Any:
    return relax.op.reshape(current(source), static_shape(call))


def _follows(def_use: DefUse, reshape: Any, chain: list[Any]) -> bool:
    """Whether the one reader of the last of a chain can be computed before the reshape, and is better computed there."""
    call: Any = def_use.values.get(def_use.users[chain[-1]][-1])
    if op_name(call) in UNARY:
        return len(call.args) == 1 and static_shape(call) is not None
    if op_name(call) not in BINARY or not def_use.has_one_use(reshape.args[0]):
        return False
    others = [each for each in call.args if not each.same_as(chain[-1])]
    return static_shape(call) == static_shape(chain[0]) and all(_fits(def_use, each, reshape) for each in others)


def _fits(def_use: DefUse, x: Any, reshape: Any) -> bool:
    """Whether an operand can be read in the shape before the reshape: a number, or a tensor that is stored anyway."""
    shape = static_shape(x)
    if shape is None or math.prod(shape) == 1:
        return shape is not None
    is_stored = isinstance(x, relax.Var) and not (x in def_use.values and def_use.has_one_use(x))
    return is_stored and shape == static_shape(reshape)


def in_shape(builder: Any, x: Any, shape: Sequence[int]) -> Any:
    """An operand in another shape; one of a single element without dimensions."""
    y = reshaped(x, shape if math.prod(static_shape(x) or []) > 1 else [])
    return y if y is x else builder.emit(y)


def _sunk(def_use: DefUse, reshape: Any, chain: list[Any]) -> Replacement:
    shape = static_shape(reshape.args[0]) or []

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        y = current(reshape.args[0])
        for before, variable in pairwise(chain):
            call = def_use.values[variable]
            arguments = [y if each.same_as(before) else in_shape(builder, current(each), shape) for each in call.args]
            y = builder.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        return relax.op.reshape(y, static_shape(reshape))

    return replacement
