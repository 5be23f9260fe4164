"""Small tensor programs for tests: workloads as the split makes them, without a model around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.deploy.default_check import Checked, Named
from tuner.deploy.run_function import with_run_function
from tuner.graph.prepare import prepare, workload_module
from tuner.lowering.stack import PIPELINE
from tuner.target_kinds.cpu import CpuKind
from tuner.tasks import workload_functions
from tuner.tvm_compat import IRModule, PrimFunc, load_ir, relax, save_ir, tvm
from tuner.workload.digest import workload_digest

TARGET = Target.parse({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
UNOPTIMISED = tvm.target.Target({**TARGET.attributes(), "opt-level": 0})
"""TVM's target of this processor, for tests that ask what a module computes and not which code it becomes: LLVM optimises
nothing, which is two thirds of compiling, and computes the same."""


def leave_unoptimised(patch: pytest.MonkeyPatch) -> None:
    """The same for the models that this process compiles for a CPU, as `build` and `evaluate` do it."""

    def compiled(self: CpuKind, module: Any, target: Target) -> Any:
        with UNOPTIMISED, tvm.transform.PassContext(config=self.pass_config()):
            whole = with_run_function(module)
            return tvm.compile(self.before_codegen(whole), target=UNOPTIMISED, tir_pipeline=PIPELINE)

    patch.setattr(CpuKind, "compile", compiled)
    patch.setattr(CpuKind, "compile_side_by_side", lambda self, module, target, _ready: compiled(self, module, target))


def relax_module(make: Callable[..., Any], *shapes: tuple[int, ...], inputs: int = 1) -> Any:
    """A lowered and fused Relax module of `make(builder, *arguments)`; arguments after `inputs` are weights."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"a{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", arguments, attrs={"num_input": inputs}):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *arguments))
        builder.emit_func_output(result)
    transform = relax.transform
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    return tvm.transform.Sequential(passes)(builder.get())


def workload(make: Callable[..., Any], *shapes: tuple[int, ...], inputs: int = 1) -> Workload:
    """The one tensor program of `relax_module`."""
    functions = [f for f in relax_module(make, *shapes, inputs=inputs).functions.values() if isinstance(f, PrimFunc)]
    assert len(functions) == 1
    mod = IRModule({"main": functions[0].with_attr("global_symbol", "main")})
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


def conv_relu(builder: Any, x: Any, w: Any, b: Any) -> Any:
    y = builder.emit(relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI"))
    return relax.op.nn.relu(builder.emit(relax.op.add(y, b)))


def dense_add(builder: Any, x: Any, w: Any, b: Any) -> Any:
    return relax.op.add(builder.emit(relax.op.matmul(x, w)), b)


@cache
def conv(height: int = 14, channels: int = 16, outputs: int = 16) -> Workload:
    shapes = ((1, height, height, channels), (outputs, 3, 3, channels), (1, 1, 1, outputs))
    return workload(conv_relu, *shapes)


def workloads_of(ir: str, target: Target) -> dict[str, Workload]:
    """The workloads of a model's graph as it is prepared for a target, by digest."""
    functions = workload_functions(prepare(load_ir(ir), target))
    return {digest: Workload(digest=digest, ir=save_ir(workload_module(function))) for _, function, digest in functions}


@cache
def dense(rows: int = 16, reduction: int = 64, columns: int = 32) -> Workload:
    return workload(dense_add, (rows, reduction), (reduction, columns), (columns,))


def unchecked(asked: Sequence[Named], target: Target) -> dict[str, Checked]:
    """The default schedules as they are, for tests that compare what they compute."""
    workloads = [each.workload for each in asked]
    return {each.digest: Checked(trace=kind_of(target).default_trace(each, target)) for each in workloads}
