"""Convolutions get image rows that the tiles of this processor divide: positions beyond the last, which are cut off.

The height of a register tile divides the positions of an image row (tuner/space/tiles.py). The 19 of a 300-pixel detector's
last feature map, or the 199 of a second of speech, leave tiles of one position, which compute a third of what others do. So
the input is padded behind, up to a number of positions for which the model of micro_kernel.py expects less time, what is
beyond them included. The slice fuses with what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.channels_last import LAYOUTS
from tuner.graph.convolutions import CONVOLUTIONS, padded
from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.space.micro_kernel import Product, micro_kernels
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import relax, tvm

MOST = 8
"""Positions that are added, at most."""
GAIN = 0.85
"""Largest expected time of the even convolution, in those of the other: to cut off is another pass over the output."""
SHORTEST = 128
"""Terms of a sum from which on that pass is short beside the product."""


def even_positions(mod: Any) -> Any:
    """The module with such convolutions of main. They are channels last, and bindings canonical."""
    target = tvm.target.Target.current()
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for name in CONVOLUTIONS:
        for _, call in def_use.calls(name):
            shape, weight = static_shape(call), static_shape(call.args[1])
            layouts = [str(call.attrs.data_layout), str(call.attrs.kernel_layout)]
            if shape is None or weight is None or layouts != LAYOUTS[name] or int(call.attrs.groups) != 1:
                continue
            if math.prod(weight[:-1]) < SHORTEST or _has_another_way(call, weight):
                continue
            if more := _more(shape, weight, target):
                replacements[call] = _evened(call, shape, more)
    return replace_calls(mod, replacements)


def _has_another_way(call: Any, weight: list[int]) -> bool:
    """Whether tiles go beyond image rows, as those of a convolution of one tap, or Winograd's algorithm may be used."""
    window, steps = weight[:-2], {int(step) for step in (*call.attrs.strides, *call.attrs.dilation)}
    return steps == {1} and (math.prod(window) == 1 or window == [3, 3])


def _more(shape: list[int], weight: list[int], target: Any) -> int:
    """How many positions the last axis gets, 0 for none."""
    unit, cores = VectorUnit.with_features_of(target, 32), int(target.attrs.get("num-cores", 1))

    def expected(rows: int) -> float:
        chunks = math.prod(shape[:-2])
        product = Product(rows=rows, columns=shape[-1], steps=math.prod(weight[:-1]), chunks=chunks, group=shape[-1])
        return rows * min((kernel.cost for kernel in micro_kernels(product, unit, cores)), default=math.inf)

    rows = shape[-2]
    best = min(range(rows, rows + MOST + 1), key=expected)
    return best - rows if expected(best) <= GAIN * expected(rows) else 0


def _evened(call: Any, shape: list[int], more: int) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        padding = [int(each) for each in call.attrs.padding]
        padding[-1] += more * int(call.attrs.strides[-1])
        y = builder.emit(padded(call, [current(argument) for argument in call.args], padding))
        return relax.op.strided_slice(y, [len(shape) - 2], [0], [shape[-2]])

    return replacement
