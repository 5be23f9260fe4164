"""Concatenations and stacks: each piece is copied by itself, and every element is where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler import programs
from tests.compiler.test_column_sums import FOUR, scheduled
from tests.compiler.test_rowwise import loops_of
from tests.compiler.test_space_default import outputs
from tuner.measure.build import generate
from tuner.space.inlining import inline_producers, root_blocks
from tuner.space.pieces import pieces_of
from tuner.tvm_compat import Schedule, ir, load_ir, relax, structural_walk, tirx, to_tvm_target

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
    # name: (function, shapes, first elements of the pieces after the first, copies)
    "27 vectors": (stack, ((64, 64),) * 27, range(1, 27), 27),
    "two of the same size": (joined(1), ((40, 32), (40, 32)), (32,), 2),
    "two that no vector divides": (joined(1), ((40, 97), (40, 13)), (97,), 2),
    "three sizes": (joined(-1), ((2, 9, 9, 32), (2, 9, 9, 96), (2, 9, 9, 64)), (32, 128), 3),
    "along an inner axis": (joined(2), ((2, 8, 6, 20), (2, 8, 4, 20)), (6,), 2),
    "numbers": (joined(1), ((50, 1),) * 5, (1, 2, 3, 4), 5),
    "64 of them": (joined(1), ((8, 32),) * 64, range(32, 2048, 32), 64),
    "one in another": (
        lambda b, x, y, z: op.concat([b.emit(op.concat([x, y], axis=1)), z], axis=1),
        ((16, 8), (16, 24), (16, 32)),
        (8, 32),
        3,
    ),
    "a part of one": (
        lambda b, x, y: op.strided_slice(b.emit(op.concat([x, y], axis=1)), axes=[1], begin=[8], end=[60]),
        ((40, 24), (40, 40)),
        (16,),
        2,
    ),
    "in turn": (
        lambda b, x, y: op.permute_dims(b.emit(op.reshape(b.emit(op.concat([x, y], axis=1)), (40, 2, 24))), (0, 2, 1)),
        ((40, 24), (40, 24)),
        (1,),
        2,
    ),
}
NOT = {
    "more pieces than may be": (joined(1), ((16, 2),) * 65),
    "padding": (lambda _, x: op.nn.pad(x, (0, 0, 4, 4)), ((16, 56),)),
    "a mask": (lambda b, x: op.multiply(x, b.emit(op.triu(x, 0))), ((64, 64),)),
}


@pytest.mark.parametrize("name", IN_PIECES)
def test_the_pieces_of_a_concatenation_are_loops_that_ask_nothing(name: str) -> None:
    make, shapes, boundaries, copies = IN_PIECES[name]
    workload = programs.workload(make, *shapes)
    schedule = Schedule(load_ir(workload.ir))
    inline_producers(schedule)
    (found,) = (pieces_of(schedule.get(block)) for block in root_blocks(schedule))
    assert found is not None
    assert found.boundaries == tuple(boundaries)
    mod = scheduled(workload, FOUR)
    assert inside_loops(mod) == (0, copies)
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops_of(mod)) <= 1
    np.testing.assert_array_equal(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1])


def inside_loops(mod: Any) -> tuple[int, int]:
    """Questions where an element lies that are left in the loops of the lowered program, and its stores."""
    lowered, _ = generate(mod, to_tvm_target(FOUR))
    loops, questions, stores = list[Any](), list[Any](), list[Any]()
    for _, function in lowered.functions_items():
        structural_walk(function.body, (tirx.For, loops.append))
    outermost = next(loop for loop in loops if not any(holds(other, loop) for other in loops))
    structural_walk(outermost.body, (tirx.BufferStore, stores.append))
    structural_walk(
        outermost.body,
        (ir.Call, lambda call: questions.extend([call] * (getattr(call.op, "name", "") == "prim.if_then_else"))),
    )
    return len(questions), len(stores)


def holds(outer: Any, inner: Any) -> bool:
    """Whether one loop is in the other."""
    found: list[Any] = []
    structural_walk(outer.body, (tirx.For, found.append))
    return any(loop.same_as(inner) for loop in found)


@pytest.mark.parametrize("rows", [4, 400])
def test_pieces_of_whole_numbers_of_64_bits_are_unrolled(rows: int) -> None:
    """Their indices cannot be made narrow, without which TVM divides no loop."""

    def indices(b: Any, x: Any, y: Any) -> Any:
        return op.concat([b.emit(op.astype(each, "int64")) for each in (x, y)], axis=1)

    workload = programs.workload(indices, (rows, 1), (rows, 1))
    mod = scheduled(workload, FOUR)
    generate(mod, to_tvm_target(FOUR))
    np.testing.assert_array_equal(outputs(mod)[-1], outputs(load_ir(workload.ir))[-1])


@pytest.mark.parametrize("name", NOT)
def test_nothing_else_is_in_pieces(name: str) -> None:
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
