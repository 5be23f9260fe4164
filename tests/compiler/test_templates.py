"""Templates compute what their workloads say, for any shape, type and epilogue; and they compile for every architecture."""

from __future__ import annotations

import gc
import itertools
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.program import TensorMap
from tests.compiler import half_workloads, template_cases
from tests.compiler.gpu_cases import arguments_of, functions, on_the_host
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tests.compiler.template_cases import Case
from tests.triton_interpreter import run
from tuner.graph.precision import PRECISION, TF32
from tuner.measure.build import build
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_code import compile_program, lower
from tuner.measure.properties import inspect
from tuner.schedule.trace import apply_trace
from tuner.templates import assembler, compiler
from tuner.templates.contraction import LEAST_SUMMED, NotRecognised, find_contraction
from tuner.templates.kernel_source import LINE_BYTES
from tuner.templates.kernels import compile_function, ptx_of, source_of, template_of
from tuner.templates.matrices import operand_matrices
from tuner.templates.points import points_of, shared_bytes
from tuner.templates.source import CLUSTERS, divided, may_be_clusters
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, FETCHES, Chosen, checked
from tuner.tvm_compat import IRModule, load_ir, relax, te, to_tvm_target

op = relax.op

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "tf32": 2e-5, "int8": 0.0}
"""Of the largest value: the result is rounded to its type, and the sums' order is another."""
ARGUMENTS = {"rows": 64, "columns": 64, "step": 32, "parts": 1, "stages": 3, "warps": 4, "group": 0, "early": 0}

SLOW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def chosen(**changed: int) -> Chosen:
    return checked(CONTRACTION, {**ARGUMENTS, **changed})


