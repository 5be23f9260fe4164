"""From a workload and a trace to callable machine code, in this process: no archive, no linker, no file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.lowering.fastmath import expand_intrinsics
from tuner.lowering.stack import PIPELINE
from tuner.measure.ahead import import_ahead
from tuner.schedule.packing import Packing, packings_of, without_packings
from tuner.schedule.tensor_type import TensorType
from tuner.schedule.trace import apply_trace
from tuner.templates.kernels import template_of
from tuner.tvm_compat import (
    IRModule,
    Schedule,
    executable,
    generate_unchecked,
    te,
    tvm,
)


@dataclass(frozen=True, kw_only=True)
class CpuProgram:
    """A candidate compiled for a CPU. `module` owns the machine code and makes TVM's time evaluators."""

    main: Callable[..., None]
    packings: dict[int, Callable[[Any, Any], None]]
    """Index of a parameter whose layout the schedule changes -> function(weight, packed) that copies it; both are tensors
    of TVM."""
    packed: dict[int, TensorType]
    """The same index -> type of the packed tensor, which takes the parameter's place in calls of `main`."""
    module: Any


def apply(mod: Any, trace: str) -> Any:
    """The module after the trace. Raises InvalidTrace when the allow-list refuses the trace or it does not apply."""
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
        return generate_unchecked(expand_intrinsics(mod), target, PIPELINE)


def compile_module(mod: Any, target: Any) -> Any:
    """Compiles every function of the module for a CPU. LLVM makes machine code of a function when it is first looked up."""
    return executable(generate(mod, target)[1])


def with_packings(mod: Any) -> tuple[Any, list[Packing]]:
    """(module to compile, packings) of a scheduled workload.

    `main` of the module takes packed weights. A packing without `positions` has a function of its own in the module, which
    packs the weight. Raises InvalidTrace for a template.
    """
    if template_of(mod["main"]) is not None:
        raise InvalidTrace("templates are for GPUs")
    packings = packings_of(mod)
    if not packings:
        return mod, []
    functions = {var.name_hint: function for var, function in without_packings(mod, packings).functions_items()}
    functions |= {p.symbol: p.function.with_attr("global_symbol", p.symbol) for p in packings if p.positions is None}
    return IRModule(functions), packings


def build(mod: Any, target: Any) -> CpuProgram:
    """Compiles a workload, scheduled or not, for a CPU target down to machine code. Raises InvalidTrace for a template."""
    whole, packings = with_packings(mod)
    module = compile_module(whole, target)
    compiled = [packing for packing in packings if packing.positions is None]
    return CpuProgram(
        main=module.get_function("main", query_imports=True),
        packings={p.param: p.pack for p in packings}
        | {p.param: module.get_function(p.symbol, query_imports=True) for p in compiled},
        packed={p.param: p.packed for p in packings},
        module=module,
    )


def warm_up(target: Target) -> None:
    """Registers the tensor intrinsics that traces for `target` may name, and compiles and times a small function.

    For a process that will be forked, so that forks inherit what first use sets up: the first compilation takes as long as
    three later ones, the first use of the timer 25 ms. Starts no thread.
    """
    kind_of(target).load_intrinsics()
    import_ahead()
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
    """Number of threads that a parallel loop uses in this process. Starts TVM's thread pool: never call it before a fork."""
    return int(tvm.runtime.num_threads())


def cpu_target_of_host() -> Any:
    """This machine's CPU as TVM's target: runs the heartbeat program, and the reference program of a GPU workload."""
    cores = int(os.environ.get("TVM_NUM_THREADS", "1"))
    return tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": cores})
