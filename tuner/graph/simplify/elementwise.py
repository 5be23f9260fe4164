"""Simplification rules for element-wise operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tuner.graph.def_use import op_name, permutation, static_shape
from tuner.graph.epilogue import is_convolution
from tuner.graph.fold_constants import constant_value
from tuner.graph.simplify.rewriter import Rewriter
from tuner.tvm_compat import relax


class ElementwiseRules(Rewriter):
    """Every public method is a rule: it takes a call and returns its replacement, or None."""

    def unary(self, call: Any) -> Any:
        if op_name(call) == "relax.astype" and call.args[0].ty.dtype == call.ty.dtype:
            return call.args[0]
        x, count = self.squeezed(call.args[0])
        if count == 0:
            x = self.product_in(call.args[0])
        if x is None:
            return None
        return self.reshaped(self.again(call, [x, *call.args[1:]]), static_shape(call) or ())

    def clip(self, call: Any) -> Any:
        x, low, high = call.args
        dtype = str(x.ty.dtype)
        bounds = [float(getattr(bound, "value", bound)) for bound in (low, high)]
        if "float" not in dtype or math.isnan(sum(bounds)) or not any(map(math.isfinite, bounds)):
            return self.unary(call)
        if bounds[0] != -math.inf:
            x = self.simplified(relax.op.maximum(x, relax.const(bounds[0], dtype)))
        return x if bounds[1] == math.inf else self.simplified(relax.op.minimum(x, relax.const(bounds[1], dtype)))

    def binary(self, call: Any) -> Any:
        left, right = call.args
        for rule in (self._identity, self._by_zero):
            if (found := rule(call)) is not None:
                return found
        out = static_shape(call)
        if (
            op_name(call) in ("relax.add", "relax.multiply")
            and static_shape(left) != out
            and static_shape(right) == out
        ):
            return self.again(call, [right, left])
        return self._elementwise(call)

    def where(self, call: Any) -> Any:
        condition, *chosen = call.args
        values = constant_value(self.definition(condition))
        if values is not None and values.size and bool(values.all()) == bool(values.any()):
            x = chosen[0] if values.all() else chosen[1]
            if static_shape(x) == static_shape(call):
                return x
        return self._elementwise(call)

    def _elementwise(self, call: Any) -> Any:
        """The operator without leading unit dimensions of its operands, or before the reshape of a product among them."""
        out = static_shape(call)
        if out is None:
            return None
        if (narrow := self._without_broadcasts(call, out)) is not None:
            return narrow
        if (permuted := self._permuted_alike(call, out)) is not None:
            return permuted
        # Only operands of the result's shape count: a bias that was reshaped to the rank of x gives no reason to reshape x.
        # Nor does the bias of a convolution of one pixel, which has that shape: the convolution is fused with no reshape.
        alike = [operand for operand in call.args if static_shape(operand) == out]
        count = max((self.squeezed(operand)[1] for operand in alike), default=0)
        if count and any(is_convolution(operand, self.definition) for operand in alike):
            count = 0
        if count == 0 or out[:count] != [1] * count or len(out) == count:
            return self._on_product(call, out)
        operands = [self.without_units(operand, len(out) - count) for operand in call.args]
        return self.reshaped(self.again(call, operands), out)

    def _without_broadcasts(self, call: Any, out: list[int]) -> Any:
        """The operator on what was broadcast for it, where another operand has the result's shape; else None."""
        definitions = [self.definition(operand) for operand in call.args]
        wide = [op_name(each) == "relax.broadcast_to" and static_shape(each) == out for each in definitions]
        if not any(wide) or not any(
            static_shape(each) == out and not w for each, w in zip(call.args, wide, strict=True)
        ):
            return None
        pairs = zip(call.args, definitions, wide, strict=True)
        return self.again(call, [each.args[0] if is_wide else operand for operand, each, is_wide in pairs])

    def _permuted_alike(self, call: Any, out: list[int]) -> Any:
        """The operator on the sources of its operands, then permuted; None unless all operands have the same permutation."""
        large = [self.definition(operand) for operand in call.args if math.prod(static_shape(operand) or [1]) > 1]
        axes = permutation(large[0]) if len(large) > 1 else []
        if not axes or any(static_shape(definition) != out or permutation(definition) != axes for definition in large):
            return None
        sources = iter([definition.args[0] for definition in large])
        operands = [
            next(sources) if math.prod(static_shape(each) or [1]) > 1 else self.reshaped(each, []) for each in call.args
        ]
        return self.permuted(self.again(call, operands), axes)

    def _on_product(self, call: Any, out: list[int]) -> Any:
        arguments = list(call.args)
        for place, x in enumerate(arguments):
            product = self.product_in(x) if static_shape(x) == out else None
            shape = None if product is None else static_shape(product)
            if shape is None:
                continue
            operands = [product if n == place else self._like(each, out, shape) for n, each in enumerate(arguments)]
            if all(operand is not None for operand in operands):
                return self.reshaped(self.again(call, operands), out)
        return None

    def _like(self, x: Any, out: list[int], shape: list[int]) -> Any:
        """An operand x of shape `out`, or broadcast to it, reshaped so that it fits `shape`, which has as many elements.

        None where it cannot be. Of two operands that are products, the one with fewer dimensions keeps its shape.
        """
        extents = static_shape(x)
        if extents is None:
            return None
        lead = next((i for i, extent in enumerate(extents) if extent != 1), len(extents))
        alike = 0
        while alike < min(len(out), len(shape)) and out[-1 - alike] == shape[-1 - alike]:
            alike += 1
        if len(extents) - lead <= alike:
            return self.reshaped(x, extents[lead:])
        yields = len(shape) < len(out) or not (self.is_product(x) or self.product_in(x) is not None)
        return self.reshaped(x, shape) if extents == out and yields else None

    def _identity(self, call: Any) -> Any:
        """The operand x of x + 0, x - 0, x * 1 or x / 1 (None for any other call)."""
        name, (left, right), out = op_name(call), call.args, static_shape(call)
        neutral = {"relax.add": 0.0, "relax.subtract": 0.0, "relax.multiply": 1.0, "relax.divide": 1.0}.get(name)
        if neutral is None or left.ty.dtype != right.ty.dtype:
            return None
        if static_shape(left) == out and self._is_all(right, neutral):
            return left
        if name in ("relax.add", "relax.multiply") and static_shape(right) == out and self._is_all(left, neutral):
            return right
        return None

    def _by_zero(self, call: Any) -> Any:
        """x / 0 as x times infinity, which is the same number for every x: lowering takes no zero as a constant divisor."""
        x, divisor = call.args
        dtype = str(divisor.ty.dtype)
        if op_name(call) != "relax.divide" or "float" not in dtype or static_shape(divisor) != []:
            return None
        zero = constant_value(self.definition(divisor))
        if zero is None or zero != 0:
            return None
        return relax.op.multiply(x, relax.const(math.copysign(math.inf, zero), dtype))

    def _is_all(self, expr: Any, value: float) -> bool:
        values = constant_value(self.definition(expr))
        return values is not None and bool(np.all(values == value))
