"""Products with one column and few terms as sums: a step of a state space model reads its state so.

    [..., rows, terms] x [..., terms, 1] -> [..., rows, 1]

A kernel for such a product has nothing to multiply in tiles, and TVM fuses nothing before a product. As a sum it reads its
operands where they lie, through slices, permutations and casts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.one_function import HALF, SUMS, call_of, cast, dtype_of
from tuner.graph.reads import Reads
from tuner.tvm_compat import relax

MOST_TERMS = 64
"""Of a sum. With more of them a product has work to divide."""


def vector_products(mod: Any) -> Any:
    """The module with such products of main as tensor functions that are sums. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    calls = [call for _, call in def_use.calls("relax.matmul") if _is_one(def_use, call)]
    return replace_calls(mod, {call: _sum(def_use, call) for call in calls})


def _is_one(def_use: DefUse, call: Any) -> bool:
    """A product with a weight stays one, and a matrix, of which the launch is not most."""
    a, b = (static_shape(each) or [] for each in call.args)
    if len(a) < 2 or len(a) != len(b) or b[-1] != 1 or not 0 < a[-1] <= MOST_TERMS:
        return False
    return dtype_of(call) in (SUMS, *HALF) and not any(def_use.from_weights(each) for each in call.args)


def _sum(def_use: DefUse, call: Any) -> Replacement:
    reads = Reads(def_use)
    factors = [(_uncast(def_use, each), dtype_of(each)) for each in call.args]
    for factor, _ in factors:
        reads.add(factor)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def write(inner: Any, variables: Sequence[Any]) -> Any:
            given = (cast(inner, reads.write(inner, variables, factor), dtype) for factor, dtype in factors)
            a, b = (cast(inner, each, SUMS) for each in given)
            *lead, terms, _ = static_shape(b) or []
            row = inner.emit(relax.op.reshape(b, [*lead, 1, terms]))
            total = inner.emit(relax.op.sum(inner.emit(relax.op.multiply(a, row)), axis=-1, keepdims=True))
            return cast(inner, total, dtype_of(call))

        return call_of(builder, "vector_product", [current(each) for each in reads.operands], write)

    return replacement


def _uncast(def_use: DefUse, x: Any) -> Any:
    """What a cast to half precision was made of, which is done in the sum."""
    call: Any = def_use.values.get(x)
    wide = op_name(call) == "relax.astype" and dtype_of(call) in HALF and dtype_of(call.args[0]) == SUMS
    return call.args[0] if wide else x
