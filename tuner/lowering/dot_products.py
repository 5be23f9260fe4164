"""Products of bytes (tuner/byte_products.py) as x86 computes them: four multiply-adds in each lane of a vector.

    for lane in vectorized(16):
        C[i + lane] = C[i + lane] + dot(a, B[j + lane])
    =>
    C[i:i + 16] = vpdpbusd(C[i:i + 16], broadcast(a), B[j:j + 16])

The instruction works on vectors, and TVM makes these of loops after the schedule is applied. So a statement becomes a call
that TVM's vectoriser keeps whole, FMA, before; and that becomes the instruction, or the plain sum again where the target
has none for so many lanes, after. TVM itself has no multiply-add of int32.
"""

from __future__ import annotations

from typing import Any

from tuner.byte_products import accumulated, dot
from tuner.tvm_compat import ir, tirx, tvm, tvm_ffi

FMA = "tirx.fma"
INSTRUCTIONS = {
    16: ("llvm.x86.avx512.vpdpbusd.512", ("avx512vnni",)),
    8: ("llvm.x86.avx512.vpdpbusd.256", ("avxvnni", "avx512vnni")),
    4: ("llvm.x86.avx512.vpdpbusd.128", ("avxvnni", "avx512vnni")),
}
"""Lanes -> LLVM's name of the instruction, and the features of which the target needs one."""


def mark(function: Any) -> Any:
    """The tensor function with such statements as calls, before TVM lowers it."""

    def stored(store: Any) -> Any:
        words = accumulated(store) if str(store.buffer.dtype) == "int32" else None
        if words is None:
            return store
        sum_so_far = tirx.BufferLoad(store.buffer, store.indices)
        return tirx.BufferStore(store.buffer, tirx.call_intrin("int32", FMA, *words, sum_so_far), store.indices)

    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, stored)])
    return function if body.same_as(function.body) else function.with_body(body)


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    target = (function.attrs or {}).get("target")

    def called(call: Any) -> Any:
        if str(getattr(call.op, "name", "")) != FMA or not str(call.ty.dtype).startswith("int32"):
            return call
        a, b, total = call.args
        lanes = int(tvm.runtime.DataType(str(call.ty.dtype)).lanes)
        name, features = INSTRUCTIONS.get(lanes, ("", ()))
        has = tvm.target.codegen.target_has_features
        if target is None or not any(has(feature, target) for feature in features):
            return total + dot(a, b)
        bytes_of = [tirx.reinterpret(f"int8x{4 * lanes}", word) for word in (a, b)]
        return tirx.call_llvm_pure_intrin(str(call.ty.dtype), name, total, *bytes_of)

    body = tvm_ffi.structural_map(function.body, [(ir.Call, called)])
    return function if body.same_as(function.body) else function.with_body(body)


INSTRUCTED = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.DotProducts")
"""The pass that makes instructions of the calls. After TVM has vectorised loops."""
