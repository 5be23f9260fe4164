"""From a workload and a trace to callable machine code, in this process: no archive, no linker, no file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.lowering.fastmath import expand_intrinsics
from tuner.schedule.packing import Packing, packings_of, without_packings
from tuner.schedule.tensor_type import TensorType
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import (
    IRModule,
    Schedule,
    executable,
    generate_unchecked,
    te,
    tvm,
)


@dataclass(frozen=True, kw_only=True)
class Built:
    """Machine code of a candidate. `module` keeps it alive and makes TVM's evaluators."""

    main: Callable[..., None]
    packings: dict[int, Callable[[Any, Any], None]]
    """Per parameter whose layout is rewritten, what copies it: function(weight, packed), both tensors of TVM."""
    packed: dict[int, TensorType]
    """What it is copied into."""
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


def generate(mod: Any, target: Any) -> tuple[Any, Any]:
    """The lowered module for a CPU, and LLVM's module of it, whose `inspect_source` shows the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return generate_unchecked(expand_intrinsics(mod), target)


def compile_module(mod: Any, target: Any) -> Any:
    """Compiles every function of the module for a CPU; it becomes machine code when it is first asked for."""
    return executable(generate(mod, target)[1])


def with_packings(mod: Any) -> tuple[Any, list[Packing]]:
    """What is compiled of a scheduled workload: it takes packed weights, and functions that pack them are beside it.

    With the packings, of which those without `positions` have such a function.
    """
    packings = packings_of(mod)
    if not packings:
        return mod, []
    functions = {var.name_hint: function for var, function in without_packings(mod, packings).functions_items()}
    functions |= {p.symbol: p.function.with_attr("global_symbol", p.symbol) for p in packings if p.positions is None}
    return IRModule(functions), packings


def build(mod: Any, target: Any) -> Built:
    """Compiles a scheduled (or untransformed) workload for a CPU target down to machine code."""
    whole, packings = with_packings(mod)
    module = compile_module(whole, target)
    compiled = [packing for packing in packings if packing.positions is None]
    return Built(
        main=module.get_function("main", query_imports=True),
        packings={p.param: p.pack for p in packings}
        | {p.param: module.get_function(p.symbol, query_imports=True) for p in compiled},
        packed={p.param: p.packed for p in packings},
        module=module,
    )


def warm_up(target: Target) -> None:
    """Registers what traces for `target` may name, and compiles and times a small function on one thread.

    For a process that will be forked: the compiler's first use costs as much as three later ones, the first use of
    the timer 25 ms in every fork. Starts no thread.
    """
    kind_of(target).load_intrinsics()
    n = 64
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b, c])}))
    i, j, _ = schedule.get_loops(schedule.get_sblock("c"))
    schedule.vectorize(schedule.split(j, [None, 16])[1])
    module = compile_module(schedule.mod, cpu_target_of_host())
    arguments = [tvm.runtime.empty((n, n), "float32") for _ in range(3)]
    module.time_evaluator("main", tvm.cpu(), number=1, repeat=1)(*arguments)
    schedule.parallel(i)
    compile_module(schedule.mod, cpu_target_of_host()).get_function("main", query_imports=True)


def threads() -> int:
    """Threads a parallel loop uses in this process. Starts the runtime's pool: never call it before a fork."""
    return int(tvm.runtime.num_threads())


def cpu_target_of_host() -> Any:
    """A plain CPU target of this machine: where the reference of a GPU workload runs."""
    cores = int(os.environ.get("TVM_NUM_THREADS", "1"))
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": cores})
