"""Brackets: sums and products put so that weights meet, and are computed once.

(x + p) + q is x + (p + q), and so for products: what p and q, both weights, make is another weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.tvm_compat import relax

_MAKE = {"relax.add": relax.op.add, "relax.multiply": relax.op.multiply}


def gather_weights(mod: Any) -> Any:
    """The module with such chains of main bracketed anew; bindings canonical. Rounding may differ in the last place."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in _MAKE:
        for _, call in def_use.calls(name):
            x, weights = _chain(def_use, name, call)
            if len(weights) > 1 and _no_larger(weights):
                replacements[call] = _bracketed(name, x, weights)
    return replace_calls(mod, replacements)


def _chain(def_use: DefUse, name: str, call: Any) -> tuple[Any, list[Any]]:
    """(x, [p, q, ...]) of a call that is ((x + p) + q) + ..., as many as are weights."""
    x = call
    weights: list[Any] = []
    while op_name(def_use.definition(x)) == name and (x is call or def_use.has_one_use(x)):
        left, right = def_use.definition(x).args
        if not def_use.from_weights(right) or static_shape(left) != static_shape(call):
            break
        x = left
        weights.insert(0, right)
    # In half precision what two weights make may be out of its range where x was not.
    return x, weights if str(call.ty.dtype) in ("float32", "float64") else []


def _no_larger(weights: list[Any]) -> bool:
    """Whether weights together are no larger than the largest of them: a row and a column stay what they are."""
    shapes = [static_shape(weight) for weight in weights]
    if None in shapes:
        return False
    rank = max(len(shape or []) for shape in shapes)
    wide = [[1] * (rank - len(shape or [])) + (shape or []) for shape in shapes]
    together: list[int] = [max(extents) for extents in zip(*wide, strict=True)]
    return math.prod(together) == max(math.prod(shape) for shape in wide)


def _bracketed(name: str, x: Any, weights: list[Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        total = current(weights[0])
        for weight in weights[1:]:
            total = builder.emit(_MAKE[name](total, current(weight)))
        return _MAKE[name](current(x), total)

    return replacement
