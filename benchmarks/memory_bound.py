"""Operators that memory bounds, at the shapes of BERT-base, ViT-B/16, ResNet and MobileNetV2: bytes per second.

    python benchmarks/memory_bound.py
    python benchmarks/memory_bound.py --target cuda --json     (memory_bound_cuda.py says how)

Four ways take turns on the same inputs: the baseline, the default schedule, PyTorch's eager
operator where PyTorch is installed, and a copy that moves as many bytes on as many threads.
A row's bytes are inputs plus outputs, each counted once. `exp` is replaced by arithmetic in softmax's row, for both of
ours: what a vectorised exp costs is another measurement; PyTorch's row has its own exp.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import memory_bound_cuda
import numpy as np
from environment import environment, parser, show

from pitchpipe.model.local import detect_target
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.task import Workload
from tuner.graph.prepare import workload_module
from tuner.schedule.trace import apply_trace
from tuner.space.default import default_trace
from tuner.tvm_compat import (
    PrimFunc,
    executable,
    generate_unchecked,
    ir,
    load_ir,
    relax,
    save_ir,
    tirx,
    to_tvm_target,
    tvm,
    tvm_ffi,
)
from tuner.workload.digest import workload_digest

ROUND_SECS = 0.01
"""One side's turn."""
WARM_SECS = 0.01
"""Before it: another library's threads may still be spinning on the cores."""
OPENMP = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
"""Of PyTorch's threads: unbound, two of them now and then share a core and wait for each other there, for milliseconds."""
op = relax.op


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator: how Relax and PyTorch write it, and the shapes of its inputs."""

    make: Callable[..., Any]
    eager: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ()


def _softmax(_: Any, x: Any) -> Any:
    return op.nn.softmax(x)


def _torch() -> Any:
    import torch

    return torch


def _functional() -> Any:
    return _torch().nn.functional


CASES = {
    "softmax 12x128x128 (BERT)": Case(make=_softmax, eager=lambda x: _torch().softmax(x, -1), shapes=((12, 128, 128),)),
    "softmax 12x197x197 (ViT)": Case(make=_softmax, eager=lambda x: _torch().softmax(x, -1), shapes=((12, 197, 197),)),
    "layer norm 128x768 (BERT)": Case(
        make=lambda _, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]),
        eager=lambda x, g, s: _functional().layer_norm(x, (768,), g, s),
        shapes=((128, 768), (768,), (768,)),
    ),
    "rms norm 512x2048": Case(
        make=lambda _, x, g: op.nn.rms_norm(x, g, axes=[-1]),
        eager=lambda x, g: _functional().rms_norm(x, (2048,), g),
        shapes=((512, 2048), (2048,)),
    ),
    "mean of rows 197x768": Case(
        make=lambda _, x: op.mean(x, axis=[1]), eager=lambda x: x.mean(1), shapes=((197, 768),)
    ),
    "max pooling 112x112x64 (ResNet)": Case(
        make=lambda _, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        eager=lambda x: _functional().max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1),
        shapes=((1, 112, 112, 64),),
    ),
    "global average 7x7x2048 (ResNet-50)": Case(
        make=lambda _, x: op.mean(x, axis=[1, 2]), eager=lambda x: x.mean((1, 2)), shapes=((1, 7, 7, 2048),)
    ),
    "residual and relu 56x56x256 (ResNet-50)": Case(
        make=lambda b, x, y: op.nn.relu(b.emit(op.add(x, y))),
        eager=lambda x, y: _torch().relu(x + y),
        shapes=((1, 56, 56, 256), (1, 56, 56, 256)),
    ),
    "clip 112x112x96 (MobileNetV2)": Case(
        make=lambda _, x: op.clip(x, 0.0, 6.0), eager=lambda x: x.clamp(0, 6), shapes=((1, 112, 112, 96),)
    ),
    "concatenation 196x768 (ViT)": Case(
        make=lambda _, x, y: op.concat([x, y], axis=1),
        eager=lambda x, y: _torch().cat([x, y], 1),
        shapes=((1, 1, 768), (1, 196, 768)),
    ),
    "gather of 128 rows (BERT)": Case(
        make=lambda _, table, at: op.take(table, at, axis=0, mode="clip"),
        eager=lambda table, at: table[at],
        shapes=((30522, 768), (128,)),
        dtypes=("float32", "int64"),
    ),
    "heads 128x768 to 12x128x64 (BERT)": Case(
        make=lambda b, x: op.permute_dims(b.emit(op.reshape(x, (128, 12, 64))), [1, 0, 2]),
        eager=lambda x: x.reshape(128, 12, 64).permute(1, 0, 2).contiguous(),
        shapes=((128, 768),),
    ),
    "keys 128x768 to 12x64x128 (BERT)": Case(
        make=lambda b, x: op.permute_dims(b.emit(op.reshape(x, (128, 12, 64))), [1, 2, 0]),
        eager=lambda x: x.reshape(128, 12, 64).permute(1, 2, 0).contiguous(),
        shapes=((128, 768),),
    ),
    "image to channels last 3x224x224": Case(
        make=lambda _, x: op.permute_dims(x, [0, 2, 3, 1]),
        eager=lambda x: x.permute(0, 2, 3, 1).contiguous(),
        shapes=((1, 3, 224, 224),),
    ),
    "residual of 64 MiB": Case(
        make=lambda _, x, y: op.add(x, y), eager=lambda x, y: x + y, shapes=((2048, 4096), (2048, 4096))
    ),
}
QUICK = ("softmax 12x128x128 (BERT)", "layer norm 128x768 (BERT)", "max pooling 112x112x64 (ResNet)")


def workload(case: Case) -> Workload:
    """The operator as one fused tensor function, its exponentials replaced by arithmetic."""
    dtypes = case.dtypes or ("float32",) * len(case.shapes)
    builder = relax.BlockBuilder()
    arguments = [
        relax.Var(f"a{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(case.shapes, dtypes, strict=True))
    ]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(case.make(builder, *arguments))
        builder.emit_func_output(result)
    passes = relax.transform
    steps = [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FuseOps(), passes.FuseTIR()]
    module = tvm.transform.Sequential(steps)(builder.get())
    (function,) = [f for f in module.functions.values() if isinstance(f, PrimFunc)]
    body = tvm_ffi.structural_map(function.body, (ir.Call, _arithmetic))
    module = workload_module(tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(dict(function.attrs)))
    return Workload(digest=workload_digest(module), ir=save_ir(module))


def _arithmetic(call: Any) -> Any:
    """exp(x) as four terms of its series: what is computed does not matter here, that vectors compute it does."""
    if getattr(call.op, "name", "") != "tirx.exp":
        return call
    x, value = call.args[0], tirx.const(1 / 24, "float32")
    for coefficient in (1 / 6, 1 / 2, 1.0, 1.0):
        value = tirx.const(coefficient, "float32") + x * value
    return value


def prepared(name: str, target: Any) -> tuple[dict[str, Callable[[], Any]], int, bool]:
    """The sides of a row, ready to run; the bytes that the operator must move; whether ours and the baseline agree."""
    case = CASES[name]
    task = workload(case)
    module = apply_trace(load_ir(task.ir), BASELINE_TRACE).mod
    rng = np.random.default_rng(0)
    dtypes = case.dtypes or ("float32",) * len(case.shapes)
    inputs = [
        rng.standard_normal(shape).astype(dtype) if dtype == "float32" else rng.integers(0, 1000, shape)
        for shape, dtype in zip(case.shapes, dtypes, strict=True)
    ]
    shape = [int(extent) for extent in module["main"].params[-1].ty.shape]
    results = {side: tvm.runtime.tensor(np.zeros(shape, np.float32)) for side in ("baseline", "ours")}
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    moved = sum(4 * math.prod(shape) for shape in case.shapes) + 4 * math.prod(shape)
    if case.dtypes:  # A gather reads the rows that it is asked for, not its table.
        moved = 2 * 4 * math.prod(shape) + 8 * math.prod(case.shapes[-1])
    sides: dict[str, Callable[[], Any]] = {}
    for side, trace in (("baseline", BASELINE_TRACE), ("ours", default_trace(task, target))):
        sides[side] = _bound(_compiled(task, trace, target), [*tensors, results[side]])
    sides["copy"] = _copy(moved, target)
    if (eager := _eager(case, inputs, target)) is not None:
        sides["eager"] = eager
    for call in sides.values():
        call()
    return sides, moved, bool(np.allclose(results["ours"].numpy(), results["baseline"].numpy(), rtol=1e-3, atol=1e-5))


def _compiled(task: Any, trace: str, target: Any) -> Any:
    _, library = generate_unchecked(apply_trace(load_ir(task.ir), trace).mod, to_tvm_target(target))
    return executable(library)["main"]


def _bound(function: Any, tensors: list[Any]) -> Callable[[], Any]:
    return lambda: function(*tensors)


def _copy(moved: int, target: Any) -> Callable[[], Any]:
    """A copy of half as many bytes to another place, on all cores: it reads and writes as much as the operator moves."""
    elements = moved // 8 // 64 * 64
    case = Case(make=lambda _, x: op.nn.relu(x), eager=lambda x: x, shapes=((elements,),))
    task = workload(case)
    function = _compiled(task, default_trace(task, target), target)
    tensors = [tvm.runtime.tensor(np.ones(elements, np.float32)) for _ in range(2)]
    return _bound(function, tensors)


def _eager(case: Case, inputs: list[Any], target: Any) -> Callable[[], Any] | None:
    try:
        torch = _torch()
    except ImportError:
        return None
    torch.set_num_threads(target.num_cores or 1)
    tensors = [torch.from_numpy(array) for array in inputs]

    def run() -> Any:
        with torch.inference_mode():
            return case.eager(*tensors)

    return run


def interleaved(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of one run of each side; sides take turns, and each wakes its threads before its turn counts."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            _mean_secs(side, WARM_SECS)
            samples[name].append(_mean_secs(side, ROUND_SECS))
    return {name: statistics.median(values) for name, values in samples.items()}


def _mean_secs(side: Callable[[], Any], secs: float) -> float:
    runs, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < secs:
        side()
        runs += 1
    return passed / runs


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", choices=("llvm", "cuda"), default="llvm")
    options = arguments.parse_args()
    if options.target == "cuda":
        memory_bound_cuda.main(options)
        return
    target = detect_target("auto")
    os.environ |= OPENMP
    rounds = 5 if options.quick else 11
    names = QUICK if options.quick else tuple(CASES)
    result: dict[str, Any] = {"environment": environment(rounds=rounds, round_secs=ROUND_SECS), "rows": []}
    for name in names:
        sides, moved, agrees = prepared(name, target)
        secs = interleaved(sides, rounds)
        row: dict[str, Any] = {"operator": name, "bytes": moved, "agrees": agrees}
        row |= {f"{side}_gb_per_sec": moved / value / 1e9 for side, value in secs.items()}
        row["vs_baseline"] = secs["baseline"] / secs["ours"]
        row["vs_copy"] = secs["copy"] / secs["ours"]
        if "eager" in secs:
            row["vs_eager"] = secs["eager"] / secs["ours"]
        result["rows"].append(row)
    result["summary"] = {"all_agree": all(row["agrees"] for row in result["rows"])}
    for key in ("vs_baseline", "vs_copy", "vs_eager"):
        if values := [row[key] for row in result["rows"] if key in row]:
            result["summary"] |= {
                f"geomean_{key}": statistics.geometric_mean(values),
                f"worst_{key}": min(values),
                f"losses_{key}": sum(value < 1 for value in values),
            }
    show(result, options.json)


if __name__ == "__main__":
    main()
