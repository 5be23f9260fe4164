"""Register tiles: what is recognised, what the tiles compute, that they fit the registers and keep inner loops plain."""

from __future__ import annotations

import platform
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, dense, workload
from tuner.measure.build import build
from tuner.space.contraction import find_contraction
from tuner.space.depthwise import windows
from tuner.space.metaschedule import generate
from tuner.space.micro_kernel import Product, micro_kernels
from tuner.space.processor import VectorUnit, lines_in_l1
from tuner.space.tiles import sketches_for, tiled_sketches
from tuner.tvm_compat import (
    IRModule,
    Schedule,
    load_ir,
    ms,
    relax,
    save_ir,
    structural_walk,
    te,
    tirx,
    to_tvm_target,
    topi,
    tvm,
    uses,
)
from tuner.workload.digest import workload_digest

AVX512 = Target.parse({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
AVX2 = Target.parse({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4}


def convolution(shape: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Workload:
    def make(builder: Any, x: Any, w: Any, b: Any) -> Any:
        y = builder.emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **options))
        return relax.op.nn.relu(builder.emit(relax.op.add(y, b)))

    return workload(make, shape, weight, (1, 1, 1, weight[3]))


def dense_gelu() -> Workload:
    """An epilogue that calls a function."""

    def make(builder: Any, x: Any, w: Any) -> Any:
        return relax.op.nn.gelu(builder.emit(relax.op.matmul(x, w)))

    return workload(make, (37, 64), (64, 96))


def product_of_activations(rows: int, reduction: int, columns: int) -> Workload:
    def make(builder: Any, x: Any, y: Any) -> Any:
        return relax.op.multiply(builder.emit(relax.op.matmul(x, y)), relax.const(0.5))

    return workload(make, (3, rows, reduction), (3, reduction, columns), inputs=2)


def of_tensors(*tensors: Any) -> Workload:
    mod = IRModule({"main": te.create_prim_func(list(tensors))})
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


def transposed_product(columns: int = 32) -> Workload:
    """C[h, i, j] = sum_d Q[i, h, d] * K[j, h, d], as attention has it before its transposes."""
    q, k = te.placeholder((20, 4, 32), name="q"), te.placeholder((columns, 4, 32), name="k")
    d = te.reduce_axis((0, 32), name="d")
    return of_tensors(q, k, te.compute((4, 20, columns), lambda h, i, j: te.sum(q[i, h, d] * k[j, h, d], axis=d)))


def convolution_3d() -> Workload:
    x, w = te.placeholder((1, 4, 7, 9, 8), name="x"), te.placeholder((3, 3, 3, 8, 16), name="w")
    return of_tensors(x, w, topi.nn.conv3d_ndhwc(x, w, 1, 1, 1, 1))


def convolution_1d() -> Workload:
    x, w = te.placeholder((1, 65, 16), name="x"), te.placeholder((3, 16, 48), name="w")
    padded = topi.nn.pad(x, [0, 1, 0], [0, 1, 0])
    k, c = te.reduce_axis((0, 3), name="k"), te.reduce_axis((0, 16), name="c")
    y = te.compute((1, 33, 48), lambda n, i, v: te.sum(padded[n, i * 2 + k, c] * w[k, c, v], axis=[k, c]))
    return of_tensors(x, w, y)


def transposed_convolution() -> Workload:
    """Stride two, window of four: every output has four of its sixteen products."""
    x, w = te.placeholder((1, 7, 7, 16), name="x"), te.placeholder((4, 4, 16, 32), name="w")
    padded = topi.nn.pad(x, [0, 1, 1, 0], [0, 1, 1, 0])
    i, j, c = te.reduce_axis((0, 4), name="i"), te.reduce_axis((0, 4), name="j"), te.reduce_axis((0, 16), name="c")

    def product(n: Any, y: Any, z: Any, v: Any) -> Any:
        hit = tirx.all((y + i) % 2 == 0, (z + j) % 2 == 0)
        data = tirx.if_then_else(hit, padded[n, (y + i) // 2, (z + j) // 2, c], tirx.const(0.0, "float32"))
        return te.sum(data * w[3 - i, 3 - j, c, v], axis=[i, j, c])

    return of_tensors(x, w, te.compute((1, 14, 14, 32), product))


WORKLOADS = {
    "window": lambda: convolution((1, 14, 14, 16), (3, 3, 16, 32), padding=1),
    "window, stride, columns in threes": lambda: convolution((1, 15, 15, 16), (3, 3, 16, 48), padding=1, strides=2),
    "window, dilation": lambda: convolution((1, 14, 14, 16), (3, 3, 16, 32), dilation=2),
    "window, groups": lambda: convolution((1, 13, 13, 32), (3, 3, 8, 64), padding=1, groups=4),
    "window, three channels": lambda: convolution((1, 28, 28, 3), (7, 7, 3, 32), padding=3, strides=2),
    "1x1, rows over the image's edge": lambda: convolution((1, 7, 7, 32), (1, 1, 32, 96)),
    "1x1, stride": lambda: convolution((1, 14, 14, 32), (1, 1, 32, 64), strides=2),
    "depthwise": lambda: convolution((1, 17, 17, 32), (3, 3, 1, 32), padding=1, groups=32),
    "depthwise, stride": lambda: convolution((1, 33, 33, 48), (3, 3, 1, 48), padding=1, strides=2, groups=48),
    "depthwise, larger than caches": lambda: convolution(
        (1, 96, 96, 32), (3, 3, 1, 32), padding=1, strides=2, groups=32
    ),
    "transposed": transposed_convolution,
    "1D": convolution_1d,
    "3D": convolution_3d,
    "window, long reduction": lambda: convolution((1, 7, 7, 512), (3, 3, 512, 64), padding=1),
    "1x1, long reduction": lambda: convolution((1, 6, 6, 4096), (1, 1, 4096, 64)),
    "dense, prime rows": lambda: dense(37, 64, 96),
    "dense, long reduction": lambda: dense(32, 4096, 64),
    "dense, gelu": dense_gelu,
    "dense, one row": lambda: dense(1, 256, 1000),
    "dense, odd columns": lambda: dense(5, 64, 1001),
    "product": lambda: product_of_activations(32, 48, 64),
    "product, prime rows and columns": lambda: product_of_activations(37, 32, 41),
    "product, long reduction": lambda: product_of_activations(32, 4096, 64),
    "product, transposed": transposed_product,
    "product, transposed, odd columns": lambda: transposed_product(49),
    "product, four rows": lambda: product_of_activations(4, 96, 64),
}
"""Kinds of contraction, small."""


@cache
def case(kind: str) -> tuple[Workload, Any, tuple[Any, ...], Any]:
    """Workload, module, inputs with room for the output, what its baseline computes."""
    made = WORKLOADS[kind]()
    mod = load_ir(made.ir)
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in param.shape] for param in mod["main"].params]
    arrays = tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return made, mod, arrays, run(mod, arrays, TARGET)


def run(mod: Any, arrays: tuple[Any, ...], target: Target) -> Any:
    built = build(mod, to_tvm_target(target))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    for param, pack in built.packings.items():
        weight, tensors[param] = tensors[param], tvm.runtime.empty(built.packed[param].shape)
        pack(weight, tensors[param])
    built.main(*tensors)
    return tensors[-1].numpy()


@cache
def candidates(kind: str, target: Target) -> list[Any]:
    """One of each sketch."""
    made, mod, _, _ = case(kind)
    sketches = tiled_sketches(mod, target)
    assert sketches
    space = generate(made, target).joined([sketches])
    found = [space.candidate(sketch, seed) for seed, sketch in enumerate(space.sketches[-len(sketches) :], 1)]
    assert all(found)
    assert len(found) >= (1 if kind.startswith("dense, o") else 2)
    return found


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_tile_computes_what_the_baseline_computes(kind: str) -> None:
    _, _, arrays, expected = case(kind)
    for candidate in candidates(kind, TARGET):
        atol = 1e-5 * float(np.std(expected))  # What is left of terms of this size that cancel each other.
        np.testing.assert_allclose(run(candidate.mod, arrays, TARGET), expected, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_long_reduction_is_also_offered_in_blocks_that_all_tiles_use(kind: str) -> None:
    sketches = [schedule for schedule in tiled_sketches(case(kind)[1], TARGET) if is_blocked(schedule)]
    assert len(sketches) == ("long reduction" in kind)


def is_blocked(schedule: Any) -> bool:
    """Whether tiles take turns inside a loop over the reduction."""
    realizes: list[Any] = []
    structural_walk(schedule.mod["main"].body, (tvm.s_tir.SBlockRealize, realizes.append))
    (product,) = [realized for realized in realizes if any(axis.iter_type == 2 for axis in realized.block.iter_vars)]
    loops = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock(product.block.name_hint))]

    def walked(iter_type: int) -> list[int]:
        values = zip(product.block.iter_vars, product.iter_values, strict=True)
        mine = [value for axis, value in values if axis.iter_type == iter_type]
        return [i for i, loop in enumerate(loops) if any(uses(value, loop.loop_var) for value in mine)]

    turns = [i for i in walked(0) if loops[i].kind == tirx.ForKind.SERIAL and int(loops[i].extent) > 1]
    return bool(turns) and min(walked(2)) < max(turns)


def test_blocks_go_first_where_a_panel_is_larger_than_the_cache() -> None:
    def blocked(rows: int) -> list[bool]:
        return [is_blocked(schedule) for schedule in tiled_sketches(load_ir(dense(rows, 3072, 768).ir), AVX512, most=3)]

    assert blocked(197)[:2] == [True, False], "four vectors of 3072 steps, and rows that no tile divides"
    assert blocked(128)[:2] == [False, True], "two vectors"


@pytest.mark.parametrize(("kind", "streamed"), [("depthwise", 0), ("depthwise, larger than caches", 2)])
def test_a_depthwise_convolution_that_comes_from_memory_is_also_read_as_it_lies(kind: str, streamed: int) -> None:
    found = find_contraction(Schedule(case(kind)[1]))
    assert found is not None
    offered = list(windows(found, VectorUnit.with_features_of(to_tvm_target(TARGET), found.bits), 2))
    assert sum(window.streamed for window in offered) == streamed


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs code for AVX2")
@pytest.mark.parametrize("kind", ["window", "1x1, rows over the image's edge", "depthwise", "dense, prime rows"])
def test_the_tiles_for_avx2_are_of_their_own_and_compute_the_same(kind: str) -> None:
    _, _, arrays, expected = case(kind)
    for candidate in candidates(kind, AVX2):
        np.testing.assert_allclose(run(candidate.mod, arrays, AVX2), expected, rtol=1e-4, atol=1e-4)
        widths = [int(loop.extent) for loop in loops_of(candidate.mod) if loop.kind == tirx.ForKind.VECTORIZED]
        assert max(widths) == 8


@pytest.mark.parametrize("kind", ["product", "dense, prime rows", "depthwise"])
def test_the_tiles_for_neon_keep_their_accumulators_in_registers(kind: str) -> None:
    target = tvm.target.Target(NEON)
    for schedule in sketches_for(case(kind)[1], target, 4):
        schedule.enter_postproc()
        assert ms.postproc.RewriteLayout().apply(schedule)
        text = tvm.compile(schedule.mod, target=target).mod.inspect_source("asm")
        hottest = max(re.split(r"\n(?=\.LBB\w+:)", text), key=lambda block: block.count("fmla\tv"))
        inner = re.split(r"\n\tb(?:\.\w+)?\t", hottest)[0]
        assert inner.count("fmla\tv") >= 8
        assert not re.search(r"\tst[rp]\tq.*\[sp", inner)


@pytest.mark.long
@pytest.mark.parametrize("kind", WORKLOADS)
def test_no_multiply_add_is_under_a_condition(kind: str) -> None:
    target = to_tvm_target(TARGET)
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    for candidate in candidates(kind, TARGET):
        mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(candidate.mod)
        lowered = pipeline(tirx.transform.BindTarget(target.with_host(target))(mod))
        assert any(multiply_adds(function.body) for function in lowered.functions.values())
        conditions: list[Any] = []
        for function in lowered.functions.values():
            structural_walk(function.body, (tirx.IfThenElse, conditions.append))
        assert not [condition for condition in conditions if multiply_adds(condition)]


def multiply_adds(statement: Any) -> list[Any]:
    found: list[Any] = []

    def visit(store: Any) -> None:
        if isinstance(store.value, tirx.Add) and any(isinstance(s, tirx.Mul) for s in (store.value.a, store.value.b)):
            found.append(store)

    structural_walk(statement, (tirx.BufferStore, visit))
    return found


def loops_of(mod: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(mod["main"].body, (tirx.For, found.append))
    return found


@pytest.mark.parametrize(("mcpu", "lanes", "registers"), [("znver5", 16, 32), ("haswell", 8, 16), ("x86-64", 4, 16)])
def test_the_vector_unit_comes_from_the_target(mcpu: str, lanes: int, registers: int) -> None:
    unit = VectorUnit.of(Target.parse({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}), 32)
    assert (unit.lanes, unit.registers) == (lanes, registers)


def test_neon_has_thirty_two_registers_of_four() -> None:
    unit = VectorUnit.with_features_of(tvm.target.Target(NEON), 32)
    assert (unit.lanes, unit.registers) == (4, 32)


UNITS = {
    name: VectorUnit.of(Target.parse({"kind": "llvm", "mcpu": name, "num-cores": 2}), 32)
    for name in ("znver5", "haswell")
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize(("rows", "columns"), [(197, 768), (49, 960), (1, 1000), (3136, 24), (128, 1001)])
def test_register_tiles_fit_the_registers_and_the_columns(unit: VectorUnit, rows: int, columns: int) -> None:
    kernels = micro_kernels(Product(rows=rows, columns=columns, steps=768, group=columns, pads_rows=True), unit, 2)
    assert kernels
    for kernel in kernels:
        assert kernel.rows * kernel.vectors + kernel.vectors + unit.operands <= unit.registers or kernel.rows == 1
        assert columns % kernel.width == 0
        assert kernel.rows <= rows
        assert kernel.cost >= 1


def test_a_large_product_is_modelled_near_peak_and_a_prime_number_of_rows_costs_little() -> None:
    even, prime = (
        micro_kernels(Product(rows=rows, columns=768, steps=768, group=768, pads_rows=True), UNITS["znver5"], 2)[0].cost
        for rows in (196, 197)
    )
    assert even < 1.15
    assert prime < 1.05 * even


def test_rows_a_page_apart_are_few_enough_for_the_cache() -> None:
    assert (lines_in_l1(3072 * 4), lines_in_l1(768 * 4), lines_in_l1(65 * 64)) == (8, 32, 512)


def test_what_holds_no_contraction_has_no_tiles() -> None:
    relu = workload(lambda _, x: relax.op.nn.relu(x), (64, 64))
    assert find_contraction(Schedule(load_ir(relu.ir))) is None
    assert tiled_sketches(load_ir(relu.ir), TARGET) == []


def packings(made: Workload) -> list[bool]:
    """Of each tile that a product of activations is offered, the best first: whether the kernel packs B."""
    sketches = tiled_sketches(load_ir(made.ir), TARGET)
    return [any(step.kind.name == "CacheRead" for step in schedule.trace.insts) for schedule in sketches]


def test_what_few_tiles_use_is_not_packed_first() -> None:
    assert packings(product_of_activations(4, 96, 64))[0] is False
    assert packings(product_of_activations(128, 96, 64))[0] is True


def test_tiles_are_ranked_by_loads_latency_and_copies() -> None:
    unit = VectorUnit(lanes=16, registers=32, operands=1)

    def cost(rows: int, columns: int, *, pads: bool = False) -> dict[tuple[int, int], float]:
        product = Product(rows=rows, columns=columns, steps=768, group=columns, pads_rows=True, pads_columns=pads)
        return {(kernel.rows, kernel.vectors): kernel.cost for kernel in micro_kernels(product, unit, 2)}

    wide = cost(28, 96)
    assert wide[16, 1] > 1.15 * wide[14, 2], "a tile of one vector loads as often as it multiplies"
    assert max(height for height, _ in wide) == 16, "half as many rows as registers"
    assert wide[4, 2] > 1.1 * wide[7, 2], "few accumulators wait for one another"
    assert cost(28, 32, pads=True)[9, 2] > cost(28, 384, pads=True)[9, 2], "rows are copied for few columns or for many"
    assert cost(28, 32)[9, 2] == pytest.approx(cost(28, 384)[9, 2]), "where columns are whole, no row is copied"
    assert cost(27, 384)[14, 2] < 28 / 27 * cost(28, 384)[14, 2] * 1.01, (
        "one row beyond the last costs little more than itself"
    )


@pytest.mark.parametrize(("rows", "reduction", "columns", "panels"), [(64, 96, 512, "all"), (128, 3072, 768, "one")])
def test_a_group_of_panels_lets_weights_come_from_memory_once(
    rows: int, reduction: int, columns: int, panels: str
) -> None:
    (first,) = tiled_sketches(load_ir(dense(rows, reduction, columns).ir), TARGET, most=1)
    ((instruction, chosen),) = [one for one in first.trace.decisions.items() if one[0].kind.name == "SampleCategorical"]
    sizes = [int(size) for size in instruction.attrs[0]]
    assert sizes[int(chosen)] == (1 if panels == "one" else max(sizes))
