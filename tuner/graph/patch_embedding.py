"""Patch embeddings: convolutions whose stride is their kernel's size, as products of matrices.

The patches of such a convolution do not overlap: it reads every element of the image once. With the image seen as
[rows, kernel rows, columns, kernel columns, channels] it is an einsum with the weights, which lowers to one block that
multiplies and accumulates. An image whose channels lie first is read as it lies, [channels, rows, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, movements, replace_calls, reshaped, static_shape
from tuner.graph.reshape_transpose import followed
from tuner.tvm_compat import relax

LAYOUT = ("NHWC", "HWIO", "NHWC")


def patch_embedding(mod: Any) -> Any:
    """The module with every convolution of main, in NHWC, whose patches do not overlap, as an einsum."""
    def_use = DefUse(mod["main"])
    return replace_calls(
        mod, {call: _einsum(def_use, call) for _, call in def_use.calls("relax.nn.conv2d") if _has_patches(call)}
    )


def _has_patches(call: Any) -> bool:
    data, kernel = (static_shape(argument) for argument in call.args)
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if data is None or kernel is None or layouts != LAYOUT or int(attrs.groups) != 1:
        return False
    size, image = kernel[:2], data[1:3]
    windows = [int(extent) for extent in attrs.strides] == size and max(size) > 1 and data[0] == 1
    if not windows or any(map(int, attrs.padding)) or any(int(extent) != 1 for extent in attrs.dilation):
        return False
    if any(extent % step for extent, step in zip(image, size, strict=True)) or data[3] == 1:
        return False
    return len({str(each.ty.dtype) for each in (*call.args, call)}) == 1


def _einsum(def_use: DefUse, call: Any) -> Replacement:
    data, weight = call.args
    _, height, width, channels = static_shape(data) or []
    down, across, _, outputs = static_shape(weight) or []
    tall, wide = height // down, width // across
    source, steps = movements(def_use, data)
    turned = followed([channels, height, width], [("permute", [1, 2, 0])])
    channels_first = followed(static_shape(source) or [], steps) == turned

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        if channels_first:
            cut = emit(reshaped(current(source), [channels, tall, down, wide, across]))
            y = emit(
                relax.op.einsum((cut, emit(relax.op.permute_dims(current(weight), [2, 0, 1, 3]))), "chpwq,cpqo->hwo")
            )
        else:
            cut = emit(reshaped(current(data), [tall, down, wide, across, channels]))
            y = emit(relax.op.einsum((cut, current(weight)), "hpwqc,pqco->hwo"))
        return relax.op.reshape(y, [1, tall, wide, outputs])

    return replacement
