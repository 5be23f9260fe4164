"""The tensor function of an attention, which tuner/graph/group_attention.py finds, and its call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, op_name, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.one_function import HALF, SUMS, again, call_of, cast, dtype_of
from tuner.graph.reads import Reads
from tuner.tvm_compat import relax, te, tirx


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention in a graph: the variables that its calls are bound to. It is the Replacement of the last one."""

    def_use: DefUse
    scores: tuple[Any, ...]
    """Of the first product, and of all that follows up to the left operand of the second one, in order."""
    read: Any
    """Of the second product."""
    tail: tuple[Any, ...]
    """Of the element-wise calls behind it, in order."""
    axes: tuple[int, ...]
    """The axes of the second product's result, in the order in which the permutation at the end puts them."""
    last: Any
    """Of the whole."""

    def __call__(self, builder: Any, current: Callable[[Any], Any]) -> Any:
        writer = _Writer(self)
        return call_of(builder, "attention", [current(each) for each in writer.reads.operands], writer.write)


class _Writer:
    """Writes the calls of an attention again."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.calls = attention.def_use.values
        self.reads = Reads(attention.def_use)
        self.scales: dict[Any, list[Any]] = {}
        """Product -> the calls that multiply or divide its operands by numbers, which are done to its result."""
        left, right = (_made_of(attention.def_use, each) for each in self.calls[attention.scores[0]].args)
        if any(one.same_as(other) for one in left for other in right):
            # TVM merges the accesses of a product to one tensor into one region, which no schedule can hold.
            self.reads.whole.append(self.calls[attention.scores[0]].args[1])
        inside = (*attention.scores, attention.read, *attention.tail)
        for variable in inside:
            outer = [each for each in self.calls[variable].args if each not in inside and dtype_of(each)]
            outer = [each for each in outer if _mask(attention.def_use, each) is None]
            scaled = variable in (attention.scores[0], attention.read)
            self.scales[variable] = [scale for each in outer for scale in self.reads.add(each, scaled=scaled)]

    def write(self, builder: Any, variables: Any) -> Any:
        """The result, in a function whose parameters are `variables`."""
        self.builder, self.emit, self.variables = builder, builder.emit, variables
        self.written: dict[Any, Any] = {}
        attention = self.attention
        first, *steps = attention.scores
        self.written[first] = self._product(first, tuple(range(len(static_shape(first) or ()))))
        for each in steps:
            self.written[each] = self._step(each, self._value)
        self.written[attention.read] = self._product(attention.read, attention.axes)
        last = attention.read
        for last in attention.tail:
            self.written[last] = self._step(last, lambda x: self._permuted(self._value(x)))
        return cast(builder, self.written[last], dtype_of(last))

    def _step(self, variable: Any, value: Callable[[Any], Any]) -> Any:
        """An element-wise call, or the softmax. `value` gives an argument that comes from outside."""
        call = self.calls[variable]
        return again(
            self.builder, call, [self.written[each] if each in self.written else value(each) for each in call.args]
        )

    def _value(self, argument: Any) -> Any:
        """An argument that comes from outside."""
        if not dtype_of(argument):
            return argument
        if (mask := _mask(self.attention.def_use, argument)) is not None:
            dtype = SUMS if dtype_of(argument) in HALF else dtype_of(argument)
            made = relax.TensorType(mask.shape, dtype)
            return self.emit(relax.call_tir(self.builder.add_func(mask.function(dtype), "mask"), (), made))
        return self.reads.write(self.builder, self.variables, argument)

    def _product(self, variable: Any, axes: tuple[int, ...]) -> Any:
        """The product that a variable is bound to, its axes in that order; of half precision in float32."""
        call = self.calls[variable]
        dtype = dtype_of(call.args[0])
        sums = SUMS if dtype in HALF else dtype_of(call)
        left, right = (
            cast(self.builder, self.written[each], dtype)
            if each in self.written
            else self.reads.write(self.builder, self.variables, each, scaled=True)
            for each in call.args
        )
        out = [(static_shape(call) or [])[axis] for axis in axes]
        function = self.builder.add_func(_product(left, right, out, axes, sums), "product")
        y = self.emit(relax.call_tir(function, (left, right), relax.TensorType(out, sums)))
        for scale in self.scales[variable]:
            number = constant_value(scale.args[1])
            assert number is not None
            y = again(self.builder, scale, [y, relax.const(number.reshape(()).astype(sums), sums)])
        return y

    def _permuted(self, x: Any) -> Any:
        """An argument of a step behind the second product, in the order of that product's axes."""
        axes, shape = self.attention.axes, static_shape(x) or []
        if not dtype_of(x) or math.prod(shape) == 1:
            return x
        wide = self.emit(relax.op.reshape(x, [1] * (len(axes) - len(shape)) + shape))
        return self.emit(relax.op.permute_dims(wide, list(axes)))


