"""Scatters by atomic operations: what their kernels compute, thread by thread, and the code that they become."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.task import Workload
from tests.compiler.gpu_cases import check
from tests.compiler.graphs import GPU
from tests.compiler.test_gpu_model import here
from tests.gpu_interpreter import run
from tuner.graph import atomic_scatters
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.measure.check import ReferenceOutputs
from tuner.measure.properties import inspect
from tuner.schedule.combining import COMBINE, TYPES, find_combining, in_kernels, workload
from tuner.schedule.rewrites import ATOMIC
from tuner.schedule.statements import buffer
from tuner.target_kinds.cuda.default import default_trace
from tuner.tvm_compat import IRModule, PrimFunc, relax, save_ir, tirx, tvm, tvm_ffi
from tuner.workload.digest import workload_digest

SHAPE, COUNT = (7, 5), 200
MEETING: list[tuple[str, str]] = [
    (combine, dtype)
    for combine in COMBINE
    for dtype in sorted(TYPES)
    if "float" not in dtype or combine in ("add", "mul")
]


def of(combine: str, dtype: str, shape: Sequence[int] = SHAPE, count: int = COUNT) -> Any:
    """A workload that combines rows of `shape` into those that indices name, of which some are out of bounds."""
    data, rows, values = buffer("a", shape, dtype), buffer("b", [count], "int64"), buffer("c", [count, shape[1]], dtype)

    def update(at: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        row = rows[at[0]]
        return [row >= 0, row < shape[0]], [row, at[1]], values[tuple(at)]

    function = workload(
        [data, rows, values], buffer("d", shape, dtype), lambda at: data[tuple(at)], [count, shape[1]], combine, update
    )
    return workload_module(function)


def scattering(scatter: Any, *specs: tuple[tuple[int, ...], str]) -> Any:
    """A module of a scatter of tensors of these types."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, (shape, dtype) in enumerate(specs)]
    with builder.function("main", params, attrs={"num_input": len(params)}):
        with builder.dataflow():
            y = builder.emit_output(scatter(*params))
        builder.emit_func_output(y)
    return builder.get()


def prepared(scatter: Any, *specs: tuple[tuple[int, ...], str]) -> Any:
    """The same, for a GPU."""
    return prepare(scattering(scatter, *specs), GPU)


@pytest.mark.parametrize(("combine", "dtype"), MEETING)
def test_the_kernels_compute_what_the_loops_do(combine: str, dtype: str) -> None:
    first, second = check(of(combine, dtype), GPU).lowered.calls
    assert first.grid[0] * first.block[0] >= SHAPE[0] * SHAPE[1]
    assert second.grid[0] * second.block[0] >= COUNT * SHAPE[1], "a thread for each update"


@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
@pytest.mark.parametrize(("combine", "dtype"), MEETING)
def test_the_kernels_become_machine_code(combine: str, dtype: str) -> None:
    from tuner.measure.device_compiler import DeviceCompiler

    scheduled = in_kernels(of(combine, dtype))
    found = run(scheduled, GPU, arguments(scheduled))
    text = DeviceCompiler("sm_90a").ptx(found.source)
    assert text.count(".entry") == 2
    assert "atom.global" in text or "red.global" in text


def arguments(mod: Any) -> list[np.ndarray]:
    return [np.zeros([int(each) for each in param.shape], str(param.dtype)) for param in mod["main"].params]


def test_the_schedule_is_a_rewrite_that_a_trace_names() -> None:
    mod = of("add", "float32")
    trace = default_trace(Workload(digest=workload_digest(mod), ir=save_ir(mod)), GPU)
    assert "atomic-1.1" in trace
    assert ATOMIC["atomic-1.1"] == 1


def test_neighbours_are_added_at_once_where_they_lie_side_by_side() -> None:
    found = check(of("add", "float32", (7, 12)), GPU)
    assert "atomic-4.1" in found.trace
    assert "add_to_wide(" in found.lowered.source
    assert found.lowered.calls[1].grid[0] * found.lowered.calls[1].block[0] < 2 * COUNT * 12 // 4
    if here():
        from tuner.measure.device_compiler import DeviceCompiler

        assert "v4.f32" in DeviceCompiler("sm_90a").ptx(found.lowered.source)
    assert "atomic-1.1" in check(of("add", "float32", (7, 6)), GPU).trace
    with pytest.raises(InvalidTrace):
        in_kernels(of("add", "float32", (7, 6)), 4)


def other(body: Callable[[Any], Any]) -> Any:
    """The workload with another body of its block."""

    def changed(block: Any) -> Any:
        if block.name_hint == "root":
            return block
        return tvm.s_tir.SBlock([], block.reads, block.writes, block.name_hint, body(block.body), None, [], [], {})

    mod = of("add", "float32")
    return mod["main"].with_body(tvm_ffi.structural_map(mod["main"].body, (tvm.s_tir.SBlock, changed)))


