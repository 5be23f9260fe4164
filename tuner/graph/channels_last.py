"""Convolutions in the layout channels last, and everything between them that can be.

TVM's ConvertLayout passes the layout of a convolution on through the operators that tell it how, and transposes before and
after every other one: between two convolutions these are two passes through memory, and what stands behind the first of
them fuses into neither. It knows no `where`, in whose form PReLU and its like come, and no leaky ReLU. They are element by
element as the ternary and unary operators that it knows, so they are told to pass layouts as those do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph import conv_transpose
from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.epilogue import BINARY
from tuner.tvm_compat import pass_layouts_like, relax

LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "WIO"],
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
    **conv_transpose.LAYOUTS,
}

pass_layouts_like("relax.where", "relax.ewise_fma")
pass_layouts_like("relax.nn.leakyrelu", "relax.nn.relu")


def channels_last(mod: Any) -> Any:
    """The module with the convolutions of main, and what is between them, channels last. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    if not any(True for name in LAYOUTS for _ in def_use.calls(name)):
        return mod
    wanted = [call for _, call in def_use.calls("relax.where") if _of_lower_rank(call)]
    wanted += [call for name in BINARY for _, call in def_use.calls(name) if _scales_channels(call)]
    return relax.transform.ConvertLayout(LAYOUTS)(replace_calls(mod, {call: _of_equal_rank(call) for call in wanted}))


def _scales_channels(call: Any) -> bool:
    """Whether an operator of two tensors has an operand [C, 1, ...] beside one of [N, C, ...], as layer scale does."""
    shapes, result = [static_shape(operand) for operand in call.args], static_shape(call) or []
    return len(result) > 2 and [result[1], *[1] * (len(result) - 2)] in shapes


def _of_lower_rank(call: Any) -> set[int]:
    """Operands that have not the result's rank, which its layout then cannot be passed to. A constant number has no layout,
    and needs none; but where both choices of `where` are numbers, as in a mask of 0 and minus infinity, TVM takes them for a
    majority that has none, so one of them gets the rank."""
    shapes = [static_shape(operand) for operand in call.args]
    if (result := static_shape(call)) is None or None in shapes:
        return set()
    numbers = {i for i, operand in enumerate(call.args) if shapes[i] == [] and not isinstance(operand, relax.Var)}
    if numbers >= {1, 2}:
        numbers.remove(1)
    return {i for i, shape in enumerate(shapes) if len(shape or []) < len(result)} - numbers


def _of_equal_rank(call: Any) -> Replacement:
    """The operator on operands with leading dimensions of one."""

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        rank, lower = len(static_shape(call) or []), _of_lower_rank(call)
        operands = []
        for i, operand in enumerate(call.args):
            x = current(operand)
            if i in lower:
                shape = static_shape(operand) or []
                x = builder.emit(relax.op.reshape(x, [1] * (rank - len(shape)) + shape))
            operands.append(x)
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    return replacement
