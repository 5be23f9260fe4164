"""Look-ups fused with what surrounds them: the sum of embeddings is one kernel, from the tokens on.

TVM's FuseOps leaves a function alone whose reads depend on data. One that writes every element of its result once, at the
place of its own indices, can be fused like a permutation all the same.
"""

from __future__ import annotations

from typing import Any

from tuner.graph.def_use import op_name
from tuner.tvm_compat import PrimFunc, tirx, tvm, tvm_ffi

PATTERN = "op_pattern"
INJECTIVE, OPAQUE = 2, 8
"""TVM's OpPatternKind."""


def pattern_of(mod: Any, call: Any) -> int:
    """TVM's pattern of the function that a binding calls; OPAQUE for any other binding."""
    if op_name(call) != "relax.call_tir":
        return OPAQUE
    return int((mod[call.args[0]].attrs or {}).get(PATTERN, OPAQUE))


def mark_gathers(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, where those that look up elements are injective."""
    for variable, function in list(mod.functions.items()):
        if (
            isinstance(function, PrimFunc)
            and int((function.attrs or {}).get(PATTERN, OPAQUE)) == OPAQUE
            and computes_in_order(function)
        ):
            mod.update_func(variable, function.with_attr(PATTERN, INJECTIVE))
    return mod


def computes_in_order(function: Any) -> bool:
    """Whether a tensor function is one stage that writes each element of its result once, at its own indices."""
    stages: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, stages.append))
    (stage, *others) = sorted(stages, key=lambda each: not each.iter_vars)
    if any(each.iter_vars for each in others) or not isinstance(stage.body, tirx.BufferStore):
        return False
    store, axes = stage.body, [axis.var for axis in stage.iter_vars]
    is_spatial = all(axis.iter_type == tirx.IterVar.DataPar for axis in stage.iter_vars)
    in_order = len(store.indices) == len(axes) and all(map(lambda at, axis: at.same_as(axis), store.indices, axes))
    return is_spatial and in_order and store.buffer.same_as(function.params[-1])
