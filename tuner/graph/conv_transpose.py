"""Transposed convolutions, channels last, decomposed into the sum that computes each output.

    y[n, p, o] = sum over k, i of x[n, (p + pad - k * dilation) / stride, i] * w[k, i, o], where the division is exact

in as many spatial dimensions as there are. TVM lowers them in NCHW alone and inserts zeros between the inputs: every
output is then a whole window of products, most of them with zeros. Here the zeros are a condition on the remainder of the
division, which is a constant where a register tile unrolls the window (tuner/space/tiles.py). The window is flipped
beforehand, in the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.half_precision import HALF, SUM
from tuner.tvm_compat import relax, te, tirx, topi

LAYOUTS = {"relax.nn.conv1d_transpose": ["NWC", "WIO"], "relax.nn.conv2d_transpose": ["NHWC", "HWIO"]}
"""Operator -> layouts of data and kernel. An operator in other layouts is left as it is."""
OUT_ELEMWISE_FUSABLE = 4
"""TVM's OpPatternKind kOutEWiseFusable: element-wise consumers may be fused behind the operator."""


def decompose_conv_transpose(mod: Any) -> Any:
    """The module with the transposed convolutions of main as tensor functions. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name, (layout, kernel) in LAYOUTS.items():
        for _, call in def_use.calls(name):
            attrs = call.attrs
            known = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (layout, kernel, layout)
            if known and all(static_shape(argument) is not None for argument in call.args):
                replacements[call] = _decomposed(call)
    return replace_calls(mod, replacements)


def _decomposed(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, weight = (current(argument) for argument in call.args)
        for axis in range(len(static_shape(weight) or ()) - 2):
            weight = builder.emit(relax.op.flip(weight, axis))
        name = str(call.op.name).rpartition(".")[2]
        placeholders = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (x, weight)]
        result = _sum(placeholders[0], placeholders[1], static_shape(call) or [], call.attrs)
        function = te.create_prim_func([*placeholders, result], index_dtype_override="int64")
        function = function.without_attr("global_symbol").with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
        sums = relax.call_tir(
            builder.add_func(function, name), (x, weight), relax.TensorType(call.ty.shape, result.dtype)
        )
        return sums if result.dtype == call.ty.dtype else relax.op.astype(builder.emit(sums), call.ty.dtype)

    return replacement


def _sum(x: Any, weight: Any, shape: list[int], attrs: Any) -> Any:
    """The output tensor, of a window that is flipped already; of half precision in float32."""
    *window, inputs, outputs = (int(extent) for extent in weight.shape)
    strides, dilation = ([int(step) for step in steps] for steps in (attrs.strides, attrs.dilation))
    # Zeros in front of the first input, where inputs lie a stride apart. A negative count means that outputs are cropped.
    before = [
        (extent - 1) * step - int(pad) for extent, step, pad in zip(window, dilation, attrs.padding, strict=False)
    ]
    low = [max(0, math.ceil(zeros / stride)) for zeros, stride in zip(before, strides, strict=True)]
    shift = [pad * stride - zeros for pad, stride, zeros in zip(low, strides, before, strict=True)]
    reach = [
        (out - 1 + (extent - 1) * step + moved) // stride + 1
        for out, extent, step, moved, stride in zip(shape[1:-1], window, dilation, shift, strides, strict=True)
    ]
    high = [max(0, last - pad - int(size)) for last, pad, size in zip(reach, low, list(x.shape)[1:-1], strict=True)]
    padded = topi.nn.pad(x, [0, *low, 0], [0, *high, 0]) if any((*low, *high)) else x
    groups = int(attrs.groups)
    taps = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(window)]
    channel = te.reduce_axis((0, inputs // groups), name="i")
    zero = tirx.const(0.0, x.dtype)

    def product(image: Any, *index: Any) -> Any:
        *position, output = index
        at = [
            place + tap * step + moved for place, tap, step, moved in zip(position, taps, dilation, shift, strict=True)
        ]
        from_channel, to = channel, output
        if groups > 1:
            from_channel, to = output // outputs * (inputs // groups) + channel, output % outputs
        read = padded[(image, *(i // stride for i, stride in zip(at, strides, strict=True)), from_channel)]
        hits = [i % stride == 0 for i, stride in zip(at, strides, strict=True) if stride > 1]
        data = tirx.if_then_else(tirx.all(*hits), read, zero) if hits else read
        factors = data, weight[(*taps, from_channel, to)]
        left, right = (each.astype(SUM) for each in factors) if str(x.dtype) in HALF else factors
        return te.sum(left * right, axis=[*taps, channel])

    return te.compute(tuple(shape), product, name="transposed")
