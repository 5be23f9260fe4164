"""Slices moved before what computes the elements that they drop.

A classifier reads one token of its last layer, a language model the logits of the last one. Of a slice's operand only a part
is demanded; so of the operands of what computes it, wherever an operator computes an element of an axis from the same
element of that axis: element-wise operators, products, norms, softmaxes, reductions, permutations. Demands are propagated
against the order of the bindings, to where something else is demanded of a value too, and the slice is taken there. In a
transformer that is the input of the last layer, all of which is needed for keys and values alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, permutation, replace_calls, static_shape
from tuner.graph.epilogue import ELEMENTWISE
from tuner.graph.fold_constants import slices
from tuner.tvm_compat import relax

Demand = Mapping[int, range]
"""Axis -> its elements that are used, of every axis of which not all are."""
ALL: Demand = {}
COMPARISONS = (
    *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
    *("logical_and", "logical_not", "logical_or", "logical_xor"),
)


def hoist_slices(mod: Any) -> Any:
    """The module with slices of main taken as early as they can be. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    found = _demands(def_use)
    replacements: dict[Any, Replacement] = {}
    for variable, value in def_use.values.items():
        demand = found.get(variable, ALL)
        if demand or any(found.get(operand) for operand in _operands(value)):
            replacements[value] = _part(value, demand, found)
    return replace_calls(mod, replacements)


def _demands(def_use: DefUse) -> dict[Any, Demand]:
    """By variable of a call: what all of its uses demand of it, where that is not all."""
    asked: dict[Any, list[Demand]] = {}
    found: dict[Any, Demand] = {}
    for variable, value in reversed(def_use.values.items()):
        demands = asked.get(variable, [])
        if op_name(value) and static_shape(value) is not None and len(demands) == len(def_use.users.get(variable, ())):
            first, *others = demands or [ALL]
            demand = {axis: part for axis, part in first.items() if all(other.get(axis) == part for other in others)}
            found |= {variable: demand} if demand else {}
        for operand, part in zip(_operands(value), _given(value, found.get(variable, ALL)), strict=True):
            asked.setdefault(operand, []).append(part)
    return found


def _operands(value: Any) -> list[Any]:
    """Of a call, those in a tuple one by one; of a tuple, its fields."""
    if isinstance(value, relax.Call):
        return [one for argument in value.args for one in (_operands(argument) or [argument])]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    return list(value.fields) if isinstance(value, relax.Tuple) else []


def _passed(call: Any, demand: Demand) -> Demand:
    """That part of a demand on a call's result which is one on its operands."""
    rule = _RULES.get(op_name(call))
    found = {axis: part for axis, part in demand.items() if rule is not None and rule(call, {axis: part}) is not None}
    return found if rule is not None and found and rule(call, found) is not None else ALL


def _given(call: Any, demand: Demand) -> Sequence[Demand]:
    """What is demanded of each operand of a call, of whose result `demand` is."""
    passed = _passed(call, demand)
    if op_name(call) == "relax.strided_slice":
        return [{**_kept(call), **passed}, *[ALL] * (len(_operands(call)) - 1)]
    return (_RULES[op_name(call)](call, passed) if passed else None) or [ALL] * len(_operands(call))


def _kept(call: Any) -> Demand:
    """What a slice keeps; ALL of one that goes backwards, or keeps nothing."""
    shape = static_shape(call.args[0])
    if shape is None:
        return ALL
    parts = [range(extent)[part] for extent, part in zip(shape, slices(len(shape), call.args[1:]), strict=True)]
    if any(part.step < 1 or not part for part in parts):
        return ALL
    return {axis: part for axis, part in enumerate(parts) if len(part) < shape[axis]}


def _part(call: Any, demand: Demand, found: Mapping[Any, Demand]) -> Replacement:
    """What is demanded of the call's result, computed from what is demanded of its operands."""
    passed = _passed(call, demand)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def given(operand: Any, part: Demand) -> Any:
            return _sliced(builder, current(operand), _less(part, found.get(operand, ALL)))

        parts = [given(*each) for each in zip(_operands(call), _given(call, demand), strict=True)]
        return _sliced(builder, _computed(call, parts, passed), _less(demand, passed))

    return replacement


def _computed(call: Any, operands: Sequence[Any], demand: Demand) -> Any:
    """A call on parts of its operands."""
    name = op_name(call).removeprefix("relax.")
    if name == "strided_slice" and _kept(call):
        return operands[0]
    if name in ("reshape", "broadcast_to"):
        shape = [len(demand.get(axis, range(extent))) for axis, extent in enumerate(static_shape(call) or ())]
        return getattr(relax.op, name)(operands[0], shape)
    each = iter(operands)
    grouped = [_operands(argument) for argument in call.args]
    arguments = [relax.Tuple([next(each) for _ in fields]) if fields else next(each) for fields in grouped]
    return relax.Call(call.op, arguments, call.attrs, call.ty_args)


def _less(demand: Demand, other: Demand) -> Demand:
    return {axis: part for axis, part in demand.items() if axis not in other}


def _sliced(builder: Any, x: Any, demand: Demand) -> Any:
    if not demand:
        return x
    bounds = [(axis, part.start, part.stop, part.step) for axis, part in sorted(demand.items())]
    return builder.emit(relax.op.strided_slice(builder.emit(x), *[list(each) for each in zip(*bounds, strict=True)]))


def _broadcast(call: Any, demand: Demand) -> list[Demand]:
    """Of what is computed element by element, with operands that are repeated along axes."""
    return [_of_repeated(call, operand, demand) for operand in _operands(call)]


