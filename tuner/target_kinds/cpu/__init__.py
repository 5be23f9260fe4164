"""CPUs: code by LLVM, run by the process itself."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidTarget, MeasurementFailed, PitchpipeError
from pitchpipe.target_kind import HOST, Executable, Fit, TargetKind, fit
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Workload


@contextmanager
def _refusals() -> Iterator[None]:
    """Raises PitchpipeError for what TVM refuses to compile."""
    from tuner.tvm_compat import tvm

    try:
        yield
    except tvm.error.InternalError as error:
        raise PitchpipeError(f"the compiler refused the model: {str(error).strip().splitlines()[-1]}") from error


class CpuKind(TargetKind):
    """Targets of kind `llvm`."""

    name = HOST
    device = "cpu"
    title = "a CPU"
    runs_unscheduled = True
    has_streams = False
    confirming_secs = 0.35
    """Compiling two or three programs, six to nine processes, and their samples of a millisecond."""
    artifact = "model.so"
    needs_linker = True
    needs_compiler = True
    multiplies_tf32 = False
    ranked_after = 32

    def fit(self, asking: Target, stored: Target) -> Fit:
        from tuner.target_kinds.cpu import isa

        return isa.fit(asking, stored)

    def describe(self, target: Target) -> str:
        cores = "" if target.num_cores is None else f" on {target.num_cores} core{'s' if target.num_cores > 1 else ''}"
        return f"{target.mcpu}{''.join(target.mattr)}{cores}"

    def detect(self, ordinal: int = 0) -> Target | None:
        if ordinal:
            return None
        from pitchpipe.processes.cores import usable_cores
        from tuner.target_kinds.compiler import compiler_here

        return Target.parse({"kind": self.name, "mcpu": compiler_here().mcpu, "num-cores": usable_cores()})

    def hold(self, ordinal: int) -> None:
        if ordinal:
            raise MeasurementFailed(f"there is no CPU {ordinal}: all cores are one device")

    def fingerprint(self) -> DeviceFingerprint:
        from tuner.target_kinds.cpu import device

        return device.fingerprint()

    def device_identity(self) -> list[str]:
        return [self.fingerprint().device_class, platform.machine()]

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        from pitchpipe.processes.child import run_step

        yield "device", lambda: self.fingerprint().model
        yield "toolchain", lambda: Toolchain.model_validate(run_step("describe_toolchain", kind=self.name)).key

    def load(self, path: Path, target: Target) -> Any:
        from pitchpipe.vm import load_library

        return load_library(path, target)

    def executable(
        self,
        compiled: Any,
        inputs: Sequence[Any],
        params: Sequence[Any],
        target: Target,
        *,
        graphs: bool = True,
        ordinal: int | None = None,
    ) -> Executable:
        from pitchpipe.vm import MachineModel

        return MachineModel(compiled, inputs, params, target)

    def compile(self, module: Any, target: Target) -> Any:
        """TVM's executable, with the functions `main` and `main_transform_params` of its virtual machine."""
        from tuner.deploy.run_function import with_run_function
        from tuner.lowering.stack import PIPELINE
        from tuner.tvm_compat import to_tvm_target, tvm

        tvm_target, module = to_tvm_target(target), with_run_function(module)
        with _refusals(), tvm_target, tvm.transform.PassContext(config=self.pass_config()):
            return tvm.compile(self.before_codegen(module), target=tvm_target, tir_pipeline=PIPELINE)

    def compile_side_by_side(self, module: Any, target: Target, ready: Mapping[str, tuple[Any, bytes]]) -> Any:
        """As `compile`, with the kernels as object code, which is still to be linked."""
        from tuner.deploy.kernels import compile_kernels
        from tuner.deploy.run_function import with_run_function
        from tuner.tvm_compat import link_model, take_kernels, to_tvm_target

        tvm_target = to_tvm_target(target)
        with _refusals():
            instructions, kernels = take_kernels(with_run_function(module), tvm_target)
        objects = compile_kernels(kernels, tvm_target, ready)
        return link_model(instructions, tvm_target, [(each.names, each.code) for each in objects])

    def save(self, compiled: Any, path: Path) -> None:
        try:
            compiled.export_library(str(path), addons=[str(Path(__file__).with_name("launch.c"))])
        except (RuntimeError, OSError) as error:
            raise PitchpipeError(f"the library could not be linked: {str(error).strip().splitlines()[-1]}") from error
        if not path.exists():
            raise PitchpipeError("the library could not be linked")

    def tvm_target(self, target: Target) -> Any:
        from tuner.tvm_compat import tvm

        known = tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target("llvm"))
        if target.mcpu not in known:
            raise InvalidTarget(f"mcpu: LLVM does not know a CPU named {target.mcpu!r}")
        return tvm.target.Target(target.attributes())

    def codegen(self) -> str:
        from tuner.lowering import sines, stack
        from tuner.lowering.fastmath import MATH_VERSION
        from tuner.tvm_compat import tvm

        own = f"math {MATH_VERSION}, sines {sines.VERSION}, stack {stack.VERSION}"
        return f"LLVM {tvm.target.codegen.llvm_version_major()}, {own}"

    def load_intrinsics(self) -> None:
        from tuner.tensor_intrinsics import load_intrinsics_of

        load_intrinsics_of("arm_cpu" if platform.machine() in ("aarch64", "arm64") else "x86")

    def pass_config(self) -> dict[str, Any]:
        """Without the checks that TVM puts before each kernel: the virtual machine checks what it is called with, and
        allocates the rest. With their messages they are a fifth of the compiler's work and two thirds of the library."""
        return {"tirx.disable_assert": True}

    def before_codegen(self, module: Any) -> Any:
        from tuner.lowering.fastmath import expand_intrinsics

        return expand_intrinsics(module)

    def rewrites(self) -> Any:
        from tuner.target_kinds.cpu.rewrites import REWRITES

        return REWRITES

    def design_spaces(self) -> Sequence[Callable[[Any, Target], list[Any]]]:
        from tuner.space.recurrence import recurrent_sketches
        from tuner.space.rowwise import rowwise_sketches
        from tuner.space.tiles import tiled_sketches
        from tuner.space.winograd import winograd_sketches

        return winograd_sketches, tiled_sketches, rowwise_sketches, recurrent_sketches

    def vector_unit(self, target: Target, element_bits: int) -> Any:
        from tuner.space.processor import VectorUnit

        return VectorUnit.of(target, element_bits)

    def baseline_trace(self, workload: Workload, target: Target) -> str:
        """The workload as it is."""
        return BASELINE_TRACE

    def default_trace(self, workload: Workload, target: Target) -> str:
        from tuner.space.default import default_trace

        return default_trace(workload, target)

    def default_traces(self, workload: Workload, target: Target) -> Iterator[str]:
        from tuner.space.default import default_traces

        return default_traces(workload, target)

    def prepare_checks(self, target: Target) -> bool:
        from pitchpipe.processes.cores import usable_cores
        from tuner.measure.ahead import import_ahead
        from tuner.tvm_compat import import_object_loader, tvm

        mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
        if not fit(Target.parse({"kind": self.name, "mcpu": mcpu, "num-cores": usable_cores()}), target).fits:
            return False
        self.load_intrinsics()
        import_object_loader()
        import_ahead()
        return True

    def check_defaults(self, asked: Sequence[Any], target: Target) -> bytes:
        from tuner.deploy.default_check import check_defaults

        return check_defaults(asked, target)

    def default_schedule(self, module: Any, target: Target) -> Any:
        from tuner.schedule.trace import apply_trace
        from tuner.space.default import default_trace
        from tuner.tvm_compat import save_ir
        from tuner.workload.digest import workload_digest

        workload = Workload(digest=workload_digest(module), ir=save_ir(module))
        return apply_trace(module, default_trace(workload, target)).mod

    def reference_program(self, module: Any, tvm_target: Any) -> tuple[Any, Any]:
        from tuner.measure.reference_program import on_all_cores, target_of

        return on_all_cores(module), target_of(module, tvm_target)

    def code(self, module: Any, scheduled: Any, target: Target) -> Iterator[tuple[str, str]]:
        from tuner.measure.build import generate, with_packings
        from tuner.tvm_compat import to_tvm_target

        whole, _ = with_packings(scheduled)
        lowered, library = generate(whole, to_tvm_target(target))
        yield "lowered", lowered.script()
        yield "assembly", str(library.inspect_source("asm"))

    def roofline(self, target: Target) -> Roofline | None:
        from tuner.measure import roofline
        from tuner.target_kinds.cpu import device

        return roofline.measure(target, device.data_caches(target.num_cores or 1), device.memory_bytes())
