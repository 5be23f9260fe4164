"""Convolutions of all dimensions: their operators, and the same one with other padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.tvm_compat import relax

CONVOLUTIONS: dict[str, Callable[..., Any]] = {
    "relax.nn.conv1d": relax.op.nn.conv1d,
    "relax.nn.conv2d": relax.op.nn.conv2d,
    "relax.nn.conv3d": relax.op.nn.conv3d,
}


def padded(convolution: Any, arguments: list[Any], padding: list[int]) -> Any:
    """The convolution of the arguments with other padding."""
    attrs = convolution.attrs
    return CONVOLUTIONS[str(convolution.op.name)](
        *arguments,
        strides=attrs.strides,
        padding=padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype or None,
    )
