"""Default schedules: valid, correct and deterministic for whatever tensor program comes along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.target_kind import kind_named, kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import programs
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace, without_postproc
from tuner.search.evolution import propose
from tuner.search.requests import ProposeRequest
from tuner.space.access import element_bits
from tuner.space.default import default_trace
from tuner.space.tiles import tiled_sketches
from tuner.space.winograd import winograd_sketches
from tuner.tvm_compat import IRModule, Schedule, load_ir, relax, save_ir, tirx, to_tvm_target, tvm, tvm_ffi
from tuner.workload.digest import workload_digest

op = relax.op
Make = Callable[..., Any]

PROGRAMS: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "max pooling, channels last": (
        lambda b, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        ((1, 28, 28, 32),),
    ),
    "max pooling, channels first": (
        lambda b, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1)),
        ((1, 32, 28, 28),),
    ),
    "mean over space": (lambda b, x: op.mean(x, axis=[1, 2]), ((1, 7, 7, 512),)),
    "softmax": (lambda b, x: op.nn.softmax(x), ((4, 64, 65),)),
    "layer norm": (lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), ((1, 64, 768), (768,), (768,))),
    "concatenation": (lambda b, x, y: op.concat([x, y], axis=1), ((1, 64, 14, 14), (1, 32, 14, 14))),
    "transpose": (lambda b, x: op.permute_dims(x, [0, 2, 3, 1]), ((1, 64, 28, 28),)),
    "residual addition of odd width": (
        lambda b, x, y: op.nn.relu(b.emit(op.add(x, y))),
        ((1, 7, 7, 511), (1, 7, 7, 511)),
    ),
    "sum to a scalar": (lambda b, x: op.sum(x), ((1000,),)),
    "reshape": (lambda b, x: op.reshape(x, (1, -1)), ((1, 7, 7, 512),)),
    "gelu": (lambda b, x: op.nn.gelu(x), ((64, 768),)),
    "convolution": (programs.conv_relu, ((1, 14, 14, 16), (16, 3, 3, 16), (1, 1, 1, 16))),
    "dense": (programs.dense_add, ((16, 64), (64, 32), (32,))),
    "running sum": (lambda b, x: op.cumsum(x, axis=1), ((4, 100),)),
}


def dense_gelu_by_tanh(b: Any, x: Any, w: Any, bias: Any) -> Any:
    """A product and a GELU that reads it three times, in stages of their own."""
    y = b.emit(programs.dense_add(b, x, w, bias))
    inner = b.emit(op.add(y, b.emit(op.multiply(b.emit(op.power(y, relax.const(3.0))), relax.const(0.044715)))))
    tanh = b.emit(op.tanh(b.emit(op.multiply(inner, relax.const(0.79788458)))))
    return op.multiply(b.emit(op.multiply(y, relax.const(0.5))), b.emit(op.add(tanh, relax.const(1.0))))


def gather(dtype: str = "float32") -> Workload:
    table, index = tirx_buffer("table", (100, 64), dtype), tirx_buffer("index", (16,), "int64")
    builder = relax.BlockBuilder()
    with builder.function("main", [table, index]):
        with builder.dataflow():
            result = builder.emit_output(op.take(table, index, axis=0, mode="clip"))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    (function,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    alone = IRModule({"main": function.with_attr("global_symbol", "main")})
    return Workload(digest=workload_digest(alone), ir=save_ir(alone))


def tirx_buffer(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    return relax.Var(name, relax.TensorType(shape, dtype))


def outputs(mod: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arguments = []
    for param in mod["main"].params:
        shape, dtype = tuple(int(e) for e in param.ty.shape), str(param.ty.dtype)
        value = rng.random(shape) if dtype.startswith("float") else rng.integers(0, 10, shape)
        arguments.append(tvm.runtime.tensor(np.asarray(value, dtype=dtype)))
    built = tvm.runtime.Executable(tirx.build(mod, target=to_tvm_target(programs.TARGET))).jit()
    built["main"](*arguments)
    return [argument.numpy() for argument in arguments]


def check(workload: Workload) -> str:
    trace = default_trace(workload, programs.TARGET)
    assert decode_trace(trace) == trace
    assert default_trace(workload, programs.TARGET) == trace
    mod = load_ir(workload.ir)
    for expected, found in zip(outputs(mod), outputs(apply_trace(mod, trace).mod), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return trace


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fixed_schedule_computes_the_same(name: str) -> None:
    make, shapes = PROGRAMS[name]
    functions = programs.relax_module(make, *shapes).functions.values()
    for function in [f for f in functions if isinstance(f, tirx.PrimFunc)]:
        mod = IRModule({"main": function.with_attr("global_symbol", "main")})
        check(Workload(digest=workload_digest(mod), ir=save_ir(mod)))


@pytest.mark.filterwarnings("ignore")
def test_a_gather_gets_a_schedule_that_computes_the_same() -> None:
    check(gather())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("axes", "shape", "tile"),
    [
        ((0, 3, 1, 2), (1, 20, 128, 21), (64, 21)),
        ((1, 0), (84, 150), (42, 150)),
        ((0, 3, 1, 2), (2, 19, 19, 85), (19, 85)),
    ],
)
def test_a_transposition_of_an_axis_that_no_vector_divides_is_tiled(
    axes: tuple[int, ...], shape: tuple[int, ...], tile: tuple[int, int]
) -> None:
    """A tile reads one piece of memory, with all of that axis."""
    workload = programs.workload(lambda _, x: op.permute_dims(x, axes), shape)
    mod = apply_trace(load_ir(workload.ir), check(workload)).mod
    loops: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, (tirx.For, loops.append))
    assert tuple(int(loop.extent) for loop in loops[:2]) == tile  # from the innermost on


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_indices_do_not_make_vectors_shorter(dtype: str) -> None:
    schedule = Schedule(load_ir(gather(dtype).ir))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    assert element_bits(schedule.get(block)) == 8 * np.dtype(dtype).itemsize


def test_a_large_program_runs_in_parallel_and_vectorised() -> None:
    trace = check(programs.workload(lambda b, x, y: op.nn.relu(b.emit(op.add(x, y))), (64, 4096), (64, 4096)))
    assert '"Parallel"' in trace
    assert '"Vectorize"' in trace
    assert '"ComputeInline"' in trace


@pytest.mark.parametrize(
    ("made", "form"),
    [
        (programs.conv, winograd_sketches),
        (lambda: programs.dense(128, 256, 192), tiled_sketches),
        (lambda: programs.workload(dense_gelu_by_tanh, (64, 256), (256, 192), (192,)), tiled_sketches),
    ],
)
def test_the_default_of_a_contraction_is_what_the_search_begins_with(made: Make, form: Callable[..., Any]) -> None:
    trace = check(made())
    (first,) = form(load_ir(made().ir), programs.TARGET, most=1)
    assert without_postproc(trace) == encode_trace(first.trace.simplified(True))
    request = {"target": programs.TARGET, "measured": (), "seen": frozenset(), "model": None}
    proposals = propose(ProposeRequest(workload=made(), n=2, seed=0, **request))
    assert trace in [proposal.candidate.trace for proposal in proposals]


def test_a_small_program_does_not_wake_other_threads() -> None:
    assert '"Parallel"' not in check(programs.workload(lambda b, x, y: op.add(x, y), (8, 32), (8, 32)))


def test_the_baseline_of_a_cpu_is_the_workload_itself() -> None:
    assert kind_of(programs.TARGET).baseline_trace(programs.conv(), programs.TARGET) == BASELINE_TRACE


def test_the_baseline_of_a_gpu_is_its_default_schedule() -> None:
    cuda = Target.parse(
        {
            "kind": "cuda",
            "arch": "sm_90",
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        }
    )
    trace = kind_of(cuda).baseline_trace(programs.conv(), cuda)
    assert decode_trace(trace) == trace
    assert '"blockIdx.x"' in trace
    mod = load_ir(programs.conv().ir)
    assert apply_trace(mod, trace).mod.script() == apply_trace(mod, trace).mod.script()
    assert kind_of(cuda).default_trace(programs.conv(), cuda) == trace


def test_no_design_space_of_processors_is_searched_on_a_gpu() -> None:
    processors, gpus = (set(kind_named(name).design_spaces()) for name in ("llvm", "cuda"))
    assert len(processors) == 4
    assert processors.isdisjoint(gpus)


@pytest.mark.parametrize(
    ("rows", "width", "divided"), [(16, 64, False), (16, 1024, True), (1, 128, False), (1, 512, True)]
)
def test_a_product_is_divided_among_cores_where_one_core_would_take_longer_than_that_costs(
    rows: int, width: int, divided: bool
) -> None:
    trace = check(programs.workload(programs.dense_add, (rows, width), (width, width), (width,)))
    assert ('"Parallel"' in trace) == divided


@pytest.mark.parametrize(
    ("make", "shapes", "lanes"),
    [
        (programs.dense_add, ((1, 784), (784, 10), (10,)), 10),
        (
            lambda b, x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"),
            ((1, 28, 28, 8),),
            8,
        ),
        (
            lambda b, x: op.quantize(x, relax.const(0.05), relax.const(128, "uint8"), axis=0, out_dtype="uint8"),
            ((1, 3, 224, 224),),
            16,
        ),
    ],
    ids=["ten columns", "eight channels", "bytes that are computed in float32"],
)
def test_vectors_have_as_many_elements_as_lie_together_or_are_computed_at_a_time(
    make: Make, shapes: Any, lanes: int
) -> None:
    wide = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
    workload = programs.workload(make, *shapes)
    mod = apply_trace(load_ir(workload.ir), default_trace(workload, wide)).mod
    widths: set[int] = set()

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            widths.add(int(loop.extent))

    tvm_ffi.structural_walk(mod["main"].body, (tirx.For, visit))
    assert widths == {lanes}
    for expected, found in zip(outputs(load_ir(workload.ir)), outputs(mod), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
