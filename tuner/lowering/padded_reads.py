"""Padding of a product's rows, read without a branch.

A product whose register tile does not divide its rows reads zeros beyond the last one: `i < n ? A[i, k] : 0` in the loop
over k. LLVM leaves such a branch in the loop, for every row of the tile that may be beyond, and keeps no order of the loads
around it. Where the condition bounds one axis and that axis indexes what is read, the last row is read in place of those
beyond, and zero is selected: the same values, from addresses that are the same in every step of k.

Where nobody reads the sums of rows beyond the last, since all that reads them, or a copy of them, goes over the rows that
there are, zero is not selected either: with 16 vector registers the selections of six rows made a tile spill, which took
twice as long, and where a GELU followed, up to 2.6 times.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, structural_walk, tirx, tvm, tvm_ffi, uses

_CHOICE = "prim.if_then_else"


def without_branches(function: Any) -> Any:
    """The tensor function with such reads in its sums of products; what it computes is the same. Before TVM lowers it."""
    readers = _Readers(function)

    def stored(store: Any) -> Any:
        value = store.value
        if not (isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)):
            return store
        read = tvm_ffi.structural_map(value, [(ir.Call, lambda call: _selected(call, store, readers))])
        return store if read.same_as(value) else tirx.BufferStore(store.buffer, read, store.indices)

    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, stored)])
    return function if body.same_as(function.body) else function.with_body(body)


class _Readers:
    """What reads the sums of a tensor function."""

    def __init__(self, function: Any) -> None:
        self._blocks: list[Any] = []
        self._stores: list[Any] = []
        self._loads: list[Any] = []
        visitors = [(tvm.s_tir.SBlock, self._blocks.append), (tirx.BufferStore, self._stores.append)]
        structural_walk(function.body, [*visitors, (ir.TensorLoad, self._loads.append)])
        axes = [axis for block in self._blocks for axis in block.iter_vars if isinstance(axis.dom.extent, tirx.IntImm)]
        self._extents = {axis.var: int(axis.dom.extent) for axis in axes}
        """Of the axes of blocks: TVM runs a block for values within them alone."""

    def are_within(self, sums: Any, axis: Any, bound: int) -> bool:
        """Whether all that reads what a statement sums up, but itself, reads it where `axis` is below `bound`."""
        buffer = sums.buffer
        kept_here = any(buffer.same_as(one) for block in self._blocks for one in block.alloc_buffers)
        places = [at for at, index in enumerate(sums.indices) if index.same_as(axis)]
        if not (kept_here and places) or any(block.match_buffers for block in self._blocks):
            return False
        seen = 0
        for store in self._stores:
            loads: list[Any] = []
            structural_walk(store.value, (ir.TensorLoad, loads.append))
            for load in (one for one in loads if one.source.same_as(buffer)):
                seen += 1
                own = store.buffer.same_as(buffer) and tvm_ffi.structural_equal(load.indices, store.indices)
                index = load.indices[places[0]]
                if own or self._extents.get(index, bound + 1) <= bound:
                    continue
                if not (store.value.same_as(load) and self.are_within(store, index, bound)):  # nor are those of a copy
                    return False
        return seen == len([load for load in self._loads if load.source.same_as(buffer)])


def _selected(call: Any, sums: Any, readers: _Readers) -> Any:
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

    read = tvm_ffi.structural_map(chosen, (ir.Var, within))
    if readers.are_within(sums, axis, int(bound)):
        return read
    # In a binding: TVM makes a branch again of a selection that reads memory.
    value = tirx.Var("value", chosen.ty)
    return tirx.Let(value, read, tirx.Select(condition, value, other))
