"""Indices of 32 bits where a schedule asks for a loop in parts (tuner/space/pieces.py), for CPUs.

TVM remembers the loop to be divided (LoopPartition) by its variable, and gives loops of 64 bits new variables just before,
so that it divides none of them.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import PARTITION_HINT, IRModule, structural_walk, tirx

_MAIN = "main"


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    found: list[Any] = []
    structural_walk(function.body, (tirx.For, lambda loop: found.extend([loop] * (PARTITION_HINT in loop.annotations))))
    if not found:
        return function
    return tirx.transform.ForceNarrowIndexToInt32()(IRModule({_MAIN: function}))[_MAIN]


NARROW_INDICES = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.NarrowIndices")
