"""The only file that knows where TVM keeps its things, and the switches it needs before it is imported.

What importing this module does, once per process, and why:

* `TVM_NUM_THREADS` is set to the number of cores this process may run on, unless it is set already. TVM's runtime
  believes that every x86 core is a hyper-thread and would use half of them.
* torch is kept out: TVM imports torch when it is installed (2 s) and needs it only for zero-copy exchange. A process
  that imported torch before keeps it; importing torch afterwards works and exchanges through DLPack.
* The package `tvm.s_tir.tensor_intrin` is replaced by an empty one with the same path. Its `__init__` parses the
  tensor intrinsics of every vendor (17 s) and `TuneContext` imports it. Call `load_intrinsics(target)` instead.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import types
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidModel, InvalidTarget
from pitchpipe.wire.target import Target, Toolchain


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _import_tvm() -> Any:
    os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))
    hide_torch = "torch" not in sys.modules
    if hide_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's word for "not installed"
    try:
        return importlib.import_module("tvm")
    finally:
        if hide_torch:
            del sys.modules["torch"]


tvm: Any = _import_tvm()


def _empty_intrinsics_package() -> None:
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.s_tir.__path__[0]) / "tensor_intrin")]
    sys.modules[name] = package
    tvm.s_tir.tensor_intrin = package


_empty_intrinsics_package()

import tvm_ffi  # noqa: E402  # after tvm: it would import torch
from tvm import ir, relax, te, tirx, topi  # noqa: E402
from tvm.relax.expr_functor import PyExprMutator, mutator  # noqa: E402
from tvm.s_tir import Schedule, dlight  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.schedule import Trace  # noqa: E402
from tvm_ffi import structural_walk  # noqa: E402

IRModule: Any = tvm.IRModule
PrimFunc: Any = tirx.PrimFunc

__all__ = [
    "IRModule",
    "PrimFunc",
    "PyExprMutator",
    "Schedule",
    "Trace",
    "dlight",
    "ir",
    "load_intrinsics",
    "load_ir",
    "loop_bindings",
    "ms",
    "mutate",
    "mutator",
    "onnx_frontend",
    "relax",
    "remove_weight_layout_rewrite",
    "save_ir",
    "structural_walk",
    "te",
    "tirx",
    "to_tvm_target",
    "toolchain",
    "topi",
    "tvm",
    "tvm_ffi",
    "usable_cores",
    "uses",
    "with_function",
]


def onnx_frontend() -> Any:
    """TVM's module that converts ONNX graphs."""
    return importlib.import_module("tvm.relax.frontend.onnx.onnx_frontend")


def load_intrinsics(target: Target) -> None:
    """Registers the tensor intrinsics that schedules for `target` may name (x86 0.1 s, arm 0.5 s, cuda 11 s)."""
    if target.kind == "cuda":
        parts = ["cuda"]
    elif platform.machine() in ("aarch64", "arm64"):
        parts = ["arm_cpu"]
    else:
        parts = ["x86"]
    for part in parts:
        importlib.import_module(f"tvm.s_tir.tensor_intrin.{part}")


def to_tvm_target(target: Target) -> Any:
    """TVM's target, with this machine as the host of a GPU. Raises InvalidTarget for a CPU that LLVM does not know."""
    attributes = target.attributes()
    if target.kind == "llvm":
        known = tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target("llvm"))
        if target.mcpu not in known:
            raise InvalidTarget(f"mcpu: LLVM does not know a CPU named {target.mcpu!r}")
        return tvm.target.Target(attributes)
    host = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
    return tvm.target.Target(attributes, host=host)


def load_ir(text: str) -> Any:
    """The IRModule of TVM JSON; raises InvalidModel. Foreign text goes through tuner/ingest first."""
    try:
        module = ir.load_json(text)
    except Exception as error:  # TVM raises whatever its C++ side met: ValueError, KeyError, TypeError, ...
        raise InvalidModel(f"not TVM JSON: {str(error).strip().splitlines()[-1][:200]}") from error
    if not isinstance(module, IRModule):
        raise InvalidModel(f"the TVM JSON holds a {type(module).__name__}, not an IRModule")
    return module


def save_ir(module: Any) -> str:
    """TVM JSON of an IRModule; equal modules made by equal steps give equal text."""
    return str(ir.save_json(module))


def with_function(module: Any, name: str, function: Any) -> Any:
    """A copy of the module in which `name` is `function`; callers of the others keep their callees."""
    result = IRModule(dict(module.functions.items()), attrs=module.attrs)
    result.update_func(result.get_global_var(name), function)
    return result


def toolchain(kind: str = "llvm") -> Toolchain:
    """Versions of what turns a trace into code for targets of this kind, in this process."""
    if kind == "cuda":
        try:
            nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        except ImportError:
            codegen = "CUDA without NVRTC"
        else:
            _, major, minor = nvrtc.nvrtcVersion()
            codegen = f"CUDA {major}.{minor}"
    else:
        codegen = f"LLVM {tvm.target.codegen.llvm_version_major()}"
    return Toolchain(tvm=tvm.__version__, tvm_ffi=tvm_ffi.__version__, codegen=codegen)


def mutate(mutator: Any, trace: Any, seed: int) -> Any:
    """A neighbour of a trace, or None. The method on the mutator itself would draw its own seed from the device."""
    return _apply_mutator(mutator, trace, seed)


def uses(expression: Any, variable: Any) -> bool:
    """Whether the variable occurs in the expression."""
    return any(found.same_as(variable) for found in tirx.analysis.undefined_vars(expression))


def loop_bindings(schedule: Any, block: Any) -> list[Any]:
    """What each axis of a block is bound to, in the order of its `iter_vars`."""
    return list(_block_realize(schedule, block).iter_values)


_block_realize: Any = tvm_ffi.get_global_func("s_tir.schedule.GetSBlockRealize")
_apply_mutator: Any = tvm_ffi.get_global_func("s_tir.meta_schedule.MutatorApply")


def remove_weight_layout_rewrite(module: Any) -> Any:
    """The module without its layout-rewriting blocks: the parameters they rewrote have the new layout's shape."""
    return tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
