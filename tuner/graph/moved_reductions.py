"""Reductions of what was moved just before are one function with it: windows that are weighted and summed, for one.

TVM's FuseOps puts element-wise operators before a reduction, and leaves what moves elements (a permutation, a look-up, the
windows of an image) to a kernel of its own, which writes down all that is reduced. Each of its elements is read once, so the
reduction can compute it instead. A reshape alone moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.gathers import INJECTIVE, pattern_of
from tuner.graph.one_function import OUT_ELEMWISE_FUSABLE, call_of
from tuner.tvm_compat import ir, relax, tirx, tvm, tvm_ffi

BROADCAST = 1
"""TVM's OpPatternKind: up to it FuseOps puts operators before a reduction itself."""
MANY = 1 << 20
"""Elements that take longer to be written and read than another kernel takes to begin."""


def reduce_what_is_moved(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, with such reductions of main as one function each."""
    def_use = DefUse(mod["main"])
    chains = Chains(mod, def_use)
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.call_tir"):
        if not def_use.from_weights(variable) and _reads_once(mod[call.args[0]]):
            before = chains.before(call)
            if any(map(chains.moves, before)) and not chains.parts(before):
                replacements[call] = _joined(mod, def_use, [*before, variable])
    return replace_calls(mod, replacements)


class Chains:
    """What is before a call, and what it is to be fused with."""

    def __init__(self, mod: Any, def_use: DefUse) -> None:
        self._mod, self._def_use = mod, def_use

    def pattern(self, variable: Any) -> int:
        """Of the function that a variable's binding calls."""
        return pattern_of(self._mod, self._def_use.values.get(variable))

    def before(self, reduction: Any) -> list[Any]:
        """The variables before a reduction of one tensor that it can compute for itself, in order."""
        waiting = [*reduction.args[1].fields]
        elements = math.prod(static_shape(waiting[0]) or [0])
        found: set[Any] = set()
        while waiting:
            x = waiting.pop()
            if self._fits(x, elements):
                found.add(x)
                waiting.extend(self._def_use.values[x].args[1].fields)
        return [each for each in self._def_use.values if each in found]

    def moves(self, x: Any) -> bool:
        """Whether elements of x are in another order than what it is computed of."""
        return self.pattern(x) > BROADCAST and not self.is_reshape(x)

    def parts(self, group: Sequence[Any]) -> bool:
        """Whether what would be fused with calls of the group becomes a kernel of its own, for few elements."""
        if math.prod(static_shape(group[0]) or [0]) >= MANY:
            return False
        for each in {each for x in group for each in self._def_use.values[x].args[1].fields} - set(group):
            while self._is_fused(each) and self.is_reshape(each):  # which is no kernel
                each = self._def_use.values[each].args[1].fields[0]
            if self._is_fused(each) and not self.ends_product(each):
                return True
        return False

    def _casts(self, x: Any) -> bool:
        stores: list[Any] = []
        tvm_ffi.structural_walk(self._mod[self._def_use.values[x].args[0]].body, (tirx.BufferStore, stores.append))
        return all(isinstance(each.value, tirx.Cast) and isinstance(each.value.value, ir.TensorLoad) for each in stores)

    def is_reshape(self, x: Any) -> bool:
        """Whether x has all elements of an operand in order. TVM takes the first elements of one for a reshape, too."""
        call = self._def_use.values[x]
        elements = math.prod(static_shape(x) or [0])
        whole = any(math.prod(static_shape(each) or []) == elements for each in call.args[1].fields)
        return whole and bool(relax.analysis.has_reshape_pattern(self._mod[call.args[0]]))

    def _fits(self, x: Any, elements: int) -> bool:
        """Whether x has an element for each one that is reduced, or costs nothing, is read by nothing else, and ends no
        product."""
        if not self._is_fused(x) or self.ends_product(x):
            return False
        return math.prod(static_shape(x) or [0]) == elements or self.is_reshape(x) or self._casts(x)

    def _is_fused(self, x: Any) -> bool:
        """Whether FuseOps may fuse x with what reads it."""
        return self.pattern(x) <= INJECTIVE and self._def_use.has_one_use(x) and not self._def_use.from_weights(x)

    def ends_product(self, x: Any) -> bool:
        """Whether x is computed on the result of a product while that is in registers."""
        elements = static_shape(x)
        while self.pattern(x) <= BROADCAST:
            operands = [each for each in self._def_use.values[x].args[1].fields if static_shape(each) == elements]
            if any(self.pattern(each) == OUT_ELEMWISE_FUSABLE for each in operands):
                return True
            following = [
                each for each in operands if self.pattern(each) <= BROADCAST and self._def_use.has_one_use(each)
            ]
            if not following:
                break
            x = following[0]
        return False


def _reads_once(function: Any) -> bool:
    """Whether a function is a reduction of its only operand, of which it reads every element once."""
    if len(function.params) != 2:
        return False
    readers: list[Any] = []

    def visit(block: Any) -> None:
        if any(region.source.same_as(function.params[0]) for region in block.reads):
            readers.append(block)

    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, visit))
    if len(readers) != 1 or readers[0].init is None:
        return False
    points = math.prod(int(axis.dom.extent) for axis in readers[0].iter_vars)
    return points == math.prod(map(int, function.params[0].shape))


def _joined(mod: Any, def_use: DefUse, group: list[Any]) -> Replacement:
    """The replacement of the last call of a group by one of all its functions."""
    calls = [def_use.values[each] for each in group]
    operands: list[Any] = []
    for call in calls:
        for each in call.args[1].fields:
            if each not in group and not any(each.same_as(other) for other in operands):
                operands.append(each)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def write(inner: Any, variables: Any) -> Any:
            written = dict(zip(operands, variables, strict=True))
            for variable, call in zip(group, calls, strict=True):
                name = call.args[0].name_hint
                arguments = tuple(written[each] for each in call.args[1].fields)
                function = inner.add_func(mod[call.args[0]], name)
                written[variable] = inner.emit(relax.call_tir(function, arguments, call.ty))
            return written[group[-1]]

        name = "_".join(call.args[0].name_hint for call in calls)[:80]
        return call_of(builder, name, [current(each) for each in operands], write)

    return replacement
