"""The tensor function of an attention, which tuner/graph/group_attention.py finds, and its call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, op_name, reshaped, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.one_function import call_of
from tuner.graph.slice_views import is_view
from tuner.tvm_compat import relax, te, tirx

HALF = frozenset(("float16", "bfloat16"))
SUMS = "float32"
"""The type in which products and softmax of half precision are computed."""
_SCALES = frozenset(("relax.divide", "relax.multiply"))
_MOVEMENTS = frozenset(f"relax.{name}" for name in ("broadcast_to", "permute_dims", "reshape", "strided_slice"))


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
        reads = _Reads(self)
        operands = [reshaped(current(source), shape) for source, shape in reads.operands]
        operands = [builder.emit(each) if isinstance(each, relax.Call) else each for each in operands]
        return call_of(builder, "attention", operands, _Writer(self, reads).write)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """How the function reads an operand."""

    place: int
    """Of the source among the operands of the function."""
    steps: tuple[Any, ...]
    """Calls that move its elements, in order."""
    scales: tuple[Any, ...]
    """Calls that multiply or divide it by a number, which are done to the product instead."""


class _Reads:
    """The operands of the function, (expression, shape) without repetition, and how the attention reads them."""

    def __init__(self, attention: Attention) -> None:
        self.operands: list[tuple[Any, list[int]]] = []
        self._reads: dict[Any, _Read] = {}
        def_use = attention.def_use
        inside = {*attention.scores, attention.read, *attention.tail}
        products = (attention.scores[0], attention.read)
        for variable in (*attention.scores, attention.read, *attention.tail):
            for argument in def_use.values[variable].args:
                if _is_tensor(argument) and argument not in inside and _mask(def_use, argument) is None:
                    self._reads[argument] = self._read(def_use, argument, strips_scales=variable in products)

    def __getitem__(self, argument: Any) -> _Read:
        return self._reads[argument]

    def _read(self, def_use: DefUse, argument: Any, *, strips_scales: bool) -> _Read:
        steps: list[Any] = []
        scales: list[Any] = []
        x = argument
        while not def_use.from_weights(x):
            call = def_use.definition(x)
            if strips_scales and op_name(call) in _SCALES and _is_scaled(call):
                scales.insert(0, call)
            elif op_name(call) in _MOVEMENTS and static_shape(call.args[0]) is not None and not is_view(def_use, x):
                steps.insert(0, call)
            else:
                break
            x = call.args[0]
        shape = static_shape(x) or []
        while steps and op_name(steps[0]) == "relax.reshape":  # a view
            shape = static_shape(steps.pop(0)) or []
        known = (n for n, (source, extents) in enumerate(self.operands) if source.same_as(x) and extents == shape)
        place = next(known, len(self.operands))
        if place == len(self.operands):
            self.operands.append((x, shape))
        return _Read(place=place, steps=tuple(steps), scales=tuple(scales))


class _Writer:
    """Writes the calls of an attention again, on other operands."""

    def __init__(self, attention: Attention, reads: _Reads) -> None:
        self.attention = attention
        self.calls = attention.def_use.values
        self.reads = reads

    def write(self, builder: Any, variables: Any) -> Any:
        """The result, in a function whose parameters are `variables`."""
        self.builder, self.emit, self.variables = builder, builder.emit, variables
        self.written: dict[Any, Any] = {}
        first, *steps = self.attention.scores
        self.written[first] = self._product(first, tuple(range(len(static_shape(first) or ()))))
        for each in steps:
            call = self.calls[each]
            if op_name(call) == "relax.nn.softmax":
                self.written[each] = self._softmax(call)
            else:
                self.written[each] = self._again(call, [self._value(argument) for argument in call.args])
        axes, y = self.attention.axes, self.attention.read
        self.written[y] = self._product(y, axes)
        for each in self.attention.tail:
            call = self.calls[each]
            arguments = [
                self.written[argument] if argument in self.written else self._permuted(self._value(argument), axes)
                for argument in call.args
            ]
            self.written[each] = self._again(call, arguments)
            y = each
        return self.written[y]

    def _again(self, call: Any, arguments: list[Any]) -> Any:
        return self.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))

    def _value(self, argument: Any) -> Any:
        """An argument of one of the calls."""
        if argument in self.written:
            return self.written[argument]
        if not _is_tensor(argument):
            return argument
        if (mask := _mask(self.attention.def_use, argument)) is not None:
            dtype = str(argument.ty.dtype)
            made = relax.TensorType(mask.shape, dtype)
            return self.emit(relax.call_tir(self.builder.add_func(mask.function(dtype), "mask"), (), made))
        read = self.reads[argument]
        y = self.variables[read.place]
        for step in read.steps:
            y = self._again(step, [y, *step.args[1:]])
        return y

    def _product(self, variable: Any, axes: tuple[int, ...]) -> Any:
        """The product that a variable is bound to, its axes in that order."""
        call = self.calls[variable]
        dtype, of_operands = str(call.ty.dtype), str(call.args[0].ty.dtype)
        sums = SUMS if of_operands in HALF else dtype
        left, right = (self._value(argument) for argument in call.args)
        out = [(static_shape(call) or [])[axis] for axis in axes]
        function = _product(left, right, out, axes, sums)
        result = relax.TensorType(out, sums)
        y = self.emit(relax.call_tir(self.builder.add_func(function, "product"), (left, right), result))
        scales = [scale for each in call.args if each not in self.written for scale in self.reads[each].scales]
        for scale in scales:
            number = constant_value(scale.args[1])
            assert number is not None
            y = self._again(scale, [y, relax.const(number.reshape(()).astype(sums), sums)])
        return y if sums == dtype else self.emit(relax.op.astype(y, dtype))

    def _softmax(self, call: Any) -> Any:
        x, dtype = self._value(call.args[0]), str(call.ty.dtype)
        if dtype not in HALF:
            return self._again(call, [x])
        return self.emit(relax.op.astype(self._again(call, [self.emit(relax.op.astype(x, SUMS))]), dtype))

    def _permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        shape = static_shape(x) or []
        if math.prod(shape) == 1:
            return x
        wide = self.emit(relax.op.reshape(x, [1] * (len(axes) - len(shape)) + shape))
        return self.emit(relax.op.permute_dims(wide, list(axes)))


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


def _is_tensor(expr: Any) -> bool:
    return isinstance(getattr(expr, "ty", None), relax.TensorType)


def _is_scaled(call: Any) -> bool:
    """Whether a call multiplies or divides a tensor by a constant number."""
    values = constant_value(call.args[1])
    return values is not None and values.size == 1 and static_shape(call) == static_shape(call.args[0])
