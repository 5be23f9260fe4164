"""Transposed convolutions, channels last, decomposed into what computes each output.

    y[n, p, o] = sum over k, i of x[n, (p + pad - k * dilation) / stride, i] * w[k, i, o], where the division is exact

in as many spatial dimensions as there are. TVM lowers them in NCHW alone and inserts zeros between the inputs: every
output is then a whole window of products, most of them with zeros. There are three ways without.

*Phases.* With p + pad = stride * q + r and k = r + stride * j the sum is a convolution over q - j with a channel for each
pair of r and o: one of stride one and a window of window / stride, whose channels are then moved to their places. In one
dimension they lie there already. (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.)

*Phases in place.* In two dimensions such a convolution computes a border that is cut off: 8 by 8 outputs of a window of 4
take 25 positions in place of 16. Where the stride divides window and output, one function computes all phases, each a batch
of its contraction, whose outputs lie at their places.

*Conditions.* Where the stride does not divide the window, phases multiply with zeros. Then the zeros are a condition on the
remainder of the division, which is a constant where a register tile unrolls the window (tuner/space/tiles.py). The window is
flipped beforehand, in the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.epilogue import epilogue_step
from tuner.graph.one_function import HALF, SUMS
from tuner.tvm_compat import relax, te, tirx, topi

_LAYOUT = {1: "NWC", 2: "NHWC"}
_KERNEL = {1: "WIO", 2: "HWIO"}
LAYOUTS = {f"relax.nn.conv{rank}d_transpose": [_LAYOUT[rank], _KERNEL[rank]] for rank in _LAYOUT}
"""Operator -> layouts of data and kernel. An operator in other layouts is left as it is."""
MOST_WASTE = 1.35
"""Products of phases for each one that is needed, at most."""
OUT_ELEMWISE_FUSABLE = 4
"""TVM's OpPatternKind kOutEWiseFusable: element-wise consumers may be fused behind the operator."""


