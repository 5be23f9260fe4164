"""Operators that PyTorch has for GPUs alone, taken apart: what they are taken apart into is what eager mode computes here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from pitchpipe.torch_operators.decompositions import inference_decompositions  # noqa: E402  # needs torch
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402

aten, functional = torch.ops.aten, torch.nn.functional


def rule(name: str) -> Any:
    return inference_decompositions()[getattr(aten, name).default]


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def heads(count: int, rows: int) -> Any:
    """[2, count, rows, 8], the heads of a row one after another in memory, as a projection leaves them."""
    return drawn(2, rows, count, 8).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "bias"), [("flash", ()), ("efficient", (None, False)), ("cudnn", (None, False))])
def test_attention_of_a_gpu_is_that_of_a_cpu(name: str, bias: tuple[Any, ...], causal: bool) -> None:
    q, k, v = heads(4, 5), heads(4, 5), heads(4, 5)
    operator = getattr(aten, f"_scaled_dot_product_{name}_attention").default
    found = rule(f"_scaled_dot_product_{name}_attention")(q, k, v, *bias, 0.0, causal, scale=0.3)
    torch.testing.assert_close(found[0], functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3))
    assert found[0].stride() == q.stride(), "views of it were traced with these"
    assert len(found) == len(operator._schema.returns)


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_what_is_added_to_the_scores_may_hide_rows_whole(name: str) -> None:
    q, k, v = heads(4, 5), heads(4, 7), heads(4, 7)
    bias = drawn(2, 1, 5, 7).masked_fill(torch.arange(5)[:, None] == 2, -torch.inf)
    found = rule(f"_scaled_dot_product_{name}_attention")(q, k, v, bias, False)
    torch.testing.assert_close(found[0], functional.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def test_heads_that_share_keys_read_them() -> None:
    q, k, v = heads(4, 5), heads(2, 5), heads(2, 5)
    found = rule("_scaled_dot_product_flash_attention")(q, k, v)
    torch.testing.assert_close(found[0], functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_what_drops_out_stays_whole() -> None:
    q = heads(4, 5)
    assert rule("_scaled_dot_product_flash_attention")(q, q, q, 0.5) is NotImplemented
    assert rule("_scaled_dot_product_efficient_attention")(q, q, q, None, False, 0.5) is NotImplemented
    assert rule("_scaled_dot_product_cudnn_attention")(q, q, q, None, False, 0.5) is NotImplemented
    assert rule("_scaled_dot_product_flash_attention_for_cpu")(q, q, q, 0.5) is NotImplemented


@pytest.mark.long
@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norms(dtype: Any, eps: float | None, weighted: bool) -> None:
    x = (drawn(3, 5, 8) * 1e-3).to(dtype)
    given = (x, drawn(5, 8).to(dtype)) if weighted else (x,)
    norm = Of(lambda x, weight=None: aten._fused_rms_norm.default(x, [5, 8], weight, eps), *given)
    found, expected = through_load(norm.eval(), TARGET), norm(*given)
    for one, wanted in zip(found, expected, strict=True):
        assert one.dtype == wanted.numpy().dtype
        np.testing.assert_allclose(one, wanted.numpy(), rtol=2e-3 if dtype is torch.float16 else 1e-5)


def test_an_lstm_cell() -> None:
    cell, x, h, c = torch.nn.LSTMCell(6, 8), drawn(3, 6), drawn(3, 8), drawn(3, 8)
    gates = functional.linear(x, cell.weight_ih), functional.linear(h, cell.weight_hh)
    found = rule("_thnn_fused_lstm_cell")(*gates, c, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(found[:2], cell(x, (h, c)))
    bare = rule("_thnn_fused_lstm_cell")(gates[0] + cell.bias_ih, gates[1] + cell.bias_hh, c)
    torch.testing.assert_close(bare[:2], found[:2])


def test_a_gru_cell() -> None:
    cell, x, h = torch.nn.GRUCell(6, 8), drawn(3, 6), drawn(3, 8)
    gates = functional.linear(x, cell.weight_ih), functional.linear(h, cell.weight_hh)
    found = rule("_thnn_fused_gru_cell")(*gates, h, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(found[0], cell(x, h))
    bare = rule("_thnn_fused_gru_cell")(gates[0] + cell.bias_ih, gates[1] + cell.bias_hh, h)
    torch.testing.assert_close(bare[0], found[0])


def test_a_grid() -> None:
    x, grid = drawn(2, 3, 5, 6), drawn(2, 4, 4, 2)
    torch.testing.assert_close(rule("cudnn_grid_sampler")(x, grid), functional.grid_sample(x, grid, align_corners=True))
