"""Reassociation: sums and products of a tensor with several weights are regrouped, so that the weights are combined once.

(x + p) + q becomes x + (p + q), and likewise for products: where p and q are weights, p + q is computed when weights are
bound, and one operator is left to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.tvm_compat import relax

_MAKE = {"relax.add": relax.op.add, "relax.multiply": relax.op.multiply}


def reassociate(mod: Any) -> Any:
    """The module with such chains of main reassociated, which may change the last bit. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in _MAKE:
        for _, call in def_use.calls(name):
            x, weights = _chain(def_use, name, call)
            if len(weights) > 1 and _no_larger(weights):
                replacements[call] = _reassociated(name, x, weights)
    return replace_calls(mod, replacements)


def _chain(def_use: DefUse, name: str, call: Any) -> tuple[Any, list[Any]]:
    """(x, [p, q, ...]) of a call ((x + p) + q) + ... in which p, q, ... are weights; there may be none."""
    x = call
    weights: list[Any] = []
    while op_name(def_use.definition(x)) == name and (x is call or def_use.has_one_use(x)):
        left, right = def_use.definition(x).args
        if not def_use.from_weights(right) or static_shape(left) != static_shape(call):
            break
        x = left
        weights.insert(0, right)
    # In half precision p + q may overflow where (x + p) + q does not.
    return x, weights if str(call.ty.dtype) in ("float32", "float64") else []


def _no_larger(weights: list[Any]) -> bool:
    """Whether combined weights are no larger than the largest of them; a row and a column combined would be a matrix."""
    shapes = [static_shape(weight) for weight in weights]
    if None in shapes:
        return False
    rank = max(len(shape or []) for shape in shapes)
    wide = [[1] * (rank - len(shape or [])) + (shape or []) for shape in shapes]
    together: list[int] = [max(extents) for extents in zip(*wide, strict=True)]
    return math.prod(together) == max(math.prod(shape) for shape in wide)


def _reassociated(name: str, x: Any, weights: list[Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        total = current(weights[0])
        for weight in weights[1:]:
            total = builder.emit(_MAKE[name](total, current(weight)))
        return _MAKE[name](current(x), total)

    return replacement
