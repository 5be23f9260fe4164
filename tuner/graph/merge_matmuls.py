"""Horizontal fusion: matmuls that read the same tensor are merged into one, with the stacked weights of all.

x W1 + b1, x W2 + b2, ... of equal shapes are one batched product x [W1; W2; ...] + [b1; b2; ...], whose parts lie one
after another in memory: each is a view of the result, and no kernel splits it. x is read once, one parallel loop runs over
all parts, and there is one task to tune. The stacking depends on weights only, so it is done when they are bound.

TVM's CombineParallelMatmul concatenates the columns of two-dimensional weights instead, which leaves a split that copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Emit, Replacement, item_bytes, op_name, replace_calls, reshaped, static_shape
from tuner.graph.epilogue import epilogue_step
from tuner.graph.fold_constants import constant_value
from tuner.graph.slice_views import ALIGNMENT
from tuner.tvm_compat import relax


def merge_matmuls(mod: Any) -> Any:
    """The module with such matmuls of main merged. Bindings must be canonical, and common subexpressions eliminated."""
    def_use = DefUse(mod["main"])
    groups: dict[Any, list[_Mergeable]] = {}
    for variable, call in def_use.calls("relax.matmul"):
        if (each := _Mergeable.found(def_use, variable, call)) is not None:
            groups.setdefault(each.group, []).append(each)
    replacements: dict[Any, Replacement] = {}
    for group in groups.values():
        if len(group) > 1:
            shared = _Merged(def_use, group)
            for index, each in enumerate(group):
                replacements[each.chain[shared.length - 1]] = shared.part(index)
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Mergeable:
    """A matmul of a computed tensor with weights, and its element-wise epilogue."""

    chain: tuple[Any, ...]
    """The matmul, then the element-wise calls of its epilogue in their order."""
    signatures: tuple[Any, ...]
    """One for each call of the chain. Epilogues are merged as far as their signatures are equal."""
    group: Any
    """Equal for matmuls that may be merged: the input, the shape of the weights, and the types."""

    @staticmethod
    def found(def_use: DefUse, variable: Any, call: Any) -> _Mergeable | None:
        x, weight = call.args
        rows, columns, out = (static_shape(each) for each in (x, weight, call))
        if rows is None or columns is None or out is None or min(len(rows), len(columns)) < 2:
            return None
        if def_use.from_weights(x) or not def_use.from_weights(weight) or math.prod(out) * item_bytes(call) % ALIGNMENT:
            return None
        chain, signatures = [call], [tuple[Any, ...]()]
        while def_use.has_one_use(variable):
            user = def_use.users[variable][-1]
            signature = _signature(def_use, user, variable)
            if signature is None:
                break
            chain.append(def_use.values[user])
            signatures.append(signature)
            variable = user
        group = (x, tuple(columns), str(weight.ty.dtype), str(call.ty.dtype))
        return _Mergeable(chain=tuple(chain), signatures=tuple(signatures), group=group)


def _signature(def_use: DefUse, user: Any, variable: Any) -> Any:
    """Identifies a step of the epilogue on `variable`: calls of equal signatures can be merged; None for any other call."""
    call = def_use.definition(user)
    step = None if user is None else epilogue_step(def_use, call)
    if step is None or not call.args[0].same_as(variable):
        return None
    if step.operand is None:
        return (op_name(call), str(call.attrs), str(call.ty.dtype))
    return (op_name(call), tuple(static_shape(step.operand) or ())) if def_use.from_weights(step.operand) else None


def _operands(definition: Any) -> Sequence[Any]:
    """The arguments of a call, or the fields of a tuple; nothing of any other expression."""
    if isinstance(definition, relax.Call):
        return list(definition.args)
    return list(definition.fields) if isinstance(definition, relax.Tuple) else ()


class _Merged:
    """The one matmul of a group, with the common part of the epilogues. It is emitted where the first part is replaced."""

    def __init__(self, def_use: DefUse, group: Sequence[_Mergeable]) -> None:
        self.def_use = def_use
        self.group = group
        self.length = min(len(each.chain) for each in group)
        while len({each.signatures[: self.length] for each in group}) > 1:
            self.length -= 1
        self.result: Any = None
        self.emitted: dict[Any, Any] = {}
        """Variable of weights -> what computes it again."""

    def part(self, index: int) -> Replacement:
        def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
            if self.result is None:
                self.result = self._make(builder.emit, current)
            shape = static_shape(self.group[index].chain[self.length - 1]) or []
            each = (static_shape(self.result) or [])[0] // len(self.group)
            bounds = ([0], [index * each], [(index + 1) * each])
            return reshaped(builder.emit(relax.op.strided_slice(self.result, *bounds)), shape)

        return replacement

    def _make(self, emit: Emit, current: Callable[[Any], Any]) -> Any:
        first = self.group[0].chain[0]
        x = current(first.args[0])
        weights = self._stacked(emit, [each.chain[0].args[1] for each in self.group])
        y = emit(relax.op.matmul(x, weights, out_dtype=first.attrs.out_dtype))
        for step in range(1, self.length):
            call = self.group[0].chain[step]
            operands = [each.chain[step].args[1] for each in self.group if len(call.args) > 1]
            others = [self._stacked(emit, operands)] if operands else []
            y = emit(relax.Call(call.op, [y, *others], call.attrs, call.ty_args))
        return y

    def _stacked(self, emit: Emit, tensors: Sequence[Any]) -> Any:
        """The weights of all parts as one tensor: [heads, k, n] along the heads, others along a new first dimension."""
        if all(_same_constant(tensor, tensors[0]) for tensor in tensors):
            return tensors[0]
        rows, columns = (static_shape(each) or [] for each in self.group[0].chain[0].args)
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
        """An expression of weights, emitted again, each variable of it once: its binding may come later than this place."""
        if expr in self.emitted:
            return self.emitted[expr]
        definition = self.def_use.definition(expr)
        arguments = [self._again(emit, argument) for argument in _operands(definition)]
        if isinstance(definition, relax.Tuple):
            return relax.Tuple(arguments)
        if not isinstance(definition, relax.Call):
            return definition
        made = emit(relax.Call(definition.op, arguments, definition.attrs, definition.ty_args))
        self.emitted[expr] = made
        return made


def _same_constant(one: Any, other: Any) -> bool:
    left, right = constant_value(one), constant_value(other)
    return left is not None and right is not None and np.array_equal(left, right)
