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

TILE_ROWS = 16
"""Queries from which on tensor cores compute an attention, and a block copies its operands; the kernels of fewer read them
where they lie."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention in a graph: the variables that its calls are bound to. It is the Replacement of the last one."""

    def_use: DefUse
    masks: tuple[Any, ...]
    """Of the calls that make masks, in order."""
    scores: tuple[Any, ...]
    """Of the first product, and of all that follows up to the left operand of the second one, in order."""
    softmax: Any
    """Among these."""
    read: Any
    """Of the second product."""
    tail: tuple[Any, ...]
    """Of the element-wise calls behind it, in order."""
    hidden: Any
    """Of the choice of zeros, in the tail, for rows of which all scores are minus infinity; None where there is none."""
    axes: tuple[int, ...]
    """The axes of the second product's result, in the order in which the permutation at the end puts them."""
    last: Any
    """Of the whole."""

    def __call__(self, builder: Any, current: Callable[[Any], Any]) -> Any:
        writer = _Writer(self)
        rows = (static_shape(self.scores[0]) or [])[-2]
        operands = [current(each) for each in writer.operands]
        return call_of(builder, "attention", operands, writer.write, copies_joined=rows >= TILE_ROWS)


class _Writer:
    """Writes the calls of an attention again."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.calls = attention.def_use.values
        self.reads = Reads(attention.def_use)
        self.keys = Reads(attention.def_use)
        """Of the first product's right operand, if its left one reads the same tensor, which is two operands then: TVM makes
        the accesses of a product to one tensor one region, which no schedule can hold."""
        self.scales: dict[Any, list[Any]] = {}
        """Product -> the calls that multiply or divide its operands by numbers, which are done to its result."""
        left, right = self.calls[attention.scores[0]].args
        types = {self.reads.narrow_type(each, scaled=True) for each in (left, right)}
        self.narrow = len(types) == 1 and "" not in types
        """Whether queries and keys were both cast to single precision: a product of half precision sums in it anyway."""
        scales = self.reads.add(left, scaled=True, narrow=self.narrow)
        of_keys = self.keys.add(right, scaled=True, narrow=self.narrow)
        if not any(one.same_as(other) for one in self.keys.operands for other in self.reads.operands):
            self.keys, of_keys = self.reads, self.reads.add(right, scaled=True, narrow=self.narrow)
        self.scales[attention.scores[0]] = [*scales, *of_keys]
        inside = (*attention.masks, *attention.scores, attention.read, *attention.tail)
        for variable in (*attention.masks, *attention.scores[1:], attention.read, *attention.tail):
            arguments = () if variable == attention.hidden else self.calls[variable].args
            outer = [each for each in arguments if each not in inside and dtype_of(each)]
            outer = [each for each in outer if _mask(attention.def_use, each) is None]
            scaled = variable == attention.read
            self.scales[variable] = [scale for each in outer for scale in self.reads.add(each, scaled=scaled)]

    @property
    def operands(self) -> list[Any]:
        """What the function reads; a tensor that holds queries and keys twice."""
        return [*self.reads.operands, *([] if self.keys is self.reads else self.keys.operands)]

    def write(self, builder: Any, variables: Any) -> Any:
        """The result, in a function whose parameters are `variables`."""
        self.builder, self.emit = builder, builder.emit
        self.variables = variables[: len(self.reads.operands)]
        self.of_keys = self.variables if self.keys is self.reads else variables[len(self.reads.operands) :]
        self.written: dict[Any, Any] = {}
        attention = self.attention
        first, *steps = attention.scores
        for each in attention.masks:
            self.written[each] = self._step(each, self._value)
        self.written[first] = self._product(first, tuple(range(len(static_shape(first) or ()))))
        for each in steps:
            is_safe = each == attention.softmax and attention.hidden is not None
            self.written[each] = self._safe_softmax(each) if is_safe else self._step(each, self._value)
        self.written[attention.read] = self._product(attention.read, attention.axes)
        last = attention.read
        for last in attention.tail:
            is_done = last == attention.hidden
            self.written[last] = self.written[self.calls[last].args[2]] if is_done else self._step(last, self._behind)
        return cast(builder, self.written[last], dtype_of(last))

    def _safe_softmax(self, variable: Any) -> Any:
        """The softmax with zeros in rows that are minus infinity alone."""
        (x,) = self.calls[variable].args
        scores = self.written[x] if x in self.written else self._value(x)
        scores = cast(self.builder, scores, SUMS) if dtype_of(scores) in HALF else scores
        largest = self._called(_largest(scores), scores)
        powers = self.emit(relax.op.exp(self.emit(relax.op.subtract(scores, largest))))
        total = self.emit(relax.op.sum(powers, -1, keepdims=True))
        return self._called(_shares(powers), powers, total, largest)

    def _called(self, function: Any, *arguments: Any) -> Any:
        """A call of a tensor function."""
        shape = [int(extent) for extent in function.params[-1].ty.shape]
        added = self.builder.add_func(function, "softmax")
        return self.emit(relax.call_tir(added, arguments, relax.TensorType(shape, dtype_of(arguments[0]))))

    def _step(self, variable: Any, value: Callable[[Any], Any]) -> Any:
        """An element-wise call, or the softmax. `value` gives an argument that comes from outside."""
        call = self.calls[variable]
        arguments = [self.written[each] if each in self.written else value(each) for each in call.args]
        return again(self.builder, call, arguments)

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
        left, right = call.args
        is_first = variable == self.attention.scores[0]
        keys = (self.keys, self.of_keys) if is_first else (self.reads, self.variables)
        narrow = is_first and self.narrow
        a = self._operand(left, dtype, self.reads, self.variables, narrow)
        b = self._operand(right, dtype, *keys, narrow)
        out = [(static_shape(call) or [])[axis] for axis in axes]
        function = self.builder.add_func(_product(a, b, out, axes, sums), "product")
        y = self.emit(relax.call_tir(function, (a, b), relax.TensorType(out, sums)))
        for scale in self.scales[variable]:
            number = constant_value(scale.args[1])
            assert number is not None
            y = again(self.builder, scale, [y, relax.const(number.reshape(()).astype(sums), sums)])
        return y

    def _operand(self, x: Any, dtype: str, reads: Reads, variables: Any, narrow: bool) -> Any:
        """An operand of a product: what was computed before, or what is read."""
        if x in self.written:
            return cast(self.builder, self.written[x], dtype)
        return reads.write(self.builder, variables, x, scaled=True, narrow=narrow)

    def _behind(self, argument: Any) -> Any:
        """An argument of a step behind the second product that comes from outside."""
        return self._permuted(self._value(argument))

    def _permuted(self, x: Any) -> Any:
        """An argument of a step behind the second product, in the order of that product's axes."""
        axes, shape = self.attention.axes, static_shape(x) or []
        if not dtype_of(x) or math.prod(shape) == 1:
            return x
        wide = self.emit(relax.op.reshape(x, [1] * (len(axes) - len(shape)) + shape))
        return self.emit(relax.op.permute_dims(wide, list(axes)))


