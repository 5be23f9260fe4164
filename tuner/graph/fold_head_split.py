"""Folding the head split of attention into weights: a projection computes its result in the layout of the heads.

Attention reads a projection x W + b of shape [rows, heads * size] as [heads, rows, size]: a reshape and a permutation,
which together are a kernel that only moves elements. With W' of shape [heads, columns of x, size] the product x W' has
that shape at once. W' depends on weights only, so it is computed when they are bound. Its panels of `size` contiguous
columns are also the form in which a register tile reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Emit, Replacement, op_name, replace_calls, reshaped, static_shape
from tuner.graph.epilogue import epilogue_step
from tuner.tvm_compat import relax

MIN_SIZE = 16
"""Columns. A head whose size is not a multiple of it would leave vectors partly empty, which all columns together fill."""


def fold_head_split(mod: Any) -> Any:
    """The module with such permutations of main replaced by products with permuted weights. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.permute_dims"):
        if (split := _Split.found(def_use, call)) is not None:
            replacements[call] = split
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A reshape and a permutation behind a projection, which the projection is to compute itself."""

    product: Any
    """x W, of shape [batch..., rows, columns]."""
    chain: tuple[Any, ...]
    """The element-wise calls between the product and the reshape, in their order."""
    factors: tuple[int, ...]
    """The extents into which the reshape splits the columns; the last is the size of a head."""
    order: tuple[int, ...]
    """The order in which the permutation puts those factors, the last excepted, in front of the rows."""
    transposed: bool
    """Whether rows are the last dimension of the result, as in the transposed keys."""

    @staticmethod
    def found(def_use: DefUse, call: Any) -> _Split | None:
        reshape = def_use.definition(call.args[0])
        if op_name(reshape) != "relax.reshape" or not def_use.has_one_use(call.args[0]) or not call.attrs.axes:
            return None
        chain: list[Any] = []
        at = reshape.args[0]
        while def_use.has_one_use(at) and _follows_columns(def_use, def_use.definition(at)):
            chain.insert(0, def_use.definition(at))
            at = chain[0].args[0]
        product = def_use.definition(at)
        if op_name(product) != "relax.matmul" or not def_use.has_one_use(at):
            return None
        x, weight = product.args
        shapes = [static_shape(each) for each in (x, weight, reshape)]
        if None in shapes or not def_use.from_weights(weight) or def_use.from_weights(x):
            return None
        (rows, columns, whole), axes = [shape or [] for shape in shapes], [int(axis) for axis in call.attrs.axes]
        lead = len(rows) - 1
        if len(columns) != 2 or lead > 2 or whole[:lead] != rows[:-1] or len(whole) - lead < 2:
            return None
        transposed = axes[-1] == lead - 1
        if transposed:
            axes[-2:] = [axes[-1], axes[-2]]
        last = len(whole) - 1
        batch, moved = axes[: lead - 1], axes[lead - 1 : -2]
        if axes[-2:] != [lead - 1, last] or batch != list(range(lead - 1)) or whole[-1] % MIN_SIZE:
            return None
        order = tuple(axis - lead for axis in moved)
        return _Split(
            product=product, chain=tuple(chain), factors=tuple(whole[lead:]), order=order, transposed=transposed
        )

    def __call__(self, builder: Any, current: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        x, weight = (current(argument) for argument in self.product.args)
        *batch, rows, columns = static_shape(x) or []
        if batch:
            x = emit(relax.op.reshape(x, [*batch, 1, rows, columns]))
        y = emit(relax.op.matmul(x, self._per_head(emit, weight, columns), out_dtype=self.product.attrs.out_dtype))
        for call in self.chain:
            others = [
                self._per_head(emit, current(each), 1) if _length(each) > 1 else current(each) for each in call.args[1:]
            ]
            y = emit(relax.Call(call.op, [y, *others], call.attrs, call.ty_args))
        tail = [rows, self.factors[-1]]
        if self.transposed:
            tail.reverse()
            y = emit(relax.op.permute_dims(y, [*range(len(batch) + 1), len(batch) + 2, len(batch) + 1]))
        return reshaped(y, [*batch, *(self.factors[axis] for axis in self.order), *tail])

    def _per_head(self, emit: Emit, tensor: Any, rows: int) -> Any:
        """[rows, columns] -> [heads, rows, size], the heads in the order that the permutation gives them."""
        split = emit(relax.op.reshape(tensor, [rows, *self.factors]))
        moved = emit(relax.op.permute_dims(split, [*(axis + 1 for axis in self.order), 0, len(self.factors)]))
        return emit(relax.op.reshape(moved, [math.prod(self.factors[:-1]), rows, self.factors[-1]]))


def _follows_columns(def_use: DefUse, call: Any) -> bool:
    """Whether a call is a step of the projection's epilogue, with weights of one value for each column if with any."""
    step = epilogue_step(def_use, call)
    if step is None or step.operand is None:
        return step is not None
    shape = static_shape(step.operand)
    columns = (static_shape(call) or [1])[-1]
    return shape is not None and math.prod(shape) in (1, columns) and math.prod(shape) == (shape or [1])[-1]


def _length(expr: Any) -> int:
    return math.prod(static_shape(expr) or ())
