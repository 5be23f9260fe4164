"""Brackets: sums and products put so that weights meet, and are computed once.

(x + p) + q is x + (p + q), and so for products: what p and q, both weights, make is another weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import Facts, Recipe, op_name, replaced, static_shape
from tuner.tvm_compat import relax

_MAKE = {"relax.add": relax.op.add, "relax.multiply": relax.op.multiply}


def gather_weights(mod: Any) -> Any:
    """The module with such chains of main bracketed anew; bindings canonical. Rounding may differ in the last place."""
    facts = Facts(mod["main"])
    recipes: dict[Any, Recipe] = {}
    for name in _MAKE:
        for _, call in facts.calls(name):
            x, weights = _chain(facts, name, call)
            if len(weights) > 1 and _no_larger(weights):
                recipes[call] = _bracketed(name, x, weights)
    return replaced(mod, recipes)


def _chain(facts: Facts, name: str, call: Any) -> tuple[Any, list[Any]]:
    """(x, [p, q, ...]) of a call that is ((x + p) + q) + ..., as many as are weights."""
    x = call
    weights: list[Any] = []
    while op_name(facts.made(x)) == name and (x is call or facts.once(x)):
        left, right = facts.made(x).args
        if not facts.from_weights(right) or static_shape(left) != static_shape(call):
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


def _bracketed(name: str, x: Any, weights: list[Any]) -> Recipe:
    def recipe(builder: Any, now: Callable[[Any], Any]) -> Any:
        total = now(weights[0])
        for weight in weights[1:]:
            total = builder.emit(_MAKE[name](total, now(weight)))
        return _MAKE[name](now(x), total)

    return recipe
