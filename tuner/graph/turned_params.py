"""Tensor functions that read a parameter with its axes in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.tvm_compat import IRModule, Schedule, tirx

Order = tuple[int, ...]
"""Of a tensor's axes, as they are wanted."""


def reading_turned(function: Any, orders: Mapping[int, Order]) -> Any:
    """The tensor function whose parameters at these places have their axes in these orders, and which computes the same."""
    schedule = Schedule(IRModule({"main": function.with_attr("global_symbol", "main")}), error_render_level="none")
    for place, order in orders.items():
        if list(order) == sorted(order):
            continue
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            param = schedule.mod["main"].params[place]
            at = next((n for n, read in enumerate(schedule.get(block).reads) if read.source.same_as(param)), None)
            if at is not None:
                schedule.transform_layout(block, ("read", at), _turning(order))
                break  # The layout is the buffer's, for all that read it.
    made = schedule.mod["main"]
    return tirx.PrimFunc(made.params, made.body, made.ret_type, attrs=function.attrs)  # with the type of its parameters


def _turning(order: Order) -> Callable[..., list[Any]]:
    return lambda *axes: [axes[one] for one in order]
