"""Functions of one block without axes, such as factorisations of matrices, divided among threads.

No schedule applies to them: loops, conditions and what is kept meanwhile are written out. Where all of it is a nest of loops
whose iterations each access other elements of what they write, as over the matrices of a batch, the lines of a tensor or the
elements of a function that iterates, threads divide the iterations. On a GPU every iteration is a thread, else one thread
does all, and what a function keeps meanwhile is each thread's own (`in_threads`). On a CPU the outermost loop is parallel,
where there is work for that, and what is kept is each iteration's own (`in_parallel`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.schedule.combining import find_combining
from tuner.schedule.recurrence import find_recurrence
from tuner.schedule.statements import integer
from tuner.tvm_compat import IRModule, ir, structural_walk, tirx, tvm, tvm_ffi

LOCAL_BYTES = 16 << 10
"""Of a GPU thread's own memory, at most: a function that keeps more is refused, as it is without this."""
THREADS = 128
"""Of a GPU's block, at most."""
LEAST_PARALLEL = 1 << 12
"""Elements of the largest tensor of a function that a CPU's threads divide."""


def in_threads(mod: Any) -> Any:
    """The workload as a kernel of a GPU; parameters and results stay the same. Raises InvalidTrace where it is no such
    function, or keeps too much."""
    function = mod["main"]
    stage = _only_block(function)
    kept = [*function.body.block.alloc_buffers, *stage.alloc_buffers]
    if sum(math.prod(map(int, each.shape)) * tvm.DataType(str(each.dtype)).itemsize for each in kept) > LOCAL_BYTES:
        raise InvalidTrace("the workload keeps more than a thread has memory for")
    return IRModule({"main": _kernel(function, stage)})


def in_parallel(mod: Any) -> Any:
    """The workload with its outermost loop divided among a CPU's threads; parameters and results stay the same. Raises
    InvalidTrace where it is no such function, has too little to do, or an iteration needs another."""
    function = mod["main"]
    stage = _only_block(function)
    loop, kept = stage.body, [*function.body.block.alloc_buffers, *stage.alloc_buffers]
    if not isinstance(loop, tirx.For) or loop.kind != tirx.ForKind.SERIAL or not _is_independent(loop, function.params):
        raise InvalidTrace("an iteration of the workload needs another")
    if not all(_is_written_first(loop.body, each) for each in kept):
        raise InvalidTrace("an iteration of the workload needs what another one keeps")
    if max(math.prod(map(int, each.shape)) for each in function.params) < LEAST_PARALLEL:
        raise InvalidTrace("the workload has too little to do for several threads")
    own = tvm.s_tir.SBlock([], stage.reads, stage.writes, "iteration", loop.body, None, kept, [], {})
    body = tvm.s_tir.SBlockRealize([], True, own)
    loop = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.PARALLEL, body)
    made = tvm.s_tir.SBlock([], stage.reads, stage.writes, stage.name_hint, loop, None, [], [], {})
    whole = tvm.s_tir.SBlock([], [], [], "root", tvm.s_tir.SBlockRealize([], True, made), None, [], [], {})
    return IRModule({"main": function.with_body(tvm.s_tir.SBlockRealize([], True, whole))})


def _is_written_first(body: Any, buffer: Any) -> bool:
    """Whether the first statement that accesses a buffer writes it: then each iteration may have a buffer of its own."""
    reads: list[bool] = []

    def store(found: Any) -> None:
        if not reads and found.buffer.same_as(buffer):
            reads.append(False)

    def load(found: Any) -> None:
        if not reads and found.source.same_as(buffer):
            reads.append(True)

    structural_walk(body, [(tirx.BufferStore, store), (ir.TensorLoad, load)])
    return reads == [False]


def _only_block(function: Any) -> Any:
    """The block of such a function. Raises InvalidTrace where the function is another, or has a schedule of its own."""
    blocks: list[Any] = []
    structural_walk(function.body, (tvm.s_tir.SBlock, blocks.append))
    if (
        len(blocks) != 2
        or any(block.iter_vars for block in blocks)
        or find_recurrence(function) is not None
        or find_combining(function) is not None
    ):
        raise InvalidTrace("the workload is not one block without axes")
    return next(block for block in blocks if not block.same_as(function.body.block))


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
    while (
        isinstance(body, tirx.For) and isinstance(body.extent, tirx.IntImm) and _is_independent(body, function.params)
    ):
        loops.append(body)
        body = body.body
    return loops, body


def _is_independent(loop: Any, shared: Sequence[Any]) -> bool:
    """Whether all accesses to what the loop writes of shared buffers have its variable in one place, and nothing is called
    that may write."""
    accessed: list[tuple[Any, Any]] = []
    written: list[Any] = []
    called: list[Any] = []

    def store(found: Any) -> None:
        accessed.append((found.buffer, found.indices))
        written.append(found.buffer)

    def load(found: Any) -> None:
        accessed.append((found.source, found.indices))

    structural_walk(loop.body, [(tirx.BufferStore, store), (ir.TensorLoad, load), (tirx.Evaluate, called.append)])
    for result in shared:
        if any(result.same_as(each) for each in written):
            indices = [each for buffer, each in accessed if buffer.same_as(result)]
            places = [{at for at, index in enumerate(each) if index.same_as(loop.loop_var)} for each in indices]
            if not set.intersection(*places):
                return False
    return not called
