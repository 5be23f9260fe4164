"""Tensor functions of one block without axes, such as factorisations of matrices, as kernels.

No schedule applies to them: loops, conditions and what is kept meanwhile are written out. Where all of it is a nest of loops
whose iterations each access other elements of the results, as over the matrices of a batch, or the elements of a function
that iterates, every iteration is a thread; else one thread does all. What a function keeps meanwhile is each thread's own.
"""

from __future__ import annotations

import math
from typing import Any

from tuner.schedule.combining import find_combining
from tuner.schedule.recurrence import find_recurrence
from tuner.schedule.statements import integer
from tuner.tvm_compat import PrimFunc, ir, structural_walk, tirx, tvm, tvm_ffi

LOCAL_BYTES = 16 << 10
"""Of a thread's own memory, at most: a function that keeps more is refused, as it is without this."""
THREADS = 128
"""Of a block, at most."""


def serial_functions(mod: Any) -> Any:
    """The module of fused tensor functions in which those of one block without axes are kernels."""
    for variable, function in list(mod.functions.items()):
        if not isinstance(function, PrimFunc) or find_recurrence(function) is not None:
            continue
        if find_combining(function) is not None:
            continue
        if (stage := _only_block(function)) is not None:
            mod.update_func(variable, _kernel(function, stage))
    return mod


def _only_block(function: Any) -> Any | None:
    """The block of such a function, which is not bound to threads and keeps little; None of any other."""
    blocks, loops = list[Any](), list[Any]()
    structural_walk(function.body, [(tvm.s_tir.SBlock, blocks.append), (tirx.For, loops.append)])
    if (
        len(blocks) != 2
        or any(block.iter_vars for block in blocks)
        or any(loop.thread_binding is not None for loop in loops)
    ):
        return None
    kept = sum(
        math.prod(int(extent) for extent in buffer.shape) * tvm.DataType(str(buffer.dtype)).itemsize
        for block in blocks
        for buffer in block.alloc_buffers
    )
    return next(block for block in blocks if not block.same_as(function.body.block)) if kept <= LOCAL_BYTES else None


def _kernel(function: Any, stage: Any) -> Any:
    root = function.body.block
    own = {
        buffer: tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope="local")
        for buffer in (*root.alloc_buffers, *stage.alloc_buffers)
    }
    loops, body = _divided(function, stage.body)
    count = math.prod(int(loop.extent) for loop in loops)
    threads = min(count, THREADS)
    block, thread = (ir.Var(name, "int64") for name in ("block", "thread"))
    place, at = block * threads + thread, dict[Any, Any]()
    for loop in reversed(loops):
        at[loop.loop_var] = place % loop.extent if loop is not loops[0] else place
        place = place // loop.extent
    body = tvm_ffi.structural_map(body, [(ir.Var, lambda variable: at.get(variable, variable))])

    def store(found: Any) -> Any:
        return tirx.BufferStore(own.get(found.buffer, found.buffer), found.value, found.indices)

    def load(found: Any) -> Any:
        return tirx.BufferLoad(own[found.source], found.indices) if found.source in own else found

    body = tvm_ffi.structural_map(body, [(tirx.BufferStore, store), (ir.TensorLoad, load)])
    if count % threads:
        body = tirx.IfThenElse(block * threads + thread < count, body, None)
    made = tvm.s_tir.SBlock([], stage.reads, stage.writes, stage.name_hint, body, None, list(own.values()), [], {})
    nest: Any = tvm.s_tir.SBlockRealize([], True, made)
    for variable, extent, axis in ((thread, threads, "threadIdx.x"), (block, -(-count // threads), "blockIdx.x")):
        bound = tirx.IterVar(None, ir.Var(axis, "int64"), tirx.IterVar.ThreadIndex, axis)
        nest = tirx.For(variable, integer(0), integer(extent), tirx.ForKind.THREAD_BINDING, nest, bound)
    whole = tvm.s_tir.SBlock([], [], [], "root", nest, None, [], [], {})
    return function.with_body(tvm.s_tir.SBlockRealize([], True, whole))


def _divided(function: Any, body: Any) -> tuple[list[Any], Any]:
    """The loops around a block's body whose iterations are independent, and what they repeat."""
    loops: list[Any] = []
    while isinstance(body, tirx.For) and isinstance(body.extent, tirx.IntImm) and _is_independent(function, body):
        loops.append(body)
        body = body.body
    return loops, body


def _is_independent(function: Any, loop: Any) -> bool:
    """Whether all accesses to what the loop writes of the function's results have its variable in one place."""
    accessed: list[tuple[Any, Any]] = []
    written: list[Any] = []

    def store(found: Any) -> None:
        accessed.append((found.buffer, found.indices))
        written.append(found.buffer)

    visitors = [(tirx.BufferStore, store), (ir.TensorLoad, lambda load: accessed.append((load.source, load.indices)))]
    structural_walk(loop.body, visitors)
    for result in function.params:
        if any(result.same_as(each) for each in written):
            indices = [each for buffer, each in accessed if buffer.same_as(result)]
            places = [{at for at, index in enumerate(each) if index.same_as(loop.loop_var)} for each in indices]
            if not set.intersection(*places):
                return False
    return True
