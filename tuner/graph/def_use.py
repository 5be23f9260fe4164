"""What passes over main ask about it, and how they put something else in the place of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.tvm_compat import PyExprMutator, ir, mutator, relax, tirx, with_function

Emit = Callable[[Any], Any]
"""Binds an expression and gives its variable."""
Recipe = Callable[[Any, Callable[[Any], Any]], Any]
"""(block builder, now) -> what takes a call's place; `now` gives what an expression of the old function became."""


def static_shape(expr: Any) -> list[int] | None:
    """The shape of a tensor whose shape is static."""
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    values = getattr(shape, "values", None)
    if values is None or not all(isinstance(extent, tirx.IntImm) for extent in values):
        return None
    return [int(extent) for extent in values]


def op_name(expr: Any) -> str:
    """The operator that an expression calls; empty for anything else."""
    return str(expr.op.name) if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) else ""


def permutation(expr: Any) -> list[int]:
    """Axes of a permutation; none for anything else."""
    return [int(axis) for axis in expr.attrs.axes or ()] if op_name(expr) == "relax.permute_dims" else []


def reshaped(x: Any, shape: Sequence[int]) -> Any:
    """x itself where it has the shape already."""
    return x if static_shape(x) == list(shape) else relax.op.reshape(x, list(shape))


def item_bytes(expr: Any) -> int:
    """Bytes of one element of a tensor."""
    dtype = str(expr.ty.dtype)
    return 2 if dtype == "bfloat16" else int(np.dtype(dtype).itemsize)


class Facts:
    """A function of canonical bindings, read once: what variables are bound to, how often they are used, and which
    depend on nothing but weights."""

    def __init__(self, function: Any) -> None:
        self.bound: dict[Any, Any] = {}
        self.uses: dict[Any, int] = {}
        self.readers: dict[Any, Any] = {}
        """The last binding that reads a variable."""
        count = int((function.attrs or {}).get("num_input", 0))
        self.inputs = set(function.params[:count])
        self.weights = set(function.params[count:])
        for block in function.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)
        self._use(function.body.body, None)

    def _bind(self, variable: Any, value: Any) -> None:
        self.bound[variable] = value
        self._use(value, variable)
        if isinstance(value, relax.Call) and value.args and all(self.from_weights(argument) for argument in value.args):
            self.weights.add(variable)

    def _use(self, value: Any, reader: Any) -> None:
        if isinstance(value, relax.Var):
            self.uses[value] = self.uses.get(value, 0) + 1
            self.readers[value] = reader
        for part in _parts(value):
            self._use(part, reader)

    def from_weights(self, expr: Any) -> bool:
        """Whether an expression depends on weights and constants alone."""
        if isinstance(expr, relax.Var):
            return expr in self.weights
        return not isinstance(expr, relax.Call) and all(self.from_weights(part) for part in _parts(expr))

    def made(self, expr: Any) -> Any:
        """What a variable is bound to, through variables that only rename others; an argument of main is itself."""
        while isinstance(expr, relax.Var) and expr in self.bound:
            expr = self.bound[expr]
        return expr

    def once(self, expr: Any) -> bool:
        """Whether a variable is read in one place only."""
        return isinstance(expr, relax.Var) and self.uses.get(expr, 0) == 1

    def calls(self, name: str) -> Iterator[tuple[Any, Any]]:
        """(variable, call) of every binding to a call of the operator, in order."""
        return ((variable, value) for variable, value in self.bound.items() if op_name(value) == name)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, relax.Call):
        return list(value.args)
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [value.tuple_value] if isinstance(value, relax.TupleGetItem) else []


def replaced(mod: Any, recipes: Mapping[Any, Recipe]) -> Any:
    """The module in which every call of main that is a key of `recipes` is what its recipe gives."""
    if not recipes:
        return mod
    replace = _Replace(mod, recipes)
    main = replace.visit_expr(mod["main"])
    return with_function(replace.builder_.get(), "main", main)  # with the tensor functions that recipes added


@mutator
class _Replace(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: Any, recipes: Mapping[Any, Recipe]) -> None:
        super().__init__(mod)
        self.recipes = recipes

    def visit_call_(self, call: Any) -> Any:
        recipe = self.recipes.get(call)
        if recipe is None:
            return self.visit_expr_post_order(call)
        return recipe(self.builder_, self.visit_expr)
