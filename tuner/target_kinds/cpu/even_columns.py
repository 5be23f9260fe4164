"""Products and convolutions with weights get columns that fill vectors: zeros in the weights, sliced off the result.

A register tile is as wide as vectors that divide the columns, since the layout of a weight may not grow. 58 channels have
vectors of two elements, the 50,257 words of GPT-2's vocabulary those of one: a language model's last product took thirty
times as long as PyTorch's. With AVX-512 the 116 and 232 channels of a ShuffleNet and the 1,000 classes of a SqueezeNet had
vectors half as wide as the processor's; these networks took 1.2 and 1.3 times as long. The zeros are computed once, when
weights are bound, and the slice fuses with what follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.graph.channels_last import LAYOUTS
from tuner.graph.convolutions import CONVOLUTIONS
from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import relax, tvm

LANES = 8
"""Elements that divide the columns of most products as they are."""
FEWEST = 40
"""Columns from which on they fill the processor's own vectors, where these are longer than LANES. Not of a single row, whose
product takes as long as its weights take from memory."""
WIDER = ((1024, 64), (256, 32))
"""(columns, elements): from so many columns on they become a multiple of more elements, which several vectors divide."""
SHORTEST = 48
"""Terms of a sum from which on wider vectors save more than the slice costs."""


def even_columns(mod: Any) -> Any:
    """The module with such columns in main. Convolutions are channels last, and bindings canonical."""
    def_use = DefUse(mod["main"])
    lanes = max(LANES, VectorUnit.with_features_of(tvm.target.Target.current(), 32).lanes)
    replacements: dict[Any, Replacement] = {}
    for name in ("relax.matmul", *CONVOLUTIONS):
        for _, call in def_use.calls(name):
            weight = static_shape(call.args[1])
            result = static_shape(call)
            if weight is None or result is None or def_use.from_weights(call.args[0]):
                continue
            if not def_use.from_weights(call.args[1]) or not _is_known(name, call, weight):
                continue
            filled = lanes if weight[-1] >= FEWEST and math.prod(result[:-1]) > 1 else LANES
            if weight[-1] % filled and math.prod(weight[:-1]) >= SHORTEST:
                replacements[call] = _widened(call, weight, filled)
    return replace_calls(mod, replacements)


def _is_known(name: str, call: Any, weight: list[int]) -> bool:
    """Whether the weight's last axis is that of the columns, all of which read the same."""
    if name == "relax.matmul":
        return len(weight) == 2 and len(static_shape(call.args[0]) or []) > 1
    return int(call.attrs.groups) == 1 and str(call.attrs.kernel_layout) == LAYOUTS[name][1]


def _width(columns: int, lanes: int) -> int:
    step = next((step for least, step in WIDER if columns >= least), lanes)
    return -(-columns // step) * step


def _widened(call: Any, weight: list[int], lanes: int) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, narrow = (current(argument) for argument in call.args)
        more = _width(weight[-1], lanes) - weight[-1]
        wide = builder.emit(relax.op.nn.pad(narrow, [0] * (2 * len(weight) - 1) + [more]))
        y = builder.emit(relax.Call(call.op, [x, wide], call.attrs, call.ty_args))
        return relax.op.strided_slice(y, [len(static_shape(call) or []) - 1], [0], [weight[-1]])

    return replacement
