"""Norms and softmax with the element-wise work around them as one tensor function, whose rows one kernel computes.

A row is what a reduction over the last axes reads: of [batch, rows, columns] reduced over columns, the columns of one row.
Operators that need no other row than the reduction's can be in one function with it: what is element-wise before it and
behind it, and other reductions of the same rows. An RMS norm that a model spells out (square, mean, root, two products) is
one function then, and so is a norm between casts, or one that follows the sum of embeddings.

FuseOps puts nothing before a reduction with an epilogue, and nothing around what reduces more than once.

A function has one result: a group ends where a value that something else reads would have to be stored, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tuner.graph.convolutions import CONVOLUTIONS
from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.epilogue import BINARY, ELEMENTWISE, PRODUCTS
from tuner.graph.fold_constants import constant_value
from tuner.graph.one_function import HALF, again, call_of, cast, dtype_of
from tuner.tvm_compat import relax

REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum", "variance"))
NORMS = frozenset(f"relax.nn.{name}" for name in ("layer_norm", "log_softmax", "rms_norm", "softmax"))
NORMS_OF_IMAGES = frozenset(("relax.nn.group_norm", "relax.nn.instance_norm"))
"""Norms whose rows are taken to be whole images."""
COMPARISONS = frozenset(
    f"relax.{name}"
    for name in (
        *("equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and"),
        *("logical_not", "logical_or", "not_equal"),
    )
)
"""What asks of single elements, as before `any` and `all` of a row: whether an attention masks all of it, for one."""
OF_ELEMENTS = ELEMENTWISE | COMPARISONS
ANCHORS = PRODUCTS.union(CONVOLUTIONS, ("relax.call_tir",))
"""What element-wise operators are fused behind."""
MAX_CALLS = 48
"""Calls of a group, at most."""


def group_rows(mod: Any) -> Any:
    """The module with such groups of main as calls of one tensor function each. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    taken: set[Any] = set()
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.values.items():
        rows = None if variable in taken or def_use.from_weights(variable) else _Rows.reduced_by(call)
        if rows is None:
            continue
        group = _Group(def_use, rows, variable, taken).grown()
        if len(group) > 1:
            taken.update(group)
            replacements[def_use.values[group[-1]]] = _written(def_use, group)
    return replace_calls(mod, replacements)


@dataclass(frozen=True)
class _Rows:
    shape: tuple[int, ...]
    """Of what is reduced."""
    axes: int
    """How many of the last axes are."""

    @staticmethod
    def reduced_by(call: Any) -> _Rows | None:
        """The rows that a call reduces; None where it does not reduce the last axes."""
        name = op_name(call)
        if name not in REDUCTIONS | NORMS | NORMS_OF_IMAGES or static_shape(call) is None:
            return None
        shape, attrs = static_shape(call.args[0]), call.attrs
        if shape is None or name in NORMS_OF_IMAGES:
            return None if shape is None else _Rows(tuple(shape), len(shape) - 1)
        given = [attrs.axis] if name.endswith("softmax") else attrs.axis if name in REDUCTIONS else attrs.axes
        axes = sorted({int(axis) % len(shape) for axis in given} if given is not None else range(len(shape)))
        lead = len(shape) - len(axes)
        if not axes or axes != list(range(lead, len(shape))) or not lead:
            return None
        return _Rows(tuple(shape), len(axes))

    def hold(self, call: Any) -> bool:
        """Whether an operator needs no more than one row for one row of its result."""
        shape = static_shape(call)
        if shape is None:
            return False
        if op_name(call) in OF_ELEMENTS:
            lead = len(self.shape) - self.axes
            return tuple(shape) in (self.shape, self.shape[:lead], (*self.shape[:lead], *[1] * self.axes))
        return _Rows.reduced_by(call) == self


