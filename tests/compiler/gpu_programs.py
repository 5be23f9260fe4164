"""Workloads and candidates for CUDA, made without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.wire.measure import Candidate
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.schedule.trace import encode_trace
from tuner.space.metaschedule import generate
from tuner.tvm_compat import IRModule, dlight, load_ir, save_ir, te, tirx, to_tvm_target
from tuner.workload.digest import workload_digest

TARGET = Target.parse(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
    }
)
HOPPER = Target.parse({**TARGET.attributes(), "arch": "sm_90a", "max_shared_memory_per_block": 232448})
"""As a driver describes it: all that the device has."""


def workload(tensors: Sequence[Any]) -> Workload:
    mod = IRModule({"main": te.create_prim_func(list(tensors))})
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


def product(
    rows: int, columns: int, length: int, *, dtype: str = "float16", out: str = "float32", batch: int = 0
) -> list[Any]:
    """The tensors of a matrix product."""
    lead = (batch,) if batch else ()
    a = te.placeholder((*lead, rows, length), dtype, name="A")
    b = te.placeholder((*lead, length, columns), dtype, name="B")
    k = te.reduce_axis((0, length), name="k")

    def cell(*index: Any) -> Any:
        *outer, i, j = index
        return te.sum(a[(*outer, i, k)].astype(out) * b[(*outer, k, j)].astype(out), axis=k)

    return [a, b, te.compute((*lead, rows, columns), cell, name="C")]


def relu_of_product(rows: int, columns: int, length: int) -> list[Any]:
    a, b, c = product(rows, columns, length)
    zero = tirx.const(0, "float32")
    return [a, b, te.compute((rows, columns), lambda i, j: tirx.max(c[i, j], zero), name="D")]


def convolution() -> list[Any]:
    """3x3 over 16x16x16, channels last."""
    x, w = te.placeholder((18, 18, 16), "float16", name="X"), te.placeholder((3, 3, 16, 16), "float16", name="W")
    p, q, c = (te.reduce_axis((0, n), name=name) for n, name in ((3, "p"), (3, "q"), (16, "c")))
    return [
        x,
        w,
        te.compute(
            (16, 16, 16),
            lambda i, j, o: te.sum(
                x[i + p, j + q, c].astype("float32") * w[p, q, c, o].astype("float32"), axis=[p, q, c]
            ),
            name="Y",
        ),
    ]


def schedules(of: Workload, count: int, *, seed: int = 1, draws: int = 200) -> list[Any]:
    """Complete schedules of each sketch of MetaSchedule's space, `count` of each."""
    space = generate(of, TARGET)
    found = []
    for sketch in space.sketches:
        drawn = (space.candidate(sketch, seed + i) for i in range(draws))
        complete = (schedule for schedule in drawn if schedule is not None)
        found += [schedule for schedule, _ in zip(complete, range(count), strict=False)]
    return found


def candidates(of: Workload, count: int, *, seed: int = 1) -> list[Candidate]:
    return [Candidate.of(of.digest, encode_trace(schedule.trace)) for schedule in schedules(of, count, seed=seed)]


def one_thread_an_element(of: Workload) -> str:
    """The trace of TVM's own default schedule."""
    target = to_tvm_target(TARGET)
    with target:
        return encode_trace(dlight.gpu.Fallback().apply(load_ir(of.ir)["main"], target, False).trace)
