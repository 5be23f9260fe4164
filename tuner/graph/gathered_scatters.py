"""Scatters decomposed for a GPU: every element of the result asks all updates that may be its own.

    out[o] = f(data[o], reduction over the updates u with target(u) = o of value(u))

No two threads write one element, and sums have the same order in every run. Negative indices, updates out of bounds and the
last of several updates are as in scatters.py. The work is the elements of the result times the updates that each asks: along
axes where updates stay where they are, it asks its own position alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tuner.graph.def_use import Replacement, replace_calls, static_shape
from tuner.graph.scatters import COMBINED, Scatter, element_of, scatters
from tuner.tvm_compat import te, tirx


def gather_scatters(mod: Any) -> Any:
    """The module with the scattering operators of main as tensor functions for a GPU; bindings canonical.

    Raises UnsupportedOperator for a reduction other than update, add, mul, min and max.
    """
    return replace_calls(mod, {each.call: _replacement(each) for each in scatters(mod)})


def _replacement(scatter: Scatter) -> Replacement:
    asking, combine = _Asking(scatter), COMBINED[scatter.reduction]

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        data, *indices, values = [current(each) for each in scatter.inputs]

        def called(function: Callable[..., Any], *given: Any) -> Any:
            return builder.emit(builder.call_te(function, *given, primfunc_name_hint="scatter"))

        if scatter.reduction == "update":
            last = called(asking.of_all(asking.number, te.max), values, *indices)
            return called(asking.put, data, values, last)
        start = _start(scatter.reduction, str(scatter.call.ty.dtype))
        reduce: Any = te.comm_reducer(combine, lambda _: start, name=scatter.reduction)

        def term(values: Any, at: Sequence[Any]) -> tuple[Any, Any]:
            return asking.value(values, at), start

        def with_data(data: Any, found: Any) -> Any:
            return te.compute(asking.shape, lambda *place: combine(data(*place), found(*place)), name="scatter")

        return called(with_data, data, called(asking.of_all(term, reduce), values, *indices))

    return replacement


class _Asking:
    """Which updates an element asks: one for each position along the axes of the grid where updates do not stay."""

    def __init__(self, scatter: Scatter) -> None:
        self.scatter, self.shape = scatter, static_shape(scatter.call.args[0]) or []
        self._given = static_shape(scatter.call.args[2]) or []
        self._axes = [axis for axis in range(len(scatter.grid)) if axis not in scatter.staying]

    def value(self, values: Any, at: Sequence[Any]) -> Any:
        """Of the update at a position of the grid."""
        return element_of(values, self._given, at)

    def number(self, _: Any, at: Sequence[Any]) -> tuple[Any, Any]:
        """Of the update at a position of the grid, among those that an element asks, in order; and one before all."""
        found = _int64(0)
        for axis in self._axes:
            found = found * self.scatter.grid[axis] + at[axis]
        return found, _int64(-1)

    def of_all(self, value: Callable[..., tuple[Any, Any]], reduce: Callable[..., Any]) -> Callable[..., Any]:
        """(values, *indices) -> a tensor of the data's shape: for each element the reduction of the first that `value`
        gives over the updates that are its own, and of the second over the others."""

        def result(values: Any, *indices: Any) -> Any:
            def element(*place: Any) -> Any:
                steps = [
                    te.reduce_axis((_int64(0), _int64(self.scatter.grid[axis])), f"u{axis}") for axis in self._axes
                ]
                at, inside = self._position(place, [step.var for step in steps])
                own, other = value(values, at)
                mine = tirx.all(*inside, *self._reaches(indices, place, at))
                return reduce(tirx.if_then_else(mine, own, other), axis=steps)

            return te.compute(self.shape, element, name="scatter")

        return result

    def put(self, data: Any, values: Any, last: Any) -> Any:
        """The tensor into which the update of the number `last` is written, where that is one."""

        def element(*place: Any) -> Any:
            rest, steps = tirx.max(last(*place), _int64(0)), list[Any]()
            for axis in reversed(self._axes):
                steps.insert(0, tirx.floormod(rest, _int64(self.scatter.grid[axis])))
                rest = tirx.floordiv(rest, _int64(self.scatter.grid[axis]))
            at, _ = self._position(place, steps)
            return tirx.if_then_else(last(*place) >= 0, self.value(values, at), data(*place))

        return te.compute(self.shape, element, name="put")

    def _position(self, place: Sequence[Any], steps: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """In the grid, of an update that an element asks; and the conditions under which there is one."""
        grid, inside = self.scatter.grid, [tirx.const(True, "bool")]
        at = dict(zip(self._axes, steps, strict=True))
        for axis, own in self.scatter.staying.items():
            at[axis] = place[own]
            if grid[axis] < self.shape[own]:
                inside.append(place[own] < grid[axis])
                at[axis] = tirx.min(place[own], _int64(grid[axis] - 1))
        return [at[axis] for axis in range(len(grid))], inside

    def _reaches(self, indices: Sequence[Any], place: Sequence[Any], at: Sequence[Any]) -> Iterator[Any]:
        """The conditions under which the update at a position of the grid goes to an element."""
        for axis, (index, extent) in enumerate(zip(self.scatter.target(indices, at), self.shape, strict=True)):
            if axis not in self.scatter.staying.values():
                signed = tirx.Cast("int64", index)
                yield tirx.Select(signed < 0, signed + _int64(extent), signed) == place[axis]


def _start(reduction: str, dtype: str) -> Any:
    """What a reduction of nothing gives."""
    if reduction in ("min", "max"):
        limits = np.iinfo(dtype) if "int" in dtype else None
        least, largest = (-math.inf, math.inf) if limits is None else (int(limits.min), int(limits.max))
        return tirx.const(least if reduction == "max" else largest, dtype)
    return tirx.const(1 if reduction == "mul" else 0, dtype)


def _int64(value: int) -> Any:
    return tirx.const(value, "int64")