def _of_repeated(call: Any, operand: Any, demand: Demand) -> Demand:
    shape, extents = static_shape(operand), static_shape(call) or []
    if shape is None:  # a number
        return ALL
    before = len(extents) - len(shape)
    return {
        axis - before: part for axis, part in demand.items() if axis >= before and shape[axis - before] == extents[axis]
    }


def _product(call: Any, demand: Demand) -> list[Demand] | None:
    a, b = (static_shape(operand) for operand in call.args)
    last = len(static_shape(call) or ()) - 1
    if a is None or b is None or min(len(a), len(b)) < 2:
        return None
    batch = {axis: part for axis, part in demand.items() if axis < last - 1}
    of_a, of_b = (dict(_of_repeated(call, operand, batch)) for operand in call.args)
    if last - 1 in demand:
        of_a[len(a) - 2] = demand[last - 1]
    if last in demand:
        of_b[len(b) - 1] = demand[last]
    return [of_a, of_b]


def _permuted(call: Any, demand: Demand) -> list[Demand]:
    axes = permutation(call) or range(len(static_shape(call) or ()))[::-1]
    return [{axes[axis]: part for axis, part in demand.items()}]


def _reshaped(call: Any, demand: Demand) -> list[Demand] | None:
    given, shape = static_shape(call.args[0]), static_shape(call) or []
    if given is None or 0 in given:
        return None
    found: dict[int, range] = {}
    for sources, results in _groups(given, shape):
        parts = {axis: demand[axis] for axis in results if axis in demand}
        if not parts:
            continue
        flat = _flat([shape[axis] for axis in results], {results.index(axis): part for axis, part in parts.items()})
        if flat is None or (own := _unflat([given[axis] for axis in sources], flat)) is None:
            return None
        found[sources[own[0]]] = own[1]
    return [found, *[ALL] * (len(_operands(call)) - 1)]


def _groups(given: Sequence[int], shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes of a tensor and of what it is reshaped to that are the same elements in the same order, as few as can be; those
    of extent 1 left out."""
    mine, theirs = ([axis for axis, extent in enumerate(each) if extent > 1] for each in (given, shape))
    found: list[tuple[list[int], list[int]]] = []
    while mine:
        left, right = [mine.pop(0)], [theirs.pop(0)]
        while (a := math.prod(given[axis] for axis in left)) != (b := math.prod(shape[axis] for axis in right)):
            if a < b:
                left.append(mine.pop(0))
            else:
                right.append(theirs.pop(0))
        found.append((left, right))
    return found


def _flat(extents: Sequence[int], demand: Demand) -> range | None:
    """A demand in axes of these extents, in the axis that they are together: a part of the first axis is contiguous, and one
    element of the last axis comes again at its extent."""
    if len(demand) > 1:
        return None
    ((axis, part),) = demand.items()
    inner = math.prod(extents[axis + 1 :])
    if axis == 0 and (part.step == 1 or inner == 1):
        return range(part.start * inner, part.stop * inner, part.step)
    return range(part.start, math.prod(extents), extents[-1]) if axis == len(extents) - 1 and len(part) == 1 else None


def _unflat(extents: Sequence[int], part: range) -> tuple[int, range] | None:
    """(which of axes of these extents, its elements): the inverse of `_flat`."""
    last, inner = len(extents) - 1, math.prod(extents[1:])
    if last == 0:
        return 0, part
    if part.step == 1 and part.start % inner == part.stop % inner == 0:
        return 0, range(part.start // inner, part.stop // inner)
    whole = math.prod(extents) // extents[-1]
    return (last, range(part.start, part.start + 1)) if part.step == extents[-1] and len(part) == whole else None


def _rows(call: Any, demand: Demand) -> list[Demand] | None:
    """Of norms and softmaxes, whose rows lie along other axes."""
    of_rows = call.attrs.axes if hasattr(call.attrs, "axes") else [call.attrs.axis]
    rank = len(static_shape(call) or ())
    if any(int(axis) % rank in demand for axis in of_rows):
        return None
    return [demand, *[ALL] * (len(call.args) - 1)]


def _reduced(call: Any, demand: Demand) -> list[Demand] | None:
    rank = len(static_shape(call.args[0]) or ())
    if call.attrs.axis is None or not rank:
        return None
    gone = {int(axis) % rank for axis in call.attrs.axis}
    kept = range(rank) if call.attrs.keepdims else [axis for axis in range(rank) if axis not in gone]
    return [{kept[axis]: part for axis, part in demand.items()}]


def _joined(call: Any, demand: Demand) -> list[Demand] | None:
    axis = int(call.attrs.axis) % len(static_shape(call) or ())
    return None if axis in demand else [demand for _ in _operands(call)]


def _along_others(call: Any, demand: Demand) -> list[Demand] | None:
    """Of a slice, a demand on another axis."""
    own = {int(axis.value) % len(static_shape(call) or ()) for axis in call.args[1].fields}
    return None if own & set(demand) else [demand, *[ALL] * (len(_operands(call)) - 1)]


_RULES: Mapping[str, Callable[[Any, Demand], Sequence[Demand] | None]] = {
    **dict.fromkeys([*ELEMENTWISE, *[f"relax.{name}" for name in COMPARISONS], "relax.broadcast_to"], _broadcast),
    **dict.fromkeys(["relax.nn.softmax", "relax.nn.log_softmax", "relax.nn.layer_norm", "relax.nn.rms_norm"], _rows),
    **dict.fromkeys([f"relax.{name}" for name in ("max", "mean", "min", "prod", "sum", "variance")], _reduced),
    **dict.fromkeys(["relax.reshape", "relax.expand_dims", "relax.squeeze"], _reshaped),
    "relax.concat": _joined,
    "relax.matmul": _product,
    "relax.permute_dims": _permuted,
    "relax.strided_slice": _along_others,
}
"""Operator -> what is demanded of each operand, where less than all is of its result."""
