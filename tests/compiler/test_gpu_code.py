"""The builder's half on CUDA: programs as data, made without a GPU."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.compiler import gpu_programs
from tests.compiler.gpu_programs import TARGET, product, relu_of_product, schedules, workload
from tuner.measure.build import parameters
from tuner.measure.gpu_code import (
    DeviceCompiler,
    GpuProgram,
    Launch,
    NotCompiled,
    compile_program,
    for_nvrtc,
    lower,
)
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import Schedule, load_ir, to_tvm_target

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
        launches, workspaces, source = lower(schedule.mod, target)
        (launch,) = launches
        assert launch.kernel == "main_kernel"
        assert launch.buffers == (0, 1, 2)
        assert launch.block[0] == 32, "a warp"
        assert launch.grid[0] * launch.grid[1] >= 1
        assert launch.shared_bytes > 0
        assert workspaces == ()
        assert "wmma" in source or "mma.sync" in source


def test_kernels_that_hand_data_on_share_a_workspace() -> None:
    of = workload(relu_of_product(32, 16, 8))
    mod = apply_trace(load_ir(of.ir), gpu_programs.one_thread_an_element(of)).mod
    (first, second), workspaces, _ = lower(mod, to_tvm_target(TARGET))
    assert workspaces == (32 * 16 * 4,)
    assert first.buffers == (0, 1, 3), "two inputs and, after the three parameters, the workspace"
    assert set(second.buffers) == {2, 3}
    assert first.shared_bytes == second.shared_bytes == 0


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
    params = parameters(load_ir(of.ir))
    with pytest.raises(NotCompiled, match="parameters"):
        compile_program(schedule.mod, to_tvm_target(TARGET), params, NoCompiler())


def test_a_program_survives_as_bytes() -> None:
    launch = Launch(kernel="k", buffers=(0, 2), grid=(4, 1, 1), block=(32, 2, 1), shared_bytes=49152)
    program = GpuProgram(launches=(launch, launch), workspaces=(12, 1 << 33), code=bytes(range(256)))
    assert GpuProgram.from_bytes(program.to_bytes()) == program


@pytest.mark.parametrize("data", [b"", b"\0\0\0\2{}", b"\0\0\0\2[]", b"\xff\xff\xff\xff", b"\0\0\0\x04null"])
def test_what_is_no_program_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        GpuProgram.from_bytes(data)


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


def compiler() -> Any:
    try:
        return DeviceCompiler("sm_90")
    except NotCompiled:
        return None


@pytest.mark.skipif(compiler() is None, reason="needs NVRTC or nvcc")
def test_a_program_is_compiled_without_a_gpu() -> None:
    assert shutil.which("nvcc") or compiler().in_process
    of = workload(product(64, 64, 64))
    candidate = gpu_programs.candidates(of, 1)[0]
    mod = load_ir(of.ir)
    scheduled = apply_trace(mod, candidate.trace).mod
    program = compile_program(scheduled, to_tvm_target(TARGET), parameters(mod), compiler())
    assert program.code[:4] == b"\x7fELF"
    with pytest.raises(NotCompiled, match="error"):
        compiler().compile("this is no CUDA")
