"""From a workload and a trace to callable machine code, in this process: no archive, no linker, no file.

Weight layouts. A trace may rewrite the layout of a constant input: the scheduled function then begins with a block
marked `meta_schedule.layout_rewrite_preproc` that copies the weight into its new layout. A deployment runs that block
once, when weights are bound. So the block becomes a function of its own here (`Packing`), and the main function
takes the packed weight: what is timed is what runs every time, what is checked is both in a row.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.target import Target
from tuner.trace import apply_trace
from tuner.tvm_compat import (
    IRModule,
    Schedule,
    load_intrinsics,
    remove_weight_layout_rewrite,
    structural_walk,
    te,
    tirx,
    tvm,
)

_PREPROC = "meta_schedule.layout_rewrite_preproc"


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """Static shape and element type of a buffer."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, buffer: Any) -> TensorType:
        """Of a TIR buffer; raises ValueError when a dimension is symbolic."""
        return cls(shape=tuple(int(extent) for extent in buffer.ty.shape), dtype=str(buffer.ty.dtype))


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The one-time rewrite of one parameter: `function(weight, packed)`."""

    param: int
    packed: TensorType
    function: Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Built:
    """Machine code of a candidate. `module` keeps it alive and makes TVM's evaluators."""

    main: Callable[..., None]
    packings: tuple[Packing, ...]
    module: Any


def apply(mod: Any, trace: str) -> Any:
    """The scheduled module; raises InvalidTrace when the trace is not allowed or does not fit."""
    return apply_trace(mod, trace).mod


def parameters(mod: Any) -> tuple[TensorType, ...]:
    """The parameters of function main; raises ValueError unless all are buffers of static shape."""
    found = []
    for param in mod["main"].params:
        if not hasattr(param.ty, "shape"):
            raise ValueError(f"parameter {param.name} is not a buffer")
        found.append(TensorType.of(param))
    return tuple(found)


def compile_module(mod: Any, target: Any) -> Any:
    """Compiles every function of the module; functions are turned into machine code when they are first asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = tirx.build(mod, target=target)
    return tvm.runtime.Executable(library).jit()


def build(mod: Any, target: Any) -> Built:
    """Compiles a scheduled (or untransformed) workload for `target` down to machine code."""
    split = _split_packings(mod)
    stripped = remove_weight_layout_rewrite(mod) if split else mod
    functions = {var.name_hint: function for var, function in stripped.functions_items()}
    functions |= {_symbol(param): function for param, _, function in split}
    module = compile_module(IRModule(functions) if split else stripped, target)
    packings = tuple(
        Packing(param=param, packed=packed, function=module.get_function(_symbol(param), query_imports=True))
        for param, packed, _ in split
    )
    return Built(main=module.get_function("main", query_imports=True), packings=packings, module=module)


def warm_up(target: Target) -> None:
    """Registers what traces for `target` may name, and compiles a small function without running it.

    For a process that will be forked: the compiler's first use costs as much as three later ones. Starts no thread.
    """
    load_intrinsics(target)
    n = 64
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b, c])}))
    i, j, _ = schedule.get_loops(schedule.get_sblock("c"))
    schedule.parallel(i)
    schedule.vectorize(schedule.split(j, [None, 16])[1])
    compile_module(schedule.mod, cpu_target_of_host()).get_function("main", query_imports=True)


def threads() -> int:
    """Threads a parallel loop uses in this process. Starts the runtime's pool: never call it before a fork."""
    return int(tvm.runtime.num_threads())


def cpu_target_of_host() -> Any:
    """A plain CPU target of this machine: where the reference of a GPU workload runs."""
    cores = int(os.environ.get("TVM_NUM_THREADS", "1"))
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": cores})


def _symbol(param: int) -> str:
    return f"prepack_{param}"


def _split_packings(mod: Any) -> list[tuple[int, TensorType, Any]]:
    """(parameter index, packed type, function(weight, packed)) of every layout-rewriting block of function main."""
    function = mod["main"]
    block_type, realize_type = tvm.s_tir.SBlock, tvm.s_tir.SBlockRealize
    body = function.body.block.body if isinstance(function.body, realize_type) else function.body
    found = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        for block in _rewriting_blocks(statement, block_type):
            weight, packed = block.reads[0].source, block.writes[0].source
            index = next(i for i, param in enumerate(function.params) if param.same_as(weight))
            root = realize_type([], True, block_type([], [], [], "root", statement))
            attributes = {"global_symbol": _symbol(index), "tirx.noalias": True, "s_tir": True}
            found.append((index, TensorType.of(packed), tirx.PrimFunc([weight, packed], root).with_attrs(attributes)))
    return found


def _rewriting_blocks(statement: Any, block_type: Any) -> list[Any]:
    found: list[Any] = []

    def visit(block: Any) -> None:
        if _PREPROC in block.annotations:
            found.append(block)

    structural_walk(statement, (block_type, visit))
    return found
