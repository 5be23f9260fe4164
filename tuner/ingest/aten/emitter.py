"""What a converter of an operator is given: its node, the values of its arguments, and ways to write Relax.

A converter is a function of an Emitter and of the operator's arguments under the names that its schema has for them, with
defaults filled in. Tensors among them are Relax expressions, lists of tensors lists of them. It gives a Relax expression, or
a tuple with one for each result (None for one that nobody reads). What shapes and types the results must have stands in
`results`, fake tensors that PyTorch made; whoever calls the converter compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pitchpipe.torch_operators.arrays import to_array
from tuner.tvm_compat import relax, te, tirx

Converter = Callable[..., Any]

CONVERTERS: dict[str, Converter] = {}
"""Operator with overload, as `add.Tensor` -> its converter."""

HALF = ("float16", "bfloat16")


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Registers a converter for operators with these names."""

    def register(function: Converter) -> Converter:
        for name in names:
            if name in CONVERTERS:
                raise ValueError(f"operator {name} has two converters")
            CONVERTERS[name] = function
        return function

    return register


def dtype_name(dtype: Any) -> str:
    """NumPy's name of a torch type."""
    return str(dtype).removeprefix("torch.")


def dtype_of(x: Any) -> str:
    """The element type of a Relax expression."""
    return str(x.ty.dtype)


def shape_of(x: Any) -> list[int]:
    """The shape of a Relax expression, which is static."""
    return [int(extent) for extent in x.ty.shape.values] if x.ty.shape is not None else []


def is_tensor(x: Any) -> bool:
    return isinstance(x, relax.Expr)


def is_float(dtype: str) -> bool:
    return "float" in dtype


def int64(value: int) -> Any:
    """A number among a tensor function's indices, which are 64-bit."""
    return tirx.const(value, "int64")


def lowest(dtype: str) -> Any:
    """The identity of a maximum."""
    return _limit(dtype, -np.inf, "min")


def highest(dtype: str) -> Any:
    """The identity of a minimum."""
    return _limit(dtype, np.inf, "max")


def _limit(dtype: str, infinity: float, end: str) -> Any:
    if dtype == "bool":
        return tirx.const(end == "max", "bool")
    return tirx.const(float(infinity) if is_float(dtype) else int(getattr(np.iinfo(dtype), end)), dtype)


class Emitter:
    """Writes Relax for one node."""

    def __init__(self, builder: Any, node: Any) -> None:
        self.builder, self.node = builder, node
        value = node.meta["val"]
        self.results: list[Any] = list(value) if isinstance(value, (tuple, list)) else [value]
        """Fake tensors, None for what is no tensor."""

    @property
    def dtype(self) -> str:
        """Of the first result; of its parts, if it is complex."""
        dtype = self.results[0].dtype
        return dtype_name(dtype.to_real() if dtype.is_complex else dtype)

    @property
    def gives_complex(self) -> bool:
        """Whether the first result is complex."""
        return isinstance(self.results[0], torch.Tensor) and bool(self.results[0].dtype.is_complex)

    @property
    def shape(self) -> list[int]:
        """Of the first result."""
        return [int(extent) for extent in self.results[0].shape]

    def reads(self, index: int) -> bool:
        """Whether a result, of several, is read by anyone."""
        return any(user.args[1] == index for user in self.node.users)

    def working(self, *arguments: Any) -> str:
        """The type of an element-wise operator's operands: the result's. Operators on half precision are computed in float32
        all the same (tuner/graph/half_precision.py), but a number that half precision cannot hold has to be in float32."""
        dtype = self.dtype
        if dtype in HALF and not all(is_tensor(each) or _holds(dtype, each) for each in arguments):
            return wide(dtype)
        return dtype

    # Relax

    def emit(self, expr: Any) -> Any:
        return self.builder.emit(expr)

    def const(self, value: Any, dtype: str) -> Any:
        """A number or an array as a tensor. Numbers that the type cannot hold wrap or overflow as PyTorch's do."""
        return relax.const(tvm_array(value, dtype), dtype)

    def cast(self, x: Any, dtype: str) -> Any:
        """x in another type as PyTorch converts it: whatever is not zero is True, and fractions are cut off."""
        have = dtype_of(x)
        if have == dtype:
            return x
        if dtype == "bool":
            return self.emit(relax.op.not_equal(x, self.const(0, have)))
        return self.emit(relax.op.astype(x, dtype))

    def tensor(self, x: Any, dtype: str) -> Any:
        """A tensor or a number in that type."""
        return self.cast(x, dtype) if is_tensor(x) else self.const(x, dtype)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return x if shape_of(x) == list(shape) else self.emit(relax.op.reshape(x, list(shape)))

    def broadcast(self, x: Any, shape: Sequence[int]) -> Any:
        return x if shape_of(x) == list(shape) else self.emit(relax.op.broadcast_to(x, list(shape)))

    def permute(self, x: Any, axes: Sequence[int]) -> Any:
        return x if list(axes) == sorted(axes) else self.emit(relax.op.permute_dims(x, list(axes)))

    # Tensor functions

    def te(self, name: str, function: Callable[..., Any], *tensors: Any) -> Any:
        """A tensor function of `tensors` made by `function`, which gets them as tensor expressions."""
        return self.emit(self.builder.call_te(function, *tensors, primfunc_name_hint=name))

    def compute(self, name: str, body: Callable[..., Any], shape: Sequence[int], *tensors: Any) -> Any:
        """A tensor of that shape whose element at indices i is body(tensors, i). Indices are 64-bit."""

        def function(*given: Any) -> Any:
            return te.compute(
                tuple(tirx.IntImm("int64", extent) for extent in shape), lambda *at: body(given, at), name=name
            )

        return self.te(name, function, *tensors)


