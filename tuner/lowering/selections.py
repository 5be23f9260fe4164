"""Choices between values, by values, without a branch.

    c(x) ? a(x) : b(x)

is a branch in TVM's code, and a vectorised loop around it becomes scalar: with an ELU or a softplus behind it a convolution
took two to eight times as long. Where the condition is about numbers that were read, not about places, where both
sides are plain arithmetic, and where all that they read lies within its buffer whatever the condition, both are computed and
one is selected, which vectors do as well. What is read is bound to variables: TVM makes a branch again of a selection that
reads memory, also of one that was a selection from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.tvm_compat import ir, structural_walk, sym, tirx, tvm, tvm_ffi

_CHOICE = "prim.if_then_else"
_CHEAP = frozenset(
    f"tirx.{name}"
    for name in (
        "exp",
        "log",
        "tanh",
        "erf",
        "sigmoid",
        "sqrt",
        "rsqrt",
        "fabs",
        "floor",
        "ceil",
        "isnan",
        "reinterpret",
    )
)
"""Functions that vector units have, or that are made of what they have (fastmath.py); none of them traps."""
_UNTOUCHED = "bfloat16"
"""bfloat16.py, which comes later, takes no statement apart that binds variables beside numbers of this type."""
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def select_values(function: Any) -> Any:
    """The tensor function with such choices as selections; what it computes is the same. Before TVM lowers it, and before
    its functions become arithmetic."""
    blocks: list[Any] = []
    structural_walk(function.body, (tvm.s_tir.SBlock, blocks.append))
    places = _Places([axis for block in blocks for axis in block.iter_vars])
    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, lambda store: _stored(store, places))])
    return function if body.same_as(function.body) else function.with_body(body)


def _stored(store: Any, places: _Places) -> Any:
    made = [each for kind in (ir.Call, ir.TensorLoad, tirx.Cast) for each in _nodes(store.value, kind)]
    if any(str(getattr(each.ty, "dtype", "")) == _UNTOUCHED for each in made):
        return store
    bound: list[tuple[Any, Any]] = []

    def variable(load: Any) -> Any:
        for name, known in bound:
            if tvm_ffi.structural_equal(known, load):
                return name
        bound.append((tirx.Var("read", load.ty), load))
        return bound[-1][0]

    def selected(choice: Any, parts: Sequence[Any]) -> Any:
        if not _can_be_selected(parts, places):
            return choice
        return tirx.Select(*(tvm_ffi.structural_map(each, [(ir.TensorLoad, variable)]) for each in parts))

    def called(call: Any) -> Any:
        return selected(call, call.args) if getattr(call.op, "name", "") == _CHOICE else call

    def select(choice: Any) -> Any:
        return selected(choice, (choice.condition, choice.true_value, choice.false_value))

    value = tvm_ffi.structural_map(store.value, [(ir.Call, called), (tirx.Select, select)])
    if value.same_as(store.value):
        return store
    for name, load in reversed(bound):
        value = tirx.Let(name, load, value)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _can_be_selected(parts: Sequence[Any], places: _Places) -> bool:
    """parts: a condition and what is chosen."""
    condition, *sides = parts
    loads = [load for each in parts for load in _nodes(each, ir.TensorLoad)]
    return not places.are_in(condition) and all(map(_is_plain, sides)) and all(map(places.are_within, loads))


class _Places:
    """The axes of a tensor function's blocks, which are bounded by their extents wherever a block runs."""

    def __init__(self, axes: Sequence[Any]) -> None:
        self._axes, self._analyzer = [axis.var for axis in axes], sym.Analyzer()
        for axis in axes:
            self._analyzer.bind(axis.var, axis.dom)

    def are_in(self, expression: Any) -> bool:
        """Whether the expression is about one of the axes, but for what it reads there."""
        return any(each.same_as(axis) for each in _variables(expression) for axis in self._axes)

    def are_within(self, load: Any) -> bool:
        """Whether what is read lies within its buffer, and where depends on the axes and on what is read alone: not on what
        the statement binds."""
        if any(not any(each.same_as(axis) for axis in self._axes) for at in load.indices for each in _variables(at)):
            return False
        prove = self._analyzer.can_prove
        return all(
            prove(index >= 0) and prove(index < extent)
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )


def _is_plain(expression: Any) -> bool:
    """Arithmetic that may be computed whatever its operands hold."""
    names = [str(getattr(call.op, "name", "")) for call in _nodes(expression, ir.Call)]
    divisors = [each.b for kind in _DIVISIONS for each in _nodes(expression, kind) if "int" in str(each.ty.dtype)]
    return _CHEAP.issuperset(names) and all(isinstance(each, tirx.IntImm) and int(each) != 0 for each in divisors)


def _variables(expression: Any) -> list[Any]:
    """Those outside of what it reads."""
    zero = [(ir.TensorLoad, lambda load: tirx.const(0, str(load.ty.dtype)))]
    return _nodes(tvm_ffi.structural_map(expression, zero), ir.Var)


def _nodes(expression: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(expression, (kind, found.append))
    return found
