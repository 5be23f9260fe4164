"""Regions of a graph in the layout of what is around them: transposes at their edges go where that saves copies.

ConvertLayout passes the layout of a convolution on to what follows, and knows no other source of one. A residual stream that
begins with patches (a product of matrices) or with a pixel shuffle, or ends in tokens of an attention, is channels first up
to the next convolution: copies stand at both its ends, and norms of channels reduce what lies apart.

A region is what operators connect that are the same in any order of dimensions: element-wise ones, reductions, softmax,
slices, concatenations and padding. Any tensor z of it can be computed as y with z = permute_dims(y, axes). A copy is saved
where an operand is permuted by `axes`, or a reader permutes back; a copy is made where neither is so; and where elements are
moved in another way anyway, they are moved in one step still. A region is turned where it saves more than it makes, and
never away from a product whose result it begins with, behind which it is computed in registers, nor where rows that it
reduces would lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.graph.def_use import (
    DefUse,
    Replacement,
    definition,
    item_bytes,
    movement_step,
    movements,
    op_name,
    permutation,
    replace_calls,
    reshaped,
    static_shape,
)
from tuner.graph.group_rows import ANCHORS, OF_ELEMENTS, REDUCTIONS
from tuner.graph.reshape_transpose import Step, followed
from tuner.graph.simplify import simplify
from tuner.tvm_compat import relax, tvm

SOFTMAX = frozenset(("relax.nn.softmax", "relax.nn.log_softmax"))
COPY_BYTES = 1 << 20
"""Bytes that are copied in the time in which the kernel that copies them begins and ends."""
_CLEAN = tvm.transform.Sequential(
    [
        relax.transform.CanonicalizeBindings(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
)
MAX_TURNS = 8
"""Turns of regions that touch, one after the other."""


def turn_regions(mod: Any) -> Any:
    """The module with such regions of main turned. Bindings must be canonical."""
    for _ in range(MAX_TURNS):
        def_use = DefUse(mod["main"])
        replacements: dict[Any, Replacement] = {}
        touched: set[Any] = set()
        for turn in sorted(filter(None, map(_Region.best_turn, _regions(def_use))), key=lambda turn: turn.cost):
            if not touched & turn.region.neighbours:
                touched |= turn.region.neighbours
                replacements.update(turn.region.turned(turn.axes))
        if not replacements:
            break
        mod = _CLEAN(simplify(_CLEAN(replace_calls(mod, replacements))))
    return mod


def _regions(def_use: DefUse) -> Iterator[_Region]:
    seen: set[Any] = set()
    order = {variable: place for place, variable in enumerate(def_use.values)}
    for variable in def_use.values:
        if variable in seen or not _is_member(def_use, variable):
            continue
        rank, members, waiting = len(static_shape(variable) or ()), set[Any](), [variable]
        while waiting:
            x = waiting.pop()
            if x in members or len(static_shape(x) or ()) != rank or not _is_member(def_use, x):
                continue
            members.add(x)
            waiting += [each for each in _operands(def_use.values[x]) if isinstance(each, relax.Var)]
            waiting += [each for each in def_use.users.get(x, ()) if each is not None]
        seen |= members
        yield _Region(def_use, tuple(sorted(members, key=order.__getitem__)))


def _operands(call: Any) -> list[Any]:
    """The tensors that an operator of a region reads."""
    name = op_name(call)
    if name == "relax.concat":
        return list(call.args[0].fields)
    return list(call.args) if name in OF_ELEMENTS else [call.args[0]]


def _is_member(def_use: DefUse, variable: Any) -> bool:
    """Whether a binding calls an operator that can be computed in any order of dimensions."""
    call: Any = def_use.values.get(variable)
    name, shape = op_name(call), static_shape(variable)
    if shape is None or len(shape) < 2 or def_use.from_weights(variable):
        return False
    if name == "relax.concat":
        parts = getattr(call.args[0], "fields", ())
        return call.attrs.axis is not None and bool(parts) and None not in map(static_shape, parts)
    if name in REDUCTIONS:
        return bool(call.attrs.keepdims) and call.attrs.axis is not None
    if name in OF_ELEMENTS:
        return all(static_shape(each) is not None for each in call.args)
    return name in SOFTMAX or (
        name in ("relax.nn.pad", "relax.strided_slice") and static_shape(call.args[0]) is not None
    )


@dataclass(frozen=True)
class _Region:
    def_use: DefUse
    members: tuple[Any, ...]
    """Variables in the order of their bindings."""

    @property
    def neighbours(self) -> set[Any]:
        """The region and what it touches through chains of reshapes and permutations."""
        found = set(self.members)
        for x in self._inputs():
            found.add(movements(self.def_use, x)[0])
        for _, user in self._outputs():
            found.add(_reader(self.def_use, user)[0])
        return found - {None}

    def _inputs(self) -> list[Any]:
        """The computed operands from elsewhere, each once."""
        inside = set(self.members)
        found: dict[Any, None] = {}
        for variable in self.members:
            for x in _operands(self.def_use.values[variable]):
                if isinstance(x, relax.Var) and x not in inside and not self.def_use.from_weights(x):
                    found[x] = None
        return list(found)

    def _outputs(self) -> list[tuple[Any, Any]]:
        """(member, a reader elsewhere), None for the result of the function."""
        inside = set(self.members)
        return [
            (x, user)
            for x in self.members
            for user in dict.fromkeys(self.def_use.users.get(x, ()))
            if user not in inside
        ]

    def best_turn(self) -> _Turn | None:
        """The turn that saves most; None where none saves anything."""
        rank, find = len(static_shape(self.members[0]) or ()), self.def_use.values.get
        before = [permutation(self.def_use.definition(x)) for x in self._inputs()]
        behind = [_inverse(permutation(find(user))) for _, user in self._outputs()]
        found = dict.fromkeys(tuple(axes) for axes in (*before, *behind) if len(axes) == rank)
        turns = [_Turn(self, axes, self._cost(axes)) for axes in found]
        best = min(turns, key=lambda turn: turn.cost, default=None)
        return best if best is not None and best.cost < 0 else None

    def _cost(self, axes: Sequence[int]) -> int:
        """What is copied in the turned region less what is copied in it as it is, in bytes; 0 where it may not be turned."""
        inverse, rank, inside = _inverse(axes), len(axes), set(self.members)
        cost = 0
        if any(_parts_rows(self.def_use.values[each], axes) for each in self.members):
            return 0
        for x in self._inputs():
            source, steps = movements(self.def_use, x)
            shape = static_shape(x) or []
            turn: list[Step] = [("reshape", [1] * (rank - len(shape)) + shape), ("permute", inverse)]
            copied = _copied(source, [*steps, *turn])
            if copied and op_name(self.def_use.definition(x)) in ANCHORS:
                return 0
            cost += copied
            if set(self.def_use.users[x]) <= inside:
                cost -= _copied(source, steps)
        stored: set[Any] = set()
        for x, user in self._outputs():
            shape = static_shape(x) or []
            turned = [shape[axis] for axis in inverse]
            _, steps = _reader(self.def_use, user)
            if any(kind == "permute" for kind, _ in steps):
                cost += _copied(x, [("permute", axes), *steps], turned) - _copied(x, steps)
            elif x not in stored:
                stored.add(x)
                cost += _copied(x, [("permute", axes)], turned)
        return cost

    def turned(self, axes: Sequence[int]) -> dict[Any, Replacement]:
        """The replacements of the region's calls."""
        inside = set(self.members)
        return {call: _turned(call, axes, inside) for call in (self.def_use.values[each] for each in self.members)}


