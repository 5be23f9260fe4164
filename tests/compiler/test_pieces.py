"""Concatenations and stacks: the loop over the pieces is unrolled, and every element is where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler import programs
from tests.compiler.test_column_sums import FOUR, scheduled
from tests.compiler.test_rowwise import loops_of
from tests.compiler.test_space_default import outputs
from tuner.space.inlining import inline_producers, root_blocks
from tuner.space.pieces import pieces_of
from tuner.tvm_compat import Schedule, load_ir, relax, tirx

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch

op = relax.op


def stack(b: Any, *vectors: Any) -> Any:
    """As PyTorch stacks: a concatenation, and a reshape of it."""
    rows, width = (int(extent) for extent in vectors[0].ty.shape)
    return op.reshape(b.emit(op.concat(list(vectors), axis=1)), (rows, len(vectors), width))


def joined(axis: int) -> Any:
    return lambda b, *parts: op.concat([b.emit(op.nn.relu(part)) for part in parts], axis=axis)


IN_PIECES = {
    # name: (function, shapes, pieces)
    "27 vectors": (stack, ((64, 64),) * 27, 27),
    "two of the same size": (joined(1), ((40, 32), (40, 32)), 2),
    "three sizes": (joined(-1), ((2, 9, 9, 32), (2, 9, 9, 96), (2, 9, 9, 64)), 6),
    "along an inner axis": (joined(2), ((2, 8, 6, 20), (2, 8, 4, 20)), 5),
    "numbers": (joined(1), ((50, 1),) * 5, 5),
    "one in another": (
        lambda b, x, y, z: op.concat([b.emit(op.concat([x, y], axis=1)), z], axis=1),
        ((16, 8), (16, 24), (16, 32)),
        8,
    ),
}
NOT = {
    "more pieces than are unrolled": (joined(1), ((16, 97), (16, 100))),
    "padding": (lambda _, x: op.nn.pad(x, (0, 0, 4, 4)), ((16, 56),)),
    "a mask": (lambda b, x: op.multiply(x, b.emit(op.triu(x, 0))), ((64, 64),)),
}


@pytest.mark.parametrize("name", IN_PIECES)
def test_the_pieces_of_a_concatenation_are_unrolled(name: str) -> None:
    make, shapes, pieces = IN_PIECES[name]
    workload = programs.workload(make, *shapes)
    mod = scheduled(workload, FOUR)
    loops = loops_of(mod)
    assert [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.UNROLLED] == [pieces]
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops) <= 1
    np.testing.assert_array_equal(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1])


@pytest.mark.parametrize("name", NOT)
def test_nothing_else_is(name: str) -> None:
    make, shapes = NOT[name]
    schedule = Schedule(load_ir(programs.workload(make, *shapes).ir))
    inline_producers(schedule)
    assert [pieces_of(schedule.get(block)) for block in root_blocks(schedule)] == [None]


def test_pieces_without_a_loop_around_them_stay_with_their_cores() -> None:
    """Where the pieces come first, all cores work only if they are not unrolled."""
    workload = programs.workload(joined(0), (300, 64), (500, 64))
    mod = scheduled(workload, FOUR)
    assert not any(loop.kind == tirx.ForKind.UNROLLED for loop in loops_of(mod))
    np.testing.assert_array_equal(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1])


class Moved(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A stack, a concatenation with an operand of no elements, and a transposition of an axis that no vector divides."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        numbers = torch.randn(6, 32, 20) * 100
        numbers[0, :2, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
        numbers = numbers if dtype.is_floating_point else numbers.nan_to_num(0.0, 9.0, -9.0)
        self.tensors = tuple((numbers > 0 if dtype == torch.bool else numbers.to(dtype)).unbind())

    def forward(self, *parts: Any) -> Any:
        stacked = torch.stack(parts, 1)
        joined = torch.cat([parts[0][:, :0], parts[1], parts[2][:, :12]], -1)
        return stacked, joined, stacked[:, :, :9].permute(1, 2, 0).contiguous()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_a_model_that_moves_elements_gives_what_pytorch_gives(dtype: str) -> None:
    module = Moved(getattr(torch, dtype)).eval()
    expected = [each.float().numpy() for each in module(*module.tensors)]
    found = [np.asarray(each).astype(np.float32) for each in through_load(module, programs.TARGET)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
