"""NVIDIA's GPUs: code by TVM's CUDA generator and NVRTC or nvcc, run by a process that alone holds the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pitchpipe.errors import IntegrityError
from pitchpipe.target_kind import Executable, Fit, TargetKind
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import DeviceFingerprint, Target
from pitchpipe.wire.task import Workload

MOST_SOURCE = 200_000
"""Characters of CUDA C++, at most, of a candidate. NVRTC takes about a second for as many, and for twice as many up to 12 s:
of the candidates of BERT's and ResNet's tasks nearly all that took more than 2 s had more. What is unrolled that far exceeds
the instruction caches."""


class CudaKind(TargetKind):
    """Targets of kind `cuda`."""

    name = "cuda"
    device = "cuda"
    title = "a CUDA"
    runs_unscheduled = False
    has_streams = True
    times_in_turns = True
    confirming_secs = 1.4
    """Three contexts, one after another in the driver, and samples of some milliseconds."""
    artifact = "model.gpu"
    needs_linker = False
    needs_compiler = False
    multiplies_tf32 = True
    replays_candidates = True
    has_templates = True
    checks_on_device = True
    tunes_inside = True

    def fit(self, asking: Target, stored: Target) -> Fit:
        from tuner.target_kinds.cuda.fit import fit

        return fit(asking, stored)

    def describe(self, target: Target) -> str:
        return target.arch or self.name

    def detect(self, ordinal: int = 0) -> Target | None:
        from tuner.target_kinds.cuda import device

        return device.detect(ordinal)

    def hold(self, ordinal: int) -> None:
        from tuner.target_kinds.cuda import device

        device.hold(ordinal)

    def fingerprint(self) -> DeviceFingerprint:
        from tuner.target_kinds.cuda import device

        return device.fingerprint()

    def device_identity(self) -> list[str]:
        from tuner.target_kinds.cuda import device

        return device.identity()

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        from tuner.measure import nvrtc
        from tuner.target_kinds.cuda import device
        from tuner.templates import compiler

        found = device.visible()
        if isinstance(found, str):
            yield "GPU", lambda: f"none: {found}"
            return
        for ordinal, gpu in enumerate(found.devices):
            yield f"GPU {ordinal}", lambda gpu=gpu: device.describe(gpu)  # type: ignore[misc]
        yield "NVIDIA driver", lambda: found.driver or "its version is not told"
        yield "NVRTC", nvrtc.describe
        yield "Triton", compiler.describe

    def load(self, path: Path, target: Target) -> Any:
        from pitchpipe.gpu.encoding import decode
        from pitchpipe.gpu.program import InvalidProgram

        try:
            return decode(path.read_bytes())
        except (InvalidProgram, OSError) as error:
            raise IntegrityError(f"{path.name}: {error}") from error

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
        from pitchpipe.gpu.executable import GpuModel

        return GpuModel(compiled, inputs, params, graphs=graphs, ordinal=ordinal)

    def compile(self, module: Any, target: Target) -> Any:
        """A program: machine code, and the launches of a run."""
        from tuner.deploy.gpu_model import compile_gpu_model

        return compile_gpu_model(module, target)

    def save(self, compiled: Any, path: Path) -> None:
        from pitchpipe.gpu.encoding import encode

        path.write_bytes(encode(compiled))

    def tvm_target(self, target: Target) -> Any:
        """With this machine as its host."""
        from tuner.tvm_compat import tvm

        host = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}
        return tvm.target.Target(target.attributes(), host=host)

    def codegen(self) -> str:
        from tuner.lowering import early_launch
        from tuner.lowering.fastmath import MATH_VERSION
        from tuner.measure import nvrtc
        from tuner.templates import compiler

        version = nvrtc.version()
        own = "CUDA without NVRTC" if version is None else f"CUDA {version[0]}.{version[1]}"
        own += f", math {MATH_VERSION}, launches {early_launch.VERSION}"
        return f"{own}, Triton {compiler.version()}" if compiler.available() else own

    def load_intrinsics(self) -> None:
        from tuner.tensor_intrinsics import load_cuda_intrinsics

        load_cuda_intrinsics()

    def pass_config(self) -> dict[str, Any]:
        """StorageRewrite gives buffers of different types one allocation, and a later pass of TVM 0.27 refuses just that
        in shared memory: four in five tensor-core schedules do not compile. What the pass saves is done again later
        (MergeSharedMemoryAllocations) and by the device compiler (registers): the machine code of what it lets through is
        the same without it, byte for byte (19 kernels compared). Asynchronous copies are made where a schedule asks for
        them: software pipelines with stages that are said to be asynchronous.
        """
        return {"tirx.disable_storage_rewrite": True, "tirx.use_async_copy": True}

    def rewrites(self) -> Any:
        from tuner.target_kinds.cuda.rewrites import REWRITES

        return REWRITES

    def design_spaces(self) -> Sequence[Callable[[Any, Target], list[Any]]]:
        from tuner.space.gpu.recurrence import recurrent_kernels

        return (recurrent_kernels,)

    def templates(self, workload: Workload, target: Target) -> Sequence[Any]:
        from tuner.target_kinds.cuda.templates import templates

        return templates(workload, target)

    def replayed(self, module: Any, trace: str, target: Target) -> None:
        """Up to CUDA C++, which takes 0.1 s: TVM refuses schedules as late as there, and code that is unrolled too far is
        seen there before it is compiled."""
        from tuner.schedule.trace import apply_trace
        from tuner.target_kinds.cuda.default import check_limits

        check_limits(apply_trace(module, trace, checked=False).mod, target, MOST_SOURCE)

    def baseline_trace(self, workload: Workload, target: Target) -> str:
        """The default schedule: what is compared with one thread per output element looks faster than it is."""
        return self.default_trace(workload, target)

    def default_trace(self, workload: Workload, target: Target) -> str:
        from tuner.target_kinds.cuda.default import default_trace

        return default_trace(workload, target)

    def prepare_checks(self, target: Target) -> bool:
        from tuner.deploy.gpu_default_check import prepare_checks

        return prepare_checks(target)

    def check_defaults(self, asked: Sequence[Any], target: Target) -> bytes:
        """Templates, where they are faster than the default schedule, which is the baseline."""
        from tuner.deploy.gpu_default_check import check_gpu_defaults

        return check_gpu_defaults(asked, target)

    def default_schedule(self, module: Any, target: Target) -> Any:
        from tuner.target_kinds.cuda.default import default_schedule

        return default_schedule(module, target)

    def reference_program(self, module: Any, tvm_target: Any) -> tuple[Any, Any]:
        from tuner.measure.build import cpu_target_of_host
        from tuner.measure.reference_program import on_all_cores, target_of

        return on_all_cores(module), target_of(module, cpu_target_of_host())

    def roofline(self, target: Target) -> Roofline | None:
        from tuner.measure import gpu_roofline
        from tuner.target_kinds.cuda import device

        assert target.arch is not None
        return gpu_roofline.measure(target.arch, device.gpu().multiprocessors)

    def code(self, module: Any, scheduled: Any, target: Target) -> Iterator[tuple[str, str]]:
        from tuner.measure.build import parameters
        from tuner.measure.device_compiler import DeviceCompiler
        from tuner.measure.gpu_code import check_parameters, lowered_of, split_kernels
        from tuner.templates import kernels
        from tuner.tvm_compat import to_tvm_target

        assert target.arch is not None
        check_parameters(scheduled, parameters(module))
        if kernels.template_of(scheduled["main"]) is not None:
            yield "triton", kernels.triton_of(scheduled["main"])
            yield "ptx", kernels.ptx_of(scheduled["main"], target.arch)
            return
        tvm_target = to_tvm_target(target)
        split, device = split_kernels(scheduled, tvm_target)
        yield "lowered", device.script()
        source = lowered_of(split, device, tvm_target).source
        yield "cuda", source
        yield "ptx", DeviceCompiler(target.arch).ptx(source)
