"""Attention of queries, keys and values in one tensor, with masks that are computed: as few kernels as there are products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.attention import close
from tests.compiler.graphs import GPU
from tests.compiler.test_gpu_models import calls, checked
from tests.triton_interpreter import run
from tuner.graph.prepare import prepare, workload_module
from tuner.ingest import parse_container
from tuner.tasks import workload_functions
from tuner.templates.attention import find_attention
from tuner.templates.kernels import source_of
from tuner.templates.rows import find_rows
from tuner.templates.text import ROWS
from tuner.templates.text import checked as chosen
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

attend = torch.nn.functional.scaled_dot_product_attention
IMAGES, SIDE, HEADS, SIZE = 2, 4, 2, 16
ROWS_OF_IMAGE, WIDTH = SIDE * SIDE, HEADS * SIZE


class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Of images [images, rows, width] that one dense layer projects; `mask` of the queries, or none."""

    def __init__(self, mask: Callable[[Any], Any] = lambda _: None) -> None:
        super().__init__()
        self.project, self.out, self.mask = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH), mask

    def forward(self, x: Any) -> Any:
        parts = self.project(x).reshape(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        read = attend(q, k, v, attn_mask=self.mask(q))
        return self.out(read.transpose(1, 2).reshape(x.shape))


def positions(q: Any) -> Any:
    """Relative positions along two axes, of queries [images, heads, rows, size]: two products, and their sum."""
    table = torch.linspace(-1, 1, SIDE * SIDE * SIZE, dtype=q.dtype).reshape(SIDE, SIDE, SIZE)
    image = q.reshape(-1, SIDE, SIDE, SIZE)
    down, across = torch.einsum("bhwc,hkc->bhwk", image, table), torch.einsum("bhwc,wkc->bhwk", image, table)
    return (down[..., None] + across[..., None, :]).reshape(*q.shape[:3], q.shape[2])


def images() -> Any:
    return torch.randn(IMAGES, ROWS_OF_IMAGE, WIDTH).half()


def attention_of(prepared: Any) -> Any:
    """The workload of the attention in a prepared module."""
    (found,) = [function for name, function, _ in workload_functions(prepared) if "attention" in name.name_hint]
    return workload_module(found)


def shapes_of(chain: Any) -> list[tuple[int, ...]]:
    """Of the operands and of the result."""
    return [tuple(int(extent) for extent in param.ty.shape) for param in chain.params]


def test_queries_and_keys_in_one_tensor_are_read_where_they_lie() -> None:
    prepared = checked(lambda: (Attention().half(), (images(),)))
    assert calls(prepared) == 3  # two dense layers and the attention
    found = find_attention(find_rows(attention_of(prepared)))
    packed = (IMAGES, ROWS_OF_IMAGE, 3, HEADS, SIZE)
    assert shapes_of(found.chain) == [packed, packed, (IMAGES, ROWS_OF_IMAGE, HEADS, SIZE)]


def test_a_mask_that_two_products_make_is_summed_where_the_scores_are() -> None:
    prepared = checked(lambda: (Attention(positions).half(), (images(),)))
    found = find_attention(find_rows(attention_of(prepared)))
    assert found.hides
    assert [shape[-1] for shape in shapes_of(found.chain)] == [SIZE, SIDE, SIDE, SIZE, SIZE]


def test_a_mask_that_something_else_reads_is_written_once() -> None:
    class Twice(Attention):
        def forward(self, x: Any) -> Any:
            q = x.reshape(IMAGES, ROWS_OF_IMAGE, HEADS, SIZE).transpose(1, 2)
            mask = torch.tanh(q[..., :1] + q[..., 0].unsqueeze(-2))
            return attend(q, q, q, attn_mask=mask), mask

    prepared = checked(lambda: (Twice().half(), (images(),)))
    assert find_attention(find_rows(attention_of(prepared))).hides


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_that_is_computed_leaves_the_type_of_the_scores(dtype: Any) -> None:
    prepared = checked(lambda: (Attention(positions).to(dtype), (images().to(dtype),)))
    text = attention_of(prepared).script()
    assert "-inf" in text
    assert ("float32" in text) == (dtype == torch.float32)


@pytest.mark.parametrize("keys", [0, 32])
def test_rows_that_a_mask_hides_whole_read_nothing(keys: int) -> None:
    module = torch.nn.Module()
    module.forward = lambda q, k, v, mask: attend(q, k, v, attn_mask=mask)
    mask = torch.randn(1, HEADS, 20, 40)
    mask[0, 0, 3], mask[0, 1, :, 7:] = -torch.inf, -torch.inf
    mask[0, 1, 5:9] = -torch.inf
    inputs = [torch.randn(1, HEADS, rows, SIZE) for rows in (20, 40, 40)]
    half = [each.half() for each in (*inputs, mask)]
    data, _ = from_torch(module.eval(), half)
    mod = attention_of(prepare(load_ir(parse_container(data).ir), GPU))
    found = find_attention(find_rows(mod))
    q, k, v, bias = (each[0].numpy() for each in half)
    values = [q, k, bias, v, np.zeros((HEADS, 20, SIZE), np.float16)]
    assert found.hides
    assert shapes_of(found.chain) == [each.shape for each in values]
    arguments = {"rows": 16, "warps": 4, "early": 0, "keys": keys, "depth": 2}
    run(source_of(mod, chosen(ROWS, arguments)), values)
    wanted = attend(*inputs, attn_mask=mask)[0].numpy()
    assert not wanted[0, 3].any()
    assert not wanted[1, 5:9].any()
    close(values[-1].astype(np.float64), wanted, "float16")
