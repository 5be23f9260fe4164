"""Modules of models of images: restoration (NAFNet, Restormer), attention among channels (XCiT), and VGG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class NormOfChannels(nn.Module):
    """A layer norm of each pixel, spelled out, as models of restoration do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        deviation = ((x - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
        return (x - mean) / deviation * self.scale[:, None, None] + self.shift[:, None, None]


def wide_and_deep(width: int, wide: int) -> nn.Sequential:
    """A convolution to more channels, and one of each of them."""
    return nn.Sequential(nn.Conv2d(width, wide, 1), nn.Conv2d(wide, wide, 3, padding=1, groups=wide))


class Gated(nn.Module):
    """Halves of the channels multiplied with each other, in place of an activation (NAFNet)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.spread = NormOfChannels(width), wide_and_deep(width, 2 * width)
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.join, self.norm_behind = nn.Conv2d(width, width, 1), NormOfChannels(width)
        self.widen, self.narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.spread(self.norm(x)).chunk(2, 1)
        both = first * second
        x = x + self.join(both * self.weigh(both))
        first, second = self.widen(self.norm_behind(x)).chunk(2, 1)
        return x + self.narrow(first * second)


class Transposed(nn.Module):
    """Attention among channels, over all pixels, and a gated perceptron (Restormer)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.norm, self.project = NormOfChannels(width), wide_and_deep(width, 3 * width)
        self.join, self.norm_behind = nn.Conv2d(width, width, 1), NormOfChannels(width)
        self.spread, self.narrow = wide_and_deep(width, 4 * width), nn.Conv2d(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        parts = self.project(self.norm(x)).view(batch, 3, self.heads, width // self.heads, high * wide)
        q, k, v = parts.unbind(1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        shares = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1)
        x = x + self.join((shares @ v).view(batch, width, high, wide))
        first, second = self.spread(self.norm_behind(x)).chunk(2, 1)
        return x + self.narrow(functional.gelu(first) * second)


class CrossCovariance(nn.Module):
    """A block of XCiT on tokens: attention among channels, convolutions, a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.temperature = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        convolutions = [nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2)]
        self.local = nn.Sequential(convolutions[0], nn.GELU(), nn.BatchNorm2d(width), convolutions[1])

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        of_attention, of_image, of_perceptron = self.norms
        parts = self.project(of_attention(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 4, 1)
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        shares = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1)
        x = x + self.join((shares @ v).permute(0, 3, 1, 2).reshape(batch, tokens, width))
        side = int(tokens**0.5)
        image = of_image(x).transpose(1, 2).reshape(batch, width, side, side)
        x = x + self.local(image).flatten(2).transpose(1, 2)
        return x + self.perceptron(of_perceptron(x))


class OfTokens(nn.Module):
    """A convolutional stem, blocks on the tokens of its result, and a classifier of their mean."""

    def __init__(self, stem: nn.Module, blocks: nn.Module, width: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, blocks, nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


def nafnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    levels = [
        *(nn.Conv2d(3, 32, 3, padding=1), Gated(32), nn.Conv2d(32, 64, 2, 2), Gated(64), Gated(64)),
        *(nn.Conv2d(64, 128, 2, 2), Gated(128), Gated(128), nn.Conv2d(128, 256, 1), nn.PixelShuffle(2), Gated(64)),
        *(nn.Conv2d(64, 128, 1), nn.PixelShuffle(2), Gated(32), nn.Conv2d(32, 3, 3, padding=1)),
    ]
    return nn.Sequential(*levels).eval(), (torch.randn(1, 3, 128, 128),)


def restormer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    levels = [
        *(nn.Conv2d(3, 48, 3, padding=1), Transposed(48, 1), nn.Conv2d(48, 24, 3, padding=1), nn.PixelUnshuffle(2)),
        *(Transposed(96, 2), Transposed(96, 2), nn.Conv2d(96, 192, 3, padding=1), nn.PixelShuffle(2)),
        *(Transposed(48, 1), nn.Conv2d(48, 3, 3, padding=1)),
    ]
    return nn.Sequential(*levels).eval(), (torch.randn(1, 3, 96, 96),)


def xcit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    stem: list[Any] = []
    for narrow, wide in ((3, 48), (48, 96), (96, 192)):
        stem += [nn.Conv2d(narrow, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.GELU()]
    stem.append(nn.Conv2d(192, 192, 3, 2, 1))
    blocks = nn.Sequential(*(CrossCovariance(192, 4) for _ in range(6)))
    return OfTokens(nn.Sequential(*stem), blocks, 192).eval(), (torch.randn(1, 3, 224, 224),)


def vgg11() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """With a smaller classifier than VGG-11 has."""
    layers: list[Any] = []
    narrow = 3
    for wide, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU()]
            narrow = wide
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(25088, 1024), nn.ReLU(), nn.Linear(1024, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)
