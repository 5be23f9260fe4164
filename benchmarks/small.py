"""Small models for latency.py and untuned.py: MODELS[name]() -> (module, example_inputs). Random weights, float32.

A call takes 5 to 200 microseconds, so that what surrounds the kernels counts as much as they do.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


def perceptron(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def mlp_64_128_128_10():
    return perceptron(64, 128, 128, 10), (torch.randn(1, 64),)


def mlp_3x512():
    return perceptron(512, 512, 512, 512), (torch.randn(1, 512),)


def mlp_3x512_batch8():
    return perceptron(512, 512, 512, 512), (torch.randn(8, 512),)


def small_cnn():
    """Digits of 28 x 28 pixels."""
    layers = [
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    ]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 1, 28, 28),)


class _Recommender(nn.Module):
    """As DLRM has it: dense features through a perceptron, categories through tables, products of all pairs of these
    vectors through another perceptron (Naumov et al., arXiv:1906.00091)."""

    def __init__(self, tables: int = 8, rows: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = perceptron(13, 64, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.top = perceptron(width + pairs.shape[1], 64, 1)

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        first = self.bottom(dense)
        looked_up = [table(categories[:, at]) for at, table in enumerate(self.tables)]
        vectors = torch.stack([first, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        return torch.sigmoid(self.top(torch.cat([first, products], dim=1)))


def recommender():
    return _Recommender().eval(), (torch.randn(1, 13), torch.randint(0, 1000, (1, 8)))


class _Block(nn.Module):
    """A layer of a transformer, norms first."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.into(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.perceptron(self.norm2(x))


def transformer_w64_s16():
    return nn.Sequential(_Block(), _Block()).eval(), (torch.randn(1, 16, 64),)


def gru_cell_h64():
    return nn.GRUCell(32, 64).eval(), (torch.randn(1, 32), torch.randn(1, 64))


MODELS = {
    f.__name__: f
    for f in (
        mlp_64_128_128_10,
        mlp_3x512,
        mlp_3x512_batch8,
        small_cnn,
        recommender,
        transformer_w64_s16,
        gru_cell_h64,
    )
}
