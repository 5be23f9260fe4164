"""Rewrites of a Relax graph that frontends leave to do, so that more of it fuses and equal work is equal workloads.

* What does nothing goes: a reshape, broadcast, cast or permutation onto itself, adding a constant zero, times a
  constant one. Reshapes of reshapes and permutations of permutations become one, and a chain of both that moves nothing
  a reshape (tuner/movement.py).
* Leading unit dimensions are taken off: with r = reshape to [1, ..., 1, *shape], f(r(x)) becomes r(f(x)) for
  element-wise f, softmax, norms, reductions, concatenations and permutations that leave those dimensions, and products
  of such tensors lose them. A residual stream of [1, 128, 768] around products of [128, 768] then is two-dimensional
  throughout, and what follows a product fuses into it.
* So does any reshape of a product, with what is computed on it element by element: the tensor of a dense layer, which
  PyTorch sees as a matrix while it multiplies, stays one until something else wants its shape.
* Element by element, what is computed of tensors permuted alike is computed before the permutation: a residual stream that
  PyTorch keeps as NCHW between dense layers over channels stays as they have it.
* A product over images and heads that were made one dimension for it is one over both.
* A choice whose condition is a constant is made.
* Of the operands of a sum or a product, one that is broadcast comes second: bias + x is x + bias.
* Zero padding before a convolution moves into the convolution; clip becomes min and max, which layouts pass through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tuner.constants import constant_value, folded
from tuner.facts import op_name as _op
from tuner.facts import permutation
from tuner.facts import static_shape as _shape
from tuner.movement import Step, followed
from tuner.tvm_compat import PyExprMutator, mutator, relax, with_function

UNARY = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "log", "negative", "nn.gelu", "nn.gelu_tanh"),
        *("nn.leakyrelu", "nn.relu", "nn.silu", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh"),
    )
)
BINARY = frozenset(f"relax.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "power", "subtract"))

ELEMENTWISE = UNARY | BINARY | {"relax.where"}
PRODUCTS = frozenset(("relax.matmul", "relax.einsum"))
MAX_EPILOGUE = 32
"""Operators behind a product that still belong to it: a residual stream is a chain of sums as long as its model."""


def simplify(mod: Any) -> Any:
    """The module with main rewritten; bindings must be canonical. No output changes for indices that are in bounds."""
    return with_function(mod, "main", _Simplify(mod).visit_expr(mod["main"]))


class _Rules(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_call_(self, call: Any) -> Any:
        call = self.builder_.normalize(self.visit_expr_post_order(call))
        found = self._constant(call)
        if found is None:
            rule = _RULES.get(_op(call))
            found = rule(self, call) if rule is not None else None
        return call if found is None else found

    def _constant(self, call: Any) -> Any:
        shape = _shape(call)
        if shape is None:
            return None
        operands = [self._resolved(argument) for argument in call.args]
        return folded(relax.Call(call.op, operands, call.attrs, call.ty_args), shape, str(call.ty.dtype))

    def _resolved(self, argument: Any) -> Any:
        made = self.made_by(argument)
        return relax.Tuple([self.made_by(field) for field in made.fields]) if isinstance(made, relax.Tuple) else made

    # Building blocks: every emitted value is bound, so that rules of later operators see what it is made of.

    def emit(self, expr: Any) -> Any:
        return self.builder_.emit(expr)

    def made_by(self, expr: Any) -> Any:
        """What a variable is bound to, through variables that only rename others; an argument of main is itself."""
        while isinstance(expr, relax.Var):
            bound = self.lookup_binding(expr)
            if bound is None:
                return expr
            expr = bound
        return expr

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        """x in another shape, past all reshapes that x is made of."""
        while _op(self.made_by(x)) == "relax.reshape":
            x = self.made_by(x).args[0]
        return x if _shape(x) == list(shape) else self.emit(relax.op.reshape(x, list(shape)))

    def again(self, call: Any, arguments: Sequence[Any]) -> Any:
        """The same operator on other arguments, simplified in its turn."""
        made = self.builder_.normalize(relax.Call(call.op, list(arguments), call.attrs, call.ty_args))
        rule = _RULES.get(_op(made))
        found = rule(self, made) if rule is not None else None
        return self.emit(made if found is None else found)

    def squeezed(self, x: Any) -> tuple[Any, int]:
        """(y, n) such that x is y with n >= 1 unit dimensions put in front; (x, 0) where x is made otherwise."""
        made = self.made_by(x)
        if _op(made) != "relax.reshape":
            return x, 0
        outer, inner = _shape(x), _shape(made.args[0])
        if not outer or inner is None:
            return x, 0
        count = len(outer) - len(inner)
        if count > 0 and outer == [1] * count + inner:
            return made.args[0], count
        lead = next((index for index, extent in enumerate(outer[:-1]) if extent != 1), len(outer) - 1)
        return (self.reshaped(x, outer[lead:]), lead) if lead else (x, 0)

    def product_in(self, x: Any) -> Any:
        """y where x is y in another shape, and y a product or what is computed on one element by element; else None."""
        made = self.made_by(x)
        if _op(made) != "relax.reshape":
            return None
        return made.args[0] if self.is_product(made.args[0]) else None

    def is_product(self, x: Any) -> bool:
        shape, made = _shape(x), self.made_by(x)
        for _ in range(MAX_EPILOGUE):
            if _op(made) not in ELEMENTWISE:
                break
            made = self.made_by(next((each for each in made.args if _shape(each) == shape), made.args[0]))
        return _op(made) in PRODUCTS

    # Rules: a replacement, or None.

    def reshape(self, call: Any) -> Any:
        shape = _shape(call)
        if shape is None:
            return None
        made = self.made_by(call.args[0])
        if _shape(call.args[0]) == shape or _op(made) == "relax.reshape":
            return self.moved(self.reshaped(call.args[0], shape))
        return self.moved(call)

    def moved(self, expr: Any) -> Any:
        """The same value past a chain of reshapes and permutations, where that moves nothing or less often."""
        steps: list[Step] = []
        x = expr
        has_units = False
        while True:
            made = self.made_by(x)
            shape = _shape(x)
            if shape is not None and _op(made) == "relax.reshape":
                steps.insert(0, ("reshape", shape))
            elif shape is not None and _op(made) == "relax.permute_dims" and made.attrs.axes:
                steps.insert(0, ("permute", [int(axis) for axis in made.attrs.axes]))
                has_units = has_units or 1 in shape
            else:
                break
            x = made.args[0]
        source, permutations = _shape(x), sum(kind == "permute" for kind, _ in steps)
        movement = followed(source, steps) if source is not None and permutations else None
        if movement is None:
            return expr
        shape = _shape(expr) or []
        if movement.moves_nothing:
            return self.reshaped(x, shape)
        if permutations == 1 and not (has_units and len(steps) > 1):
            return expr
        y = self.emit(relax.op.permute_dims(self.reshaped(x, movement.split), list(movement.axes)))
        return self.reshaped(y, shape)

    def as_reshape(self, call: Any) -> Any:
        shape = _shape(call)
        return None if shape is None else self.reshaped(call.args[0], shape)

    def broadcast(self, call: Any) -> Any:
        return call.args[0] if _shape(call.args[0]) == _shape(call) else None

    def unary(self, call: Any) -> Any:
        if _op(call) == "relax.astype" and call.args[0].ty.dtype == call.ty.dtype:
            return call.args[0]
        x, count = self.squeezed(call.args[0])
        if count == 0:
            x = self.product_in(call.args[0])
        if x is None:
            return None
        return self.reshaped(self.again(call, [x, *call.args[1:]]), _shape(call) or ())

    def clip(self, call: Any) -> Any:
        x, low, high = call.args
        dtype = str(x.ty.dtype)
        bounds = [float(getattr(bound, "value", bound)) for bound in (low, high)]
        if not dtype.startswith("float") or not all(math.isfinite(bound) for bound in bounds):
            return self.unary(call)
        y = self._binary_of(relax.op.maximum, x, relax.const(bounds[0], dtype))
        return self._binary_of(relax.op.minimum, y, relax.const(bounds[1], dtype))

    def _binary_of(self, make: Callable[..., Any], x: Any, y: Any) -> Any:
        made = self.builder_.normalize(make(x, y))
        found = self.binary(made)
        return self.emit(made) if found is None else found

    def binary(self, call: Any) -> Any:
        left, right = call.args
        identity = self._identity(call)
        if identity is not None:
            return identity
        out = _shape(call)
        if _op(call) in ("relax.add", "relax.multiply") and _shape(left) != out and _shape(right) == out:
            return self.emit(self.again(call, [right, left]))
        return self._elementwise(call)

    def where(self, call: Any) -> Any:
        condition, *chosen = call.args
        values = constant_value(self.made_by(condition))
        if values is not None and values.size and bool(values.all()) == bool(values.any()):
            x = chosen[0] if values.all() else chosen[1]
            if _shape(x) == _shape(call):
                return x
        return self._elementwise(call)

    def _elementwise(self, call: Any) -> Any:
        """The operator on operands without the leading unit dimensions of one, or on a product that one is a reshape of."""
        out = _shape(call)
        if out is None:
            return None
        if (permuted := self._permuted_alike(call, out)) is not None:
            return permuted
        # A small operand (a bias, reshaped to the rank of the other) is no reason to reshape the large one.
        count = max((self.squeezed(operand)[1] for operand in call.args if _shape(operand) == out), default=0)
        if count == 0 or out[:count] != [1] * count or len(out) == count:
            return self._on_product(call, out)
        operands = [self._without_units(operand, len(out) - count) for operand in call.args]
        return self.reshaped(self.again(call, operands), out)

    def _permuted_alike(self, call: Any, out: list[int]) -> Any:
        """The permutation of what the operator computes of operands that are permuted alike; None where they are not."""
        large = [self.made_by(operand) for operand in call.args if math.prod(_shape(operand) or [1]) > 1]
        axes = permutation(large[0]) if len(large) > 1 else []
        if not axes or any(_shape(made) != out or permutation(made) != axes for made in large):
            return None
        sources = iter([made.args[0] for made in large])
        operands = [
            next(sources) if math.prod(_shape(each) or [1]) > 1 else self.reshaped(each, []) for each in call.args
        ]
        return self._permuted(self.again(call, operands), axes)

    def _on_product(self, call: Any, out: list[int]) -> Any:
        arguments = list(call.args)
        for place, x in enumerate(arguments):
            product = self.product_in(x) if _shape(x) == out else None
            shape = None if product is None else _shape(product)
            if shape is None:
                continue
            operands = [product if n == place else self._like(each, out, shape) for n, each in enumerate(arguments)]
            if all(operand is not None for operand in operands):
                return self.reshaped(self.again(call, operands), out)
        return None

    def _like(self, x: Any, out: list[int], shape: list[int]) -> Any:
        """x, which broadcasts to `out`, so that it broadcasts to `shape`, another shape of as many elements; None where
        it does not. Of two products the one with fewer dimensions keeps its shape."""
        extents = _shape(x)
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

    def _without_units(self, x: Any, rank: int) -> Any:
        shape = _shape(x) or []
        return self.moved(self.reshaped(x, shape[len(shape) - rank :])) if len(shape) > rank else x

    def _identity(self, call: Any) -> Any:
        """The operand that an addition of zero or a product with one gives back unchanged."""
        name, (left, right), out = _op(call), call.args, _shape(call)
        neutral = {"relax.add": 0.0, "relax.subtract": 0.0, "relax.multiply": 1.0, "relax.divide": 1.0}.get(name)
        if neutral is None or left.ty.dtype != right.ty.dtype:
            return None
        if _shape(left) == out and self._is_all(right, neutral):
            return left
        if name in ("relax.add", "relax.multiply") and _shape(right) == out and self._is_all(left, neutral):
            return right
        return None

    def _is_all(self, expr: Any, value: float) -> bool:
        values = constant_value(self.made_by(expr))
        return values is not None and bool(np.all(values == value))

    def softmax(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        axis = int(call.attrs.axis)
        rank = len(_shape(call.args[0]) or ())
        axis = axis + rank if axis < 0 else axis
        if count == 0 or axis < count:
            return None
        make = {"relax.nn.softmax": relax.op.nn.softmax, "relax.nn.log_softmax": relax.op.nn.log_softmax}[_op(call)]
        return self.reshaped(self.emit(make(x, axis - count)), _shape(call) or ())

    def layer_norm(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        rank = len(_shape(call.args[0]) or ())
        axes = [int(axis) + rank if int(axis) < 0 else int(axis) for axis in call.attrs.axes]
        if count == 0 or any(axis < count for axis in axes):
            return None
        attrs = call.attrs
        y = relax.op.nn.layer_norm(
            x,
            *call.args[1:],
            axes=[axis - count for axis in axes],
            epsilon=attrs.epsilon,
            center=attrs.center,
            scale=attrs.scale,
        )
        return self.reshaped(self.emit(y), _shape(call) or ())

    def reduction(self, call: Any) -> Any:
        x, count = self.squeezed(call.args[0])
        rank = len(_shape(call.args[0]) or ())
        axes = [int(axis) % rank for axis in call.attrs.axis] if call.attrs.axis is not None else []
        if count == 0 or not axes or min(axes) < count:
            return None
        make = getattr(relax.op, _op(call).removeprefix("relax."))
        y = make(x, [axis - count for axis in axes], keepdims=bool(call.attrs.keepdims))
        return self.reshaped(self.emit(y), _shape(call) or ())

    def permute(self, call: Any) -> Any:
        rank = len(_shape(call.args[0]) or ())
        axes = [int(axis) for axis in call.attrs.axes] if call.attrs.axes else list(range(rank))[::-1]
        if axes == list(range(rank)):
            return call.args[0]
        made = self.made_by(call.args[0])
        if _op(made) == "relax.permute_dims" and made.attrs.axes:
            inner = [int(axis) for axis in made.attrs.axes]
            return self._permuted(made.args[0], [inner[axis] for axis in axes])
        moved = self.moved(call)
        if moved is not call:
            return moved
        x, count = self.squeezed(call.args[0])
        if count == 0 or axes[:count] != list(range(count)):
            return None
        return self.reshaped(self._permuted(x, [axis - count for axis in axes[count:]]), _shape(call) or ())

    def _permuted(self, x: Any, axes: Sequence[int]) -> Any:
        made = self.builder_.normalize(relax.op.permute_dims(x, list(axes)))
        found = self.permute(made)
        return self.emit(made) if found is None else found

    def concatenate(self, call: Any) -> Any:
        parts = list(getattr(self.made_by(call.args[0]), "fields", ()))
        shapes = [_shape(part) for part in parts]
        if call.attrs.axis is None or not all(shapes):
            return None
        rank = len(shapes[0] or ())
        axis = int(call.attrs.axis) % rank
        count = min(axis, max(self.squeezed(part)[1] for part in parts))
        # Operands agree in every dimension but the concatenated one.
        if count == 0 or (shapes[0] or [])[:count] != [1] * count:
            return None
        y = relax.op.concat([self._without_units(part, rank - count) for part in parts], axis - count)
        return self.reshaped(self.emit(y), _shape(call) or ())

    def matmul(self, call: Any) -> Any:
        """Takes leading unit dimensions off both operands: [1, 128, 768] x [768, 64] is a product of matrices."""
        left, right = (_shape(argument) or [] for argument in call.args)
        out = _shape(call)
        if out is None or min(len(left), len(right)) < 2 or max(len(left), len(right)) < 3:
            return None
        # The batch dimensions that stay are those of the operand that needs more of them.
        rank = max(2 + self._batch_rank(left), 2 + self._batch_rank(right))
        if rank >= max(len(left), len(right)):
            return self._batched(call, out)
        x, y = (self._without_units(argument, rank) for argument in call.args)
        return self.reshaped(self.emit(relax.op.matmul(x, y, out_dtype=call.attrs.out_dtype)), out)

    def _batched(self, call: Any, out: list[int]) -> Any:
        """The product of tensors [images, heads, ...] that were seen as [images * heads, ...] for it."""
        sources = []
        for argument in call.args:
            made, shape = self.made_by(argument), _shape(argument) or []
            source = _shape(made.args[0]) if _op(made) == "relax.reshape" else None
            if source is None or source[-2:] != shape[-2:] or self._batch_rank(source) < 2:
                return None
            sources.append((made.args[0], source[:-2]))
        (x, batch), (y, other) = sources
        if batch != other:
            return None
        return self.reshaped(self.emit(relax.op.matmul(x, y, out_dtype=call.attrs.out_dtype)), out)

    @staticmethod
    def _batch_rank(shape: Sequence[int]) -> int:
        batch = shape[:-2]
        return len(batch) - next((index for index, extent in enumerate(batch) if extent != 1), len(batch))

    def conv2d(self, call: Any) -> Any:
        made = self.made_by(call.args[0])
        attrs = call.attrs
        if _op(made) != "relax.nn.pad" or attrs.data_layout != "NCHW" or made.attrs.pad_mode != "constant":
            return None
        width = [int(extent) for extent in made.attrs.pad_width]
        value = made.attrs.pad_value
        if len(width) != 8 or any(width[:4]) or min(width) < 0 or float(getattr(value, "value", value)) != 0.0:
            return None
        top, bottom, left, right = width[4:]
        extra = [top, left, bottom, right]
        padding = [int(old) + new for old, new in zip(attrs.padding, extra, strict=True)]
        return relax.op.nn.conv2d(
            made.args[0],
            call.args[1],
            strides=attrs.strides,
            padding=padding,
            dilation=attrs.dilation,
            groups=attrs.groups,
            data_layout=attrs.data_layout,
            kernel_layout=attrs.kernel_layout,
            out_layout=attrs.out_layout,
            out_dtype=attrs.out_dtype or None,
        )


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(UNARY, _Rules.unary),
    **dict.fromkeys(BINARY, _Rules.binary),
    **dict.fromkeys(("relax.max", "relax.mean", "relax.min", "relax.sum"), _Rules.reduction),
    "relax.broadcast_to": _Rules.broadcast,
    "relax.clip": _Rules.clip,
    "relax.concat": _Rules.concatenate,
    "relax.expand_dims": _Rules.as_reshape,
    "relax.flatten": _Rules.as_reshape,
    "relax.matmul": _Rules.matmul,
    "relax.nn.conv2d": _Rules.conv2d,
    "relax.nn.layer_norm": _Rules.layer_norm,
    "relax.nn.log_softmax": _Rules.softmax,
    "relax.nn.softmax": _Rules.softmax,
    "relax.permute_dims": _Rules.permute,
    "relax.reshape": _Rules.reshape,
    "relax.squeeze": _Rules.as_reshape,
    "relax.where": _Rules.where,
}

_Simplify = mutator(_Rules)