def _made_of(def_use: DefUse, x: Any) -> list[Any]:
    reads = Reads(def_use)
    reads.add(x, scaled=True)
    return reads.operands


def _product(left: Any, right: Any, out: list[int], axes: tuple[int, ...], sums: str) -> Any:
    """The tensor function left [batch..., m, k] x right [batch..., k, n], of shape `out`: the axes of [batch..., m, n] in
    the order `axes`. Batch dimensions are broadcast; products are summed in the type `sums`."""
    tensors = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (left, right)]
    length = int(tensors[0].shape[-1])
    k = te.reduce_axis((0, length), name="k")

    def element(*index: Any) -> Any:
        *batch, row, column = (index[axes.index(axis)] for axis in range(len(axes)))
        factors = []
        for tensor, last in zip(tensors, ((row, k), (k, column)), strict=True):
            own = batch[len(axes) - len(tensor.shape) :]
            at = [0 if int(extent) == 1 else i for i, extent in zip(own, tensor.shape[:-2], strict=True)]
            factors.append(tensor[(*at, *last)].astype(sums))
        return te.sum(factors[0] * factors[1], axis=k)

    result = te.compute(tuple(out), element, name="product")
    return te.create_prim_func([*tensors, result], index_dtype_override="int64").without_attr("global_symbol")


@dataclass(frozen=True, kw_only=True)
class _Mask:
    """A constant that follows from its indices: a number, of shape (), or a mask [1..., rows, columns] that is `before`
    where column <= row + offset, and `behind` elsewhere."""

    shape: tuple[int, ...]
    before: Any
    behind: Any = 0
    offset: int = 0

    def function(self, dtype: str) -> Any:
        """The tensor function without operands that makes it."""
        before, behind = (tirx.const(value, dtype) for value in (self.before, self.behind))

        def element(*index: Any) -> Any:
            return tirx.Select(index[-1] <= index[-2] + self.offset, before, behind) if index else before

        result = te.compute(self.shape, element, name="mask")
        return te.create_prim_func([result], index_dtype_override="int64").without_attr("global_symbol")


def _mask(def_use: DefUse, argument: Any) -> _Mask | None:
    """The number, or the mask of two values, that a constant is; None for any other expression."""
    definition = def_use.definition(argument)
    while op_name(definition) == "relax.reshape":
        definition = def_use.definition(definition.args[0])
    values = constant_value(definition)
    if values is None or values.size == 1:
        return None if values is None else _Mask(shape=(), before=values.item())
    values = values.reshape(static_shape(argument) or values.shape)
    if values.ndim < 2 or values.size != math.prod(values.shape[-2:]) or values.shape[-2] == 1:
        return None
    matrix = values.reshape(values.shape[-2:])
    before, behind = matrix[0, 0], matrix[0, -1]
    offset = int(np.argmax(matrix[0] != before)) - 1
    if before == behind or not np.array_equal(
        matrix, np.where(np.tri(*matrix.shape, offset, dtype=bool), before, behind)
    ):
        return None
    return _Mask(shape=values.shape, before=before.item(), behind=behind.item(), offset=offset)
