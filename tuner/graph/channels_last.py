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
    wanted = {call: _of_equal_rank(call) for _, call in def_use.calls("relax.where") if _ranks_differ(call)}
    return relax.transform.ConvertLayout(LAYOUTS)(replace_calls(mod, wanted))


def _ranks_differ(call: Any) -> bool:
    """Whether an operand of `where` has not the result's rank, which its layout then cannot be passed to."""
    return static_shape(call) is not None and any(_is_of_lower_rank(operand, call) for operand in call.args)


def _is_of_lower_rank(operand: Any, call: Any) -> bool:
    shape = static_shape(operand)
    is_number = shape == [] and not isinstance(operand, relax.Var)
    return shape is not None and len(shape) < len(static_shape(call) or []) and not is_number


def _of_equal_rank(call: Any) -> Replacement:
    """`where` on operands with leading dimensions of one. A constant number has no layout."""

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        rank = len(static_shape(call) or [])
        operands = []
        for operand in call.args:
            x = current(operand)
            if _is_of_lower_rank(operand, call):
                shape = static_shape(operand) or []
                x = builder.emit(relax.op.reshape(x, [1] * (rank - len(shape)) + shape))
            operands.append(x)
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    return replacement
