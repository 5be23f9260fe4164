"""What MetaSchedule's space for tensor cores makes, the trace codec carries."""

from __future__ import annotations

import pytest

from tests.compiler.gpu_programs import convolution, product, relu_of_product, schedules, workload
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace
from tuner.tensor_intrinsics import CUDA_INTRINSICS
from tuner.tvm_compat import load_ir, tvm, tvm_ffi

CASES = {
    "fp16 product": lambda: product(256, 256, 256),
    "fp16 product summed in fp16": lambda: product(128, 128, 128, out="float16"),
    "int8 product": lambda: product(128, 128, 128, dtype="int8", out="int32"),
    "odd sizes": lambda: product(100, 100, 100),
    "batched product": lambda: product(64, 64, 64, batch=3),
    "product with an epilogue": lambda: relu_of_product(128, 128, 128),
    "convolution": convolution,
}


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_core_trace_makes_the_same_program_after_the_codec(name: str) -> None:
    of = workload(CASES[name]())
    mod = load_ir(of.ir)
    made = schedules(of, 1)
    assert made
    for schedule in made:
        trace = encode_trace(schedule.trace)
        assert decode_trace(trace) == trace
        assert tvm_ffi.structural_equal(apply_trace(mod, trace).mod, schedule.mod)
    kinds = {'"ReIndex"' in encode_trace(schedule.trace) for schedule in made}
    assert kinds == {True}, "the sketches use tensor cores"


def test_exactly_the_intrinsics_that_the_rules_name_are_registered() -> None:
    for name in CUDA_INTRINSICS:
        assert tvm.s_tir.TensorIntrin.get(name) is not None
