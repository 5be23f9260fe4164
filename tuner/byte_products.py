"""Products of bytes, four at a time: 32-bit words that hold four bytes each are multiplied byte by byte and added up.

    dot(a, b) = sum of u8(a >> 8 t) * i8(b >> 8 t), t = 0 ... 3

a's bytes are unsigned and b's signed, as x86 multiplies them (VPDPBUSD). In a workload it is this sum, plain arithmetic that
any target computes. On its way to LLVM it is one call where the target has the instruction (tuner/lowering/dot_products.py).
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, te, tirx, tvm_ffi

BYTES = 4
"""Bytes of a word."""


def dot(a: Any, b: Any) -> Any:
    """The sum of the four products of the bytes of two words: int32 scalars or vectors of one length."""
    a, b = (one.asobject() if isinstance(one, te.TensorSlice) else one for one in (a, b))
    products = [_byte(a, at, "uint8") * _byte(b, at, "int8") for at in range(BYTES)]
    return products[0] + products[1] + products[2] + products[3]


def word(byte_at: Any) -> Any:
    """The int32 word of four bytes: byte_at(t) is an expression of type uint8 or int8."""
    found: Any = tirx.const(0, "int32")
    for at in range(BYTES):
        bits = tirx.Cast("int32", tirx.Cast("uint8", byte_at(at)))
        found = found | (bits << tirx.const(8 * at, "int32"))
    return found


def accumulated(store: Any) -> tuple[Any, Any] | None:
    """The words a and b of a statement C[i] = C[i] + dot(a, b), in whatever order the sum was brought; else None."""
    loads, words = [], [[None] * BYTES, [None] * BYTES]
    for term in _terms(store.value):
        if isinstance(term, tirx.Mul):
            sides = {kind: (at, value) for kind, at, value in map(_taken, (term.a, term.b)) if kind}
            if len(sides) != 2 or sides["uint8"][0] != sides["int8"][0]:
                return None
            for side, kind in enumerate(("uint8", "int8")):
                at, value = sides[kind]
                if words[side][at] is not None:
                    return None
                words[side][at] = value
        else:
            loads.append(term)
    if len(loads) != 1 or any(one is None for side in words for one in side):
        return None
    (load,) = loads
    if not (isinstance(load, ir.TensorLoad) and load.source.same_as(store.buffer)):
        return None
    if not all(map(tvm_ffi.structural_equal, load.indices, store.indices)):
        return None
    same = all(tvm_ffi.structural_equal(one, side[0]) for side in words for one in side[1:])
    return (words[0][0], words[1][0]) if same else None


def _byte(word: Any, at: int, dtype: str) -> Any:
    whole = str(word.ty.dtype)
    lanes = whole.removeprefix("int32")
    shifted = word >> tirx.const(8 * at, whole) if at else word
    return tirx.Cast(whole, tirx.Cast(f"{dtype}{lanes}", shifted))


def _terms(value: Any) -> list[Any]:
    if isinstance(value, tirx.Add):
        return [*_terms(value.a), *_terms(value.b)]
    return [value]


def _taken(factor: Any) -> tuple[str, int, Any]:
    """Type and number of the byte that a factor is, and its word; an empty type where it is none."""
    if not (isinstance(factor, tirx.Cast) and isinstance(factor.value, tirx.Cast)):
        return "", 0, None
    kind, shifted = str(factor.value.ty.dtype), factor.value.value
    at = 0
    if isinstance(shifted, tirx.RShift):
        if not isinstance(shifted.b, tirx.IntImm) or int(shifted.b) % 8:
            return "", 0, None
        at, shifted = int(shifted.b) // 8, shifted.a
    if kind not in ("uint8", "int8") or not 0 <= at < BYTES or str(shifted.ty.dtype) != "int32":
        return "", 0, None
    return kind, at, shifted
