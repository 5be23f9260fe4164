"""Reductions that TVM does not know, of several values at once and extrema that begin with an infinity: importing this
module makes it take them apart.

rfactor and reductions between threads need a reducer that TVM recognises in a block's body (ReducerRegistry). Its own argmax
and argmin know no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from tuner.tvm_compat import register_reducer, tirx

Pair = Sequence[Any]
"""(place, value)."""


def arg_combiner(largest: bool, last: bool) -> Callable[[Pair, Pair], list[Any]]:
    """Of two pairs (place, value), the one with the extreme value, the first or the last of equal values; NaN is before all
    numbers. The identity is the least value, or the greatest, with place -1.

    All of the condition is computed, without a branch, which would stand between a thread's loads. It stays the same where
    the place of `a` is chosen already: TVM stores the place that a thread gets from another before it chooses the value.
    """
    return partial(_combined, largest, last)


def _combined(largest: bool, last: bool, a: Pair, b: Pair) -> list[Any]:
    (place_a, value_a), (place_b, value_b) = a, b
    is_ahead = _number(value_a > value_b if largest else value_a < value_b)
    is_equal = _number(value_a == value_b)
    # As numbers without sign the place of the identity is behind all others.
    is_earlier = place_a > place_b if last else place_a.astype("uint64") < place_b.astype("uint64")
    if "float" in str(value_a.ty.dtype):
        is_nan_a, is_nan_b = tirx.isnan(value_a), tirx.isnan(value_b)  # Not x != x: TVM drops it.
        is_ahead += _number(tirx.And(is_nan_a, tirx.Not(is_nan_b)))
        is_equal += _number(tirx.And(is_nan_a, is_nan_b))
    taken = tirx.Cast("bool", is_ahead + is_equal * _number(is_earlier))
    return [tirx.Select(taken, place_a, place_b), tirx.Select(taken, value_a, value_b)]


def _number(condition: Any) -> Any:
    """1 where it holds, else 0. Arithmetic has no branch, and TVM's matcher of reducers knows no bitwise operators; nor may
    there be a number among the operands, which makes it forget what did not match."""
    return tirx.Cast("int32", condition)


def _identity(values: Pair) -> list[Any]:
    return [tirx.const(-1, str(values[0].ty.dtype)), values[1]]


for _largest, _last in product((True, False), repeat=2):
    register_reducer(f"arg-{_largest}-{_last}", 2, arg_combiner(_largest, _last), _identity)


def _extreme(kind: type, a: Pair, b: Pair) -> list[Any]:
    return [kind(a[0], b[0])]


def _least(values: Pair) -> list[Any]:
    dtype = str(values[0].ty.dtype)
    return [tirx.const(-math.inf, dtype) if "float" in dtype else tirx.min_value(dtype)]


def _greatest(values: Pair) -> list[Any]:
    dtype = str(values[0].ty.dtype)
    return [tirx.const(math.inf, dtype) if "float" in dtype else tirx.max_value(dtype)]


register_reducer("max", 1, partial(_extreme, tirx.Max), _least)
register_reducer("min", 1, partial(_extreme, tirx.Min), _greatest)
