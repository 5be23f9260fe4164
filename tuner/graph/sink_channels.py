"""Transposes behind convolutions of bytes go behind what is element-wise: f(transpose(x), c) becomes transpose(f(x, c')).

Convolutions of bytes have their channels last (tuner/ingest/onnx/words.py), and what follows in a quantised network, scales,
biases, rectifiers, residuals and the next quantisation, has them second. Where it is computed as it lies, it is fused into
the convolution, which then writes bytes. Pools and means are taken as it lies, too, and what makes words of bytes for the
next convolution reads them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import (
    DefUse,
    Replacement,
    definition,
    op_name,
    permutation,
    replace_calls,
    reshaped,
    static_shape,
)
from tuner.graph.turned_params import reading_turned
from tuner.tvm_compat import relax

CONVOLUTION, WORDS = "convolution_of_bytes", "words_of_image"
"""How the tensor functions of such a convolution, and of what makes words of its data, begin to be called."""
POOLS = frozenset(f"relax.nn.{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3))
WITH_SCALES = frozenset({"relax.quantize", "relax.dequantize"})
ELEMENTWISE = WITH_SCALES | {
    f"relax.{name}"
    for name in (
        *("add", "astype", "clip", "divide", "maximum", "minimum", "multiply", "round", "subtract"),
        *("nn.leakyrelu", "nn.relu", "nn.silu", "sigmoid", "tanh"),
    )
}


def sink_channels(mod: Any) -> Any:
    """The module with such operators of main before the transpose. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    moved: dict[Any, list[int]] = {}
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.values.items():
        if _source(def_use, call):
            moved[variable] = permutation(call)
        elif op_name(call) in ELEMENTWISE and (axes := _axes(call, moved)) is not None:
            moved[variable] = axes
            replacements[call] = _sunk(call, axes, [argument in moved for argument in call.args])
        elif (axes := moved.get(call.args[0]) if isinstance(call, relax.Call) and call.args else None) is None:
            continue
        elif op_name(call) in POOLS and call.attrs.layout == call.attrs.out_layout:
            moved[variable] = axes
            replacements[call] = _pooled(call, axes)
        elif op_name(call) == "relax.mean" and call.attrs.keepdims and call.attrs.axis is not None:
            moved[variable] = axes
            replacements[call] = _averaged(call, axes)
    return _with_words(replace_calls(mod, replacements))


def _source(def_use: DefUse, call: Any) -> bool:
    """Whether a call transposes what a convolution of bytes gave, with or without its zero point's part."""
    if not permutation(call):
        return False
    found = def_use.definition(call.args[0])
    if op_name(found) == "relax.subtract":
        found = def_use.definition(found.args[0])
    return op_name(found) == "relax.call_tir" and str(found.args[0].name_hint).startswith(CONVOLUTION)


def _axes(call: Any, moved: dict[Any, list[int]]) -> list[int] | None:
    """The axes of the transposes that an operator reads, which all are one, and whose shape its result has; else None."""
    found = [moved[argument] for argument in call.args if argument in moved]
    if not found or any(axes != found[0] for axes in found):
        return None
    shape, shapes = static_shape(call), [static_shape(argument) for argument in call.args]
    for argument, each in zip(call.args, shapes, strict=True):
        if shape is None or each is None or (argument in moved and each != shape):
            return None
        if argument not in moved and op_name(call) in WITH_SCALES and math.prod(each) != 1:
            return None
    return found[0]


def _sunk(call: Any, axes: list[int], carries: list[bool]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        arguments = []
        for argument, carried in zip(call.args, carries, strict=True):
            value, shape = current(argument), static_shape(argument) or []
            if carried:
                value = definition(value, builder.lookup_binding).args[0]
            elif math.prod(shape) != 1:
                wide = builder.emit(reshaped(value, [1] * (len(axes) - len(shape)) + shape))
                value = builder.emit(relax.op.permute_dims(wide, [axes.index(at) for at in range(len(axes))]))
            arguments.append(value)
        found = builder.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))
        return relax.op.permute_dims(found, axes)

    return replacement


def _pooled(call: Any, axes: list[int]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        attrs = call.attrs
        layout = "".join(str(attrs.layout)[axes.index(at)] for at in range(len(axes)))
        x = definition(current(call.args[0]), builder.lookup_binding).args[0]
        pool = getattr(relax.op.nn, op_name(call).rsplit(".", 1)[1])
        sizes = [[int(one) for one in getattr(attrs, name)] for name in ("pool_size", "strides", "padding", "dilation")]
        found = builder.emit(pool(x, *sizes, bool(attrs.ceil_mode), bool(attrs.count_include_pad), layout))
        return relax.op.permute_dims(found, axes)

    return replacement


def _averaged(call: Any, axes: list[int]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x = definition(current(call.args[0]), builder.lookup_binding).args[0]
        over = [axes[int(axis) % len(axes)] for axis in call.attrs.axis]
        return relax.op.permute_dims(builder.emit(relax.op.mean(x, over, keepdims=True)), axes)

    return replacement


def _with_words(mod: Any) -> Any:
    """The module whose words are made of what is transposed for them, before it is."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.call_tir"):
        if not str(call.args[0].name_hint).startswith(WORDS):
            continue
        if axes := permutation(permuted := def_use.definition(call.args[1].fields[0])):
            order = tuple(axes.index(at) for at in range(len(axes)))
            function = reading_turned(mod[call.args[0]], {0: order})
            replacements[call] = _making_words(call, permuted.args[0], function)
    return replace_calls(mod, replacements)


def _making_words(call: Any, data: Any, function: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        variable = builder.add_func(function, WORDS)
        given = relax.Tuple([current(data), *map(current, list(call.args[1].fields)[1:])])
        return relax.Call(call.op, [variable, given, *call.args[2:]], call.attrs, call.ty_args)

    return replacement
