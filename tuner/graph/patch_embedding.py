"""Patch embeddings: convolutions whose stride is their kernel's size, as products of matrices.

The patches of such a convolution do not overlap: it reads every element of the image once. With the image seen as
[channels, rows, kernel rows, columns, kernel columns] it is an einsum with the weights, which lowers to one block that
multiplies and accumulates, whatever the layout of the image is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, permutation, replace_calls, static_shape
from tuner.graph.reshape_transpose import Step, followed
from tuner.tvm_compat import relax


def patch_embedding(mod: Any) -> Any:
    """The module with every convolution of main whose patches do not overlap, and its bias, as an einsum."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.nn.conv2d"):
        if (patches := _Patches.found(def_use, variable, call)) is not None:
            replacements[patches.last] = patches
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Patches:
    conv: Any
    channels_last: Any
    """The image as [rows, columns, channels], where main permuted such a one; else None."""
    bias: Any
    """Of the addition behind the convolution; None where there is none."""
    last: Any
    """The call that the einsum replaces: the convolution, or the addition of its bias."""

    @staticmethod
    def found(def_use: DefUse, variable: Any, call: Any) -> _Patches | None:
        data, kernel = (static_shape(argument) for argument in call.args)
        attrs = call.attrs
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        if data is None or kernel is None or layouts != ("NCHW", "OIHW", "NCHW") or int(attrs.groups) != 1:
            return None
        size = kernel[2:]
        windows = [int(extent) for extent in attrs.strides] == size and max(size) > 1 and data[0] == 1
        if not windows or any(map(int, attrs.padding)) or any(int(extent) != 1 for extent in attrs.dilation):
            return None
        if any(extent % step for extent, step in zip(data[2:], size, strict=True)) or data[1] == 1:
            return None
        if len({str(each.ty.dtype) for each in (*call.args, call)}) > 1:
            return None
        last, bias = call, None
        if def_use.has_one_use(variable):
            user: Any = def_use.values.get(def_use.users[variable][-1])
            if op_name(user) == "relax.add" and user.args[0].same_as(variable):
                along = static_shape(user.args[1])
                if along in ([1, kernel[0], 1, 1], [kernel[0], 1, 1]) and def_use.from_weights(user.args[1]):
                    last, bias = user, user.args[1]
        return _Patches(conv=call, channels_last=_channels_last(def_use, call.args[0]), bias=bias, last=last)

    def __call__(self, builder: Any, current: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        weight = current(self.conv.args[1])
        _, channels, height, width = static_shape(self.conv.args[0]) or []
        outputs, _, down, across = static_shape(weight) or []
        tall, wide = height // down, width // across
        if self.channels_last is None:
            cut = emit(relax.op.reshape(current(self.conv.args[0]), [channels, tall, down, wide, across]))
            weight = emit(relax.op.permute_dims(weight, [1, 2, 3, 0]))
            y = emit(relax.op.einsum((cut, weight), "chpwq,cpqo->hwo"))
        else:
            cut = emit(relax.op.reshape(current(self.channels_last), [tall, down, wide, across, channels]))
            weight = emit(relax.op.permute_dims(weight, [2, 3, 1, 0]))
            y = emit(relax.op.einsum((cut, weight), "hpwqc,pqco->hwo"))
        if self.bias is not None:
            y = emit(relax.op.add(y, emit(relax.op.reshape(current(self.bias), [outputs]))))
        return emit(relax.op.permute_dims(emit(relax.op.reshape(y, [1, tall, wide, outputs])), [0, 3, 1, 2]))


def _channels_last(def_use: DefUse, image: Any) -> Any:
    """The tensor [height, width, channels] that main permuted into an image [1, channels, height, width], if it did."""
    steps: list[Step] = []
    x = image
    while op_name(definition := def_use.definition(x)) == "relax.reshape" or permutation(definition):
        steps.insert(
            0, ("permute", permutation(definition)) if permutation(definition) else ("reshape", static_shape(x) or [])
        )
        x = definition.args[0]
    source, shape = static_shape(x), static_shape(image) or []
    if source is None or not steps or (isinstance(x, relax.Var) and x not in def_use.values):
        return None
    wanted = followed([*shape[2:], shape[1]], [("permute", [2, 0, 1])])
    return x if followed(source, steps) == wanted else None
