"""Interpolations are computed once: an element that several elements of one tensor are read for is stored.

TVM calls a bilinear resize injective, as a transpose is, and fuses it into what only moves elements. A concatenation of four
resized feature maps then decides for every element which of the four it computes, and a vector of such elements is none.
A resize along one axis (resizes.py), whose places are constants, it would leave alone.
"""

from __future__ import annotations

from typing import Any

from tuner.graph.gathers import INJECTIVE, OPAQUE, PATTERN, computes_in_order
from tuner.tvm_compat import PrimFunc, ir, tirx, tvm_ffi

OUT_ELEMWISE_FUSABLE = 4
"""TVM's OpPatternKind: element-wise operators that follow are fused, and nothing else."""


def mark_resamplings(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, where into no other are those fused that read several elements
    of a tensor for one of theirs."""
    for variable, function in list(mod.functions.items()):
        if not isinstance(function, PrimFunc):
            continue
        pattern = (function.attrs or {}).get(PATTERN)
        if (pattern == INJECTIVE or (pattern == OPAQUE and computes_in_order(function))) and _resamples(function):
            mod.update_func(variable, function.with_attr(PATTERN, OUT_ELEMWISE_FUSABLE))
    return mod


def _resamples(function: Any) -> bool:
    """Whether some element is computed from several elements of one tensor, of more dimensions than one."""
    found = False

    def of_store(store: Any) -> None:
        nonlocal found
        loads: list[Any] = []
        tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
        tensors = [load.source for load in loads if len(load.source.shape) > 1]
        found = found or any(a.same_as(b) for at, a in enumerate(tensors) for b in tensors[:at])

    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, of_store))
    return found
