"""Padding read without a branch: the same values, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.programs import TARGET, dense
from tuner.lowering.padded_reads import without_branches
from tuner.measure.build import compile_module, generate
from tuner.space.tiles import tiled_sketches
from tuner.tvm_compat import IRModule, ir, load_ir, structural_walk, te, tirx, to_tvm_target, tvm, tvm_ffi

ROWS, LAST = 8, 5
"""Of a product, and of those the ones that there are."""


def product(read: Callable[[Any, Any, Any], Any]) -> tvm.tirx.PrimFunc:
    """C[i, j] = sum over k of read(A, i, k) * B[k, j]."""
    a, b = te.placeholder((LAST, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((ROWS, 32), lambda i, j: te.sum(read(a, i, k) * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def padded(a: Any, i: Any, k: Any) -> Any:
    return tirx.if_then_else(i < LAST, a[i, k], tirx.const(0.0, "float32"))


def choices(body: Any) -> list[str]:
    """The branches and selections among values."""
    found: list[str] = []
    structural_walk(body, (ir.Call, lambda call: found.append(str(getattr(call.op, "name", "")))))
    selections: list[Any] = []
    structural_walk(body, (tirx.Select, selections.append))
    return [name for name in found if name == "prim.if_then_else"] + ["select"] * len(selections)


def test_a_row_beyond_the_last_is_zero_whatever_the_last_one_holds() -> None:
    function = product(padded)
    changed = without_branches(function)
    assert (choices(function.body), choices(changed.body)) == (["prim.if_then_else"], ["select"])
    a = np.ones((LAST, 16), np.float32)
    a[-1, :4] = [np.nan, np.inf, -np.inf, -0.0]
    b = np.ones((16, 32), np.float32)
    found = tvm.runtime.tensor(np.full((ROWS, 32), -1, np.float32))
    compiled = compile_module(IRModule({"main": function}), to_tvm_target(TARGET))
    compiled.get_function("main", query_imports=True)(tvm.runtime.tensor(a), tvm.runtime.tensor(b), found)
    assert np.isnan(found.numpy()[LAST - 1]).all()
    assert (found.numpy()[: LAST - 1] == 16).all()
    assert (found.numpy()[LAST:] == 0).all()


def rows_kept(rows: int, read: Callable[[Any, Any, Any], Any], *, beside: bool = False) -> Any:
    """C[i, j] of the first rows, of a product that is padded to ROWS; `beside` reads all of them as well."""
    a, b = te.placeholder((LAST, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((ROWS, 32), lambda i, j: te.sum(padded(a, i, k) * b[k, j], axis=k), name="c")
    results = [te.compute((rows, 32), lambda i, j: read(c, i, j), name="d")]
    if beside:
        results.append(te.compute((ROWS, 32), lambda i, j: c[i, j] * 2.0, name="e"))
    return te.create_prim_func([a, b, *results]).with_attr("global_symbol", "main")


def copied(rows: int, place: Callable[[Any], Any] = lambda i: i) -> Any:
    """The same behind a copy of all rows, as of a register tile before what follows the product."""
    a, b = te.placeholder((LAST, 16), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((ROWS, 32), lambda i, j: te.sum(padded(a, i, k) * b[k, j], axis=k), name="c")
    copy = te.compute((ROWS, 32), lambda i, j: c[place(i), j], name="copy")
    kept = te.compute((rows, 32), lambda i, j: copy[i, j] + 1.0, name="d")
    return te.create_prim_func([a, b, kept]).with_attr("global_symbol", "main")


@pytest.mark.parametrize("function", [rows_kept(LAST, lambda c, i, j: c[i, j] + 1.0), copied(LAST)])
def test_rows_beyond_the_last_that_nobody_reads_are_no_zeros(function: Any) -> None:
    changed = without_branches(function)
    assert (choices(function.body), choices(changed.body)) == (["prim.if_then_else"], [])
    a, b = np.random.default_rng(0).normal(size=(2, 16, 32)).astype(np.float32)
    a = np.ascontiguousarray(a[:LAST, :16])
    a[-1, 0] = np.nan
    found = tvm.runtime.tensor(np.full((LAST, 32), -1, np.float32))
    compiled = compile_module(IRModule({"main": function}), to_tvm_target(TARGET))
    compiled.get_function("main", query_imports=True)(tvm.runtime.tensor(a), tvm.runtime.tensor(b), found)
    np.testing.assert_allclose(found.numpy(), a @ b + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        rows_kept(LAST + 1, lambda c, i, j: c[i, j]),
        rows_kept(LAST, lambda c, i, j: c[i + 1, j]),
        rows_kept(LAST, lambda c, i, j: c[ROWS - 1 - i, j]),
        rows_kept(LAST, lambda c, i, j: c[i, j], beside=True),
        copied(LAST + 1),
        copied(LAST, lambda i: ROWS - 1 - i),
    ],
)
def test_rows_beyond_the_last_that_somebody_reads_are_zeros(function: Any) -> None:
    assert choices(without_branches(function).body) == ["select"]


@pytest.mark.parametrize(
    "read",
    [
        lambda a, i, k: tirx.if_then_else(i + k < LAST, a[i + k, k], tirx.const(0.0, "float32")),
        lambda a, i, k: tirx.if_then_else(i % 2 == 0, a[i // 2, k], tirx.const(0.0, "float32")),
        lambda a, i, k: tirx.if_then_else(i < LAST, a[0, k], tirx.const(0.0, "float32")),
        lambda a, i, k: tirx.if_then_else(i < LAST, a[i, k] * 2.0, tirx.const(0.0, "float32")),
        lambda a, i, k: tirx.if_then_else(tirx.all(i < LAST, k < 8), a[i, k], tirx.const(0.0, "float32")),
    ],
)
def test_a_condition_on_more_than_one_axis_or_on_something_else_stays(read: Callable[[Any, Any, Any], Any]) -> None:
    function = product(read)
    assert tvm_ffi.structural_equal(without_branches(function), function)


def test_a_copy_with_padding_stays() -> None:
    a = te.placeholder((LAST, 16), name="a")
    function = te.create_prim_func([a, te.compute((ROWS, 16), lambda i, j: padded(a, i, j))])
    assert tvm_ffi.structural_equal(without_branches(function), function)


def test_a_tile_that_does_not_divide_the_rows_has_neither_a_copy_of_them_nor_a_branch() -> None:
    made = dense(37, 64, 96)
    target = to_tvm_target(TARGET)
    for schedule in tiled_sketches(load_ir(made.ir), TARGET):
        blocks: list[Any] = []
        structural_walk(schedule.mod["main"].body, (tvm.s_tir.SBlock, blocks.append))
        rows = load_ir(made.ir)["main"].params[0].name
        readers = [block for block in blocks if any(read.source.name == rows for read in block.reads)]
        assert len(readers) == 1
        lowered, _ = generate(schedule.mod, target)
        stores: list[Any] = []
        for function in lowered.functions.values():
            structural_walk(function.body, (tirx.BufferStore, stores.append))
        assert stores
        assert not any("prim.if_then_else" in choices(store.value) for store in stores)
