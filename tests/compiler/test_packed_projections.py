"""Queries, keys and values of one dense layer are computed where they are read: nothing cuts its result apart."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch
from torch.nn import functional  # noqa: E402

from tests.compiler.test_torch_layers import check, prepared  # noqa: E402

WIDTH, HEADS = 96, 3


class Causal(nn.Module):  # type: ignore[misc]
    """Attention as GPT-2 and its descendants write it."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.packed(x).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Unbound(Causal):
    """As timm writes it."""

    def forward(self, x: Any) -> Any:
        batch, rows, _ = x.shape
        q, k, v = self.packed(x).reshape(batch, rows, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * value)


CASES = {
    # name: (module, batch, kernels at most)
    "encoder": (nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True), 1, 9),
    "decoder": (nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True), 1, 16),
    "causal": (Causal(), 1, 5),
    "causal, four sequences": (Causal(), 4, 9),
    "unbound": (Unbound(), 1, 5),
    "gated": (Gated(), 1, 3),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_no_kernel_cuts_a_packed_projection_apart(name: str) -> None:
    torch.manual_seed(0)
    module, batch, most = CASES[name]
    inputs = [torch.randn(batch, rows, WIDTH) for rows in ((17, 21) if name == "decoder" else (17,))]
    kernels = check(module.eval(), *inputs)
    assert not any(part in kernel for kernel in kernels for part in ("take", "split", "slice")), kernels
    assert sum(kernels.values()) <= most, kernels


def test_the_weights_of_a_batch_are_read_once() -> None:
    """PyTorch's attention permutes its input, and exports its dense layer as a product with a copy of the weights per row."""
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True).eval()
    mod, *_ = prepared(module, (torch.randn(4, 17, WIDTH),))
    products = [f for variable, f in mod.functions.items() if "matmul" in variable.name_hint]
    assert products
    for product in products:
        assert len(product.params[1].ty.shape) == 2, "weights, one for all rows"
    check(module, torch.randn(4, 17, WIDTH))
