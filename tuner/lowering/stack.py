"""Small buffers on the stack of the function that uses them, for CPUs.

TVM takes a buffer of 1 KiB or more from its runtime, by a call before and a call after its use. For the sums of a register
tile that is every tile, and LLVM, which turns a buffer on the stack into registers, leaves the other in memory: a tile of
14 by 2 vectors of AVX-512, which fits the registers, took a fifth longer than one of 7 by 2, whose buffer is small enough.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.lowering.dot_products import INSTRUCTED
from tuner.lowering.long_values import LONG_VALUES_IN_BUFFERS
from tuner.lowering.narrow_indices import NARROW_INDICES
from tuner.lowering.sines import SINES_EXPANDED
from tuner.tvm_compat import register_pipeline, tirx, tvm, tvm_ffi

PIPELINE = "pitchpipe_cpu"
"""Name of TVM's pipeline with the pass of narrow_indices.py before it, and behind it those of dot_products.py, sines.py and
long_values.py and this one, for `tirx.build`, `tvm.compile` and `generate_unchecked`."""
MOST_BYTES = 2048
"""Of a buffer on the stack: what the 32 vector registers of AVX-512 hold."""
VERSION = 1
"""Part of a CPU's toolchain: code of the same schedule is faster since."""


def _on_the_stack(alloc: Any) -> Any:
    buffer = alloc.buffer
    if buffer.scope() != "global" or not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return alloc
    dtype = tvm.runtime.DataType(str(buffer.dtype))
    size = math.prod(int(extent) for extent in buffer.shape) * dtype.lanes * math.ceil(dtype.bits / 8)
    if not 0 < size <= MOST_BYTES:
        return alloc
    return tirx.AllocBuffer(buffer, {**dict(alloc.annotations), "disable_lower_builtin": tirx.const(True, "bool")})


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.AllocBuffer, _on_the_stack)])
    return function if body.same_as(function.body) else function.with_body(body)


_SMALL_ON_STACK = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.SmallBuffersOnStack")
register_pipeline(
    PIPELINE,
    NARROW_INDICES,
    tvm.transform.Sequential([INSTRUCTED, SINES_EXPANDED, LONG_VALUES_IN_BUFFERS, _SMALL_ON_STACK]),
)
