"""Large scatters decomposed for a GPU: each update is a thread, which combines its value into an element atomically.

The work is the updates and the elements, where gathered_scatters.py has every element ask each update that may be its own.
Negative indices, updates out of bounds and the last of several updates are as in scatters.py:

    add, mul      in the type of the data; whole numbers of fewer than 32 bits in int32, half precision in float32, which is
                  rounded once
    max, min      of whole numbers that are in the order of the floats, their keys, where the data are floats
    update        first the largest number of the updates of each element, which is the last one's; then each element takes
                  the value of that update. Where updates are slices, one number is kept for all of a slice

What combines is a tensor function of its own (tuner/schedule/combining.py); the rest is functions of single elements, which
are fused with what is around them. Sums and products of floats have another order in every run, as PyTorch's have on a GPU;
all else is the same in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.scatters import Scatter, element_of, scatters
from tuner.schedule import combining
from tuner.schedule.statements import buffer
from tuner.tvm_compat import relax, te, tirx

MOST_ASKED = 16
"""Updates that an element may ask in a scatter that stays gathered_scatters.py's. Where threads do not share the loop over
them, one takes 0.3 us on an H200, and all kernels of an atomic one 4 to 6 us."""
MOST_COMPARISONS = 1 << 16
"""Of an element with an update in such a scatter. Beyond, its passes over all elements take longer than any launch."""
_HELD = {
    **{dtype: dtype for dtype in combining.TYPES},
    **dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}
"""Type of the data -> the type in which updates are combined."""
_LARGEST = 0x7FFFFFFF
"""Bits of a float32 but the sign: the key of what is no number, as a maximum."""
_INFINITY = 0x7F800000
"""Bits of the largest float32."""


def combine_scatters(mod: Any) -> Any:
    """The module with the large scattering operators of main as tensor functions for a GPU; bindings canonical.

    Raises UnsupportedOperator for a reduction other than update, add, mul, min and max.
    """
    def_use = DefUse(mod["main"])
    return replace_calls(mod, {each.call: _replacement(each, def_use) for each in scatters(mod) if _is_taken(each)})


def _is_taken(scatter: Scatter) -> bool:
    dtype, reduction = str(scatter.call.ty.dtype), scatter.reduction
    extrema_of_doubles = reduction in ("min", "max") and dtype == "float64"
    if reduction != "update" and (dtype not in _HELD or extrema_of_doubles):
        return False
    if math.prod(scatter.grid) == 0:
        return False
    asked = math.prod(extent for axis, extent in enumerate(scatter.grid) if axis not in scatter.staying)
    elements = math.prod(static_shape(scatter.call.args[0]) or [])
    return elements > 0 and (asked > MOST_ASKED or elements * asked > MOST_COMPARISONS)


def _replacement(scatter: Scatter, def_use: DefUse) -> Replacement:
    combined = _last_wins if scatter.reduction == "update" else _combined
    data, *indices, values = scatter.inputs

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def number_or_tensor(tensor: Any) -> Any:
            return current(tensor) if (number := _uniform(def_use, tensor)) is None else number

        places = [current(each) for each in indices]
        return combined(builder, scatter, number_or_tensor(data), places, number_or_tensor(values))

    return replacement


def _combined(builder: Any, scatter: Scatter, data: Any, indices: Sequence[Any], values: Any) -> Any:
    """data, values: a tensor each, or the number that all of its elements are."""
    dtype, shape = str(scatter.call.ty.dtype), static_shape(scatter.call) or []
    held, given = _HELD[dtype], static_shape(scatter.call.args[2]) or []
    orders = scatter.reduction in ("min", "max") and held == "float32"
    keys = _keys_of_maxima if scatter.reduction == "max" else _keys_of_minima
    own = "int32" if orders else held

    def converted(x: Any) -> Any:
        if _is_number(x):
            return _key_of_number(x, scatter.reduction) if orders else x
        x = x if dtype == held else builder.emit(relax.op.astype(x, held))
        return _elementwise(builder, keys, x) if orders else x

    data, values = converted(data), converted(values)
    tensors = [x for x in (data, values) if not _is_number(x)]

    def start(buffers: Sequence[Any], at: Sequence[Any]) -> Any:
        return tirx.const(data, own) if _is_number(data) else buffers[len(indices)][tuple(at)]

    def update(buffers: Sequence[Any], at: Sequence[Any]) -> Any:
        conditions, place = _place(scatter, buffers[: len(indices)], at, at)
        value = tirx.const(values, own) if _is_number(values) else element_of(buffers[-1], given, at)
        return conditions, place, value

    found = _function(builder, [*indices, *tensors], (shape, own), scatter.reduction, start, scatter.grid, update)
    found = _elementwise(builder, _numbers, found) if orders else found
    return found if dtype == held else relax.op.astype(found, dtype)


def _last_wins(builder: Any, scatter: Scatter, data: Any, indices: Sequence[Any], values: Any) -> Any:
    """data, values: a tensor each, or the number that all of its elements are."""
    dtype, shape = str(scatter.call.ty.dtype), static_shape(scatter.call) or []
    given, tensors = static_shape(scatter.call.args[2]) or [], [x for x in (data, values) if not _is_number(x)]
    grid = [extent if axis in scatter.selecting else 1 for axis, extent in enumerate(scatter.grid)]
    slices = {own: axis for axis, own in scatter.staying.items() if axis not in scatter.selecting}
    axes = [axis for axis in range(len(grid)) if axis not in scatter.staying]
    own = "int32" if math.prod(grid[axis] for axis in axes) <= np.iinfo(np.int32).max else "int64"

    def number(at: Sequence[Any]) -> Any:
        found = _int64(0)
        for axis in axes:
            found = found * grid[axis] + at[axis]
        return tirx.Cast(own, found)

    def update(buffers: Sequence[Any], at: Sequence[Any]) -> Any:
        conditions, place = _place(
            scatter, buffers, at, [each if grid[i] > 1 else _int64(0) for i, each in enumerate(at)]
        )
        return conditions, place, number(at)

    def put(last: Any, *read: Any) -> Any:
        def element(*place: Any) -> Any:
            winner = last(*(_int64(0) if axis in slices else each for axis, each in enumerate(place)))
            rest, at = tirx.max(tirx.Cast("int64", winner), _int64(0)), dict[int, Any]()
            for axis in reversed(axes):
                at[axis] = tirx.floormod(rest, _int64(grid[axis]))
                rest = tirx.floordiv(rest, _int64(grid[axis]))
            inside = [winner >= 0]
            for axis, to in scatter.staying.items():
                at[axis] = place[to]
                if scatter.grid[axis] < shape[to]:
                    inside.append(place[to] < scatter.grid[axis])
                    at[axis] = tirx.min(place[to], _int64(scatter.grid[axis] - 1))
            position = [at[axis] for axis in range(len(grid))]
            value = tirx.const(values, dtype) if _is_number(values) else element_of(read[-1], given, position)
            old = tirx.const(data, dtype) if _is_number(data) else read[0](*place)
            return tirx.if_then_else(tirx.all(*inside), value, old)

        return te.compute(shape, element, name="put")

    numbers = [1 if axis in slices else extent for axis, extent in enumerate(shape)]
    none = tirx.const(-1, own)
    last = _function(builder, indices, (numbers, own), "max", lambda _buffers, _at: none, grid, update)
    return builder.emit(builder.call_te(put, last, *tensors, primfunc_name_hint="put"))


def _place(
    scatter: Scatter, indices: Sequence[Any], at: Sequence[Any], staying: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """(conditions, place) of the update at a position of the grid. staying: where it is along the axes where it stays."""
    shape, kept = static_shape(scatter.call) or [], {own: axis for axis, own in scatter.staying.items()}
    conditions, place = list[Any](), list[Any]()
    for axis, (index, extent) in enumerate(zip(scatter.target(indices, at), shape, strict=True)):
        if axis in kept:
            place.append(staying[kept[axis]])
            continue
        signed = tirx.Cast("int64", index)
        found = tirx.Select(signed < 0, signed + _int64(extent), signed)
        conditions += [found >= 0, found < _int64(extent)]
        place.append(found)
    return conditions, place


def _function(
    builder: Any,
    arguments: Sequence[Any],
    result: tuple[Sequence[int], str],
    combine: str,
    start: Callable[[Sequence[Any], Sequence[Any]], Any],
    grid: Sequence[int],
    update: Callable[[Sequence[Any], Sequence[Any]], Any],
) -> Any:
    """The result of a tensor function. start, update: as `combining.workload` says, told the buffers of the arguments."""
    shape, dtype = result
    inputs = [buffer(f"in{at}", static_shape(each) or [], str(each.ty.dtype)) for at, each in enumerate(arguments)]
    out = buffer("out", shape, dtype)
    function = combining.workload(
        inputs, out, lambda at: start(inputs, at), grid, combine, lambda at: update(inputs, at)
    )
    called = relax.call_tir(builder.add_func(function, "scatter"), tuple(arguments), relax.TensorType(shape, dtype))
    return builder.emit(called)


def _elementwise(builder: Any, of: Callable[[Any], Any], x: Any) -> Any:
    def function(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: of(x(*at)), name="keys")

    return builder.emit(builder.call_te(function, x, primfunc_name_hint="keys"))


def _keys_of_maxima(x: Any) -> Any:
    return _keys(x, _LARGEST)


def _keys_of_minima(x: Any) -> Any:
    return _keys(x, ~_LARGEST)


def _keys(x: Any, no_number: int) -> Any:
    """A whole number in the order of the float32, as sorts have (sorts.py), but -0 is below 0, so that none is lost."""
    bits = tirx.reinterpret("int32", x)
    return tirx.Select((bits & _LARGEST) > _INFINITY, tirx.const(no_number, "int32"), _turned(bits))


def _numbers(key: Any) -> Any:
    """The float32 of a key."""
    return tirx.reinterpret("float32", _turned(key))


def _turned(bits: Any) -> Any:
    """With all bits but the sign turned over where that is set. Its own inverse. By no shift, which would make a packed word
    of it (tuner/measure/properties.py)."""
    return tirx.Select(bits < tirx.const(0, "int32"), bits ^ tirx.const(_LARGEST, "int32"), bits)


def _key_of_number(number: float, reduction: str) -> int:
    if math.isnan(number):
        return _LARGEST if reduction == "max" else ~_LARGEST
    bits = int(np.float32(number).view(np.int32))
    return bits ^ _LARGEST if bits < 0 else bits


def _uniform(def_use: DefUse, tensor: Any) -> Any:
    """The number that all elements of a tensor are; None where they are not known to be one."""
    made = def_use.definition(tensor)
    if (constant := constant_value(made)) is not None:
        elements = np.ascontiguousarray(constant).reshape(-1, 1).view(np.uint8)  # -0 and 0 are two numbers
        return constant.flat[0].item() if constant.size and (elements == elements[0]).all() else None
    if op_name(made) in ("relax.zeros", "relax.ones"):
        return int(op_name(made) == "relax.ones")
    if op_name(made) in ("relax.broadcast_to", "relax.reshape"):
        return _uniform(def_use, made.args[0])
    return _uniform(def_use, made.args[1]) if op_name(made) == "relax.full" else None


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float))


def _int64(value: int) -> Any:
    return tirx.const(value, "int64")