def fitting(length: int, step: int, wanted: int) -> int:
    """As many parts of a sum as are wanted, or as there are steps."""
    parts = min(wanted, -(-length // step))
    while (parts - 1) * -(-length // (step * parts)) * step >= length:
        parts -= 1
    return parts


@pytest.mark.long
@SLOW
@given(
    case=template_cases.cases(),
    rows=st.sampled_from((16, 32, 64)),
    columns=st.sampled_from((16, 32, 64, 96)),
    step=st.sampled_from((16, 32, 64)),
    parts=st.sampled_from((1, 1, 2, 4, 5)),
    group=st.sampled_from((0, 4)),
    cluster=st.booleans(),
)
def test_products_compute_what_numpy_does(case: Case, cluster: bool, **arguments: int) -> None:
    assume(case.batch == 1 or case.rows * case.columns > 1)  # products of one element each are no contraction
    arguments["parts"] = fitting(case.length, arguments["step"], arguments["parts"])
    arguments["cluster"] = int(cluster and may_be_clusters(arguments))
    mod = template_cases.module(case)
    values = template_cases.arguments(case, mod)
    wanted = template_cases.expected(case, values)
    run(source_of(mod, chosen(**arguments)), values)
    found = values[-1].astype(wanted.dtype)
    halved = any(step.name == "halved" for step in case.steps)
    scale = max(1e-3, float(np.abs(wanted).max()))
    tolerance = max(TOLERANCE[case.dtype], TOLERANCE["float16"] if halved else 0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


@SLOW
@given(
    case=template_cases.cases(matrices=True),
    rows=st.sampled_from((64, 128)),
    columns=st.sampled_from((16, 32, 64, 128, 96)),
    step=st.sampled_from((32, 64)),
    parts=st.sampled_from((1, 1, 2, 3)),
    stages=st.sampled_from((2, 3, 8)),
    cluster=st.booleans(),
)
def test_products_of_matrices_compute_what_numpy_does(case: Case, cluster: bool, **arguments: int) -> None:
    mod = template_cases.module(case)
    parts = arguments["parts"] = fitting(case.length, arguments["step"], arguments["parts"])
    arguments["cluster"] = int(cluster and may_be_clusters(arguments))
    text = checked(CONTRACTION_TMA, {**ARGUMENTS, **arguments})
    operands = operand_matrices(find_contraction(mod))
    assert operands is not None
    values = template_cases.arguments(case, mod)
    wanted = template_cases.expected(case, values)
    if case.length % (arguments["step"] * parts) and not all(one.ends_in_zeros for one in operands):
        with pytest.raises(InvalidTrace, match="something else"):
            source_of(mod, text)
        return
    run(source_of(mod, text), values)
    halved = any(step.name == "halved" for step in case.steps)
    tolerance = max(TOLERANCE[case.dtype], TOLERANCE["float16"] if halved else 0)
    scale = max(1e-3, float(np.abs(wanted).max()))
    np.testing.assert_allclose(values[-1].astype(wanted.dtype), wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("template", "rows", "columns"), [(CONTRACTION, 64, 192), (CONTRACTION_TMA, 256, 192)])
def test_a_tile_of_192_columns_is_two_of_tritons(template: str, rows: int, columns: int, parts: int) -> None:
    told: dict[str, Any] = {"batch": 1, "rows": 300, "columns": 330, "length": 128, "dtype": "float16"}
    case = Case(**told, turned=(False, True), steps=template_cases.STEPS[:1], relu_first=False)
    mod = template_cases.module(case)
    values = template_cases.arguments(case, mod)
    wanted = template_cases.expected(case, values)
    arguments = {**ARGUMENTS, "rows": rows, "columns": columns, "parts": parts, "warps": 8, "stages": 2}
    source = source_of(mod, checked(template, arguments))
    assert source.kernels[0].grid[0] == -(-300 // rows) * 2
    run(source, values)
    np.testing.assert_allclose(
        values[-1].astype(wanted.dtype), wanted, rtol=0, atol=TOLERANCE["float16"] * np.abs(wanted).max()
    )
    early = source_of(mod, checked(template, {**arguments, "early": 1}))
    assert compiler.to_ptx(early.kernels[0], "sm_90a").ptx
    with pytest.raises(InvalidTrace, match="192 columns, are no cluster"):
        source_of(mod, checked(template, {**arguments, "parts": 2, "cluster": 1}))


@pytest.mark.parametrize(("columns", "counts"), [(16, [16]), (96, [64, 32]), (192, [128, 64]), (256, [256])])
def test_a_tiles_columns_are_divided_into_powers_of_two(columns: int, counts: list[int]) -> None:
    pieces = divided(columns)
    assert [piece.count for piece in pieces] == counts
    assert [piece.first for piece in pieces] == [sum(counts[:at]) for at in range(len(counts))]
    assert len({piece.named("column") for piece in pieces}) == len(pieces)


@pytest.mark.parametrize(("columns", "running"), [(64, 1), (96, 2)])
def test_a_tile_that_is_still_multiplied_is_not_copied_over(columns: int, running: int) -> None:
    told: dict[str, Any] = {"batch": 1, "rows": 64, "columns": 96, "length": 256, "dtype": "float16"}
    mod = template_cases.module(Case(**told, turned=(False, True), steps=(), relu_first=False))
    source = source_of(mod, checked(CONTRACTION_TMA, {**ARGUMENTS, "columns": columns}))
    run(source, arguments_of(mod))
    waited = f"warpgroup_mma_wait({running}, "
    assert waited in source.kernels[0].text
    text = source.kernels[0].text.replace(waited, f"warpgroup_mma_wait({running + 1}, ")
    with pytest.raises(Exception, match="whose product was not waited for"):
        run(replace(source, kernels=(replace(source.kernels[0], text=text),)), arguments_of(mod))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [32, 64])
def test_weights_of_heads_are_a_matrix_whose_tiles_lie_within_a_head(turned: bool, columns: int) -> None:
    heads, rows, length, width = 3, 40, 96, 64
    x = te.placeholder((rows, length), "float16", name="x")
    w = te.placeholder((heads, width, length) if turned else (heads, length, width), "float16", name="w")
    k = te.reduce_axis((0, length), name="k")

    def summed(h: Any, i: Any, j: Any) -> Any:
        return te.sum(x[i, k].astype("float32") * (w[h, j, k] if turned else w[h, k, j]).astype("float32"), axis=k)

    sums = te.compute((heads, rows, width), summed, name="sums")
    mod = IRModule({"main": te.create_prim_func([x, w, te.compute(sums.shape, lambda *p: sums[p].astype("float16"))])})
    values = arguments_of(mod)
    values[-1][...] = np.nan
    run(source_of(mod, checked(CONTRACTION_TMA, {**ARGUMENTS, "columns": columns, "step": 32})), values)
    wanted = np.einsum("ik,hjk->hij" if turned else "ik,hkj->hij", *(each.astype(np.float64) for each in values[:2]))
    np.testing.assert_allclose(values[-1].astype(np.float64), wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())
    if not turned:  # Else the rows of all heads follow each other.
        with pytest.raises(InvalidTrace, match="one piece"):
            source_of(mod, checked(CONTRACTION_TMA, {**ARGUMENTS, "columns": 128, "step": 32}))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("parts", "columns"), [(1, 64), (3, 64), (1, 96)])
def test_every_line_of_the_weights_is_asked_for_before_the_wait(turned: bool, parts: int, columns: int) -> None:
    case = Case(
        batch=1, rows=48, columns=128, length=192, dtype="float16", turned=(False, turned), steps=(), relu_first=False
    )  # fmt: skip
    mod = IRModule({"main": template_cases.module(case)["main"].with_attr("layout_free_buffers", [1])})
    arguments = chosen(rows=16, columns=columns, step=64, parts=parts, early=FETCHES)
    source = source_of(mod, arguments)
    text = source.kernels[0].text
    assert text.index("gdc_launch_dependents()\n    block") < text.index("_fetch(p1") < text.index("gdc_wait()\n")
    ptx = compiler.to_ptx(source.kernels[0], "sm_90a").ptx
    assert ptx.index("prefetch.global.L2") < ptx.index("griddepcontrol.wait")
    # Where the kernel asks for an element, it leaves a mark here, and does nothing else.
    asking = re.sub(
        r"def _fetch.*?\n\n", "def _fetch(pointers):\n    tl.store(pointers, 77.0)\n\n", text, flags=re.DOTALL
    )
    asking = asking.replace("    gdc_launch_dependents()\n", "").split("    gdc_wait()")[0]
    values = [np.zeros_like(value) for value in template_cases.arguments(case, mod)]
    run(replace(source, kernels=(replace(source.kernels[0], text=asking),)), values)
    lines = values[1].reshape(-1, LINE_BYTES // 2)
    assert (lines[:, 0] == 77).all()
    asked = [0, -1] if columns == 64 else [0, 32, -1]  # Tiles of 96 begin in the middle of lines.
    assert (np.delete(lines, asked, axis=1) == 0).all(), "one element of each; beyond the end, the last one"


def convolved(x: Any, w: Any, stride: int, dilation: int, padding: int) -> np.ndarray:
    """A convolution, channels last, weights OHWI, in NumPy."""
    x = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = ((extent - dilation * (w.shape[1] - 1) - 1) // stride + 1 for extent in x.shape[1:3])
    found = np.zeros((x.shape[0], height, width, w.shape[0]))
    for p, q in itertools.product(range(w.shape[1]), range(w.shape[2])):
        rows = slice(p * dilation, p * dilation + (height - 1) * stride + 1, stride)
        columns = slice(q * dilation, q * dilation + (width - 1) * stride + 1, stride)
        found += x[:, rows, columns] @ w[:, p, q].astype(np.float64).T
    return found


@pytest.mark.long
@SLOW
@given(
    size=st.integers(5, 11),
    images=st.integers(1, 2),
    channels=st.sampled_from((7, 16, 32)),
    outputs=st.sampled_from((5, 16, 24)),
    window=st.sampled_from((1, 2, 3)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    layout=st.sampled_from(("NHWC", "NCHW")),
    parts=st.sampled_from((1, 2, 3)),
)
def test_convolutions_compute_what_numpy_does(
    size: int, images: int, channels: int, outputs: int, window: int, stride: int, dilation: int, padding: int,
    layout: str, parts: int,
) -> None:  # fmt: skip
    order = [0, *(1 + "NHWC"[1:].index(axis) for axis in layout[1:])]
    x_shape = tuple((images, size, size, channels)[at] for at in order)
    kernel_layout = "OHWI" if layout == "NHWC" else "OIHW"
    w_shape = (outputs, window, window, channels) if layout == "NHWC" else (outputs, channels, window, window)

    def make(b: Any, x: Any, w: Any) -> Any:
        y = op.nn.conv2d(
            x, w, strides=stride, dilation=dilation, padding=padding,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype="float32",
        )  # fmt: skip
        return op.astype(op.nn.relu(b.emit(y)), "float16")

    (mod,) = functions(make, (x_shape, "float16"), (w_shape, "float16"))
    x, w, result = arguments_of(mod)
    result[...] = np.nan
    length = channels * window * window
    assume(length >= LEAST_SUMMED)
    parts = fitting(length, 16, parts)
    arguments = {"rows": 32, "columns": 16, "step": 16, "parts": parts, "cluster": int(parts in CLUSTERS)}
    run(source_of(mod, chosen(**arguments)), [x, w, result])
    if layout == "NCHW":
        x, w = x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1)
    wanted = np.maximum(convolved(x, w, stride, dilation, padding), 0)
    wanted = wanted.transpose(0, 3, 1, 2) if layout == "NCHW" else wanted
    np.testing.assert_allclose(result.astype(np.float64), wanted, atol=4e-3 * max(1e-3, np.abs(wanted).max()))


def test_an_epilogue_in_half_precision_is_rounded_where_the_workload_rounds() -> None:
    mod = load_ir(TEN["attention, values"]().ir)
    values = arguments_of(mod)
    wanted = on_the_host(mod, arguments_of(mod))[-1]
    run(source_of(mod, chosen(columns=64, step=64, parts=2)), values)
    assert np.abs(values[-1].astype(np.float32) - wanted.astype(np.float32)).max() <= 2**-9 * np.abs(wanted).max()


# -- what is no contraction


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda b, x: op.nn.softmax(x), [(8, 16)]),
        (lambda b, x: op.sum(x, axis=[1]), [(8, 16)]),
        (lambda b, x: op.nn.relu(x), [(8, 16)]),
        (lambda b, x: op.max(x, axis=[1]), [(8, 16)]),
        (lambda b, x, w: op.matmul(x, w), [(8, 15), (15, 8)]),
        (lambda b, x, w: op.nn.conv2d(x, w, groups=8, data_layout="NHWC", kernel_layout="HWOI"), [(1, 6, 6, 8), (3, 3, 8, 1)]),
    ],
    ids=["softmax", "sum", "element-wise", "maximum", "short", "depthwise"],
)  # fmt: skip
def test_what_is_no_contraction_is_refused(make: Any, shapes: list[tuple[int, ...]]) -> None:
    (mod,) = functions(make, *((shape, "float32") for shape in shapes))
    with pytest.raises(NotRecognised):
        find_contraction(mod)


def test_arguments_that_leave_parts_of_a_sum_without_work_are_refused() -> None:
    mod = load_ir(TEN["attention, scores"]().ir)
    with pytest.raises(InvalidTrace, match="nothing"):
        source_of(mod, chosen(step=64, parts=2))


def test_a_template_is_not_compiled_for_a_processor() -> None:
    mod = apply_trace(load_ir(TEN["attention, scores"]().ir), chosen().text).mod
    with pytest.raises(InvalidTrace, match="GPU"):
        build(mod, None)


# -- machine code


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ["128x3072x768, GELU", "attention, values", "3x3 14x14x256, residual"])
def test_a_template_compiles_for_every_architecture_to_the_same_code_each_time(arch: str, name: str) -> None:
    mod = apply_trace(load_ir(TEN[name]().ir), chosen(step=64, parts=2, early=int(arch != "sm_80")).text).mod
    found = compile_function(mod["main"], arch)
    assert b"debug_line" not in found.code
    assert [launch.kernel for launch in found.launches] == ["contraction", "sum_of_parts"]
    if arch == "sm_100a":  # The assembler of CUDA 12.9 numbers registers in one of several ways there.
        assert ptx_of(mod["main"], arch) == ptx_of(mod["main"], arch)
    else:
        assert compile_function(mod["main"], arch) == found


def test_a_kernel_that_waits_is_refused_where_there_is_nothing_to_wait_with() -> None:
    mod = apply_trace(load_ir(TEN["attention, values"]().ir), chosen(early=1).text).mod
    with pytest.raises(assembler.AssemblerError, match="sm_90"):
        compile_function(mod["main"], "sm_80")


def test_products_use_tensor_cores_and_asynchronous_copies() -> None:
    source = source_of(load_ir(TEN["3x3 14x14x256, residual"]().ir), chosen(step=64, parts=3))
    ptx = compiler.to_ptx(source.kernels[0], "sm_90a").ptx
    assert "wgmma" in ptx
    assert "cp.async" in ptx
    assert "mma.sync" in compiler.to_ptx(source.kernels[0], "sm_80").ptx


@pytest.mark.parametrize("step", [32, 64])
def test_registers_that_a_product_reads_are_not_written_before_it_is_done(step: int) -> None:
    a, b = te.placeholder((512, 768), "float16"), te.placeholder((768, 256), "float16")
    positive = te.compute((512, 768), lambda i, k: te.abs(a[i, k]))
    k = te.reduce_axis((0, 768))
    sums = te.compute(
        (512, 256), lambda i, j: te.sum(positive[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)
    )
    mod = IRModule(
        {"main": te.create_prim_func([a, b, te.compute((512, 256), lambda i, j: sums[i, j].astype("float16"))])}
    )
    ptx = compiler.to_ptx(source_of(mod, chosen(rows=128, step=step)).kernels[0], "sm_90a").ptx
    loop = re.search(r"(\$L__BB0_\d+):.*(wgmma.*)bra \t\1;", ptx, re.DOTALL)
    assert loop is not None
    assert re.search(r"mma_async\S+ \{[^}]*\}, \{", loop[0]), "the first operand is in registers"
    assert re.findall(r"wgmma.wait_group.sync.aligned \t?(\d+)", loop[0])[-1] == "0"


def test_packed_numbers_are_added_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = load_ir(half_workloads.convolution(56, 64, 128, stride=2, images=8).ir)
    source = source_of(mod, chosen(rows=256, step=64, stages=5, warps=8)).kernels[0]
    ptx = compiler.to_ptx(source, "sm_90a").ptx
    assert "add.s16x2" not in ptx
    assert assembler.assemble(ptx, "sm_90a")
    monkeypatch.setattr(compiler, "apart", lambda ptx: ptx)
    assert "add.s16x2" in compiler.to_ptx(source, "sm_90a").ptx, "LLVM packs none any more: `apart` is not needed"


def test_what_is_read_as_zero_is_not_chosen_again() -> None:
    mod = load_ir(TEN["3x3 14x14x256, residual"]().ir)
    whole, rest = (source_of(mod, chosen(step=64, parts=parts)).kernels[0].text for parts in (4, 5))
    assert "< 2304" not in whole
    assert "< 2304" in rest
    assert "tl.where" not in rest


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads take turns as often as they can, in the middle of Python's parser too: the collector calls Python code there."""

    def callback(*_: Any) -> None:
        time.sleep(0)

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(callback)
    yield
    gc.callbacks.remove(callback)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless_threads")
def test_threads_compile_kernels_of_one_text() -> None:
    source = source_of(load_ir(TEN["attention, values"]().ir), chosen()).kernels[0]
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(compiler.jitted, [source] * 200))
        assert len(set(threads.map(lambda _: compiler.to_ptx(source, "sm_90a").ptx, range(40)))) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["128x3072x768, GELU", "1x1 14x14x1024", "attention, scores"])
