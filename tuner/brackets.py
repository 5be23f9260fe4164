"""Brackets: sums and products put so that weights meet, and are computed once.

(x + p) + q is x + (p + q), and so for products: what p and q, both weights, make is another weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.facts import Facts, Recipe, op_name, replaced, static_shape
from tuner.tvm_compat import relax

_MAKE = {"relax.add": relax.op.add, "relax.multiply": relax.op.multiply}


def gather_weights(mod: Any) -> Any:
    """The module with such chains of main bracketed anew; bindings canonical. Rounding may differ in the last place."""
    facts = Facts(mod["main"])
    recipes: dict[Any, Recipe] = {}
    for name in _MAKE:
        for _, call in facts.calls(name):
            inner = facts.made(call.args[0])
            if op_name(inner) == name and facts.once(call.args[0]) and _meet(facts, inner, call):
                recipes[call] = _bracketed(name, inner, call)
    return replaced(mod, recipes)


def _meet(facts: Facts, inner: Any, call: Any) -> bool:
    """Whether the right operands are weights, and together no larger than the larger of them."""
    shapes = [static_shape(each) for each in (inner.args[0], inner.args[1], call.args[1], inner, call)]
    if None in shapes or not str(call.ty.dtype).startswith("float"):
        return False
    x, p, q, first, last = ([*shape] if shape else [] for shape in shapes)
    rank = max(len(p), len(q))
    both = [max(pair) for pair in zip(_wide(p, rank), _wide(q, rank), strict=True)]
    weights = facts.from_weights(inner.args[1]) and facts.from_weights(call.args[1])
    return weights and x == first == last and math.prod(both) in (math.prod(p), math.prod(q))


def _wide(shape: list[int], rank: int) -> list[int]:
    return [1] * (rank - len(shape)) + shape


def _bracketed(name: str, inner: Any, call: Any) -> Recipe:
    def recipe(builder: Any, now: Callable[[Any], Any]) -> Any:
        x, p, q = (now(each) for each in (*inner.args, call.args[1]))
        return _MAKE[name](x, builder.emit(_MAKE[name](p, q)))

    return recipe
