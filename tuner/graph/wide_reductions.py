"""Reductions of whole numbers of 8 and 16 bits, in 32 bits: among them `any` and `all`, which are extrema of bytes.

Threads of a warp exchange 32 bits, so others are combined by one thread after another (tuner/space/gpu/rows.py). Extrema of
wider numbers are the same, and sums and products, of numbers without a sign since these wrap around, are cut off to what
they would have wrapped around to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls
from tuner.tvm_compat import relax

REDUCTIONS = {"relax.max": "int32", "relax.min": "int32", "relax.sum": "uint32", "relax.prod": "uint32"}
"""Operator -> the type in which it reduces."""
NARROW = frozenset({"int8", "uint8", "int16", "uint16"})


def reduce_in_32_bits(mod: Any) -> Any:
    """The module with these reductions of main in 32 bits. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    wanted = {
        call: _replacement(call, wide)
        for name, wide in REDUCTIONS.items()
        for _, call in def_use.calls(name)
        if str(call.args[0].ty.dtype) in NARROW
    }
    return replace_calls(mod, wanted)


def _replacement(call: Any, dtype: str) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        wide = builder.emit(relax.op.astype(current(call.args[0]), dtype))
        reduced = builder.emit(relax.Call(call.op, [wide], call.attrs, call.ty_args))
        return relax.op.astype(reduced, call.ty.dtype)

    return replacement
