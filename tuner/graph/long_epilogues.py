"""What follows a product is fused with it while an element reads few copies of the product's.

A kernel computes its epilogue on a tile in registers, as one expression, in which a value that is read twice stands twice: a
chain of n operators that each read the one before twice would take 2^n to write down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls
from tuner.graph.gathers import OPAQUE, PATTERN
from tuner.graph.resamplings import OUT_ELEMWISE_FUSABLE
from tuner.tvm_compat import ir, relax, tirx, tvm_ffi

MOST_COPIES = 64
"""Of a product's element in one of the epilogue's. An activation has up to eight of its argument."""


def end_long_epilogues(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, where an operator is fused with nothing whose result would
    hold more copies of a product's than MOST_COPIES: the next kernel begins after it."""
    copies: dict[Any, int] = {}
    replacements: dict[Any, Replacement] = {}
    for variable, call in DefUse(mod["main"]).calls("relax.call_tir"):
        function = mod[call.args[0]]
        pattern = int((function.attrs or {}).get(PATTERN, OPAQUE))
        if pattern >= OUT_ELEMWISE_FUSABLE:
            copies[variable] = int(pattern == OUT_ELEMWISE_FUSABLE)
        elif any(given := [copies.get(argument, 0) for argument in call.args[1].fields]):
            copies[variable] = _copies(function, given)
            if copies[variable] > MOST_COPIES:
                copies[variable] = 0
                replacements[call] = _alone(call, function)
    return replace_calls(mod, replacements)


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


def _alone(call: Any, function: Any) -> Replacement:
    def replacement(builder: Any, current: Any) -> Any:
        opaque = builder.add_func(function.with_attr(PATTERN, OPAQUE), f"{call.args[0].name_hint}_alone")
        return relax.call_tir(opaque, tuple(current(each) for each in call.args[1].fields), call.ty)

    return replacement
