"""Projections whose columns are cut apart, as a projection for each part.

x W + b of [rows, n] whose columns are read in slices (queries, keys and values of one dense layer) becomes x W' + b' for
each slice, with the columns that it reads. Parts of one shape are merged again (merge_matmuls.py), as views that lie one
after another: no part is copied, and no product reads one tensor twice. The weights are cut when they are bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Emit, Replacement, op_name, permutation, replace_calls, static_shape
from tuner.graph.epilogue import epilogue_step
from tuner.graph.slice_views import is_view
from tuner.tvm_compat import relax


def split_projections(mod: Any) -> Any:
    """The module with such projections of main split. Bindings must be canonical, splits slices."""
    def_use = DefUse(mod["main"])
    slices: dict[Any, list[Any]] = {}
    for variable, call in def_use.calls("relax.strided_slice"):
        slices.setdefault(call.args[0], []).append(variable)
    replacements: dict[Any, Replacement] = {}
    for whole, parts in slices.items():
        if len(def_use.users.get(whole, ())) != len(parts) or any(
            is_view(def_use, part, of_inputs=True) for part in parts
        ):
            continue
        if (projection := _Projection.found(def_use, whole)) is not None:
            cuts = [projection.cut(def_use.values[part]) for part in parts]
            if all(cut is not None for cut in cuts):
                replacements |= {def_use.values[p]: cut for p, cut in zip(parts, cuts, strict=True) if cut is not None}
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Projection:
    product: Any
    """x W, of shape [rows..., columns]."""
    steps: tuple[Any, ...]
    """The element-wise calls behind it, in their order."""
    shape: tuple[int, ...]
    """To which a reshape brings the result: the rows, and the factors of the columns."""
    lead: int
    """How many of these dimensions are rows."""
    axes: tuple[int, ...]
    """The order in which a permutation puts them."""
    units: int
    """Leading dimensions of one that the result has besides."""

    @staticmethod
    def found(def_use: DefUse, whole: Any) -> _Projection | None:
        """The projection whose result a variable is, behind a reshape and a permutation perhaps."""
        x, call = whole, def_use.definition(whole)
        inner: list[Any] = []
        units = len(static_shape(x) or ())
        if op_name(call) == "relax.reshape" and permutation(def_use.definition(call.args[0])):
            if [1] * (units - len(static_shape(call.args[0]) or ())) + (
                static_shape(call.args[0]) or []
            ) != static_shape(x):
                return None
            inner.append(x := call.args[0])
            call = def_use.definition(x)
        units -= len(static_shape(x) or ())
        axes = permutation(call)
        if axes:
            inner.append(x := call.args[0])
            call = def_use.definition(x)
        shape = static_shape(x)
        if op_name(call) == "relax.reshape":
            inner.append(x := call.args[0])
        steps: list[Any] = []
        while epilogue_step(def_use, step := def_use.definition(x)) is not None:
            steps.insert(0, step)
            inner.append(x := step.args[0])
        product = def_use.definition(x)
        if shape is None or op_name(product) != "relax.matmul" or not all(map(def_use.has_one_use, inner)):
            return None
        columns = static_shape(product.args[1])
        if columns is None or len(columns) != 2 or not def_use.from_weights(product.args[1]):
            return None
        if def_use.from_weights(product.args[0]) or not all(_follows_columns(each, columns[1]) for each in steps):
            return None
        lead = len(shape)
        while lead and math.prod(shape[lead:]) < columns[1]:
            lead -= 1
        if math.prod(shape[lead:]) != columns[1]:
            return None
        order = tuple(axes) or tuple(range(len(shape)))
        return _Projection(product=product, steps=tuple(steps), shape=tuple(shape), lead=lead, axes=order, units=units)

    def cut(self, part: Any) -> Replacement | None:
        """The replacement of a slice of the columns; None for any other slice."""
        bounds = [[int(value.value) for value in argument.fields] for argument in part.args[1:]]
        shape = static_shape(part)
        if shape is None or len(bounds[0]) != 1 or any(step != 1 for step in (bounds[3] if len(bounds) > 3 else [])):
            return None
        place = bounds[0][0] % len(shape) - self.units
        axis = self.axes[place]
        if place < 0 or axis < self.lead:
            return None
        first, count = bounds[1][0] % self.shape[axis], shape[place + self.units]

        def columns_of(emit: Emit, tensor: Any, rows: list[int]) -> Any:
            split = emit(relax.op.reshape(tensor, [*rows, *self.shape[self.lead :]]))
            at = len(rows) + axis - self.lead
            kept = emit(relax.op.strided_slice(split, [at], [first], [first + count]))
            return emit(relax.op.reshape(kept, [*rows, -1]))

        def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
            emit, attrs = builder.emit, self.product.attrs
            x, weight = (current(each) for each in self.product.args)
            rows = [(static_shape(weight) or [])[0]]
            y = emit(relax.op.matmul(x, columns_of(emit, weight, rows), out_dtype=attrs.out_dtype))
            for call in self.steps:
                others = [
                    current(each) if math.prod(static_shape(each) or ()) == 1 else columns_of(emit, current(each), [])
                    for each in call.args[1:]
                ]
                y = emit(relax.Call(call.op, [y, *others], call.attrs, call.ty_args))
            y = emit(relax.op.reshape(y, [count if at == axis else extent for at, extent in enumerate(self.shape)]))
            return relax.op.reshape(emit(relax.op.permute_dims(y, list(self.axes))), shape)

        return replacement


def _follows_columns(step: Any, columns: int) -> bool:
    """Whether an element-wise call has no other operands than numbers and weights of one value for each column."""
    lengths = [static_shape(each) or [] for each in step.args[1:]]
    return all(math.prod(shape) == 1 or (math.prod(shape) == columns == shape[-1]) for shape in lengths)
