"""Models that recur, scatter and choose, for torch_backend.py: MODELS[name]() -> (module, example_inputs). Random weights,
float32.

Graph networks pass messages along edges, which come with every call; recognisers have recurrent layers between others; a
segmenter puts maxima back where they were; a detector's stem has Mish behind every convolution.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class GraphSage(nn.Module):
    """W. Hamilton, R. Ying and J. Leskovec, 2017, with means of neighbours."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        ones = torch.ones(edges.shape[1])
        count = torch.zeros(x.shape[0]).index_add(0, target, ones).clamp(min=1)
        for own, others in zip(self.own, self.others, strict=True):
            mean = torch.zeros_like(x).index_add(0, target, x[source]) / count[:, None]
            x = functional.normalize(functional.relu(own(x) + others(mean)), dim=-1)
        return x


def graphsage():
    return GraphSage(64, 2).eval(), (torch.randn(500, 64), torch.randint(0, 500, (2, 3000)))


class GraphAttention(nn.Module):
    """P. Velickovic et al., 2018, along edges; the softmax over those that end in a node."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        self.source = nn.Parameter(torch.randn(1, heads, width // heads) * 0.1)
        self.target = nn.Parameter(torch.randn(1, heads, width // heads) * 0.1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        heads = self.project(x).unflatten(-1, self.source.shape[1:])
        scores = (heads * self.source).sum(-1)[source] + (heads * self.target).sum(-1)[target]
        scores = functional.leaky_relu(scores, 0.2)
        lowest = torch.full((x.shape[0], scores.shape[1]), float("-inf"))
        largest = lowest.scatter_reduce(0, target[:, None].expand_as(scores), scores, "amax")
        weights = (scores - largest[target]).exp()
        total = torch.zeros_like(lowest).index_add(0, target, weights)
        messages = heads[source] * (weights / total[target])[..., None]
        return functional.elu(torch.zeros_like(heads).index_add(0, target, messages).flatten(1))


def graph_attention():
    return GraphAttention(64, 4).eval(), (torch.randn(500, 64), torch.randint(0, 500, (2, 3000)))


class TextRecogniser(nn.Module):
    """B. Shi, X. Bai and C. Yao, 2015, smaller: columns of an image of a line are read in both directions."""

    def __init__(self) -> None:
        super().__init__()
        widths, pools = [1, 64, 128, 256, 256], [(2, 2), (2, 2), (2, 1), (4, 1)]
        layers: list[nn.Module] = []
        for (before, after), pool in zip(pairwise(widths), pools, strict=True):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(pool)]
        self.columns = nn.Sequential(*layers)
        self.read = nn.LSTM(256, 128, 2, bidirectional=True)
        self.letters = nn.Linear(256, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = self.columns(x).squeeze(2).permute(2, 0, 1)
        return self.letters(self.read(columns)[0]).log_softmax(-1)


def text_recogniser():
    return TextRecogniser().eval(), (torch.randn(1, 1, 32, 128),)


class Segmenter(nn.Module):
    """V. Badrinarayanan, A. Kendall and R. Cipolla, 2015, smaller."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 32, 64, 32, 8]
        self.layers = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, last = self.layers
        x, outer = functional.max_pool2d(first(x).relu(), 2, return_indices=True)
        x, inner = functional.max_pool2d(second(x).relu(), 2, return_indices=True)
        x = third(functional.max_unpool2d(x, inner, 2)).relu()
        return last(functional.max_unpool2d(x, outer, 2))


def segmenter():
    return Segmenter().eval(), (torch.randn(1, 3, 96, 96),)


def mish_stem():
    widths = [3, 32, 64, 64, 128]
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, 2 - at % 2, 1, bias=False), nn.BatchNorm2d(after), nn.Mish()]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)


MODELS = {f.__name__: f for f in (graphsage, graph_attention, text_recogniser, segmenter, mish_stem)}