class _Group:
    """A group of calls that grows around a reduction."""

    def __init__(self, def_use: DefUse, rows: _Rows, anchor: Any, taken: set[Any]) -> None:
        self.def_use, self.users, self.rows, self.anchor, self.taken = def_use, def_use.users, rows, anchor, taken

    def grown(self) -> list[Any]:
        """The variables of its calls in the order of their bindings, the last of which alone is read elsewhere."""
        order = list(self.def_use.values)
        group = [self.anchor]
        best: list[Any] = self._with_sources(group)
        outside: set[Any] = set()  # variables that depend on the group, and are not in it
        for variable in order[order.index(self.anchor) + 1 :]:
            operands = set(self._operands(variable))
            if operands & outside:
                outside.add(variable)
            elif operands & set(group):
                if not self._fits(variable) or len(group) == MAX_CALLS:
                    outside.add(variable)
                    continue
                group.append(variable)
                if self._has_one_result(whole := self._with_sources(group)):
                    best = whole
            if outside and not self._is_open(group, outside):
                break
        return best

    def _is_open(self, group: list[Any], outside: set[Any]) -> bool:
        """Whether an open end of the group may still be closed: what is read outside has come to stay."""
        read = [each for each in group if any(user is None or user in outside for user in self.users.get(each, ()))]
        return not read or read == group[-1:]

    def _fits(self, variable: Any) -> bool:
        call = self.def_use.values[variable]
        return variable not in self.taken and not self.def_use.from_weights(variable) and self.rows.hold(call)

    def _operands(self, variable: Any) -> Iterator[Any]:
        value = self.def_use.values[variable]
        parts = getattr(value, "args", None) or getattr(value, "fields", None) or [getattr(value, "tuple_value", value)]
        for part in parts:
            yield from (each for each in getattr(part, "fields", (part,)) if isinstance(each, relax.Var))

    def _with_sources(self, group: list[Any]) -> list[Any]:
        """The group with the calls before it that nothing else reads, in order."""
        found = set(group)
        waiting = [operand for each in group for operand in self._operands(each)]
        while waiting and len(found) < MAX_CALLS:
            x = waiting.pop()
            fits = x not in found and x in self.def_use.values and self._fits(x)
            if fits and self._is_elementwise(x) and set(self.users[x]) <= found and self._belongs_here(x):
                found.add(x)
                waiting = [operand for each in found for operand in self._operands(each)]
        return [each for each in self.def_use.values if each in found]

    def _is_elementwise(self, x: Any) -> bool:
        return op_name(self.def_use.values.get(x)) in OF_ELEMENTS

    def _belongs_here(self, x: Any) -> bool:
        """Whether x is computed here rather than behind a product: a cast of half precision is done where it is read."""
        call = self.def_use.values[x]
        return (op_name(call) == "relax.astype" and dtype_of(call.args[0]) in HALF) or not self._follows_product(x)

    def _follows_product(self, x: Any) -> bool:
        """Whether x is computed on the result of a product while that is in registers, which is as good as here."""
        waiting = [x]
        for _ in range(MAX_CALLS):
            operands = [each for each in self._operands(waiting.pop()) if self.def_use.has_one_use(each)]
            if any(op_name(self.def_use.values.get(each)) in ANCHORS for each in operands):
                return True
            waiting += [each for each in operands if self._is_elementwise(each)]
            if not waiting:
                break
        return False

    def _has_one_result(self, group: list[Any]) -> bool:
        inside = set(group)
        return not any(set(self.users[each]) - inside for each in group[:-1])


def _written(def_use: DefUse, group: list[Any]) -> Replacement:
    """The replacement of the last call of a group."""
    calls = [def_use.values[each] for each in group]
    operands: list[Any] = []
    for call in calls:
        for each in call.args:
            is_operand = dtype_of(each) and each not in group and not _is_number(call, each)
            if is_operand and not any(each.same_as(other) for other in operands):
                operands.append(each)

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        def write(inner: Any, variables: Any) -> Any:
            written = dict(zip(operands, variables, strict=True))
            for variable, call in zip(group, calls, strict=True):
                written[variable] = again(inner, call, [written.get(each, each) for each in call.args])
            return cast(inner, written[group[-1]], dtype_of(calls[-1]))

        name = "_".join(op_name(call).rpartition(".")[2] for call in calls)[:80]
        return call_of(builder, name, [current(each) for each in operands], write)

    return replacement


def _is_number(call: Any, expr: Any) -> bool:
    """Whether an operand is a number that is written into the function."""
    values = constant_value(expr)
    return values is not None and values.ndim == 0 and op_name(call) in BINARY | COMPARISONS
