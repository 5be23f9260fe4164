"""Residual streams in one layout: x + y where x lies in memory permuted, and so does y, behind other reshapes.

Attention on an image adds the tokens of a product, [rows * columns, channels], to an image whose convolutions are channels
last. The graph has channels first: both operands are permuted for the sum, and its result is permuted back. As
permute(x) + y = permute(x + inverse(y)), and the inverse permutation of y moves no element, the sum is made in the layout in
which both lie, and simplification removes the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.graph.def_use import DefUse, Replacement, op_name, permutation, replace_calls, reshaped, static_shape
from tuner.graph.epilogue import BINARY
from tuner.graph.reshape_transpose import Step, followed
from tuner.tvm_compat import relax


def align_layouts(mod: Any) -> Any:
    """The module with such element-wise calls of main computed in the layout of their operands; bindings canonical."""
    while True:
        def_use = DefUse(mod["main"])
        replacements: dict[Any, Replacement] = {}
        for call in def_use.values.values():
            shape = static_shape(call) if op_name(call) in BINARY else None
            if shape is not None and all(static_shape(each) == shape for each in call.args):
                found = _aligned(def_use, call, 0) or _aligned(def_use, call, 1)
                if found is not None:
                    replacements[call] = found
        if not replacements:
            return mod
        mod = relax.transform.CanonicalizeBindings()(replace_calls(mod, replacements))


def _aligned(def_use: DefUse, call: Any, place: int) -> Replacement | None:
    """The call on the source of its permuted operand number `place`; None where the other one would have to be moved."""
    permuted = def_use.definition(call.args[place])
    axes = permutation(permuted)
    source, steps = _source(def_use, call.args[1 - place])
    if not axes or all(kind != "permute" for kind, _ in steps) or def_use.from_weights(source):
        return None
    inverse = [int(axis) for axis in np.argsort(axes)]
    movement = followed(static_shape(source) or [], [*steps, ("permute", inverse)])
    if movement is None or not movement.moves_nothing:
        return None

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x = current(permuted.args[0])
        operands = [x, builder.emit(reshaped(current(source), static_shape(x) or []))]
        y = relax.Call(call.op, operands if place == 0 else operands[::-1], call.attrs, call.ty_args)
        return relax.op.permute_dims(builder.emit(y), axes)

    return replacement


def _source(def_use: DefUse, x: Any) -> tuple[Any, list[Step]]:
    """What x is moved from by reshapes and permutations, and these in order."""
    steps: list[Step] = []
    while True:
        call = def_use.definition(x)
        if (
            op_name(call) == "relax.reshape"
            and static_shape(call) is not None
            and static_shape(call.args[0]) is not None
        ):
            steps.insert(0, ("reshape", static_shape(call) or []))
        elif permutation(call):
            steps.insert(0, ("permute", permutation(call)))
        else:
            return x, steps
        x = call.args[0]