@pytest.mark.parametrize(("step", "stages", "parts"), [(64, 16, 1), (32, 3, 1), (32, 2, 2)])
def test_matrices_are_copied_by_the_accelerator(name: str, step: int, stages: int, parts: int) -> None:
    mod = load_ir(TEN[name]().ir)
    text = checked(CONTRACTION_TMA, {**ARGUMENTS, "step": step, "stages": stages, "parts": parts, "early": 1})
    ptx = compiler.to_ptx(source_of(mod, text).kernels[0], "sm_90a").ptx
    assert "cp.async.bulk.tensor.2d" in ptx
    assert "wgmma" in ptx
    found = compile_function(apply_trace(mod, text.text).mod["main"], "sm_90a")
    maps = [one for one in found.launches[0].arguments if isinstance(one, TensorMap)]
    assert [one.base.buffer for one in maps] == [0, 1]
    assert b"debug_line" not in found.code
    assert compile_function(apply_trace(mod, text.text).mod["main"], "sm_90a") == found


def test_large_tiles_are_written_by_whole_lines() -> None:
    mod = load_ir(TEN["128x3072x768, GELU"]().ir)
    text = checked(CONTRACTION_TMA, {**ARGUMENTS, "rows": 128, "columns": 256, "warps": 8})
    ptx = compiler.to_ptx(source_of(mod, text).kernels[0], "sm_90a").ptx
    assert "st.global.v4.b32" in ptx
    text = checked(CONTRACTION_TMA, {**ARGUMENTS, "rows": 64, "columns": 64})
    assert "st.global.v4.b32" not in compiler.to_ptx(source_of(mod, text).kernels[0], "sm_90a").ptx


