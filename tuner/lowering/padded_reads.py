"""Padding of a product's rows, read without a branch.

A product whose register tile does not divide its rows reads zeros beyond the last one: `i < n ? A[i, k] : 0` in the loop
over k. LLVM leaves such a branch in the loop, for every row of the tile that may be beyond, and keeps no order of the loads
around it. Where the condition bounds one axis and that axis indexes what is read, the last row is read in place of those
beyond, and zero is selected: the same values, from addresses that are the same in every step of k.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, tirx, tvm_ffi, uses

_CHOICE = "prim.if_then_else"


def without_branches(function: Any) -> Any:
    """The tensor function with such reads in its sums of products; what it computes is the same. Before TVM lowers it."""
    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, _stored)])
    return function if body.same_as(function.body) else function.with_body(body)


def _stored(store: Any) -> Any:
    value = store.value
    if not (isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)):
        return store
    read = tvm_ffi.structural_map(value, [(ir.Call, _selected)])
    return store if read.same_as(value) else tirx.BufferStore(store.buffer, read, store.indices)


def _selected(call: Any) -> Any:
    if getattr(call.op, "name", "") != _CHOICE:
        return call
    condition, chosen, other = call.args
    bounded = (
        isinstance(condition, tirx.LT) and isinstance(condition.a, ir.Var) and isinstance(condition.b, tirx.IntImm)
    )
    if not (bounded and isinstance(chosen, ir.TensorLoad) and isinstance(other, tirx.FloatImm)):
        return call
    axis, bound = condition.a, condition.b
    if int(bound) < 1 or not any(uses(index, axis) for index in chosen.indices):
        return call
    last = tirx.min(axis, tirx.const(int(bound) - 1, str(axis.ty.dtype)))

    def within(variable: Any) -> Any:
        return last if variable.same_as(axis) else variable

    # In a binding: TVM makes a branch again of a selection that reads memory.
    value = tirx.Var("value", chosen.ty)
    return tirx.Let(value, tvm_ffi.structural_map(chosen, (ir.Var, within)), tirx.Select(condition, value, other))
