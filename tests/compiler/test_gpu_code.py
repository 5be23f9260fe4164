"""The builder's half on CUDA: programs as data, made without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.gpu.program import Place
from pitchpipe.wire.target import Target
from tests.compiler import gpu_programs
from tests.compiler.gpu_programs import TARGET, product, relu_of_product, schedules, workload
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled, for_nvrtc
from tuner.measure.gpu_code import Lowered, compile_program, lower
from tuner.measure.properties import inspect
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import IRModule, PrimFunc, Schedule, load_ir, relax, te, to_tvm_target

HEADER = """#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  using cuda::std::uint8_t;

  #include <cuda/std/type_traits>
  namespace std {
    using cuda::std::is_same;
  }

#endif
#include <cuda.h>
"""


def test_every_tensor_core_schedule_becomes_one_launch() -> None:
    """Four in five do not with TVM's StorageRewrite: see `CudaKind.pass_config`."""
    target = to_tvm_target(TARGET)
    for schedule in schedules(workload(product(128, 128, 128)), 2):
        lowered = lower(schedule.mod, target)
        (launch,) = lowered.calls
        assert launch.kernel == "main_kernel"
        assert launch.arguments == (0, 1, 2)
        assert launch.block[0] == 32, "a warp"
        assert launch.grid[0] * launch.grid[1] >= 1
        assert launch.shared_bytes > 0
        assert lowered.workspaces == ()
        assert "wmma" in lowered.source or "mma.sync" in lowered.source


def test_kernels_that_hand_data_on_share_a_workspace() -> None:
    of = workload(relu_of_product(32, 16, 8))
    mod = apply_trace(load_ir(of.ir), gpu_programs.one_thread_an_element(of)).mod
    lowered = lower(mod, to_tvm_target(TARGET))
    first, second = lowered.calls
    assert lowered.workspaces == (32 * 16 * 4,)
    assert first.arguments == (0, 1, 3), "two inputs and, after the three parameters, the workspace"
    assert set(second.arguments) == {2, 3}
    assert first.shared_bytes == second.shared_bytes == 0


def sort_of_tvm() -> Lowered:
    """Of 4 x 3000 numbers: models have another one."""
    x, builder = relax.Var("x", relax.TensorType((4, 3000), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.sort(x, axis=1)))
    with to_tvm_target(TARGET):
        module = relax.transform.LegalizeOps()(relax.backend.DispatchSortScan()(builder.get()))
    (sort,) = (function for function in module.functions.values() if isinstance(function, PrimFunc))
    return lower(IRModule({"main": sort.with_attr("global_symbol", "main")}), to_tvm_target(TARGET))


def test_loops_of_the_host_whose_length_is_known_are_launches() -> None:
    """TVM's sort for GPUs merges runs in a loop, whose kernels are told how long the runs are."""
    calls = sort_of_tvm().calls
    told = [[int.from_bytes(one, "little") for one in call.arguments if isinstance(one, bytes)] for call in calls]
    assert [sorted(scalars) for scalars in told if len(scalars) > 1] == [
        [at, min(1024, run), run] for at, run in enumerate((256, 512, 1024, 2048, 4096))
    ]


def compiler() -> Any:
    try:
        return DeviceCompiler("sm_90")
    except NotCompiled:
        return None


PRINTS_WHAT_IT_COMPILES = """
import hashlib
from tests.compiler.gpu_programs import TARGET
from tests.compiler.test_gpu_code import sort_of_tvm
from tuner.measure.device_compiler import DeviceCompiler
lowered = sort_of_tvm()
print(hashlib.sha256(DeviceCompiler(TARGET.arch).compile(lowered.source)).hexdigest(), lowered.calls)
"""


@pytest.mark.long
@pytest.mark.skipif(compiler() is None, reason="needs NVRTC or nvcc")
def test_every_process_compiles_the_same_machine_code() -> None:
    """Of kernels with several scalars, too, whose order TVM might take from a hash table."""
    told = []
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-W", "ignore", "-c", PRINTS_WHAT_IT_COMPILES]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
        told.append(ended.stdout.strip().splitlines()[-1])
    assert told[0] == told[1]


def test_a_schedule_that_leaves_work_on_the_host_is_refused() -> None:
    of = workload(product(32, 32, 32))
    with pytest.raises(Exception, match=r"not directly accessible|Memory verification|more than launch"):
        lower(load_ir(of.ir), to_tvm_target(TARGET))


class NoCompiler(DeviceCompiler):
    def __init__(self) -> None:
        pass

    def compile(self, source: str) -> bytes:
        return source.encode()


