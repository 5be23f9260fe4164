"""The base class of the rules: a mutator that binds every value it makes, so that a rule can ask for its definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.graph.def_use import definition, op_name, static_shape
from tuner.graph.epilogue import is_product
from tuner.graph.fold_constants import folded
from tuner.graph.reshape_transpose import Step, followed
from tuner.tvm_compat import PyExprMutator, relax


class Rewriter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Replaces every call by the result of `rule`, from the first call to the last."""

    def rule(self, call: Any) -> Any:
        """The replacement of a call, or None to keep it. Its operands are rewritten already."""
        raise NotImplementedError

    def visit_call_(self, call: Any) -> Any:
        call = self.builder_.normalize(self.visit_expr_post_order(call))
        found = self._constant(call)
        if found is None:
            found = self.rule(call)
        return call if found is None else found

    def _constant(self, call: Any) -> Any:
        shape = static_shape(call)
        if shape is None:
            return None
        operands = [self._resolved(argument) for argument in call.args]
        return folded(relax.Call(call.op, operands, call.attrs, call.ty_args), shape, str(call.ty.dtype))

    def _resolved(self, argument: Any) -> Any:
        value = self.definition(argument)
        return (
            relax.Tuple([self.definition(field) for field in value.fields]) if isinstance(value, relax.Tuple) else value
        )

    # Every emitted value is bound, so that the rules of later operators see its definition.

    def emit(self, expr: Any) -> Any:
        return self.builder_.emit(expr)

    def definition(self, expr: Any) -> Any:
        """The definition of a variable in the function as it is rewritten so far; any other expression is its own."""
        return definition(expr, self.lookup_binding)

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        """x in another shape: one reshape of the tensor that all reshapes before began with."""
        while op_name(self.definition(x)) == "relax.reshape":
            x = self.definition(x).args[0]
        return x if static_shape(x) == list(shape) else self.emit(relax.op.reshape(x, list(shape)))

    def simplified(self, call: Any) -> Any:
        """The value of a new call, which is simplified in its turn."""
        normalized = self.builder_.normalize(call)
        found = self.rule(normalized)
        return self.emit(normalized) if found is None else found

    def again(self, call: Any, arguments: Sequence[Any]) -> Any:
        """The same operator on other arguments."""
        return self.simplified(relax.Call(call.op, list(arguments), call.attrs, call.ty_args))

    def permuted(self, x: Any, axes: Sequence[int]) -> Any:
        return self.simplified(relax.op.permute_dims(x, list(axes)))

    def squeezed(self, x: Any) -> tuple[Any, int]:
        """(y, n) where x is y with n >= 1 leading unit dimensions; (x, 0) where x is no such reshape."""
        value = self.definition(x)
        if op_name(value) != "relax.reshape":
            return x, 0
        outer, inner = static_shape(x), static_shape(value.args[0])
        if not outer or inner is None:
            return x, 0
        count = len(outer) - len(inner)
        if count > 0 and outer == [1] * count + inner:
            return value.args[0], count
        lead = next((index for index, extent in enumerate(outer[:-1]) if extent != 1), len(outer) - 1)
        return (self.reshaped(x, outer[lead:]), lead) if lead else (x, 0)

    def product_in(self, x: Any) -> Any:
        """y where x is a reshape of y, and y is a product with or without an element-wise epilogue; else None."""
        value = self.definition(x)
        if op_name(value) != "relax.reshape":
            return None
        return value.args[0] if self.is_product(value.args[0]) else None

    def is_product(self, x: Any) -> bool:
        return is_product(x, self.definition)

    def without_units(self, x: Any, rank: int) -> Any:
        """x without as many leading dimensions, all of one, as it has more than `rank`."""
        shape = static_shape(x) or []
        return self.moved(self.reshaped(x, shape[len(shape) - rank :])) if len(shape) > rank else x

    def moved(self, expr: Any) -> Any:
        """The same value with its chain of reshapes and permutations shortened; `expr` itself where that gains nothing."""
        steps: list[Step] = []
        x = expr
        has_units = False
        while True:
            value = self.definition(x)
            shape = static_shape(x)
            if shape is not None and op_name(value) == "relax.reshape":
                steps.insert(0, ("reshape", shape))
            elif shape is not None and op_name(value) == "relax.permute_dims" and value.attrs.axes:
                steps.insert(0, ("permute", [int(axis) for axis in value.attrs.axes]))
                has_units = has_units or 1 in shape
            else:
                break
            x = value.args[0]
        source, permutations = static_shape(x), sum(kind == "permute" for kind, _ in steps)
        movement = followed(source, steps) if source is not None and permutations else None
        if movement is None:
            return expr
        shape = static_shape(expr) or []
        if movement.moves_nothing:
            return self.reshaped(x, shape)
        splits_for_nothing = steps[0][0] == "reshape" and list(movement.split) == source
        if permutations == 1 and not (has_units and len(steps) > 1) and not splits_for_nothing:
            return expr
        y = self.emit(relax.op.permute_dims(self.reshaped(x, movement.split), list(movement.axes)))
        return self.reshaped(y, shape)
