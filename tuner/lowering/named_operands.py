"""Operands that a vector operation reads from memory are named first, for CUDA C++.

TVM 0.27's generator of CUDA C++ takes calls, casts and choices of vectors apart into lanes, and keeps each operand in a
variable that it finds again by the operand's text. It does so too after a store to what was read:

    float4 v_ = *(float4*)(m + 0);  ...  *(float4*)(m + 0) = _1;     m = max(m, a)
    _2.x = max(v_.x, b.x);                                           m = max(m, b) of the old m

An operand that is bound to a variable (`Let`) is loaded where it stands.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, structural_walk, tirx, tvm_ffi

_CHOICE = "prim.if_then_else"
"""Is printed as a branch, in which operands are loaded where they stand."""


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    visitors = [(ir.Call, _call), (tirx.Cast, _cast), (tirx.Select, _select)]
    body = tvm_ffi.structural_map(function.body, visitors)
    return function if body.same_as(function.body) else function.with_body(body)


NAMED_OPERANDS = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.NamedOperands")
"""The pass. The last before code is generated: TVM's simplifier would put the operands back."""


def _call(call: Any) -> Any:
    if not _is_vector(call) or str(getattr(call.op, "name", "")) == _CHOICE:
        return call
    args = [_named(each) for each in call.args]
    if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
        return call
    return ir.Call(call.op, args, call.attrs, call.ty_args, ret_ty=call.ty)


def _cast(cast: Any) -> Any:
    value = _named(cast.value) if _is_vector(cast) else cast.value
    return cast if value.same_as(cast.value) else tirx.Cast(str(cast.ty.dtype), value)


def _select(select: Any) -> Any:
    if not _is_vector(select):
        return select
    yes, no = _named(select.true_value), _named(select.false_value)
    if yes.same_as(select.true_value) and no.same_as(select.false_value):
        return select
    return tirx.Select(select.condition, yes, no)


def _named(value: Any) -> Any:
    """The operand, bound where it is a vector that is read from memory."""
    if not (_is_vector(value) and _reads(value)):
        return value
    variable = tirx.Var("operand", value.ty)
    return tirx.Let(variable, value, variable)


def _is_vector(value: Any) -> bool:
    return "x" in str(getattr(value.ty, "dtype", ""))


def _reads(value: Any) -> bool:
    """Whether the text of the operand has a load in it: other vector operations are printed before, into variables."""
    if isinstance(value, tirx.Broadcast):
        found: list[Any] = []
        structural_walk(value.value, (ir.TensorLoad, found.append))
        return bool(found)
    return isinstance(value, ir.TensorLoad)