def _holds(dtype: str, number: float) -> bool:
    """Whether a type of half precision holds a number."""
    given = torch.tensor(number, dtype=torch.float64)
    return bool(torch.equal(given.to(getattr(torch, dtype)).double(), given))


def tvm_array(value: Any, dtype: str) -> Any:
    """A number, array or torch tensor as a NumPy array of that type; bfloat16 by ml_dtypes."""
    if isinstance(value, torch.Tensor):
        return to_array(value)
    if dtype == "bfloat16":
        import ml_dtypes

        return np.asarray(value, np.float32).astype(ml_dtypes.bfloat16)
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value, dtype=getattr(torch, dtype), device="cpu").numpy()
    return np.asarray(value).astype(dtype)


def wide(dtype: str) -> str:
    """The type in which PyTorch computes what it does not merely add, multiply or compare: float32 for half precision."""
    return "float32" if dtype in HALF else dtype


def rounded(value: Any, dtype: str) -> Any:
    """A float32 expression, rounded to what a type of half precision can hold; it is written out twice in the result.

    A cast to bfloat16 and back vanishes where TVM computes that type in float32: its rounding is written in whole numbers,
    to the nearest, of two the even one.
    """
    if dtype == "float16":
        return value.astype(dtype).astype("float32")

    def number(one: int) -> Any:  # of unsigned ones: TVM widens signed numbers that an index is computed from
        return tirx.const(one, "uint32")

    bits = tirx.reinterpret("uint32", value)
    half = number(0x7FFF) + ((bits >> number(16)) & number(1))
    return tirx.reinterpret("float32", (bits + half) & number(0xFFFF0000))


def at_broadcast(x: Any, at: Sequence[Any]) -> Any:
    """The element of a tensor expression that stands at `at` once it is broadcast."""
    offset = len(at) - len(x.shape)
    return x(
        *(
            tirx.IntImm("int64", 0)
            if isinstance(extent, (int, tirx.IntImm)) and int(extent) == 1
            else at[offset + axis]
            for axis, extent in enumerate(x.shape)
        )
    )


def elementwise(to: Emitter, name: str, body: Callable[..., Any], dtype: str, *arguments: Any) -> Any:
    """A tensor function of elements: body(a, b, ...) of the arguments, tensors and numbers, in type `dtype`.

    The result has the node's shape and type.
    """
    tensors = [to.tensor(argument, dtype) for argument in arguments]
    out = to.dtype

    def element(given: Any, at: Any) -> Any:
        found = body(*(at_broadcast(x, at) for x in given))
        have = str(found.ty.dtype)
        if have == out:
            return found
        return found != tirx.const(0, have) if out == "bool" else found.astype(out)

    return to.compute(name, element, to.shape, *tensors)
