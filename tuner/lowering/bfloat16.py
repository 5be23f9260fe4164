"""bfloat16 as float32 whose lower half is left out, written in bits, for code generators of CPUs.

A tensor function reads and writes tensors of bfloat16 and computes in float32: here its own buffers become float32, what it
reads is widened by a shift, and what it writes is rounded to the nearest, of two the even one. TVM 0.27 would do the same,
but it writes what it rounds twice, with the variables of formulas (fastmath.py) in it, which it refuses where it vectorises
a loop, and loses casts within bindings. NaN stays NaN unless all bits of its fraction are set, which no processor makes.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, tirx, tvm, tvm_ffi

BFLOAT = "bfloat16"
_SELECT = "prim.if_then_else"
_PAIRS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def expand_bfloat16(function: Any) -> Any:
    """The tensor function with all that it computes in float32. What only moves bfloat16 stays as it is."""
    own: dict[Any, Any] = {}

    def note(block: Any) -> Any:
        own.update((each, each.with_dtype("float32")) for each in block.alloc_buffers if str(each.ty.dtype) == BFLOAT)
        return block

    def replaced(variable: Any) -> Any:
        return own.get(variable, variable)

    tvm_ffi.structural_map(function.body, (tvm.s_tir.SBlock, note))
    if not own and not any(str(getattr(each.ty, "dtype", "")) == BFLOAT for each in function.params):
        return function
    visitors = [
        (ir.Var, replaced),
        (ir.TensorLoad, lambda load: tirx.BufferLoad(load.source, load.indices)),
        (tirx.Cast, _cast),
        *((each, _compared) for each in _COMPARISONS),
        (tirx.BufferStore, _stored),
    ]
    return function.with_body(tvm_ffi.structural_map(function.body, visitors))


def _cast(cast: Any) -> Any:
    target = str(cast.ty.dtype)
    if not _is_bfloat(cast.value) or target == BFLOAT:
        return cast
    wide = _widened(cast.value)
    return wide if target == "float32" else tirx.Cast(target, wide)


def _compared(comparison: Any) -> Any:
    if not (_is_bfloat(comparison.a) or _is_bfloat(comparison.b)):
        return comparison
    return type(comparison)(_widened(comparison.a), _widened(comparison.b))


def _stored(store: Any) -> Any:
    value, kept = store.value, str(store.buffer.ty.dtype)
    if kept == "float32" and _is_bfloat(value):
        value = _widened(value)
    elif kept == BFLOAT and not _moves(value):
        value = _rounded(_widened(value))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _is_bfloat(value: Any) -> bool:
    return str(value.ty.dtype) == BFLOAT


def _moves(value: Any) -> bool:
    return isinstance(value, (ir.TensorLoad, tirx.FloatImm)) and _is_bfloat(value)


def _widened(value: Any) -> Any:
    """An expression of bfloat16 in float32. Arithmetic in it is done in float32; its result is not rounded."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), "float32")
    if isinstance(value, tirx.Cast) and _is_bfloat(value):
        return _widened(value.value)
    if isinstance(value, _PAIRS):
        return type(value)(_widened(value.a), _widened(value.b))
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _widened(value.true_value), _widened(value.false_value))
    if isinstance(value, ir.Call) and getattr(value.op, "name", "") == _SELECT:
        condition, chosen, other = value.args
        return tirx.if_then_else(condition, _widened(chosen), _widened(other))
    if not _is_bfloat(value):
        return value if str(value.ty.dtype) == "float32" else tirx.Cast("float32", value)
    bits = tirx.Cast("uint32", tirx.reinterpret("uint16", value))
    return tirx.reinterpret("float32", bits << _number(16))


def _rounded(value: Any) -> Any:
    bits = tirx.Var("bits", "uint32")
    half = _number(0x7FFF) + ((bits >> _number(16)) & _number(1))
    upper = tirx.Cast("uint16", (bits + half) >> _number(16))
    return tirx.reinterpret(BFLOAT, tirx.Let(bits, tirx.reinterpret("uint32", value), upper))


def _number(value: int) -> Any:
    return tirx.const(value, "uint32")