def test_a_schedule_that_changes_the_parameters_is_refused() -> None:
    of = workload(product(32, 32, 32))
    schedule = Schedule(load_ir(of.ir))
    schedule.transform_layout(schedule.get_sblock("C"), ("read", 0), lambda i, j: (j, i // 4, i % 4))
    properties = inspect(load_ir(of.ir))
    with pytest.raises(NotCompiled, match="parameters"):
        compile_program(schedule.mod, to_tvm_target(TARGET), properties, NoCompiler())


def test_a_candidate_is_a_program_of_its_parameters_and_workspaces() -> None:
    of = workload(relu_of_product(32, 16, 8))
    mod = load_ir(of.ir)
    scheduled = apply_trace(mod, gpu_programs.one_thread_an_element(of)).mod
    program = compile_program(scheduled, to_tvm_target(TARGET), inspect(mod), NoCompiler())
    places = [Place.INPUT, Place.INPUT, Place.OUTPUT, Place.SCRATCH]
    assert [buffer.place for buffer in program.buffers] == places
    assert [buffer.size_bytes for buffer in program.buffers] == [512, 256, 2048, 2048]
    assert [program.kernels[launch.kernel].name for launch in program.run] == ["main_kernel", "main_kernel_1"]
    assert decode(encode(program)) == program


@pytest.mark.parametrize(
    ("kernel", "left"),
    [
        ("int f() { return 1; }", False),
        ("bool f() { return std::is_same<int, int>::value; }", True),
        ("cuda::std::numeric_limits<int> f();", True),
        ("cuda::std::int8_t f();", False),
    ],
)
def test_standard_headers_are_left_out_where_nothing_uses_them(kernel: str, left: bool) -> None:
    source = for_nvrtc(HEADER + kernel)
    assert ("type_traits" in source) is left
    assert "cuda.h" not in source
    assert kernel in source


@pytest.mark.skipif(compiler() is None, reason="needs NVRTC or nvcc")
def test_a_program_is_compiled_without_a_gpu() -> None:
    assert shutil.which("nvcc") or compiler().in_process
    of = workload(product(64, 64, 64))
    candidate = gpu_programs.candidates(of, 1)[0]
    mod = load_ir(of.ir)
    scheduled = apply_trace(mod, candidate.trace).mod
    program = compile_program(scheduled, to_tvm_target(TARGET), inspect(mod), compiler())
    assert program.codes[0][:4] == b"\x7fELF"
    with pytest.raises(NotCompiled, match="error"):
        compiler().compile("this is no CUDA")


def test_powers_and_functions_are_those_of_exact_mathematics() -> None:
    """With fast mathematics a power of a negative number is NaN, and the sine of a large one is wrong."""
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64,), lambda i: te.power(x[i], 2.0) + te.sin(x[i]) / te.power(x[i], x[i]), name="y")
    schedule = Schedule(IRModule({"main": te.create_prim_func([x, y])}))
    (loop,) = schedule.get_loops("y")
    schedule.bind(loop, "threadIdx.x")
    lowered = lower(schedule.mod, to_tvm_target(TARGET))
    assert lowered.source.count("powf(x_ptr") == 1, "a square is a product"
    ptx = compiler().ptx(lowered.source)
    assert "sin.approx" not in ptx
    assert "div.rn.f32" in ptx


@pytest.mark.parametrize(("arch", "early"), [("sm_80", False), ("sm_90a", True)])
def test_kernels_let_the_next_launch_begin_and_wait_for_the_one_before_where_the_device_can(
    arch: str, early: bool
) -> None:
    target = Target.parse({**TARGET.attributes(), "arch": arch})
    x = te.placeholder((64,), "float32", name="x")
    y = te.compute((64,), lambda i: x[i] + x[63 - i], name="y")
    z = te.compute((64,), lambda i: y[i] * y[63 - i], name="z")
    schedule = Schedule(IRModule({"main": te.create_prim_func([x, z])}))
    for name in "yz":
        schedule.bind(schedule.get_loops(name)[0], "threadIdx.x")
    lowered = lower(schedule.mod, to_tvm_target(target))
    assert [call.programmatic for call in lowered.calls] == [early, early]
    entries = DeviceCompiler(arch).ptx(lowered.source).split(".entry")[1:]
    assert len(entries) == 2
    for entry in entries:
        body = entry[entry.index("{") :]
        assert ("griddepcontrol.wait" in body) is early
        if early:
            first = body.index("griddepcontrol.launch_dependents")
            assert first < body.index("griddepcontrol.wait") < body.index("ld.global"), "it waits before it reads"
