"""Infinities and NaN of bfloat16 as casts of those of float32, for CUDA C++.

TVM 0.27 writes them as numbers that C++ does not know (`inff`).
"""

from __future__ import annotations

import math
from typing import Any

from tuner.tvm_compat import tirx, tvm_ffi


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.FloatImm, _known)])
    return function if body.same_as(function.body) else function.with_body(body)


KNOWN_CONSTANTS = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.KnownConstants")
"""The pass. The last before code is generated: TVM's simplifier would make constants of the casts again."""


def _known(constant: Any) -> Any:
    if str(constant.ty.dtype) != "bfloat16" or math.isfinite(constant.value):
        return constant
    return tirx.Cast("bfloat16", tirx.const(float(constant.value), "float32"))