def decompose_conv_transpose(mod: Any) -> Any:
    """The module with the transposed convolutions of main as tensor functions. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name, (layout, kernel) in LAYOUTS.items():
        for variable, call in def_use.calls(name):
            attrs = call.attrs
            known = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (layout, kernel, layout)
            if not known or any(static_shape(argument) is None for argument in call.args):
                continue
            if not _has_phases(call) and _divides(call):
                steps = _epilogue(def_use, variable)
                replacements[steps[-1] if steps else call] = _phases_in_place(call, steps)
            else:
                replacements[call] = _phases(call) if _has_phases(call) else _conditions(call)
    return replace_calls(mod, replacements)


def _has_phases(call: Any) -> bool:
    """Whether phases waste little: in several dimensions only where windows do not overlap."""
    window = (static_shape(call.args[1]) or [])[:-2]
    strides = [int(step) for step in call.attrs.strides]
    waste = math.prod(-(-k // step) * step / k for k, step in zip(window, strides, strict=True))
    one_by_one = all(int(step) == 1 for step in call.attrs.dilation) and int(call.attrs.groups) == 1
    apart = len(window) == 1 or all(k <= step for k, step in zip(window, strides, strict=True))
    return one_by_one and apart and math.prod(strides) > 1 and waste <= MOST_WASTE


def _divides(call: Any) -> bool:
    """Whether every phase has the same number of taps, and the same number of outputs."""
    window, strides = (static_shape(call.args[1]) or [])[:-2], [int(step) for step in call.attrs.strides]
    one_by_one = all(int(step) == 1 for step in call.attrs.dilation) and int(call.attrs.groups) == 1
    extents = [*window, *(static_shape(call) or [])[1:-1]]
    return (
        one_by_one
        and math.prod(strides) > 1
        and not any(n % step for n, step in zip(extents, 2 * strides, strict=True))
    )


def _epilogue(def_use: DefUse, variable: Any) -> list[Any]:
    """The element-wise calls that follow, one on the result of the other, with an operand for each channel at most."""
    steps: list[Any] = []
    while def_use.has_one_use(variable):
        variable = def_use.users[variable][-1]
        call = def_use.values.get(variable)
        step = None if call is None else epilogue_step(def_use, call)
        if step is None or (step.operand is not None and any(n != 1 for n in (static_shape(step.operand) or [0])[:-1])):
            break
        steps.append(call)
    return steps


def _phases_in_place(call: Any, steps: list[Any]) -> Replacement:
    """Every phase as a product of its own, in one function: its outputs lie at their places. The element-wise steps are
    computed on it as it is."""

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        emit, op = builder.emit, relax.op
        x, weight = (current(argument) for argument in call.args)
        *window, inputs, outputs = static_shape(weight) or []
        strides, rank = [int(step) for step in call.attrs.strides], len(window)
        before = [int(pad) for pad in call.attrs.padding][:rank]
        taps = [k // step for k, step in zip(window, strides, strict=True)]
        split = [extent for pair in zip(taps, strides, strict=True) for extent in pair]
        weight = emit(op.reshape(weight, [*split, inputs, outputs]))
        for axis, (step, pad) in enumerate(zip(strides, before, strict=True)):
            phases = relax.const(np.array([(phase + pad) % step for phase in range(step)], "int64"))
            weight = emit(op.take(emit(op.flip(weight, 2 * axis)), phases, axis=2 * axis + 1, mode="clip"))
        even, odd = list(range(0, 2 * rank, 2)), list(range(1, 2 * rank, 2))
        weight = emit(op.permute_dims(weight, [*odd, *even, 2 * rank, 2 * rank + 1]))
        placeholders = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (x, weight)]
        shape = static_shape(call) or []
        result = _sum_of_phases(placeholders[0], placeholders[1], shape, strides, before)
        y = emit(_as_function(builder, call, placeholders, (x, weight), result))
        for step in steps:
            operands = [emit(op.reshape(current(each), (static_shape(each) or [])[-1:])) for each in step.args[1:]]
            y = emit(relax.Call(step.op, [y, *operands], step.attrs, step.ty_args))
        return op.reshape(y, shape)

    return replacement


def _sum_of_phases(x: Any, weight: Any, shape: list[int], strides: list[int], before: list[int]) -> Any:
    """The output with each axis split into places and phases; weight [phases..., taps..., inputs, outputs], taps flipped."""
    rank = len(strides)
    taps, inputs = [int(extent) for extent in weight.shape[rank : 2 * rank]], int(weight.shape[2 * rank])
    places = [out // step for out, step in zip(shape[1:-1], strides, strict=True)]
    reach = [
        count - 1 + (step - 1 + pad) // step for count, step, pad in zip(places, strides, before, strict=True)
    ]  # the last input that is read
    low = [count - 1 for count in taps]
    high = [max(0, last - int(size) + 1) for last, size in zip(reach, list(x.shape)[1:-1], strict=True)]
    padded = topi.nn.pad(x, [0, *low, 0], [0, *high, 0])
    reduced = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(taps)]
    channel = te.reduce_axis((0, inputs), name="i")

    def product(image: Any, *index: Any) -> Any:
        *position, output = index
        place, phase = position[::2], position[1::2]
        moved = [(each + pad) // step for each, pad, step in zip(phase, before, strides, strict=True)]
        at = [p + m + tap for p, m, tap in zip(place, moved, reduced, strict=True)]
        factors = padded[(image, *at, channel)], weight[(*phase, *reduced, channel, output)]
        left, right = (each.astype(SUMS) for each in factors) if str(x.dtype) in HALF else factors
        return te.sum(left * right, axis=[*reduced, channel])

    split = [extent for pair in zip(places, strides, strict=True) for extent in pair]
    return te.compute((shape[0], *split, shape[-1]), product, name="transposed")


def _phases(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        emit, op = builder.emit, relax.op
        x, weight = (current(argument) for argument in call.args)
        batch, *size, inputs = static_shape(x) or []
        *window, _, outputs = static_shape(weight) or []
        out = (static_shape(call) or [])[1:-1]
        strides, rank = [int(step) for step in call.attrs.strides], len(window)
        before = [int(pad) for pad in call.attrs.padding][:rank]
        taps = [-(-k // step) for k, step in zip(window, strides, strict=True)]
        places = [
            max(length, -(-(extent + pad) // step))
            for length, extent, pad, step in zip(size, out, before, strides, strict=True)
        ]
        whole = [count * step for count, step in zip(taps, strides, strict=True)]
        behind = [length - k for length, k in zip(whole, window, strict=True)]
        if any(behind):
            weight = emit(op.nn.pad(weight, [width for each in (*behind, 0, 0) for width in (0, each)]))
        split = [extent for pair in zip(taps, strides, strict=True) for extent in pair]
        weight = emit(op.reshape(weight, [*split, inputs, outputs]))
        for axis in range(rank):
            weight = emit(op.flip(weight, 2 * axis))
        even, odd = list(range(0, 2 * rank, 2)), list(range(1, 2 * rank, 2))
        weight = emit(op.permute_dims(weight, [*even, 2 * rank, *odd, 2 * rank + 1]))
        weight = emit(op.reshape(weight, [*taps, inputs, math.prod(strides) * outputs]))
        padding = [count - 1 for count in taps] + [n - length for n, length in zip(places, size, strict=True)]
        layouts = {"data_layout": _LAYOUT[rank], "kernel_layout": _KERNEL[rank], "out_layout": _LAYOUT[rank]}
        convolution = {1: op.nn.conv1d, 2: op.nn.conv2d}[rank]
        y = emit(convolution(x, weight, padding=padding, out_dtype=str(call.ty.dtype), **layouts))
        if rank > 1:
            y = emit(op.reshape(y, [batch, *places, *strides, outputs]))
            beside = [axis for at in range(rank) for axis in (1 + at, 1 + rank + at)]
            y = emit(op.permute_dims(y, [0, *beside, 2 * rank + 1]))
        y = emit(op.reshape(y, [batch, *(n * step for n, step in zip(places, strides, strict=True)), outputs]))
        ends = [pad + extent for pad, extent in zip(before, out, strict=True)]
        return op.strided_slice(y, list(range(1, 1 + rank)), before, ends)

    return replacement


def _conditions(call: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, weight = (current(argument) for argument in call.args)
        for axis in range(len(static_shape(weight) or ()) - 2):
            weight = builder.emit(relax.op.flip(weight, axis))
        placeholders = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (x, weight)]
        result = _sum(placeholders[0], placeholders[1], static_shape(call) or [], call.attrs)
        return _as_function(builder, call, placeholders, (x, weight), result)

    return replacement


def _as_function(builder: Any, call: Any, placeholders: list[Any], arguments: tuple[Any, ...], result: Any) -> Any:
    """The result as a tensor function of the arguments, in the type of the call."""
    function = te.create_prim_func([*placeholders, result], index_dtype_override="int64")
    function = function.without_attr("global_symbol").with_attr("op_pattern", OUT_ELEMWISE_FUSABLE)
    shape = [int(extent) for extent in result.shape]
    name = str(call.op.name).rpartition(".")[2]
    sums = relax.call_tir(builder.add_func(function, name), arguments, relax.TensorType(shape, result.dtype))
    return sums if result.dtype == call.ty.dtype else relax.op.astype(builder.emit(sums), call.ty.dtype)


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
        left, right = (each.astype(SUMS) for each in factors) if str(x.dtype) in HALF else factors
        return te.sum(left * right, axis=[*taps, channel])

    return te.compute(tuple(shape), product, name="transposed")
