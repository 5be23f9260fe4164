"""Booleans between the stages of a tensor function as bytes, for code generators of CPUs.

TVM 0.27 gives a buffer of its own that is read and written in vectors of one width alone the type of such a vector, of bytes
where its elements are booleans, and leaves the accesses as they were: what is read is a byte where a boolean is expected, so
`not` of it is never zero. With one and zero stored, and what is read compared with zero, both types are said.
What a variable is bound to stays the byte: TVM bounds such a value, and has no bounds for a comparison of vectors.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, tirx, tvm, tvm_ffi

BYTE = "int8"


def expand_booleans(function: Any) -> Any:
    """The tensor function with bytes in the buffers of booleans that it allocates. Its arguments stay as they are."""
    own: dict[Any, Any] = {}

    def note(block: Any) -> Any:
        own.update((each, each.with_dtype(BYTE)) for each in block.alloc_buffers if str(each.ty.dtype) == "bool")
        return block

    tvm_ffi.structural_map(function.body, (tvm.s_tir.SBlock, note))
    if not own:
        return function
    bytes_ = set(own.values())

    def loaded(load: Any) -> Any:
        if load.source not in bytes_:
            return load
        return tirx.NE(tirx.BufferLoad(load.source, load.indices), tirx.const(0, BYTE))

    def stored(store: Any) -> Any:
        if store.buffer not in bytes_:
            return store
        value = tirx.Select(store.value, tirx.const(1, BYTE), tirx.const(0, BYTE))
        return tirx.BufferStore(store.buffer, value, store.indices)

    def bound(let: Any) -> Any:
        read = let.value.a if isinstance(let.value, tirx.NE) else None
        if not isinstance(read, ir.TensorLoad) or read.source not in bytes_:
            return let
        byte = tirx.Var(let.var.name, read.ty)
        named = [(ir.Var, lambda each: tirx.NE(byte, tirx.const(0, BYTE)) if each.same_as(let.var) else each)]
        return tirx.Let(byte, read, tvm_ffi.structural_map(let.body, named))

    visitors = [
        (ir.Var, lambda variable: own.get(variable, variable)),
        (ir.TensorLoad, loaded),
        (tirx.BufferStore, stored),
        (tirx.Let, bound),
    ]
    return function.with_body(tvm_ffi.structural_map(function.body, visitors))
