"""Slices of a convolution's positions as less padding: what a causal convolution computes and drops is not computed.

A causal convolution pads its input on both sides and drops what lies behind the last position. Position i of the result
reads x[i * stride - padding + k * dilation] for every k, so positions from b on are those of a convolution with b * stride
less padding in front, and the padding behind follows from how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.convolutions import CONVOLUTIONS, padded
from tuner.graph.def_use import DefUse, Replacement, op_name, replace_calls, static_shape
from tuner.graph.fold_constants import slices
from tuner.tvm_compat import relax


def crop_convolutions(mod: Any) -> Any:
    """The module with such slices of main's convolutions, and of these with a bias, replaced.

    Bindings must be canonical, and channels the second axis.
    """
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.strided_slice"):
        sliced, convolution, bias = _source(def_use, call)
        if convolution is not None and (padding := _padding(sliced, convolution, bias)) is not None:
            replacements[call] = _cropped(convolution, bias, padding)
    return replace_calls(mod, replacements)


def _source(def_use: DefUse, call: Any) -> tuple[list[Any], Any, Any]:
    """(slices of slices, convolution, bias): what they alone read, the bias None where there is none.

    The convolution is None where they read anything else.
    """
    sliced, found, bias = [call], _read_once(def_use, call.args[0]), None
    while op_name(found) == "relax.strided_slice":
        sliced, found = [found, *sliced], _read_once(def_use, found.args[0])
    if op_name(found) == "relax.add" and def_use.from_weights(found.args[1]):
        found, bias = _read_once(def_use, found.args[0]), found.args[1]
    return sliced, found if op_name(found) in CONVOLUTIONS else None, bias


def _read_once(def_use: DefUse, variable: Any) -> Any:
    return def_use.definition(variable) if def_use.has_one_use(variable) else None


def _padding(sliced: list[Any], convolution: Any, bias: Any) -> list[int] | None:
    """The padding of the convolution that computes what is kept: in front of every axis, then behind. None where the kept
    part is no such convolution of the whole input."""
    attrs, kept, shape = convolution.attrs, static_shape(sliced[-1]), static_shape(convolution)
    size, window = (static_shape(argument) for argument in convolution.args)
    layouts = {str(layout)[:2] for layout in (attrs.data_layout, attrs.out_layout)}
    if kept is None or shape is None or size is None or window is None or layouts != {"NC"} or kept[:2] != shape[:2]:
        return None
    biases = [1] if bias is None else static_shape(bias)
    if biases is None or any(extent != 1 for extent in biases[::-1][: len(shape) - 2]):
        return None
    places = [range(extent) for extent in shape]
    for call in sliced:
        places = [each[part] for each, part in zip(places, slices(len(shape), call.args[1:]), strict=True)]
    front, behind = [], []
    steps = zip(places[2:], size[2:], window[2:], attrs.strides, attrs.padding, attrs.dilation, strict=False)
    for positions, length, taps, stride, padding, dilation in steps:
        if positions.step != 1 or not positions:
            return None
        front.append(int(padding) - positions[0] * int(stride))
        last = (len(positions) - 1) * int(stride) - front[-1] + (taps - 1) * int(dilation)
        behind.append(last - (length - 1))
    return [*front, *behind] if min(*front, *behind) >= 0 else None


def _cropped(convolution: Any, bias: Any, padding: list[int]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        y = padded(convolution, [current(argument) for argument in convolution.args], padding)
        return y if bias is None else relax.op.add(builder.emit(y), current(bias))

    return replacement
