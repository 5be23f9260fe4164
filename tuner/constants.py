"""Values of Relax operators on constants, for the masks and position tables that frontends spell out in operators.

TVM's own FoldConstant compiles every operator, and only after it was lowered, too late to see that a mask is all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.tvm_compat import ir, relax

MAX_ELEMENTS = 1 << 20
"""Of a folded tensor: masks of a sequence of 1024 still fold, weights never appear here."""

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.negative": np.negative,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_not": np.logical_not,
    "relax.where": np.where,
}


def constant_value(expr: Any) -> np.ndarray | None:
    """The values of a constant tensor."""
    if not isinstance(expr, ir.GenericConst) or not hasattr(expr.value, "numpy"):
        return None
    values: np.ndarray = expr.value.numpy()
    return values


def folded(call: Any, shape: list[int], dtype: str) -> Any:
    """The constant that an operator on constants is, of a known shape and type; None if it is none or is not known."""
    if math.prod(shape) > MAX_ELEMENTS or dtype == "bfloat16" or not isinstance(call.op, ir.Op):
        return None
    name, operands = str(call.op.name), list(call.args)
    tensors = [argument for argument in operands if isinstance(getattr(argument, "ty", None), relax.TensorType)]
    values = [constant_value(argument) for argument in tensors]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    found: Any = None
    if name in _ELEMENTWISE and known:
        found = np.broadcast_to(_ELEMENTWISE[name](*known), shape)
    elif name == "relax.arange":
        start, stop, step = (int(getattr(bound, "value", bound)) for bound in operands)
        found = np.arange(start, stop, step)
    elif name in ("relax.zeros", "relax.zeros_like"):
        found = np.zeros(shape)
    elif name in ("relax.ones", "relax.ones_like"):
        found = np.ones(shape)
    elif name in ("relax.full", "relax.full_like", "relax.broadcast_to") and known:
        found = np.broadcast_to(known[-1], shape)
    elif name in ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.astype") and known:
        found = known[0]
    elif name == "relax.permute_dims" and call.attrs.axes:
        found = known[0].transpose([int(axis) for axis in call.attrs.axes])
    if found is None:
        return None
    return relax.const(np.ascontiguousarray(np.asarray(found).reshape(shape).astype(dtype)), dtype)
