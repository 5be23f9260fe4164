"""Constant folding of Relax operators, for the masks and position tables that frontends compute by operators.

TVM's own FoldConstant compiles every operator, and only after it was lowered, too late to see that a mask is all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.tvm_compat import ir, relax

MAX_ELEMENTS = 1 << 20
"""Elements of a folded tensor, at most: enough for the mask of a sequence of 1024. Weights are arguments, not constants."""

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.negative": np.negative,
    "relax.abs": np.abs,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_not": np.logical_not,
    "relax.bitwise_and": np.bitwise_and,
    "relax.bitwise_or": np.bitwise_or,
    "relax.where": np.where,
}
_REMAINDERS: Mapping[str, Callable[..., Any]] = {"relax.mod": np.fmod, "relax.floor_mod": np.mod}
_REDUCTIONS: Mapping[str, Callable[..., Any]] = {"relax.max": np.max, "relax.min": np.min, "relax.sum": np.sum}


def constant_value(expr: Any) -> np.ndarray | None:
    """The values of a constant tensor; None for any other expression."""
    if not isinstance(expr, ir.GenericConst) or not hasattr(expr.value, "numpy"):
        return None
    values: np.ndarray = expr.value.numpy()
    return values


def folded(call: Any, shape: list[int], dtype: str) -> Any:
    """The result of a call whose operands are constants, as a constant of that shape and type.

    None where an operand is no constant, where the operator is not known here, or where the result is too large.
    """
    if math.prod(shape) > MAX_ELEMENTS or not isinstance(call.op, ir.Op):
        return None
    name, operands = str(call.op.name), list(call.args)
    if len(operands) and isinstance(operands[-1], relax.Tuple) and name in ("relax.concat", "relax.index_tensor"):
        operands[-1:] = operands[-1].fields
    tensors = [argument for argument in operands if isinstance(getattr(argument, "ty", None), relax.TensorType)]
    values = [constant_value(argument) for argument in tensors]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    found: Any = None
    if name in _ELEMENTWISE and known:
        found = np.broadcast_to(_ELEMENTWISE[name](*known), shape)
    elif name in _REMAINDERS and known and known[1].all():
        found = np.broadcast_to(_REMAINDERS[name](*known), shape)
    elif name == "relax.arange":
        start, stop, step = (getattr(bound, "value", bound) for bound in operands)
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
    elif name in _REDUCTIONS and known and known[0].size:
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        found = _REDUCTIONS[name](known[0], axis=axes, keepdims=bool(call.attrs.keepdims))
    elif name == "relax.cumsum" and known and call.attrs.axis is not None and not int(call.attrs.exclusive):
        found = np.cumsum(known[0], axis=int(call.attrs.axis), dtype=dtype)
    elif name == "relax.concat" and known and call.attrs.axis is not None:
        found = np.concatenate(known, axis=int(call.attrs.axis))
    elif name == "relax.index_tensor" and known and _are_inside(known[0].shape, known[1:]):
        found = known[0][tuple(known[1:])]
    elif name == "relax.gather_elements" and known and _are_inside([known[0].shape[int(call.attrs.axis)]], known[1:]):
        found = np.take_along_axis(known[0], known[1], axis=int(call.attrs.axis))
    elif name == "relax.strided_slice" and known:
        found = known[0][slices(known[0].ndim, operands[1:])]
    if found is None or np.size(found) != math.prod(shape):
        return None
    # ascontiguousarray turns a scalar into a vector, so the shape is set last.
    return relax.const(np.ascontiguousarray(np.asarray(found).astype(dtype)).reshape(shape), dtype)


def slices(rank: int, bounds: Sequence[Any]) -> tuple[slice, ...]:
    """A slice for every axis, from the axes, begins, ends and, perhaps, strides of strided_slice."""
    axes, begins, ends, *strides = ([int(value.value) for value in argument.fields] for argument in bounds)
    found = [slice(None)] * rank
    for axis, begin, end, stride in zip(axes, begins, ends, *(strides or [[1] * len(axes)]), strict=True):
        found[axis] = slice(begin, end, stride)
    return tuple(found)


def _are_inside(shape: Sequence[int], indices: Sequence[np.ndarray]) -> bool:
    """Whether all indices are integers within the bounds of a tensor. Indexing out of bounds is not folded."""
    return len(indices) <= len(shape) and all(
        index.dtype != bool and bool(np.all((index >= -extent) & (index < extent)))
        for extent, index in zip(shape, indices, strict=False)
    )