def test_weights_are_copied_before_the_wait_and_nothing_else() -> None:
    case = Case(
        batch=1, rows=64, columns=128, length=128, dtype="float16", turned=(False, False), steps=(), relu_first=False
    )  # fmt: skip
    mod = IRModule({"main": template_cases.module(case)["main"].with_attr("layout_free_buffers", [1])})
    (kernel,) = source_of(mod, checked(CONTRACTION_TMA, {**ARGUMENTS, "early": 1})).kernels
    before, behind = kernel.text.split("gdc_wait()\n")
    assert "to_shared(m1" in before
    assert "to_shared(m0" not in before
    assert "to_shared(m0" in behind
    assert "tl.load" not in before


def test_operands_that_are_no_matrices_are_refused() -> None:
    text = checked(CONTRACTION_TMA, ARGUMENTS)
    for name in ("3x3 56x56x64", "attention, values"):
        with pytest.raises(InvalidTrace, match="no matrices"):
            source_of(load_ir(TEN[name]().ir), text)
    mod = load_ir(TEN["128x3072x768, GELU"]().ir)
    with pytest.raises(InvalidTrace, match="warps"):
        source_of(mod, checked(CONTRACTION_TMA, {**ARGUMENTS, "warps": 8}))


def test_float32_uses_tensor_cores_only_where_the_workload_allows_it() -> None:
    case = Case(
        batch=1, rows=64, columns=64, length=64, dtype="float32", turned=(False, False), steps=(), relu_first=False
    )  # fmt: skip
    strict = template_cases.module(case)["main"]
    source = source_of(IRModule({"main": strict}), chosen())
    assert "mma" not in compiler.to_ptx(source.kernels[0], "sm_90a").ptx
    source = source_of(IRModule({"main": strict.with_attr(PRECISION, TF32)}), chosen())
    assert "tf32" in compiler.to_ptx(source.kernels[0], "sm_90a").ptx


