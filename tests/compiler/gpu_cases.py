"""Workloads of every kind that the default schedules of a GPU are for, and what they compute on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import programs
from tests.gpu_interpreter import dtype_of, run
from tuner.measure.gpu_code import Lowered
from tuner.schedule.trace import apply_trace, decode_trace
from tuner.target_kinds.cuda.default import default_trace
from tuner.tvm_compat import IRModule, PrimFunc, load_ir, relax, save_ir, te, tirx, tvm
from tuner.workload.digest import workload_digest

op = relax.op

Spec = tuple[tuple[int, ...], str]


def functions(make: Callable[..., Any], *specs: Spec) -> list[Any]:
    """Modules of one function, `main`, each: the tensor functions of a legalised and fused Relax function."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"a{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *arguments))
        builder.emit_func_output(result)
    transform = relax.transform
    passes = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps(), transform.FuseTIR()]
    made = tvm.transform.Sequential(passes)(builder.get())
    found = [function for function in made.functions.values() if isinstance(function, PrimFunc)]
    return [IRModule({"main": function.with_attr("global_symbol", "main")}) for function in found]


def one_function(make: Callable[..., Sequence[Any]], *specs: Spec) -> Any:
    """A module of one function, of the tensors that TE makes of arguments of these types: whatever TVM would fuse."""
    arguments = [te.placeholder(shape, dtype, name=f"a{i}") for i, (shape, dtype) in enumerate(specs)]
    return IRModule({"main": te.create_prim_func([*arguments, *make(*arguments)])})


def arguments_of(mod: Any, seed: int = 0) -> list[np.ndarray]:
    """Drawn arguments of `main`, results among them; indices are below 10."""
    rng = np.random.default_rng(seed)
    made = []
    for param in mod["main"].params:
        shape, dtype = tuple(int(extent) for extent in param.ty.shape), dtype_of(str(param.ty.dtype))
        value = (
            rng.uniform(-1, 1, shape) if dtype.kind in "fV" else rng.integers(0, 2 if dtype.kind == "b" else 10, shape)
        )
        made.append(np.ascontiguousarray(np.asarray(value).astype(dtype)))
    return made


def on_the_host(mod: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the unscheduled workload makes of the arguments."""
    tensors = [tvm.runtime.tensor(argument) for argument in arguments]
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        built = tvm.runtime.Executable(tirx.build(mod, target=programs.UNOPTIMISED)).jit()
    built["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""Of the largest value, by type: sums are taken in another order than on the host."""


@dataclass(frozen=True, kw_only=True)
class Default:
    """A default schedule that computes what it should."""

    trace: str
    lowered: Lowered
    """What ran: its launches and its source."""


def check(mod: Any, target: Target, *, seed: int = 0) -> Default:
    """Runs the default schedule thread by thread, and compares it with the host."""
    trace = default_trace(Workload(digest=workload_digest(mod), ir=save_ir(mod)), target)
    assert decode_trace(trace) == trace
    expected, found = on_the_host(mod, arguments_of(mod, seed)), arguments_of(mod, seed)
    lowered = run(apply_trace(load_ir(save_ir(mod)), trace).mod, target, found)
    for one, other in zip(expected, found, strict=True):
        kind = str(one.dtype)
        one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
        scale = max(float(np.abs(one[np.isfinite(one)]).max(initial=0)), 1e-3)
        np.testing.assert_allclose(other, one, rtol=0, atol=TOLERANCE.get(kind, 0) * scale)
    return Default(trace=trace, lowered=lowered)
