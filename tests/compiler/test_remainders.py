"""Loops over remainders: what LLVM lost of them is not there to be lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.compiler.programs import TARGET
from tuner.lowering.fastmath import expand_intrinsics
from tuner.lowering.remainders import split_remainders
from tuner.tvm_compat import IRModule, te, tirx, to_tvm_target, tvm, tvm_ffi


def repeated(shape: Sequence[int], result: Sequence[int], ahead: int = 0) -> tvm.tirx.PrimFunc:
    x = te.placeholder([tirx.IntImm("int64", extent) for extent in shape], name="x")
    y = te.compute(
        [tirx.IntImm("int64", extent) for extent in result],
        lambda *at: x(*(tirx.floormod(i + ahead, extent) for i, extent in zip(at, shape, strict=True))),
    )
    return te.create_prim_func([x, y]).with_attr("global_symbol", "main")


@pytest.mark.parametrize(
    ("shape", "result", "ahead"),
    [
        ((2, 3, 4, 5), (14, 18, 16, 10), 0),
        ((7, 7, 16), (21, 56, 80), 0),
        ((3, 4, 7), (12, 20, 21), 0),
        ((2, 16, 2), (16, 80, 16), 1),
        ((16, 1, 16), (16, 3, 125), 0),
    ],
)
def test_a_repeated_tensor_is_read_within_its_bounds(shape: Sequence[int], result: Sequence[int], ahead: int) -> None:
    built = tvm.compile(
        expand_intrinsics(IRModule({"main": repeated(shape, result, ahead)})), target=to_tvm_target(TARGET)
    )
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = tvm.runtime.tensor(np.full(result, -1, np.float32))
    built["main"](tvm.runtime.tensor(x), found)
    places = np.ix_(*((np.arange(extent) + ahead) % source for extent, source in zip(result, shape, strict=True)))
    np.testing.assert_array_equal(found.numpy(), x[places])


def test_a_loop_without_a_remainder_by_a_power_of_two_stays() -> None:
    function = repeated((3, 5), (9, 15))
    assert tvm_ffi.structural_equal(split_remainders(function), function)
