"""Modules of the models of others.py, written for PyTorch as their papers describe them."""

from __future__ import annotations

import math
from typing import Any

import torch
from small import perceptron
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def convolved(
    channels: int, width: int, size: int = 1, stride: int = 1, *, act: type[nn.Module] = nn.SiLU, **options: Any
) -> nn.Module:
    """Convolution, batch norm, activation."""
    options = {"padding": size // 2, **options}
    convolution = nn.Conv2d(channels, width, size, stride, bias=False, **options)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), act())


class CrossStage(nn.Module):
    """Bottlenecks on half of the channels, beside the other half."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        half = width // 2
        self.first, self.second, self.last = (
            convolved(channels, half),
            convolved(channels, half),
            convolved(width, width),
        )
        self.blocks = nn.Sequential(*(Residual(convolved(half, half), convolved(half, half, 3)) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.blocks(self.first(x)), self.second(x)], 1))


class PyramidOfPools(nn.Module):
    """One max pool after another, all of them side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = convolved(width, width // 2), convolved(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.first(x)]
        for _ in range(3):
            found.append(functional.max_pool2d(found[-1], 5, 1, 2))
        return self.last(torch.cat(found, 1))


class Yolo(nn.Module):
    """A detector in the form of YOLOv5: cross-stage backbone, paths up and down, three heads."""

    def __init__(self, width: int = 32, classes: int = 80) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            convolved(3, w, 6, 2, padding=2), convolved(w, 2 * w, 3, 2), CrossStage(2 * w, 2 * w, 1)
        )
        self.third = nn.Sequential(convolved(2 * w, 4 * w, 3, 2), CrossStage(4 * w, 4 * w, 2))
        self.to_fourth = convolved(4 * w, 8 * w, 3, 2)
        self.fourth, self.to_fifth = CrossStage(8 * w, 8 * w, 3), convolved(8 * w, 16 * w, 3, 2)
        self.fifth = nn.Sequential(CrossStage(16 * w, 16 * w, 1), PyramidOfPools(16 * w), convolved(16 * w, 8 * w))
        self.up_fourth = nn.Sequential(CrossStage(16 * w, 8 * w, 1), convolved(8 * w, 4 * w))
        self.up_third = CrossStage(8 * w, 4 * w, 1)
        self.down_fourth, self.head_fourth = convolved(4 * w, 4 * w, 3, 2), CrossStage(8 * w, 8 * w, 1)
        self.down_fifth, self.head_fifth = convolved(8 * w, 8 * w, 3, 2), CrossStage(16 * w, 16 * w, 1)
        self.values = classes + 5
        self.heads = nn.ModuleList(nn.Conv2d(factor * w, 3 * self.values, 1) for factor in (4, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        third = self.third(self.stem(x))
        fourth = self.fourth(self.to_fourth(third))
        fifth = self.fifth(self.to_fifth(fourth))
        up = self.up_fourth(torch.cat([functional.interpolate(fifth, scale_factor=2), fourth], 1))
        levels = [self.up_third(torch.cat([functional.interpolate(up, scale_factor=2), third], 1))]
        levels.append(self.head_fourth(torch.cat([self.down_fourth(levels[0]), up], 1)))
        levels.append(self.head_fifth(torch.cat([self.down_fifth(levels[1]), fifth], 1)))
        found = []
        for head, level in zip(self.heads, levels, strict=True):
            y = head(level)
            y = y.view(y.shape[0], 3, self.values, *y.shape[2:]).permute(0, 1, 3, 4, 2)
            found.append(y.sigmoid().reshape(y.shape[0], -1, self.values))
        return torch.cat(found, 1)


class Timed(nn.Module):
    """Two convolutions behind norms of groups, with the embedding of a step of time between."""

    def __init__(self, channels: int, width: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, width)])
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.skip = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(functional.silu(self.norms[0](x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.second(functional.silu(self.norms[1](y))) + self.skip(x)


class OverPixels(nn.Module):
    """Attention over the pixels of an image, with a residual."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, rows, columns = x.shape
        y = self.project(self.norm(x).flatten(2).transpose(1, 2))
        query, key, value = y.view(batch, -1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, -1, width)
        return x + self.out(y).transpose(1, 2).view(batch, width, rows, columns)


class Diffusion(nn.Module):
    """A U-Net that predicts the noise of a latent image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        w, time = width, 4 * width
        self.width, self.embed = w, nn.Sequential(nn.Linear(w, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(4, w, 3, padding=1)
        self.down = nn.ModuleList([Timed(w, w, time), Timed(w, 2 * w, time), Timed(2 * w, 4 * w, time)])
        self.shrink = nn.ModuleList([nn.Conv2d(w, w, 3, 2, 1), nn.Conv2d(2 * w, 2 * w, 3, 2, 1)])
        self.second, self.third, self.last = OverPixels(2 * w), OverPixels(4 * w), OverPixels(w)
        self.middle = Timed(4 * w, 4 * w, time)
        self.up = nn.ModuleList([Timed(8 * w, 2 * w, time), Timed(4 * w, w, time), Timed(2 * w, w, time)])
        self.norm, self.out = nn.GroupNorm(32, w), nn.Conv2d(w, 4, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=x.device) / half)
        angles = step[:, None].float() * frequencies[None]
        time = self.embed(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype))
        first = self.down[0](self.stem(x), time)
        second = self.second(self.down[1](self.shrink[0](first), time))
        third = self.third(self.down[2](self.shrink[1](second), time))
        y = self.up[0](torch.cat([self.middle(third, time), third], 1), time)
        y = torch.cat([functional.interpolate(y, scale_factor=2.0), second], 1)
        y = functional.interpolate(self.last(self.up[1](y, time)), scale_factor=2.0)
        y = self.up[2](torch.cat([y, first], 1), time)
        return self.out(functional.silu(self.norm(y)))


class MixerBlock(nn.Module):
    """A perceptron across the patches, and one across the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.across = nn.Sequential(nn.Linear(patches, width // 2), nn.GELU(), nn.Linear(width // 2, patches))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norms[1](x))


class Mixer(nn.Module):
    def __init__(self, width: int = 512, depth: int = 8, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def pooled(width: int, classes: int = 1000) -> list[nn.Module]:
    """The mean over an image, and a linear classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


class Bottleneck(nn.Module):
    """Three convolutions, the second in groups, of as many axes as asked for, with a residual."""

    def __init__(self, channels: int, inner: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolved(channels, inner, act=nn.ReLU),
            convolved(inner, inner, 3, stride, groups=groups, act=nn.ReLU),
            convolved(inner, width, act=nn.Identity),
        )
        moves = stride > 1 or channels != width
        self.skip = convolved(channels, width, 1, stride, act=nn.Identity) if moves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.skip(x))


def stem() -> list[nn.Module]:
    return [convolved(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]


class Excited(nn.Module):
    """Squeeze and excitation: each channel times what the means of all say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        few = max(8, width // 4)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, few, 1), nn.ReLU(), nn.Conv2d(few, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * functional.hardsigmoid(self.weigh(x))


def inverted(channels: int, size: int, inner: int, width: int, excited: bool, hard: bool, stride: int) -> nn.Module:
    """A block of MobileNetV3."""
    act = nn.Hardswish if hard else nn.ReLU
    layers = [convolved(channels, inner, act=act)] if inner != channels else []
    layers.append(convolved(inner, inner, size, stride, groups=inner, act=act))
    layers += [Excited(inner)] if excited else []
    layers.append(convolved(inner, width, act=nn.Identity))
    return Residual(*layers) if stride == 1 and channels == width else nn.Sequential(*layers)


class OfVideo(nn.Module):
    """Two convolutions along three axes, with a residual."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        first, second = (
            nn.Conv3d(channels, width, 3, stride, 1, bias=False),
            nn.Conv3d(width, width, 3, padding=1, bias=False),
        )
        self.layers = nn.Sequential(first, nn.BatchNorm3d(width), nn.ReLU(), second, nn.BatchNorm3d(width))
        skip = nn.Sequential(nn.Conv3d(channels, width, 1, stride, bias=False), nn.BatchNorm3d(width))
        self.skip = skip if stride > 1 or channels != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.skip(x))


class Segmenter(nn.Module):
    """Dilated convolutions of four rates and the mean of the image, side by side, then enlarged (DeepLabV3)."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        blocks = (Bottleneck(64, 64, 256, 1, 1), Bottleneck(256, 128, 512, 2, 1), Bottleneck(512, 128, 512, 1, 1))
        self.backbone = nn.Sequential(*stem(), *blocks)
        self.rates = nn.ModuleList([convolved(512, 128, act=nn.ReLU)])
        self.rates.extend(convolved(512, 128, 3, act=nn.ReLU, padding=rate, dilation=rate) for rate in (6, 12, 18))
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(512, 128, 1), nn.ReLU())
        self.head = nn.Sequential(convolved(640, 128, act=nn.ReLU), nn.Conv2d(128, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.backbone(x)
        found = [rate(y) for rate in self.rates]
        found.append(self.mean(y).expand(-1, -1, *y.shape[2:]))
        return functional.interpolate(self.head(torch.cat(found, 1)), size=x.shape[2:], mode="bilinear")


class PointNet(nn.Module):
    """The class of each point, from its features beside the largest of all."""

    def __init__(self, classes: int = 13) -> None:
        super().__init__()
        self.first, self.second = self._layers(3, 64, 64), self._layers(64, 64, 128, 1024)
        self.head = nn.Sequential(self._layers(1088, 512, 256, 128), nn.Conv1d(128, classes, 1))

    @staticmethod
    def _layers(channels: int, *widths: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Conv1d(channels, width, 1), nn.BatchNorm1d(width), nn.ReLU()]
            channels = width
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        whole = self.second(y).amax(2, keepdim=True)
        return self.head(torch.cat([y, whole.expand(-1, -1, y.shape[2])], 1)).log_softmax(1)


class Receptive(nn.Module):
    """The mean of chains of dilated convolutions of two sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        chains = [[nn.Conv1d(width, width, k, dilation=d, padding=(k - 1) * d // 2) for d in (1, 3, 5)] for k in (3, 7)]
        self.chains = nn.ModuleList(nn.ModuleList(chain) for chain in chains)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for chain in self.chains:
            y = x
            for convolution in chain:
                y = y + convolution(functional.leaky_relu(y, 0.1))
            found.append(y)
        return sum(found[1:], found[0]) / len(found)


class Vocoder(nn.Module):
    """From a spectrogram to a waveform: transposed convolutions (HiFi-GAN)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.enlarge, self.fields = nn.ModuleList(), nn.ModuleList()
        for rate in (8, 8, 2, 2):
            self.enlarge.append(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, rate // 2))
            width //= 2
            self.fields.append(Receptive(width))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for enlarge, field in zip(self.enlarge, self.fields, strict=True):
            x = field(enlarge(functional.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(functional.leaky_relu(x)))


class Ranking(nn.Module):
    """A recommendation: embeddings of categories, their products with each other, perceptrons around (DLRM)."""

    def __init__(self, width: int = 64, categories: int = 26, rows: int = 10_000) -> None:
        super().__init__()
        self.bottom = nn.Sequential(perceptron(13, 512, 256, width), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(categories))
        pairs = categories * (categories + 1) // 2
        self.top = nn.Sequential(perceptron(width + pairs, 512, 256, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.triu_indices(categories + 1, categories + 1, 1))

    def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        found = torch.stack([dense, *(table(places[:, at]) for at, table in enumerate(self.tables))], 1)
        products = torch.bmm(found, found.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))


class LanguageModel(nn.Module):
    """Two LSTM layers between an embedding and a classifier."""

    def __init__(self, vocabulary: int = 5000) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 256), nn.Linear(512, vocabulary)
        self.layers = nn.LSTM(256, 512, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.layers(self.embed(x))
        return self.head(states)