def test_what_reads_its_result_otherwise_is_no_such_workload() -> None:
    def twice(body: Any) -> Any:
        """v + out[other] in the place of v."""

        def store(found: Any) -> Any:
            if not isinstance(found.value, tirx.Add):
                return found
            zero = tirx.const(0, "int64")
            return tirx.BufferStore(found.buffer, found.value + found.buffer[zero, zero], found.indices)

        return tvm_ffi.structural_map(body, (tirx.BufferStore, store))

    assert find_combining(other(lambda body: body)) is not None
    assert find_combining(other(twice)) is None
    assert find_combining(other(lambda body: body.seq[1])) is None, "nothing is there before"
    assert find_combining(other(lambda body: tirx.SeqStmt([body.seq[1], body.seq[0]]))) is None
    assert find_combining(other(lambda body: tirx.SeqStmt([body.seq[0].body, body.seq[1]]))) is None
    with pytest.raises(InvalidTrace):
        in_kernels(IRModule({"main": other(twice)}))


def test_sums_in_any_order_pass_and_one_that_lost_an_update_does_not() -> None:
    mod = of("add", "float32", (3, 64), 20_000)
    properties = inspect(mod)
    assert (properties.reduction, properties.reduction_bits, properties.index_bound) == (20_000, 24, 3)
    rng = np.random.default_rng(0)
    rows, values = rng.integers(0, 3, 20_000), rng.uniform(-1, 1, (20_000, 64)).astype(np.float32)

    def summed(order: np.ndarray) -> np.ndarray:
        found = np.zeros((3, 64), np.float32)
        np.add.at(found, rows[order], values[order])
        return found

    expected = ReferenceOutputs(properties, "random", [summed(np.arange(20_000))])
    for _ in range(3):
        right, error, tolerance = expected.compare([summed(rng.permutation(20_000))])
        assert right
        assert 0 < error < tolerance / 4
    assert not expected.compare([summed(np.arange(19_999))])[0]


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [
        *itertools.product(
            ["update", "add", "mul", "min", "max"],
            ["float32", "float16", "bfloat16", "float64", "int8", "int32", "int64"],
        ),
        ("update", "bool"),
    ],
)
def test_large_scatters_have_kernels_with_atomic_operations(reduction: str, dtype: str) -> None:
    def scatter(data: Any, rows: Any, updates: Any) -> Any:
        return relax.op.scatter_elements(data, relax.op.broadcast_to(rows, updates.ty.shape), updates, 0, reduction)

    found = prepared(scatter, ((400, 8), dtype), ((900, 1), "int64"), ((900, 8), dtype))
    functions = [found[found.get_global_var(name)] for name in call_counts(found)]
    combining = [each for each in map(find_combining, functions) if each is not None]
    if reduction in ("min", "max") and dtype == "float64":
        assert not combining, "its elements ask"
        return
    (one,) = combining
    assert one.most == 900
    assert one.combine == ("max" if reduction == "update" else reduction)
    assert [int(each) for each in one.out.shape] == ([400, 1] if reduction == "update" else [400, 8])


@pytest.mark.parametrize(
    ("elements", "updates", "asks"),
    [(30, 16, True), (30, 17, False), (4096, 16, True), (4097, 16, False), (30, 0, True)],
)
def test_scatters_with_few_comparisons_ask(elements: int, updates: int, asks: bool) -> None:
    scatter = lambda data, i, v: relax.op.index_put(data, (i,), v, True)  # noqa: E731
    specs = ((elements,), "float32"), ((updates,), "int64"), ((updates,), "float32")
    functions = atomic_scatters.combine_scatters(scattering(scatter, *specs)).functions.values()
    assert asks is not any(isinstance(each, PrimFunc) for each in functions)


def test_a_tensor_of_one_number_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_scatters, "MOST_ASKED", 0)

    def counted(rows: Any) -> Any:
        ones = relax.op.broadcast_to(relax.const(1, "float32"), relax.ShapeExpr([40]))
        return relax.op.index_put(relax.op.zeros(relax.ShapeExpr([30]), "float32"), (rows,), ones, True)

    found = prepared(counted, ((40,), "int64"))
    (name,) = call_counts(found)
    assert [str(param.dtype) for param in found[found.get_global_var(name)].params] == ["int64", "float32"]


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_the_order_of_floats_is_that_of_their_keys(reduction: str) -> None:
    numbers = [-np.inf, -1e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, np.inf]
    fixed = [atomic_scatters._key_of_number(each, reduction) for each in numbers]
    assert fixed == sorted(set(fixed))
    no_number = atomic_scatters._key_of_number(float("nan"), reduction)
    assert no_number > fixed[-1] if reduction == "max" else no_number < fixed[0]
