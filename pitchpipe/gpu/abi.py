"""The part of CUDA's driver API that programs need, as ctypes sees it: structures, numbers, and the arguments of each
function."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from pitchpipe.gpu.program import MAP_TYPES, Swizzle


class AttributeValue(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_ = [("cluster", c_uint * 3), ("flag", c_int), ("room", c_ubyte * 64)]


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", c_int), ("pad", c_ubyte * 4), ("value", AttributeValue)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(Attribute)),
        ("count", c_uint),
    ]


class NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of version 2."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("arguments", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    ]


class PoolProps(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [
        ("kind", c_int),
        ("handles", c_int),
        ("place", c_int),
        ("ordinal", c_int),
        ("security", c_void_p),
        ("most", c_size_t),
        ("rest", c_ubyte * 56),
    ]


_OUT = c_void_p
"""A pointer to what the call fills in."""
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int),
    "cuDeviceGetUuid": (_OUT, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxSetFlags_v2": (c_int, c_uint),
    "cuCtxGetCurrent": (_OUT,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuMemAlloc_v2": (_OUT, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemPoolCreate": (_OUT, _OUT),
    "cuMemPoolDestroy": (c_void_p,),
    "cuMemPoolSetAttribute": (c_void_p, c_int, _OUT),
    "cuMemAllocFromPoolAsync": (_OUT, c_size_t, c_void_p, c_void_p),
    "cuMemFreeAsync": (c_uint64, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, _OUT),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _OUT),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (_OUT, c_void_p, c_void_p),
    "cuLaunchKernelEx": (_OUT, c_void_p, c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (_OUT, c_void_p, c_uint64),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, _OUT),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuTensorMapEncodeTiled": (
        *(_OUT, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p),
        *(c_int, c_int, c_int, c_int),
    ),
}
CAPTURE_INFO = {
    "cuStreamGetCaptureInfo_v3": (c_void_p, _OUT, _OUT, _OUT, _OUT, _OUT, _OUT),
    "cuStreamGetCaptureInfo_v2": (c_void_p, _OUT, _OUT, _OUT, _OUT, _OUT),
}
"""The newest is asked: the older one refuses a capture with programmatic launches, and the newer is not in every driver."""
_ELEMENTS = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16"),
    *("float32 without denormals", "tfloat32"),
)
ELEMENTS = {name: number for number, name in enumerate(_ELEMENTS) if name in MAP_TYPES}
"""CUtensorMapDataType, by name of the element type."""
SWIZZLES = {swizzle: number for number, swizzle in enumerate(Swizzle)}
"""CUtensorMapSwizzle."""
