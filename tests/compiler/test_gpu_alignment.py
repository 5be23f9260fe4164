"""Vectors that a GPU could not access are found in lowered kernels, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.gpu_programs import TARGET
from tuner.measure.device_compiler import NotCompiled
from tuner.measure.gpu_code import lower
from tuner.tvm_compat import IRModule, Schedule, te, to_tvm_target


def copied(row: int, offset: int, lanes: int, dtype: str = "float16") -> Any:
    """Takes 32 of the elements of each row, from `offset` on, in vectors."""
    a = te.placeholder((64, row), dtype, name="a")
    b = te.compute((64, 32), lambda i, j: a[i, j + offset] + a[i, j + offset], name="b")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b])}))
    i, j = schedule.get_loops(schedule.get_sblock("b"))
    j, vector = schedule.split(j, [None, lanes])
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")
    schedule.vectorize(vector)
    return schedule.mod


@pytest.mark.parametrize(
    ("row", "offset", "lanes", "dtype"),
    [(40, 0, 8, "float16"), (36, 4, 4, "float16"), (36, 4, 2, "float32"), (36, 0, 4, "float32"), (33, 0, 1, "float16")],
)
def test_vectors_at_multiples_of_their_size_are_taken(row: int, offset: int, lanes: int, dtype: str) -> None:
    assert lower(copied(row, offset, lanes, dtype), to_tvm_target(TARGET)).source


@pytest.mark.parametrize(
    ("row", "offset", "lanes", "dtype"),
    [(36, 0, 8, "float16"), (40, 4, 8, "float16"), (33, 0, 2, "float16"), (34, 0, 4, "float32")],
)
def test_others_are_refused_by_name(row: int, offset: int, lanes: int, dtype: str) -> None:
    with pytest.raises(NotCompiled, match=f"main_kernel may access {lanes} elements of {dtype} .* of a: not aligned"):
        lower(copied(row, offset, lanes, dtype), to_tvm_target(TARGET))


def test_a_vector_of_more_indices_than_have_a_type_is_refused() -> None:
    """Eight halves, of which two at a time lie side by side: NVRTC would refuse the code."""
    a = te.placeholder((64, 32), "float16", name="a")
    b = te.compute((64, 32), lambda i, j: a[i, j // 2 + j % 2 * 16], name="b")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b])}))
    i, j = schedule.get_loops(schedule.get_sblock("b"))
    j, vector = schedule.split(j, [None, 8])
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")
    schedule.vectorize(vector)
    with pytest.raises(NotCompiled, match="main_kernel has a vector of 8 indices"):
        lower(schedule.mod, to_tvm_target(TARGET))
