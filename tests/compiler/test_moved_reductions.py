"""Reductions of what was moved before are one function with it, and one kernel on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.compiler.gpu_cases import check as check_kernels
from tests.compiler.graphs import GPU, Graph, check, kernels, linear, run_here
from tests.compiler.test_torch_layers import Of
from tuner.graph import moved_reductions
from tuner.graph.moved_reductions import MANY
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.ingest import parse_container
from tuner.ingest.torch_export import from_torch
from tuner.tvm_compat import load_ir, relax

op = relax.op


def windows(x: Any, w: Any) -> Any:
    """Windows of 3 x 3, weighted and summed, as an involution has them."""
    n, c, height, width = x.shape
    taken = F.unfold(x, 3, padding=1).view(n, 2, c // 2, 9, height, width)
    return (w * taken).sum(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_windows_that_are_weighted_and_summed_are_one_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    arguments = torch.randn(1, 8, 7, 9).to(dtype), torch.randn(1, 2, 1, 9, 7, 9).to(dtype)
    data, _ = from_torch(Of(windows).eval(), arguments)
    found = prepare(load_ir(parse_container(data).ir), GPU)
    assert len(call_counts(found)) == 1, "windows are not written down"
    (function,) = (found[found.get_global_var(name)] for name in call_counts(found))
    (result,) = run_here(found, [each.numpy() for each in arguments], [])
    np.testing.assert_allclose(
        result, windows(*arguments).numpy(), rtol=0, atol=1e-2 if dtype == torch.float16 else 1e-5
    )
    (call,) = check_kernels(workload_module(function), GPU).lowered.calls
    assert call.grid[0] * call.block[0] >= 8 * 7 * 9


MOVED: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "a permutation": (1, lambda x: op.sum(op.permute_dims(x, [2, 0, 1]), 1)),
    "a permutation, and what is computed of it": (1, lambda x: op.max(op.exp(op.permute_dims(x, [2, 0, 1])), [0, 2])),
    "two reshapes around a permutation": (
        1,
        lambda x: op.sum(op.reshape(op.permute_dims(op.reshape(x, [2, 3, 4, 5]), [0, 2, 1, 3]), [8, 15]), 0),
    ),
    "a slice of other elements": (2, lambda x: op.sum(op.reshape(op.concat([x, op.exp(x)], 1), [12, 20]), 0)),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_moved_is_reduced_where_it_is(name: str) -> None:
    count, make = MOVED[name]
    graph = Graph()
    x = graph.tensor(4, 6, 5)
    found = check(graph, lambda emit: emit(make(x)), target=GPU)
    assert len(call_counts(found)) == count


def test_what_ends_a_product_stays_with_it() -> None:
    graph = Graph()
    x, weight, bias = graph.tensor(32, 16), graph.tensor(24, 16), graph.tensor(24)

    def make(emit: Any) -> Any:
        y = emit(op.permute_dims(emit(op.nn.relu(linear(emit, x, weight, bias))), [1, 0]))
        return emit(op.sum(y, 0))

    names = kernels(check(graph, make, target=GPU))
    assert sum("matmul" in name and "relu" in name for name in names) == 1


def test_few_elements_are_not_reduced_where_a_kernel_more_would_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        graph = Graph()
        x, y = graph.tensor(4, 1, 5), graph.tensor(4, 6, 5)
        weighted = lambda: op.multiply(op.exp(x), op.permute_dims(op.permute_dims(y, [1, 0, 2]), [1, 0, 2]))  # noqa: E731
        make = lambda emit: emit(op.sum(op.permute_dims(weighted(), [1, 2, 0]), 0))  # noqa: E731
        return len(call_counts(check(graph, make, inputs=2, target=GPU)))

    assert math.prod((4, 6, 5)) < MANY
    assert count() == 2
    monkeypatch.setattr(moved_reductions, "MANY", 1)
    assert count() == 2, "the exponentials of few are computed once, and the sum is one with what is moved"


def test_windows_and_their_sum_are_the_frameworks() -> None:
    """`fold` of `unfold` counts how many windows an element is in."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 6)
    module = Of(lambda x: F.fold(F.unfold(x, (3, 2), 1, 1, 2), (8, 6), (3, 2), 1, 1, 2))
    data, _ = from_torch(module.eval(), (x,))
    assert "scatter" not in parse_container(data).ir
    (found,) = run_here(prepare(load_ir(parse_container(data).ir), GPU), [x.numpy()], [])
    np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-6)