@dataclass(frozen=True)
class _Turn:
    region: _Region
    axes: Sequence[int]
    cost: int
    """Bytes that it copies more than the region as it is: a negative number where it saves copies."""


def _turned(call: Any, axes: Sequence[int], inside: set[Any]) -> Replacement:
    inverse, rank = _inverse(axes), len(axes)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def operand(x: Any) -> Any:
            shape = static_shape(x) or []
            if x in inside:
                return definition(current(x), builder.lookup_binding).args[0]
            if not shape:
                return current(x)
            wide = builder.emit(reshaped(current(x), [1] * (rank - len(shape)) + shape))
            return builder.emit(relax.op.permute_dims(wide, inverse))

        operands = [operand(each) for each in _operands(call)]
        return relax.op.permute_dims(builder.emit(_again(call, operands, axes)), list(axes))

    return replacement


def _again(call: Any, operands: Sequence[Any], axes: Sequence[int]) -> Any:
    """The call on turned operands: its dimension d is their dimension axes[d]."""
    name, attrs = op_name(call), call.attrs
    if name == "relax.concat":
        return relax.op.concat(list(operands), axes[int(attrs.axis)])
    if name in REDUCTIONS:
        over = [axes[int(axis)] for axis in attrs.axis]
        return getattr(relax.op, name.removeprefix("relax."))(operands[0], over, keepdims=True)
    if name in SOFTMAX:
        return getattr(relax.op.nn, name.removeprefix("relax.nn."))(operands[0], axes[int(attrs.axis)])
    if name == "relax.nn.pad":
        pairs = [list(attrs.pad_width[2 * axis : 2 * axis + 2]) for axis in _inverse(axes)]
        value = float(getattr(attrs.pad_value, "value", attrs.pad_value))
        return relax.op.nn.pad(
            operands[0], [int(width) for pair in pairs for width in pair], str(attrs.pad_mode), value
        )
    if name == "relax.strided_slice":
        along, *bounds = ([int(each.value) for each in argument.fields] for argument in call.args[1:])
        return relax.op.strided_slice(operands[0], [axes[axis] for axis in along], *bounds)
    return relax.Call(call.op, list(operands), attrs, call.ty_args)


def _parts_rows(call: Any, axes: Sequence[int]) -> bool:
    """Whether a call reduces rows, the last axes of its operand, that would lie apart if that were turned."""
    name, attrs, rank = op_name(call), call.attrs, len(axes)
    if name not in REDUCTIONS | SOFTMAX:
        return False
    over = {int(axis) % rank for axis in (attrs.axis if name in REDUCTIONS else [attrs.axis])}
    last = set(range(rank - len(over), rank))
    return over == last and {axes[axis] for axis in over} != last


def _inverse(axes: Sequence[int]) -> list[int]:
    return [int(axis) for axis in np.argsort(axes)]


def _reader(def_use: DefUse, user: Any) -> tuple[Any, list[Step]]:
    """What a reader moves by reshapes and permutations, as the last variable of the chain, and these in order."""
    steps: list[Step] = []
    while user is not None and (step := movement_step(def_use.values.get(user))) is not None:
        steps.append(step)
        if not def_use.has_one_use(user) or def_use.users[user][-1] is None:
            break
        user = def_use.users[user][-1]
    return user, steps


def _copied(x: Any, steps: Sequence[Step], shape: Sequence[int] | None = None) -> int:
    """Bytes that a chain of steps on a tensor of the type of x copies, with those of a copy's beginning."""
    shape = static_shape(x) or [] if shape is None else shape
    movement = followed(shape, steps)
    if movement is not None and movement.moves_nothing:
        return 0
    return COPY_BYTES + math.prod(shape) * item_bytes(x)
