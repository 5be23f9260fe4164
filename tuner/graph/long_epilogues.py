"""What follows a product is fused with it while an element reads few copies of the product's.

A kernel computes its epilogue on a tile in registers, as one expression, in which a value that is read twice stands twice: a
chain of n operators that each read the one before twice would take 2^n to write down. A slice of a product begins the next
kernel, and is fused with what follows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.gathers import OPAQUE, PATTERN
from tuner.graph.resamplings import OUT_ELEMWISE_FUSABLE
from tuner.tvm_compat import ir, relax, tirx, tvm_ffi

INJECTIVE = 2
"""TVM's OpPatternKind kInjective, and below it broadcasts and element-wise operators."""
MOST_COPIES = 64
"""Of a product's element in one of the epilogue's. An activation has up to eight of its argument."""


def end_long_epilogues(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, where an operator is fused with nothing whose result would
    hold more copies of a product's than MOST_COPIES: the next kernel begins after it."""
    copies: dict[Any, int] = {}
    products: dict[Any, list[Any]] = {}  # variable -> the products that may be at the beginning of its kernel
    replacements: dict[Any, Replacement] = {}
    def_use = DefUse(mod["main"])
    for variable, call in def_use.calls("relax.call_tir"):
        function = mod[call.args[0]]
        pattern = int((function.attrs or {}).get(PATTERN, OPAQUE))
        if pattern >= OUT_ELEMWISE_FUSABLE:
            copies[variable] = int(pattern == OUT_ELEMWISE_FUSABLE)
            products |= {variable: [call]} if copies[variable] else {}
        elif any(given := [copies.get(argument, 0) for argument in call.args[1].fields]):
            copies[variable] = _copies(function, given)
            before = [product for each in call.args[1].fields for product in products.get(each, ())]
            if before and pattern <= INJECTIVE and _keeps_a_part(def_use, call):
                copies[variable] = 0
                replacements |= {product: _alone(product, mod[product.args[0]], "") for product in before}
            elif copies[variable] > MOST_COPIES:
                copies[variable] = 0
                replacements[call] = _alone(call, function, "_alone")
            elif before:
                products[variable] = list(dict.fromkeys(before))
    return replace_calls(mod, replacements)


def _keeps_a_part(def_use: DefUse, call: Any) -> bool:
    """Whether the result has fewer elements than the argument, which nothing else reads, as a slice: then no tile of the
    product is written whole."""
    if not def_use.has_one_use(call.args[1].fields[0]):
        return False
    shapes = [static_shape(each) for each in (call, *call.args[1].fields)]
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    return len(shapes) == len(sizes) == 2 and sizes[0] < sizes[1]


def _copies(function: Any, given: Sequence[int]) -> int:
    """In an element of a function's result, where its arguments' elements hold `given`."""
    held = dict(zip(function.params, given, strict=False))
    last = 0

    def of_store(store: Any) -> None:
        nonlocal last
        loads: list[Any] = []
        tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
        last = held[store.buffer] = sum(held.get(load.source, 0) for load in loads)

    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, of_store))
    return last


def _alone(call: Any, function: Any, suffix: str) -> Replacement:
    """The call of a function that is fused with nothing, of the same name with the suffix."""

    def replacement(builder: Any, current: Any) -> Any:
        opaque = builder.add_func(function.with_attr(PATTERN, OPAQUE), f"{call.args[0].name_hint}{suffix}")
        return relax.call_tir(opaque, tuple(current(each) for each in call.args[1].fields), call.ty)

    return replacement
