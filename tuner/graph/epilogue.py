"""Element-wise operators behind a product: what can be computed on its result while that is in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.convolutions import CONVOLUTIONS
from tuner.graph.def_use import DefUse, op_name, static_shape
from tuner.tvm_compat import relax

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
"""Element-wise operators between a value and the product that it comes from, at most: a residual stream is a chain of sums
as long as its model."""


@dataclass(frozen=True, kw_only=True)
class EpilogueStep:
    """One element-wise call on a product's result, or on the result of the step before."""

    operand: Any
    """What it combines that value with, which depends on weights alone; None of a unary operator."""


def epilogue_step(def_use: DefUse, call: Any) -> EpilogueStep | None:
    """The call as a step on its first argument, whose shape it keeps; None for any other call."""
    shape = static_shape(call)
    if shape is None or not isinstance(call, relax.Call) or static_shape(call.args[0]) != shape:
        return None
    if op_name(call) in UNARY and len(call.args) == 1:
        return EpilogueStep(operand=None)
    if op_name(call) in BINARY and def_use.from_weights(call.args[1]):
        return EpilogueStep(operand=call.args[1])
    return None


def is_product(x: Any, definition: Callable[[Any], Any]) -> bool:
    """Whether x is a product, or comes from one through element-wise operators, whatever else these combine it with.

    `definition` gives what a variable is bound to.
    """
    return _origin(x, definition) in PRODUCTS


def is_convolution(x: Any, definition: Callable[[Any], Any]) -> bool:
    """The same of a convolution."""
    return _origin(x, definition) in CONVOLUTIONS


def _origin(x: Any, definition: Callable[[Any], Any]) -> str | None:
    """The operator before the element-wise ones that x comes from."""
    shape, value = static_shape(x), definition(x)
    for _ in range(MAX_EPILOGUE):
        if op_name(value) not in ELEMENTWISE:
            break
        value = definition(next((each for each in value.args if static_shape(each) == shape), value.args[0]))
    return op_name(value)