def test_no_number_and_infinity_are_themselves_in_tf32() -> None:
    case = Case(batch=1, rows=16, columns=16, length=16, dtype="tf32", turned=(False, True), steps=(), relu_first=False)
    mod = template_cases.module(case)
    values = template_cases.arguments(case, mod)
    values[0][...], values[1][...] = 0, 1
    values[0].view(np.uint32)[:3, 0] = (0x7FFFFFFF, 0xFFC00000, 0x7F800000)
    values[0][3, 0] = np.nextafter(np.float32(2), np.float32(0))
    run(source_of(mod, chosen(rows=16, columns=16, step=16)), values)
    assert np.isnan(values[-1][:2]).all()
    assert (values[-1][2] == np.inf).all()
    assert (values[-1][3] == 2).all()
    assert (values[-1][4:] == 0).all()


def test_tf32_is_copied_and_rounded_by_the_accelerator_and_multiplied_from_shared_memory() -> None:
    case = Case(
        batch=1, rows=128, columns=64, length=128, dtype="tf32", turned=(False, True), steps=(), relu_first=False
    )
    source = source_of(template_cases.module(case), checked(CONTRACTION_TMA, {**ARGUMENTS, "stages": 4}))
    (kernel,) = source.kernels
    assert {matrix.dtype for matrix in kernel.matrices} == {"tfloat32"}
    ptx = compiler.to_ptx(kernel, "sm_90a").ptx
    assert "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32" in ptx
    turned = template_cases.module(replace(case, turned=(False, False)))
    with pytest.raises(InvalidTrace, match="no matrices"):
        source_of(turned, checked(CONTRACTION_TMA, ARGUMENTS))


