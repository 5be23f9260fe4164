"""Siblings: products that read the same tensor become one product with the stacked weights of all.

x W1 + b1, x W2 + b2, ... of equal shapes are one batched product x [W1; W2; ...] + [b1; b2; ...], whose parts lie one
after another in memory: each is a view of the result, nothing is split. x is read once, what is parallel is one loop over
all parts, and there is one task to tune. Stacking depends on weights only and is done when they are bound.

TVM's CombineParallelMatmul joins the columns of two-dimensional weights instead, which leaves a split that copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.def_use import Emit, Facts, Recipe, item_bytes, op_name, replaced, reshaped, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.simplify.rewriter import BINARY, UNARY
from tuner.graph.slice_views import ALIGNMENT
from tuner.tvm_compat import relax


def join_siblings(mod: Any) -> Any:
    """The module with such products of main joined; bindings canonical, common subexpressions gone."""
    facts = Facts(mod["main"])
    families: dict[Any, list[_Sibling]] = {}
    for variable, call in facts.calls("relax.matmul"):
        if (sibling := _Sibling.found(facts, variable, call)) is not None:
            families.setdefault(sibling.family, []).append(sibling)
    recipes: dict[Any, Recipe] = {}
    for family in families.values():
        if len(family) > 1:
            shared = _Joined(facts, family)
            for index, sibling in enumerate(family):
                recipes[sibling.chain[shared.length - 1]] = shared.part(index)
    return replaced(mod, recipes)


@dataclass(frozen=True, kw_only=True)
class _Sibling:
    chain: tuple[Any, ...]
    """The product, and the element-wise calls behind it."""
    signatures: tuple[Any, ...]
    """What the calls of two siblings must have in common, call by call."""
    family: Any
    """Equal for products that may be joined."""

    @staticmethod
    def found(facts: Facts, variable: Any, call: Any) -> _Sibling | None:
        x, weight = call.args
        rows, columns, out = (static_shape(each) for each in (x, weight, call))
        if rows is None or columns is None or out is None or min(len(rows), len(columns)) < 2:
            return None
        if facts.from_weights(x) or not _movable(facts, weight) or math.prod(out) * item_bytes(call) % ALIGNMENT:
            return None
        chain, signatures = [call], [tuple[Any, ...]()]
        while facts.once(variable):
            follower = facts.readers[variable]
            signature = _signature(facts, follower, variable)
            if signature is None:
                break
            chain.append(facts.bound[follower])
            signatures.append(signature)
            variable = follower
        family = (x, tuple(columns), str(weight.ty.dtype), str(call.ty.dtype))
        return _Sibling(chain=tuple(chain), signatures=tuple(signatures), family=family)


def _signature(facts: Facts, follower: Any, variable: Any) -> Any:
    """What tells an element-wise call on `variable` from others; None for what cannot be joined."""
    call = facts.made(follower)
    shape = static_shape(call)
    if follower is None or shape is None or not isinstance(call, relax.Call) or not call.args[0].same_as(variable):
        return None
    if op_name(call) in UNARY and len(call.args) == 1:
        return (op_name(call), str(call.attrs), str(call.ty.dtype))
    operand = call.args[1] if op_name(call) in BINARY else None
    if operand is None or not _movable(facts, operand) or shape != static_shape(variable):
        return None
    return (op_name(call), tuple(static_shape(operand) or ()))


def _movable(facts: Facts, expr: Any) -> bool:
    """Whether an expression of weights can be computed anew anywhere: calls of weights and constants."""
    if not facts.from_weights(expr):
        return False
    return all(_movable(facts, argument) for argument in _arguments(facts.made(expr)))


def _arguments(made: Any) -> Sequence[Any]:
    """What an expression is made of: the arguments of a call, the fields of a tuple, else nothing."""
    return made.args if isinstance(made, relax.Call) else made.fields if isinstance(made, relax.Tuple) else ()


class _Joined:
    """One product for a family; made where its first part is asked for."""

    def __init__(self, facts: Facts, family: Sequence[_Sibling]) -> None:
        self.facts = facts
        self.family = family
        self.length = min(len(sibling.chain) for sibling in family)
        while len({sibling.signatures[: self.length] for sibling in family}) > 1:
            self.length -= 1
        self.result: Any = None

    def part(self, index: int) -> Recipe:
        def recipe(builder: Any, now: Callable[[Any], Any]) -> Any:
            if self.result is None:
                self.result = self._make(builder.emit, now)
            shape = static_shape(self.family[index].chain[self.length - 1]) or []
            each = (static_shape(self.result) or [])[0] // len(self.family)
            bounds = ([0], [index * each], [(index + 1) * each])
            return reshaped(builder.emit(relax.op.strided_slice(self.result, *bounds)), shape)

        return recipe

    def _make(self, emit: Emit, now: Callable[[Any], Any]) -> Any:
        first = self.family[0].chain[0]
        x = now(first.args[0])
        weights = self._stacked(emit, [sibling.chain[0].args[1] for sibling in self.family])
        y = emit(relax.op.matmul(x, weights, out_dtype=first.attrs.out_dtype))
        for step in range(1, self.length):
            call = self.family[0].chain[step]
            operands = [sibling.chain[step].args[1] for sibling in self.family if len(call.args) > 1]
            others = [self._stacked(emit, operands)] if operands else []
            y = emit(relax.Call(call.op, [y, *others], call.attrs, call.ty_args))
        return y

    def _stacked(self, emit: Emit, tensors: Sequence[Any]) -> Any:
        """[heads, k, n] of all parts are one batch of heads; else the parts are a dimension in front of all others."""
        if all(_same_constant(tensor, tensors[0]) for tensor in tensors):
            return tensors[0]
        rows, columns = (static_shape(each) or [] for each in self.family[0].chain[0].args)
        is_batch = len(rows) == 2 and len(columns) == 3
        rank = 3 if is_batch else max(len(rows), len(columns)) + 1
        parts = []
        for tensor in tensors:
            shape = static_shape(tensor) or []
            wide = [1] * (rank - len(shape)) + shape
            part = emit(relax.op.reshape(self._again(emit, tensor), wide))
            if is_batch and wide[0] == 1:
                part = emit(relax.op.broadcast_to(part, [columns[0], *wide[1:]]))
            parts.append(part)
        return emit(relax.op.concat(parts, axis=0))

    def _again(self, emit: Emit, expr: Any) -> Any:
        """An expression of weights, computed here: where it was first computed may be further down."""
        made = self.facts.made(expr)
        arguments = [self._again(emit, argument) for argument in _arguments(made)]
        if isinstance(made, relax.Tuple):
            return relax.Tuple(arguments)
        if not isinstance(made, relax.Call):
            return made
        return emit(relax.Call(made.op, arguments, made.attrs, made.ty_args))


def _same_constant(one: Any, other: Any) -> bool:
    left, right = constant_value(one), constant_value(other)
    return left is not None and right is not None and np.array_equal(left, right)
