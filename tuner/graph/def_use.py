"""Def-use analysis of a function, and the replacement of its calls: what the passes of this folder are written with.

A pass reads main once (DefUse), decides which calls it replaces, and has `replace_calls` rewrite them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.graph.reshape_transpose import Step
from tuner.tvm_compat import PyExprMutator, ir, mutator, relax, tirx, with_function

Emit = Callable[[Any], Any]
"""Binds an expression to a new variable, which it returns."""
Replacement = Callable[[Any, Callable[[Any], Any]], Any]
"""(block builder, current) -> the expression that replaces a call. `current` maps an expression of the function as it was
to the one that stands for it in the rewritten function."""


def static_shape(expr: Any) -> list[int] | None:
    """The extents of a tensor; None where one of them is symbolic, or where the expression is no tensor."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    if values is None or not all(isinstance(extent, tirx.IntImm) for extent in values):
        return None
    return [int(extent) for extent in values]


def op_name(expr: Any) -> str:
    """The operator that an expression calls; empty for anything else."""
    return str(expr.op.name) if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) else ""


def permutation(expr: Any) -> list[int]:
    """The axes of a call of permute_dims; an empty list for anything else."""
    return [int(axis) for axis in expr.attrs.axes or ()] if op_name(expr) == "relax.permute_dims" else []


def reshaped(x: Any, shape: Sequence[int]) -> Any:
    """x in another shape; x itself where it has that shape already."""
    return x if static_shape(x) == list(shape) else relax.op.reshape(x, list(shape))


def movement_step(expr: Any) -> Step | None:
    """The step that a call of reshape or permute_dims is; None for anything else."""
    if op_name(expr) == "relax.reshape" and static_shape(expr) is not None and static_shape(expr.args[0]) is not None:
        return "reshape", static_shape(expr) or []
    return ("permute", permutation(expr)) if permutation(expr) else None


def item_bytes(expr: Any) -> int:
    """Bytes of one element of a tensor."""
    dtype = str(expr.ty.dtype)
    return 2 if dtype == "bfloat16" else int(np.dtype(dtype).itemsize)


def definition(expr: Any, bound: Callable[[Any], Any]) -> Any:
    """The expression that a variable is bound to, through variables that only rename others.

    `bound` gives what a variable is bound to, None for a parameter. A parameter, and what is no variable, is its own
    definition.
    """
    while isinstance(expr, relax.Var) and (value := bound(expr)) is not None:
        expr = value
    return expr


class DefUse:
    """The def-use chains of a function whose bindings are canonical, and which of its variables depend on weights alone.

    It describes the function that it was given: it does not follow rewrites of it.
    """

    def __init__(self, function: Any) -> None:
        self.values: dict[Any, Any] = {}
        """What each variable is bound to."""
        self.users: dict[Any, list[Any]] = {}
        """The variables of the bindings that read a variable, in order, one for each operand that it is; None for the result
        of the function."""
        count = int((function.attrs or {}).get("num_input", 0))
        self.inputs = set(function.params[:count])
        self.weights = set(function.params[count:])
        for block in function.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)
        self._use(function.body.body, None)

    def _bind(self, variable: Any, value: Any) -> None:
        self.values[variable] = value
        self._use(value, variable)
        if isinstance(value, relax.Call) and value.args and all(self.from_weights(argument) for argument in value.args):
            self.weights.add(variable)

    def _use(self, value: Any, user: Any) -> None:
        if isinstance(value, relax.Var):
            self.users.setdefault(value, []).append(user)
        for part in _parts(value):
            self._use(part, user)

    def from_weights(self, expr: Any) -> bool:
        """Whether an expression depends on weights and constants alone."""
        if isinstance(expr, relax.Var):
            return expr in self.weights
        return not isinstance(expr, relax.Call) and all(self.from_weights(part) for part in _parts(expr))

    def definition(self, expr: Any) -> Any:
        """The definition of a variable, as the function `definition` gives it; any other expression is its own."""
        return definition(expr, self.values.get)

    def has_one_use(self, expr: Any) -> bool:
        """Whether an expression is a variable that is one operand of one binding, or the result of the function."""
        return isinstance(expr, relax.Var) and len(self.users.get(expr, ())) == 1

    def calls(self, name: str) -> Iterator[tuple[Any, Any]]:
        """(variable, call) of every binding to a call of the operator, in order."""
        return ((variable, value) for variable, value in self.values.items() if op_name(value) == name)


def movements(def_use: DefUse, x: Any) -> tuple[Any, list[Step]]:
    """What x is moved from by reshapes and permutations, and these in order."""
    steps: list[Step] = []
    while (step := movement_step(call := def_use.definition(x))) is not None:
        steps.insert(0, step)
        x = call.args[0]
    return x, steps


def _parts(value: Any) -> list[Any]:
    if isinstance(value, relax.Call):
        return list(value.args)
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [value.tuple_value] if isinstance(value, relax.TupleGetItem) else []


def replace_calls(mod: Any, replacements: Mapping[Any, Replacement]) -> Any:
    """The module in which every call of main that is a key of `replacements` is what that replacement returns."""
    if not replacements:
        return mod
    replace = _Replace(mod, replacements)
    main = replace.visit_expr(mod["main"])
    return with_function(replace.builder_.get(), "main", main)  # with the tensor functions that replacements added


@mutator
class _Replace(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: Any, replacements: Mapping[Any, Replacement]) -> None:
        super().__init__(mod)
        self.replacements = replacements

    def visit_call_(self, call: Any) -> Any:
        replacement = self.replacements.get(call)
        if replacement is None:
            return self.visit_expr_post_order(call)
        return replacement(self.builder_, self.visit_expr)
