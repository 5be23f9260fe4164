"""Networks written by hand that see no images: graphs, sets and waves, mixtures, and attention in its forms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .small import VOCABULARY, Builder, built, normal, tokens


class _Graph(nn.Module):
    """Messages along edges, summed where they arrive."""

    def __init__(self, *, by_index_add: bool) -> None:
        super().__init__()
        self.by_index_add = by_index_add
        self.message, self.update = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        messages = torch.relu(self.message(torch.cat([x[source], x[target]], -1)))
        if self.by_index_add:
            received = torch.zeros_like(x).index_add(0, target, messages)
        else:
            received = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(messages), messages)
        found: torch.Tensor = self.update(torch.cat([x, received], -1))
        return found


class _Attention(nn.Module):
    """Self-attention with fewer heads of keys and values, a mask that hides, and rotated positions."""

    def __init__(
        self, heads: int, groups: int, *, is_causal: bool = False, rotates: bool = False, hides: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.is_causal, self.rotates, self.hides = heads, groups, is_causal, rotates, hides
        self.query, self.keys, self.out = nn.Linear(32, 8 * heads), nn.Linear(32, 16 * groups), nn.Linear(8 * heads, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.heads, 8).transpose(1, 2)
        key, value = self.keys(x).view(batch, length, 2, self.groups, 8).permute(2, 0, 3, 1, 4)
        if self.rotates:
            angles = torch.arange(length)[:, None] * 0.5 ** torch.arange(4)[None]
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            query, key = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (query, key))
        mask = None
        if self.hides:  # the first row reads nothing
            mask = torch.ones(length, length, dtype=torch.bool).tril(-1)
        read = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.is_causal, enable_gqa=self.groups != self.heads
        )
        found: torch.Tensor = self.out(read.transpose(1, 2).reshape(batch, length, -1))
        return found


class _Experts(nn.Module):
    """Every token through its two best experts, by masks over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.softmax(self.gate(x), -1).topk(2, -1)
        found = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            share = (weights * (chosen == at)).sum(-1, keepdim=True)
            found = found + share * expert(x)
        return found


class _Transformer(nn.Module):
    """PyTorch's own encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 64, 0.0, batch_first=True, norm_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        found: torch.Tensor = self.body(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return found


class _Waves(nn.Module):
    """Dilated causal convolutions with gates, as WaveNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**at) for at in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for at, layer in enumerate(self.layers):
            value, gate = layer(functional.pad(x, (2**at, 0))).chunk(2, 1)
            x = x + torch.tanh(value) * torch.sigmoid(gate)
        return functional.log_softmax(self.out(x), 1)


class _Flow(nn.Module):
    """Coupling layers that halve and swap channels."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        volume = x.new_zeros(x.shape[0])
        for part in self.parts:
            fixed, moved = x.chunk(2, -1)
            scale, shift = part(fixed).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([moved * scale.exp() + shift, fixed], -1).flip(-1)
            volume = volume + scale.sum(-1)
        return x, volume


class _Quantised(nn.Module):
    """The nearest of learned vectors in the place of each."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.book, self.out = nn.Linear(16, 8), nn.Embedding(12, 8), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.into(x)
        distance = y.square().sum(-1, keepdim=True) - 2 * y @ self.book.weight.T + self.book.weight.square().sum(-1)
        near = self.book(distance.argmin(-1))
        found: torch.Tensor = self.out(y + (near - y).detach())
        return found


class _Recommender(nn.Module):
    """Embeddings of classes, their products with each other, and dense layers on both."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.dense, self.top = nn.Linear(5, 8), nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.dense(dense))
        every = torch.stack([first, *(table(classes[:, at]) for at, table in enumerate(self.tables))], 1)
        pairs = every @ every.transpose(1, 2)
        rows, columns = torch.tril_indices(4, 4, -1)
        return torch.sigmoid(self.top(torch.cat([first, pairs[:, rows, columns]], -1)))


class _Set(nn.Module):
    """Points, their maximum over all of them beside each."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.both = nn.Conv1d(3, 16, 1), nn.Conv1d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.selu(self.each(x))
        return functional.glu(self.both(torch.cat([y, y.amax(-1, keepdim=True).expand_as(y)], 1)), 1)


def _vocoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(8, 16, 7, padding=3), nn.LeakyReLU(0.1), nn.ConvTranspose1d(16, 8, 8, 4, 2), nn.LeakyReLU(0.1)),
        *(
            nn.Conv1d(8, 8, 3, padding=3, dilation=3),
            nn.ConvTranspose1d(8, 4, 4, 2, 1),
            nn.Conv1d(4, 1, 7, padding=3),
            nn.Tanh(),
        ),
    )


MODELS: dict[str, Builder] = {
    "graph_network": built(lambda: _Graph(by_index_add=True), normal(10, 8), lambda: torch.randint(0, 10, (2, 30))),
    "graph_network_scattering": built(
        lambda: _Graph(by_index_add=False), normal(10, 8), lambda: torch.randint(0, 10, (2, 30))
    ),
    "multi_head_attention": built(lambda: _Attention(4, 4), normal(2, 9, 32)),
    "multi_query_attention": built(lambda: _Attention(4, 1, is_causal=True), normal(2, 9, 32)),
    "grouped_attention_rotated": built(lambda: _Attention(4, 2, rotates=True), normal(2, 9, 32)),
    "attention_with_a_hidden_row": built(lambda: _Attention(4, 4, hides=True), normal(2, 9, 32)),
    "dense_mixture_of_experts": built(_Experts, normal(2, 5, 16)),
    "torch_transformer": built(_Transformer, tokens, tokens),
    "wavenet": built(_Waves, normal(2, 1, 40)),
    "coupling_flow": built(_Flow, normal(3, 16)),
    "vector_quantised": built(_Quantised, normal(2, 6, 16)),
    "recommender": built(_Recommender, normal(4, 5), lambda: torch.randint(0, 20, (4, 3))),
    "point_set": built(_Set, normal(2, 3, 20)),
    "vocoder": built(_vocoder, normal(2, 8, 12)),
}
