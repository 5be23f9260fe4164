"""A candidate as text: what a measurement compiles, on any target, without its device."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from pitchpipe.errors import IntegrityError
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import gpu_programs
from tests.compiler.programs import TARGET, conv, dense
from tests.compiler.test_measure import packing_trace
from tuner.measure.build import apply, build
from tuner.measure.listing import list_code
from tuner.schedule.trace import encode_trace
from tuner.space.tiles import tiled_sketches
from tuner.tvm_compat import Schedule, executable, load_ir, to_tvm_target

AVX512 = Target.parse({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
AVX2 = Target.parse({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})


def listed(of: Workload, trace: str, target: Target = TARGET, *, compiled: bool = True) -> dict[str, Any]:
    return list_code(b"", {}, workload=of.digest, ir=of.ir, trace=trace, target=target.key, compiled=compiled)


def tiled(of: Workload, target: Target) -> str:
    return encode_trace(tiled_sketches(load_ir(of.ir), target)[0].trace)


@pytest.mark.parametrize(("target", "there", "absent"), [(AVX512, "%zmm", "%tmm"), (AVX2, "%ymm", "%zmm")])
def test_the_assembly_is_of_the_records_target_whatever_this_machine_is(
    target: Target, there: str, absent: str
) -> None:
    of = dense(37, 64, 96)
    found = listed(of, tiled(of, target), target)
    assert found["failed"] is None
    assert list(found["code"]) == ["lowered", "assembly"]
    assert "T.vectorized" in found["tir"]
    assert there in found["code"]["assembly"]
    assert absent not in found["code"]["assembly"]


def test_the_scheduled_tir_alone_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.measure.build.generate", None)
    found = listed(dense(), BASELINE_TRACE, compiled=False)
    assert (found["code"], found["failed"]) == ({}, None)
    assert "def main" in found["tir"]


def test_what_is_listed_is_what_a_trial_compiles_the_packing_of_weights_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace, libraries = packing_trace(conv()), []

    def keep(library: Any) -> Any:
        libraries.append(library)
        return executable(library)

    monkeypatch.setattr("tuner.measure.build.executable", keep)
    build(apply(load_ir(conv().ir), trace), to_tvm_target(TARGET))
    (trial,) = libraries
    code = listed(conv(), trace)["code"]
    assert code["assembly"] == str(trial.inspect_source("asm"))
    assert "a1_global" in code["lowered"], "it takes the packed weight"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no compiler for CUDA here")
def test_a_candidate_for_a_gpu_is_listed_without_a_gpu() -> None:
    of = gpu_programs.workload(gpu_programs.product(32, 16, 8))
    found = listed(of, kind_of(gpu_programs.TARGET).baseline_trace(of, gpu_programs.TARGET), gpu_programs.TARGET)
    assert found["failed"] is None
    assert "__global__" in found["code"]["cuda"]
    assert f".target {gpu_programs.TARGET.arch}" in found["code"]["ptx"]
    assert "\0" not in found["code"]["ptx"]
    assert "T.launch_thread" in found["code"]["lowered"]


def test_without_a_compiler_for_cuda_the_source_is_there_and_the_ptx_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.measure.nvrtc.library", lambda: None)
    monkeypatch.setattr("tuner.measure.device_compiler.shutil.which", lambda _: None)
    of = gpu_programs.workload(gpu_programs.product(32, 16, 8))
    found = listed(of, kind_of(gpu_programs.TARGET).baseline_trace(of, gpu_programs.TARGET), gpu_programs.TARGET)
    assert list(found["code"]) == ["lowered", "cuda"]
    assert "NVRTC" in found["failed"]


def test_of_a_trace_that_does_not_apply_the_reason_is_told() -> None:
    found = listed(dense(), packing_trace(conv()))
    assert found["tir"] is None
    assert "does not apply" in found["failed"]
    foreign = listed(dense(), json.dumps([[["UnsafeSetDType", [], [], []]], []]))
    assert foreign["tir"] is None
    assert foreign["failed"]


def test_of_what_does_not_build_the_scheduled_tir_is_there() -> None:
    of = gpu_programs.workload(gpu_programs.product(32, 16, 8))
    found = listed(of, BASELINE_TRACE, gpu_programs.TARGET)  # no loop of it is bound to threads
    assert "def main" in found["tir"]
    assert "does not build" in found["failed"]


def test_a_program_of_another_workload_is_refused() -> None:
    swapped = Workload(digest=dense().digest, ir=conv().ir)
    with pytest.raises(IntegrityError, match=conv().digest):
        listed(swapped, BASELINE_TRACE)


def test_for_a_cpu_that_llvm_here_does_not_know_there_is_the_scheduled_tir_and_no_code() -> None:
    elsewhere = Target.parse({"kind": "llvm", "mcpu": "abacus", "num-cores": 2})
    found = listed(dense(), BASELINE_TRACE, elsewhere)
    assert "def main" in found["tir"]
    assert found["code"] == {}
    assert "abacus" in found["failed"]


def test_a_schedule_that_changes_a_kernels_parameters_is_not_built() -> None:
    of = gpu_programs.workload(gpu_programs.product(32, 16, 8))
    schedule = Schedule(load_ir(of.ir))
    block = schedule.get_sblock("C")
    schedule.transform_layout(block, ("read", 0), lambda i, j: (j, i))
    found = listed(of, encode_trace(schedule.trace), gpu_programs.TARGET)
    assert "parameters" in found["failed"]