def _largest(scores: Any) -> Any:
    """The tensor function of the largest score of each row, which is minus infinity where all of them are: TVM's own begins
    with the least finite number."""
    x = te.placeholder(static_shape(scores), dtype_of(scores))
    j = te.reduce_axis((0, x.shape[-1]), name="j")
    largest = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: -tirx.infinity(dtype), name="largest")
    result = te.compute((*x.shape[:-1], 1), lambda *at: largest(x[(*at[:-1], j)], axis=j), name="largest")
    return _function(x, result)


def _shares(powers: Any) -> Any:
    """The tensor function (powers, their sum, largest score) -> powers / sum, zero where that score is minus infinity."""
    shape, dtype = static_shape(powers) or [], dtype_of(powers)
    x, total, largest = (te.placeholder(each, dtype) for each in (shape, [*shape[:-1], 1], [*shape[:-1], 1]))

    def share(*at: Any) -> Any:
        row = (*at[:-1], 0)
        hides = tirx.EQ(largest[row], -tirx.infinity(dtype))
        return tirx.Select(hides, tirx.const(0, dtype), x[at] / total[row])

    return _function(x, total, largest, te.compute(tuple(shape), share, name="shares"))


def _function(*tensors: Any) -> Any:
    return te.create_prim_func(list(tensors), index_dtype_override="int64").without_attr("global_symbol")


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
    return _function(*tensors, result)


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
        return _function(result)


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
