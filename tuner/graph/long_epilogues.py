"""What follows a product is fused with it while an element reads few copies of the product's.

A kernel computes its epilogue on a tile in registers, as one expression, in which a value that is read twice stands twice: a
chain of n operators that each read the one before twice would take 2^n to write down. What TVM fuses with nothing behind it,
as the state of a recurrence that the next step and an output read, is read from memory, and copies nothing.

What has another size than the product begins the next kernel, and is fused with what follows it: a slice, what a norm is
padded to, or an image whose channels are scaled by the sigmoid of a product, which fused with it would be computed for each
pixel. TVM takes an operator for element-wise that reads one operand at its own indices, whatever else it reads or leaves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.gathers import OPAQUE, PATTERN, pattern_of
from tuner.graph.resamplings import OUT_ELEMWISE_FUSABLE
from tuner.tvm_compat import ir, relax, tirx, tvm_ffi

INJECTIVE = 2
"""TVM's OpPatternKind kInjective, and below it broadcasts and element-wise operators."""
MOST_COPIES = 64
"""Of a product's element in one of the epilogue's. An activation has up to eight of its argument."""


def end_long_epilogues(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, where an operator is fused with nothing whose result would
    hold more copies of a product's than MOST_COPIES: the next kernel begins after it. It begins before an operator whose
    result has another size than the product."""
    copies: dict[Any, int] = {}
    products: set[Any] = set()
    """Variables whose kernels begin with a function of several tensors; a sum of one is computed a row at a time."""
    replacements: dict[Any, Replacement] = {}
    def_use = DefUse(mod["main"])
    patterns = {variable: pattern_of(mod, call) for variable, call in def_use.values.items()}
    carried = _carried(def_use, patterns)
    for variable, call in def_use.calls("relax.call_tir"):
        function, pattern = mod[call.args[0]], patterns[variable]
        read = [argument if argument in carried else None for argument in call.args[1].fields]
        if pattern >= OUT_ELEMWISE_FUSABLE:
            copies[variable] = int(pattern == OUT_ELEMWISE_FUSABLE)
            products |= {variable} if copies[variable] and len(read) > 1 else set[Any]()
        elif any(given := [copies.get(argument, 0) for argument in read]):
            copies[variable] = _copies(function, given)
            before = products.intersection(read)
            if pattern <= INJECTIVE and before and _is_resized(call, before):
                copies[variable] = 0
                replacements[call] = _marked(call, function, "_next", INJECTIVE)
            elif copies[variable] > MOST_COPIES:
                copies[variable] = 0
                replacements[call] = _marked(call, function, "_alone", OPAQUE)
            elif before:
                products.add(variable)
    return replace_calls(mod, replacements)


def _carried(def_use: DefUse, patterns: Mapping[Any, int]) -> set[Any]:
    """The variables that TVM may fuse with what reads them: all that is computed of one comes together again, in its
    immediate post-dominator, with nothing but injective operators on the way. Any other value is written to memory."""
    place = {variable: at for at, variable in enumerate(def_use.values)}
    above: dict[Any, tuple[Any, int]] = {}
    """Variable -> its immediate post-dominator, and the largest pattern between the two."""
    for variable in reversed(def_use.values):
        ways = dict.fromkeys(def_use.users.get(variable, [None]), -1)
        """Where the ways from the variable have come to, and the largest pattern on each."""
        while len(ways) > 1 and None not in ways:
            first = min(ways, key=place.__getitem__)
            passed = max(ways.pop(first), patterns[first])
            end, between = above[first]
            ways[end] = max(ways.get(end, -1), passed, between)
        above[variable] = ways.popitem() if len(ways) == 1 else (None, -1)
    return {variable for variable, (end, between) in above.items() if end is not None and between <= INJECTIVE}


def _is_resized(call: Any, arguments: Collection[Any]) -> bool:
    """Whether the result has another number of elements than each of some arguments."""
    shapes = [static_shape(each) for each in (call, *arguments)]
    sizes = [math.prod(shape) for shape in shapes if shape is not None]
    return len(sizes) == len(shapes) and sizes[0] not in sizes[1:]


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


def _marked(call: Any, function: Any, suffix: str, pattern: int) -> Replacement:
    """The call of a function of the same name with the suffix, which TVM fuses as the pattern says: with nothing where it is
    OPAQUE, with no product before it where it is INJECTIVE."""

    def replacement(builder: Any, current: Any) -> Any:
        marked = builder.add_func(function.with_attr(PATTERN, pattern), f"{call.args[0].name_hint}{suffix}")
        return relax.call_tir(marked, tuple(current(each) for each in call.args[1].fields), call.ty)

    return replacement
