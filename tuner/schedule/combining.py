"""Tensor functions that combine updates into elements, such as scatters, and their kernels for a GPU.

    for every element o:            out[o] = start(o)
    for every update u, in order:   if inside(u): out[place(u)] = combine(out[place(u)], value(u))

Where places are read from memory, no schedule knows which updates meet, so the workload is one opaque block. What combines
is + * max or min of numbers of 32 or 64 bits, each of which may be applied in any order. The kernels (`in_kernels`) are two:
in one every element is a thread, in the other every update, which combines by an atomic operation (lowering/atomics.py). So
sums and products of floats differ by rounding from run to run; everything else is the same in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.statements import INDEX_TYPE, integer, whole
from tuner.tvm_compat import IRModule, ir, structural_walk, tirx, tvm, tvm_ffi

THREADS = 128
"""Of a thread block, at most."""
WIDE = 4
"""Floats that one atomic operation adds, on devices that have it."""
TYPES = frozenset({"int32", "int64", "uint32", "uint64", "float32", "float64"})
"""Of elements that atomic operations combine."""
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": tirx.max,
    "min": tirx.min,
}
_NODES = {"Add": "add", "Mul": "mul", "Max": "max", "Min": "min"}
_ATOMIC = {name: f"{name}_to" for name in COMBINE}
"""What is combined -> the function of tuner/lowering/atomics.py that does it."""


@dataclass(frozen=True, kw_only=True)
class Combining:
    """What such a function is made of."""

    out: Any
    start: tuple[list[Any], Any]
    """Loops over the elements, and the statement that writes one."""
    updates: list[Any]
    """Loops over the updates."""
    conditions: list[Any]
    """Under which an update is one."""
    combine: str
    """A key of COMBINE."""
    place: Sequence[Any]
    value: Any

    @property
    def most(self) -> int:
        """Updates that one element may get, at most."""
        staying = [loop for loop in self.updates if any(loop.loop_var.same_as(index) for index in self.place)]
        return math.prod(int(loop.extent) for loop in self.updates) // math.prod(int(loop.extent) for loop in staying)


Update = Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any], Any]]
"""Position of an update -> (conditions, place, value)."""


def workload(
    inputs: Sequence[Any],
    out: Any,
    start: Callable[[Sequence[Any]], Any],
    grid: Sequence[int],
    combine: str,
    update: Update,
) -> Any:
    """A function of buffers and the buffer of its result. combine: a key of COMBINE; `out` has a type of TYPES."""

    def started(at: Sequence[Any]) -> Any:
        return tirx.BufferStore(out, start(at), list(at))

    def updated(at: Sequence[Any]) -> Any:
        conditions, place, value = update(at)
        store = tirx.BufferStore(out, COMBINE[combine](out[tuple(place)], value), list(place))
        return tirx.IfThenElse(tirx.all(*conditions), store, None) if conditions else store

    body = tirx.SeqStmt([_nest([int(extent) for extent in out.shape], started), _nest(grid, updated)])
    block = tvm.s_tir.SBlock([], [whole(one) for one in inputs], [whole(out)], "combining", body, None, [], [], {})
    return _function([*inputs, out], tvm.s_tir.SBlockRealize([], True, block)).with_attrs({"tirx.noalias": True})


def find_combining(function: Any) -> Combining | None:
    """What a function is made of; None of any other function."""
    blocks: list[Any] = []
    structural_walk(function.body, (tvm.s_tir.SBlock, blocks.append))
    stages = [block for block in blocks if block.name_hint != "root"]
    if len(stages) != 1 or any(block.iter_vars or block.alloc_buffers or block.match_buffers for block in blocks):
        return None
    body = stages[0].body
    if not isinstance(body, tirx.SeqStmt) or len(body.seq) != 2:
        return None
    (loops, none, start), (updates, conditions, store) = (_taken_apart(each) for each in body.seq)
    if not (isinstance(start, tirx.BufferStore) and isinstance(store, tirx.BufferStore)) or none:
        return None
    out, combine = store.buffer, _NODES.get(type(store.value).__name__)
    if combine is None or not start.buffer.same_as(out) or not any(out.same_as(param) for param in function.params):
        return None
    if str(out.dtype) not in TYPES or (combine in ("max", "min") and "float" in str(out.dtype)):
        return None
    old, value = store.value.a, store.value.b
    if not (isinstance(old, ir.TensorLoad) and old.source.same_as(out)) or not tvm_ffi.structural_equal(
        list(old.indices), list(store.indices)
    ):
        return None
    if any(_reads(each, out) for each in (start.value, value, *store.indices, *conditions)):
        return None
    if not _covers(loops, start.indices, out):
        return None
    return Combining(
        out=out,
        start=(loops, start),
        updates=updates,
        conditions=conditions,
        combine=combine,
        place=list(store.indices),
        value=value,
    )


def updates_of_a_thread(found: Combining) -> int:
    """WIDE where a thread may add neighbours to neighbours in one operation, which four times as many threads would do, else
    one."""
    last = found.updates[-1] if found.updates else None
    if last is None or found.combine != "add" or str(found.out.dtype) != "float32":
        return 1
    if not isinstance(found.value, ir.TensorLoad) or not found.value.indices:
        return 1
    buffers = (found.place, found.out), (list(found.value.indices), found.value.source)
    for place, of in buffers:
        if (
            not place[-1].same_as(last.loop_var)
            or int(of.shape[-1]) % WIDE
            or any(_has(last, each) for each in place[:-1])
        ):
            return 1
    return WIDE if int(last.extent) % WIDE == 0 and not any(_has(last, each) for each in found.conditions) else 1


def in_kernels(mod: Any, count: int = 1) -> Any:
    """The workload `mod`, such a function, as two kernels; parameters and results stay the same.

    count: updates of a thread, one or WIDE. Deterministic: equal modules give equal modules. Raises InvalidTrace where the
    workload is none, or none of so many updates.
    """
    function = mod["main"]
    found = find_combining(function)
    if found is None:
        raise InvalidTrace("the workload combines no updates")
    if count not in (1, updates_of_a_thread(found)):
        raise InvalidTrace(f"no thread may combine {count} updates")
    name, value = _ATOMIC[found.combine], found.value
    if count == WIDE:
        name, value = f"{name}_wide", tirx.address_of(found.value)
    pointer = tirx.address_of(found.out[tuple(found.place)])
    combined = tirx.Evaluate(tirx.call_extern("int32", name, pointer, value))
    update = tirx.IfThenElse(tirx.all(*found.conditions), combined, None) if found.conditions else combined
    body = tirx.SeqStmt([_kernel(*found.start), _kernel(found.updates, update, count)])
    inputs = [param for param in function.params if not param.same_as(found.out)]
    block = tvm.s_tir.SBlock(
        [], [whole(one) for one in inputs], [whole(found.out)], "combining", body, None, [], [], {}
    )
    made = _function(function.params, tvm.s_tir.SBlockRealize([], True, block))
    return IRModule({"main": made.with_attrs(dict(function.attrs or {}))})


def _function(params: Sequence[Any], body: Any) -> Any:
    root = tvm.s_tir.SBlock([], [], [], "root", body, None, [], [], {})
    return tirx.PrimFunc(list(params), tvm.s_tir.SBlockRealize([], True, root))


def _nest(extents: Sequence[int], body: Callable[[Sequence[Any]], Any]) -> Any:
    """Loops over all positions, none along an axis of one."""
    at = [ir.Var(f"i{axis}", INDEX_TYPE) if extent != 1 else integer(0) for axis, extent in enumerate(extents)]
    nest = body(at)
    for variable, extent in reversed(list(zip(at, extents, strict=True))):
        if extent != 1:
            nest = tirx.For(variable, integer(0), integer(extent), tirx.ForKind.SERIAL, nest)
    return nest


def _taken_apart(statement: Any) -> tuple[list[Any], list[Any], Any]:
    """(loops, conditions, what they are around) of a statement."""
    loops, conditions = list[Any](), list[Any]()
    while True:
        if isinstance(statement, tirx.For) and _is_plain(statement):
            loops.append(statement)
            statement = statement.body
        elif isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
            conditions.append(statement.condition)
            statement = statement.then_case
        else:
            return loops, conditions, statement


def _is_plain(loop: Any) -> bool:
    kind, fixed = loop.kind == tirx.ForKind.SERIAL, isinstance(loop.extent, tirx.IntImm) and loop.extent.value > 0
    return kind and fixed and isinstance(loop.min, tirx.IntImm) and loop.min.value == 0 and not loop.annotations


def _reads(expression: Any, buffer: Any) -> bool:
    found: list[Any] = []
    structural_walk(expression, (ir.TensorLoad, lambda load: found.append(load.source.same_as(buffer))))
    return any(found)


def _has(loop: Any, expression: Any) -> bool:
    found: list[Any] = []
    structural_walk(expression, (ir.Var, lambda variable: found.append(variable.same_as(loop.loop_var))))
    return any(found)


def _covers(loops: Sequence[Any], indices: Sequence[Any], buffer: Any) -> bool:
    """Whether loops over a store write every element once: each axis has a loop of its own, but one of one element."""
    left = list(loops)
    for index, extent in zip(indices, buffer.shape, strict=True):
        own = [loop for loop in left if loop.loop_var.same_as(index)]
        if own and int(own[0].extent) == int(extent):
            left.remove(own[0])
        elif own or int(extent) != 1 or not (isinstance(index, tirx.IntImm) and index.value == 0):
            return False
    return not left


def _kernel(loops: Sequence[Any], body: Any, step: int = 1) -> Any:
    """The iterations of loops as threads, every `step`-th of the innermost loop, side by side."""
    extents = [int(loop.extent) // (step if loop is loops[-1] else 1) for loop in loops]
    count = math.prod(extents)
    threads = min(count, THREADS)
    short = count <= (1 << 31) - THREADS  # numbers of 32 bits are divided several times as fast
    kind = "int32" if short else INDEX_TYPE
    block, thread = (ir.Var(name, kind) for name in ("block", "thread"))
    place, at = block * threads + thread, dict[Any, Any]()
    for loop, extent in reversed([*zip(loops, (tirx.const(each, kind) for each in extents), strict=True)]):
        own = tirx.floormod(place, extent) if loop is not loops[0] else place
        if loop is loops[-1] and step > 1:
            own = own * tirx.const(step, kind)
        at[loop.loop_var] = tirx.Cast(INDEX_TYPE, own) if short else own
        place = tirx.floordiv(place, extent)
    body = tvm_ffi.structural_map(body, [(ir.Var, lambda variable: at.get(variable, variable))])
    if count % threads:
        body = tirx.IfThenElse(block * threads + thread < count, body, None)
    for variable, extent, axis in ((thread, threads, "threadIdx.x"), (block, -(-count // threads), "blockIdx.x")):
        bound = tirx.IterVar(None, ir.Var(axis, kind), tirx.IterVar.ThreadIndex, axis)
        body = tirx.For(
            variable, tirx.const(0, kind), tirx.const(extent, kind), tirx.ForKind.THREAD_BINDING, body, bound
        )
    return body
