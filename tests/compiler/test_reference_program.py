"""The reference program computes what the unscheduled program computes, bit for bit, whatever its shape and type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pitchpipe.target_kind import kind_of
from tests.compiler import gpu_programs, half_workloads, programs
from tests.compiler.programs import TARGET
from tests.compiler.test_recurrence import HALF_LAYERS, LAYERS, module_of
from tests.compiler.test_rowwise import CHAINS
from tests.compiler.test_space_default import PROGRAMS, gather
from tuner.measure.build import build
from tuner.measure.candidate import Bench, Running
from tuner.measure.check import SETS
from tuner.tvm_compat import IRModule, relax, save_ir, tirx, tvm_ffi

op = relax.op
MORE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product that nothing divides": (programs.dense_add, ((13, 67), (67, 61), (61,))),
    "product of transposed weights": (
        lambda b, x, w: op.matmul(x, b.emit(op.permute_dims(w))),
        ((33, 96), (128, 96)),
    ),
    "convolution, channels first": (
        lambda b, x, w: op.nn.conv2d(x, w, padding=1, strides=2),
        ((1, 8, 28, 28), (16, 8, 3, 3)),
    ),
    "convolution of groups": (
        lambda b, x, w: op.nn.conv2d(x, w, padding=1, groups=32, data_layout="NHWC", kernel_layout="OHWI"),
        ((1, 14, 14, 32), (32, 3, 3, 1)),
    ),
    "whole numbers": (
        lambda b, x, y: op.matmul(b.emit(op.astype(x, "int32")), b.emit(op.astype(y, "int32"))),
        ((32, 48), (48, 64)),
    ),
}


def irs(make: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    """Of all tensor functions of a program."""
    functions = [f for f in programs.relax_module(make, *shapes).functions.values() if isinstance(f, tirx.PrimFunc)]
    return [save_ir(IRModule({"main": function.with_attr("global_symbol", "main")})) for function in functions]


WORKLOADS: dict[str, Callable[[], list[str]]] = {
    **{name: partial(irs, make, shapes) for name, (make, shapes) in {**CHAINS, **PROGRAMS, **MORE}.items()},
    "gather": lambda: [gather().ir],
    "dense in half precision": lambda: [half_workloads.dense(32, 64, 48, gelu=True).ir],
    "products of bfloat16": lambda: [
        gpu_programs.workload(gpu_programs.product(33, 67, 130, dtype="bfloat16", out=out)).ir
        for out in ("float32", "bfloat16")
    ],
    "convolution in half precision": lambda: [half_workloads.convolution(14, 16, 32).ir],
    "recurrent layers": lambda: [save_ir(module_of(layer)) for layer in (*LAYERS, *HALF_LAYERS)],
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_sum_changes_its_order(name: str) -> None:
    for ir in WORKLOADS[name]():
        bench = Bench(ir, TARGET, 0)
        unscheduled = Running(bench, build(bench.mod, bench.tvm_target))
        reference = Running(bench, bench.reference_program())
        for inputs in SETS:
            bench.fill(inputs)
            pairs = zip(unscheduled.outputs_on(inputs), reference.outputs_on(inputs), strict=True)
            for expected, found in pairs:
                assert found.tobytes() == expected.tobytes()


def test_a_large_product_is_divided_among_cores_and_computed_in_vectors() -> None:
    bench = Bench(programs.dense(64, 64, 256).ir, TARGET, 0)
    mod, _ = kind_of(TARGET).reference_program(bench.mod, bench.tvm_target)
    kinds = set[int]()
    tvm_ffi.structural_walk(mod["main"].body, (tirx.For, lambda loop: kinds.add(int(loop.kind))))
    assert {int(tirx.ForKind.PARALLEL), int(tirx.ForKind.VECTORIZED)} <= kinds


def test_what_the_compiler_refuses_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(programs.dense().ir, TARGET, 0)
    bench.fill("random")

    def refusing(*_: Any) -> Any:
        raise ValueError("not this one")

    monkeypatch.setattr(type(kind_of(TARGET)), "reference_program", refusing)
    assert Running(bench, bench.reference_program()).run("random") > 0
