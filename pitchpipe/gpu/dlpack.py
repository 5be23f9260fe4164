"""Tensors across libraries by DLPack, without any of them: reading the capsules of others, and making our own.

Only the unversioned form of the protocol is made and asked for, which every library reads.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from dataclasses import dataclass
from typing import Any

CPU, CUDA, CUDA_HOST, MANAGED = 1, 2, 3, 13
"""Types of devices."""
ON_GPU = (CUDA, MANAGED)
_NUMBERS = {
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
_DTYPES = {number: name for name, number in _NUMBERS.items()}
_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_Deleter = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]

_python = ctypes.pythonapi


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    """A function of Python's own with types of its own: others in this process may have set others."""
    return ctypes.PYFUNCTYPE(result, *arguments)(ctypes.cast(function, c_void_p).value or 0)


_is_valid = _typed(_python.PyCapsule_IsValid, ctypes.c_int, py_object, c_char_p)
_get = _typed(_python.PyCapsule_GetPointer, c_void_p, py_object, c_char_p)
_set_name = _typed(_python.PyCapsule_SetName, ctypes.c_int, py_object, c_char_p)
_new = _typed(_python.PyCapsule_New, py_object, c_void_p, c_char_p, c_void_p)
_dying_is_valid = _typed(_python.PyCapsule_IsValid, ctypes.c_int, c_void_p, c_char_p)
_dying_get = _typed(_python.PyCapsule_GetPointer, c_void_p, c_void_p, c_char_p)


@dataclass(frozen=True, kw_only=True)
class Described:
    """Where a tensor lies and what it is."""

    address: int
    device_type: int
    ordinal: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    """In row-major order without gaps."""


class Borrowed:
    """A tensor that another library owns, held until `release`, or until nobody refers to it."""

    def __init__(self, array: Any, stream: int | None = None) -> None:
        """stream: whoever made the tensor orders its work before what is queued there from now on; None for tensors on the
        host. Raises whatever the library raises, ValueError for a type or form that has no name here."""
        capsule = array.__dlpack__() if stream is None else array.__dlpack__(stream=stream_number(stream))
        self._managed: Any = None
        if not _is_valid(capsule, _NAME):
            raise ValueError("its __dlpack__ gives no tensor that was not taken before")
        managed = ctypes.cast(_get(capsule, _NAME), POINTER(_Managed))
        _set_name(capsule, _USED)
        self._managed = managed
        try:
            self.described = _described(managed.contents.tensor)
        except ValueError:
            self.release()
            raise

    def release(self) -> None:
        """Gives the tensor back to its owner."""
        managed, self._managed = self._managed, None
        if managed is not None and managed.contents.deleter:
            managed.contents.deleter(managed)

    def __del__(self) -> None:
        self.release()


def stream_number(stream: int) -> int:
    """The stream's handle as DLPack writes it: the default stream is 1."""
    return stream or 1


def stream_handle(number: int | None) -> int | None:
    """The handle of a stream as DLPack writes it; None where nobody is to wait."""
    if number == -1:
        return None
    return 0 if number in (None, 1) else number


def _described(tensor: _Tensor) -> Described:
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ValueError(f"elements of DLPack type {tensor.code} with {tensor.bits} bits are not known here")
    shape = tuple(tensor.shape[: tensor.ndim])
    contiguous = True
    if tensor.strides:
        expected = 1
        for extent, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
            contiguous = contiguous and (extent <= 1 or stride == expected)
            expected *= extent
    return Described(
        address=(tensor.data or 0) + tensor.byte_offset,
        device_type=tensor.device_type,
        ordinal=tensor.device_id,
        dtype=dtype,
        shape=shape,
        contiguous=contiguous or 0 in shape,
    )


_lent: dict[int, tuple[Any, ...]] = {}
"""What capsules hold on to until they are given back: by a number of theirs."""
_numbers = itertools.count(1)


def lend(described: Described, owner: Any) -> Any:
    """A capsule of a tensor in row-major order; `owner` is kept alive for as long as somebody uses it."""
    shape = (c_int64 * max(1, len(described.shape)))(*described.shape)
    strides = (c_int64 * max(1, len(described.shape)))()
    step = 1
    for axis in range(len(described.shape) - 1, -1, -1):
        strides[axis] = step
        step *= described.shape[axis]
    code, bits = _NUMBERS[described.dtype]
    number = next(_numbers)
    managed = _Managed(
        tensor=_Tensor(
            data=described.address,
            device_type=described.device_type,
            device_id=described.ordinal,
            ndim=len(described.shape),
            code=code,
            bits=bits,
            lanes=1,
            shape=ctypes.cast(shape, POINTER(c_int64)),
            strides=ctypes.cast(strides, POINTER(c_int64)),
        ),
        context=number,
        deleter=_give_back,
    )
    _lent[number] = (managed, shape, strides, owner)
    return _new(ctypes.addressof(managed), _NAME, ctypes.cast(_forget, c_void_p).value)


def _given_back(managed: Any) -> None:
    _lent.pop(managed.contents.context or 0, None)


def _capsule_dies(capsule: int) -> None:
    """A capsule that nobody took: its tensor goes with it."""
    if _dying_is_valid(capsule, _NAME):
        _given_back(ctypes.cast(_dying_get(capsule, _NAME), POINTER(_Managed)))


_give_back = _Deleter(_given_back)
_forget = ctypes.PYFUNCTYPE(None, c_void_p)(_capsule_dies)


def lent() -> int:
    """How many tensors of ours others hold at the moment."""
    return len(_lent)
