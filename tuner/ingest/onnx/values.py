"""What a name in an ONNX graph stands for while the graph is read.

A value is one of

* a NumPy array: known now, a constant or made of constants and shapes alone; every empty tensor is known;
* a Relax expression of tensor type: known when the model runs;
* a `Sequence` of values: ONNX's lists, which exist only while the graph is read;
* `NOTHING`: an optional that holds no element.

An optional that holds an element is that element. An input that a node leaves out is None.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # teaches NumPy the names of bfloat16 and the narrow types
import numpy as np
import onnx
from onnx import helper

from tuner.tvm_compat import relax, tirx

Value = Any
"""See the module's docstring."""


@dataclass(frozen=True)
class Sequence:
    items: tuple[Value, ...]
    element: Any
    """TypeProto of the elements; their shape may be open."""


class _Nothing:
    """The type of NOTHING."""


NOTHING = _Nothing()


def is_tensor(value: Value) -> bool:
    """Whether it is a tensor, known or not."""
    return isinstance(value, (np.ndarray, relax.Expr))


def is_known(value: Value) -> bool:
    """Whether it is a tensor or a sequence of tensors whose elements are known now."""
    if isinstance(value, Sequence):
        return all(is_known(item) for item in value.items)
    return isinstance(value, np.ndarray)


def shape_of(value: Value) -> tuple[int, ...]:
    """The static shape of a tensor; raises ValueError where it is not static."""
    if isinstance(value, np.ndarray):
        return tuple(map(int, value.shape))
    shape = static_shape(value)
    if shape is None:
        raise ValueError("a tensor of dynamic shape")
    return shape


def static_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a Relax expression of tensor type; None where it is not static."""
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tirx.IntImm) for extent in shape.values):
        return None
    return tuple(int(extent) for extent in shape.values)


def dtype_of(value: Value) -> str:
    """NumPy's name of the element type of a tensor."""
    return str(value.dtype.name if isinstance(value, np.ndarray) else value.ty.dtype)


def elements(dtype: str) -> int:
    """ONNX's number of an element type; raises ValueError for one that ONNX does not have."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"ONNX has no element type {dtype}") from error


def type_of(value: Value) -> Any:
    """The TypeProto of a value; None for NOTHING."""
    if isinstance(value, Sequence):
        return helper.make_sequence_type_proto(value.element)
    if not is_tensor(value):
        return None
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return helper.make_tensor_type_proto(onnx.TensorProto.STRING, value.shape)
    return helper.make_tensor_type_proto(elements(dtype_of(value)), shape_of(value))


def common_type(items: Items[Value]) -> Any:
    """The TypeProto of which all values are: extents that differ are left open."""
    found = [type_of(item) for item in items]
    kind = found[0].tensor_type.elem_type
    shapes = [[dim.dim_value for dim in each.tensor_type.shape.dim] for each in found]
    if len({len(shape) for shape in shapes}) > 1:
        return helper.make_tensor_type_proto(kind, None)
    extents = [each[0] if len(set(each)) == 1 else None for each in zip(*shapes, strict=True)]
    return helper.make_tensor_type_proto(kind, extents)


def declared_shape(type_proto: Any) -> tuple[int | None, ...] | None:
    """Extents of a tensor's TypeProto, None for those left open; None where there is no shape."""
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in type_proto.tensor_type.shape.dim)


def declared_dtype(type_proto: Any) -> str | None:
    """NumPy's name of the element type in a tensor's TypeProto; None where it is not told. Strings are `object`."""
    if type_proto is None or not type_proto.HasField("tensor_type") or not type_proto.tensor_type.elem_type:
        return None
    return str(helper.tensor_dtype_to_np_dtype(type_proto.tensor_type.elem_type).name)