@pytest.mark.long
@pytest.mark.parametrize("name", ["128x768x3072, residual", "3x3 14x14x256, residual", "197x768x768, residual"])
def test_no_point_of_the_space_needs_more_shared_memory_than_was_predicted(name: str) -> None:
    mod = load_ir(TEN[name]().ir)
    found = find_contraction(mod)
    for points in points_of(found, HOPPER):
        for at in map(int, np.random.default_rng(1).choice(len(points), size=4, replace=False)):
            compiled = compiler.to_ptx(source_of(mod, checked(points.template, points.at(at))).kernels[0], "sm_90a")
            assert compiled.shared_bytes <= shared_bytes(found, points)[at]


def test_a_candidate_is_a_program_with_its_launches() -> None:
    workload = TEN["128x768x3072, residual"]()
    plain = load_ir(workload.ir)
    mod = apply_trace(plain, chosen(step=64, parts=4, early=1).text).mod
    assert template_of(plain["main"]) is None
    assert template_of(mod["main"]) == chosen(step=64, parts=4, early=1).text
    program = compile_program(mod, to_tvm_target(HOPPER), inspect(plain), DeviceCompiler("sm_90a"))
    product, total = program.run
    assert product.programmatic
    assert total.programmatic
    assert product.grid == (2 * 12, 4, 1)
    assert product.shared_bytes == 3 * (64 + 64) * 64 * 2
    assert program.buffers[-1].shape == (4 * 128 * 768 * 4,)
    assert lower(mod, to_tvm_target(HOPPER)).code == program.codes[0]
