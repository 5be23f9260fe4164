"""GELU, which exporters write down as x / sqrt(2) -> Erf -> + 1 -> * x -> * 1/2, as the one operator that it was.

An equal layer of PyTorch's then is an equal workload, whichever way it came.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.tvm_compat import relax

ROUNDING = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""How far the constants of a type may be off, relatively."""


def assemble_gelu(mod: Any) -> Any:
    """The module with such chains of main as relax.nn.gelu."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.multiply"):
        if (x := _argument(def_use, call)) is not None:
            replacements[call] = _gelu(x)
    return replace_calls(mod, replacements)


def _gelu(x: Any) -> Replacement:
    def replacement(_builder: Any, current: Callable[[Any], Any]) -> Any:
        return relax.op.nn.gelu(current(x))

    return replacement


def _argument(def_use: DefUse, call: Any) -> Any:
    """x of a product of x, 1/2 and 1 + erf(x / sqrt(2)), in any order; None for any other call."""
    factors = _factors(def_use, call)
    halves = [each for each in factors if _is(def_use, each, 0.5)]
    sums = [each for each in factors if _erf_argument(def_use, each) is not None]
    if len(factors) != 3 or len(halves) != 1 or len(sums) != 1:
        return None
    (x,) = (each for each in factors if each is not halves[0] and each is not sums[0])
    scaled = _erf_argument(def_use, sums[0])
    same = scaled is not None and scaled.same_as(x) and static_shape(x) == static_shape(call)
    return x if same else None


def _factors(def_use: DefUse, call: Any) -> list[Any]:
    """The operands of a product, those of products among them that have no other use in their place."""
    found = []
    for each in call.args:
        inner = def_use.definition(each)
        nested = op_name(inner) == "relax.multiply" and def_use.has_one_use(each)
        found += list(inner.args) if nested else [each]
    return found


def _erf_argument(def_use: DefUse, expr: Any) -> Any:
    """x of 1 + erf(x / sqrt(2)) or 1 + erf(x * sqrt(1/2)); None for any other expression."""
    total = def_use.definition(expr)
    if op_name(total) != "relax.add" or not def_use.has_one_use(expr):
        return None
    erf, one = total.args if _is(def_use, total.args[1], 1.0) else tuple(total.args)[::-1]
    inner = def_use.definition(erf)
    if not _is(def_use, one, 1.0) or op_name(inner) != "relax.erf" or not def_use.has_one_use(erf):
        return None
    scaled = def_use.definition(inner.args[0])
    scale = {"relax.divide": math.sqrt(2), "relax.multiply": math.sqrt(0.5)}.get(op_name(scaled))
    if scale is None or not def_use.has_one_use(inner.args[0]):
        return None
    return scaled.args[0] if _is(def_use, scaled.args[1], scale) else None


def _is(def_use: DefUse, expr: Any, number: float) -> bool:
    """Whether an expression is a constant of one element, that number."""
    value = constant_value(def_use.definition(expr))
    tolerance = ROUNDING.get(str(getattr(expr.ty, "dtype", "")))
    if value is None or value.size != 1 or tolerance is None:
        return False
    return math.isclose(float(value.reshape(-1)[0]), number, rel_tol=tolerance)
