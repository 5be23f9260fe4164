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

from tuner.graph.def_use import DefUse, Emit, Replacement, item_bytes, op_name, replace_calls, reshaped, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.simplify.rewriter import BINARY, UNARY
from tuner.graph.slice_views import ALIGNMENT
from tuner.tvm_compat import relax


def join_siblings(mod: Any) -> Any:
    """The module with such products of main joined; bindings canonical, common subexpressions gone."""
    def_use = DefUse(mod["main"])
    families: dict[Any, list[_Sibling]] = {}
    for variable, call in def_use.calls("relax.matmul"):
        if (sibling := _Sibling.found(def_use, variable, call)) is not None:
            families.setdefault(sibling.family, []).append(sibling)
    replacements: dict[Any, Replacement] = {}
    for family in families.values():
        if len(family) > 1:
            shared = _Joined(def_use, family)
            for index, sibling in enumerate(family):
                replacements[sibling.chain[shared.length - 1]] = shared.part(index)
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Sibling:
    chain: tuple[Any, ...]
    """The product, and the element-wise calls behind it."""
    signatures: tuple[Any, ...]
    """What the calls of two siblings must have in common, call by call."""
    family: Any
    """Equal for products that may be joined."""

    @staticmethod
    def found(def_use: DefUse, variable: Any, call: Any) -> _Sibling | None:
        x, weight = call.args
        rows, columns, out = (static_shape(each) for each in (x, weight, call))
        if rows is None or columns is None or out is None or min(len(rows), len(columns)) < 2:
            return None
        if def_use.from_weights(x) or not _movable(def_use, weight) or math.prod(out) * item_bytes(call) % ALIGNMENT:
            return None
        chain, signatures = [call], [tuple[Any, ...]()]
        while def_use.has_one_use(variable):
            follower = def_use.last_users[variable]
            signature = _signature(def_use, follower, variable)
            if signature is None:
                break
            chain.append(def_use.values[follower])
            signatures.append(signature)
            variable = follower
        family = (x, tuple(columns), str(weight.ty.dtype), str(call.ty.dtype))
        return _Sibling(chain=tuple(chain), signatures=tuple(signatures), family=family)


def _signature(def_use: DefUse, follower: Any, variable: Any) -> Any:
    """What tells an element-wise call on `variable` from others; None for what cannot be joined."""
    call = def_use.definition(follower)
    shape = static_shape(call)
    if follower is None or shape is None or not isinstance(call, relax.Call) or not call.args[0].same_as(variable):
        return None
    if op_name(call) in UNARY and len(call.args) == 1:
        return (op_name(call), str(call.attrs), str(call.ty.dtype))
    operand = call.args[1] if op_name(call) in BINARY else None
    if operand is None or not _movable(def_use, operand) or shape != static_shape(variable):
        return None
    return (op_name(call), tuple(static_shape(operand) or ()))


def _movable(def_use: DefUse, expr: Any) -> bool:
    """Whether an expression of weights can be computed anew anywhere: calls of weights and constants."""
    if not def_use.from_weights(expr):
        return False
    return all(_movable(def_use, argument) for argument in _operands(def_use.definition(expr)))


def _operands(definition: Any) -> Sequence[Any]:
    """What an expression is made of: the arguments of a call, the fields of a tuple, else nothing."""
    return (
        definition.args
        if isinstance(definition, relax.Call)
        else definition.fields
        if isinstance(definition, relax.Tuple)
        else ()
    )


class _Joined:
    """One product for a family; made where its first part is asked for."""

    def __init__(self, def_use: DefUse, family: Sequence[_Sibling]) -> None:
        self.def_use = def_use
        self.family = family
        self.length = min(len(sibling.chain) for sibling in family)
        while len({sibling.signatures[: self.length] for sibling in family}) > 1:
            self.length -= 1
        self.result: Any = None

    def part(self, index: int) -> Replacement:
        def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
            if self.result is None:
                self.result = self._make(builder.emit, current)
            shape = static_shape(self.family[index].chain[self.length - 1]) or []
            each = (static_shape(self.result) or [])[0] // len(self.family)
            bounds = ([0], [index * each], [(index + 1) * each])
            return reshaped(builder.emit(relax.op.strided_slice(self.result, *bounds)), shape)

        return replacement

    def _make(self, emit: Emit, current: Callable[[Any], Any]) -> Any:
        first = self.family[0].chain[0]
        x = current(first.args[0])
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
        definition = self.def_use.definition(expr)
        arguments = [self._again(emit, argument) for argument in _operands(definition)]
        if isinstance(definition, relax.Tuple):
            return relax.Tuple(arguments)
        if not isinstance(definition, relax.Call):
            return definition
        return emit(relax.Call(definition.op, arguments, definition.attrs, definition.ty_args))


def _same_constant(one: Any, other: Any) -> bool:
    left, right = constant_value(one), constant_value(other)
    return left is not None and right is not None and np.array_equal(left, right)
