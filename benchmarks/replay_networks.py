"""The networks of the replay set: NETWORKS, name -> builder() -> (module, example inputs).

Ten are the whole models of models.py. The others are small networks of other kinds, so that the set has every operator that
is tuned: transposed, grouped, dilated and one-dimensional convolutions, larger depthwise windows, dense layers at several
numbers of rows, recurrent layers, pooling. Weights and inputs are random, float32; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from models import MODELS, ModelWithInputs
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu


class Grouped(nn.Module):
    """A residual block of ResNeXt (Xie et al., 2017): between two 1 x 1 convolutions one in groups."""

    def __init__(self, channels: int, inner: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.body(x))


def resnext() -> ModelWithInputs:
    """Three stages of grouped blocks, 56 x 56 to 14 x 14."""
    layers: list[nn.Module] = []
    for channels, inner, groups in ((64, 64, 16), (128, 128, 32), (256, 256, 32)):
        layers += [Grouped(channels, inner, groups), nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)).eval(), (torch.randn(1, 64, 56, 56),)


class Excited(nn.Module):
    """An inverted residual of EfficientNet (Tan and Le, 2019): depthwise, with channels scaled by what they hold."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        inner = 4 * channels
        self.expand, self.reduce = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.depthwise = nn.Conv2d(inner, inner, window, padding=window // 2, groups=inner)
        self.squeeze, self.excite = nn.Conv2d(inner, channels // 4, 1), nn.Conv2d(channels // 4, inner, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = silu(self.depthwise(silu(self.expand(x))))
        scale = self.excite(silu(self.squeeze(y.mean((2, 3), keepdim=True))))
        return x + self.reduce(y * scale.sigmoid())


def efficientnet() -> ModelWithInputs:
    """Blocks with windows of three and five, 56 x 56 to 14 x 14."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, stride=2, padding=1)]
    for channels, window, following in ((24, 3, 40), (40, 5, 112), (112, 5, 192)):
        layers += [Excited(channels, window), nn.Conv2d(channels, following, 2, stride=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)).eval(), (torch.randn(1, 3, 112, 112),)


class UNet(nn.Module):
    """Ronneberger et al. (2015) with three levels: pooling on the way down, transposed convolutions on the way up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList([self.pair(i, o) for i, o in zip([3, *sizes], sizes, strict=False)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in sizes[:-1]])
        self.after = nn.ModuleList([self.pair(2 * size, size) for size in sizes[:-1]])
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        """Two convolutions, each followed by a batch norm."""
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, down in enumerate(self.down):
            x = down(nn.functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level in (1, 0):
            x = self.after[level](torch.cat([kept[level], self.up[level](x)], 1))
        return self.head(x)


def unet() -> ModelWithInputs:
    """96 x 96 pixels, 24 to 96 channels."""
    return UNet(24).eval(), (torch.randn(1, 3, 96, 96),)


def generator() -> ModelWithInputs:
    """DCGAN's generator (Radford et al., 2016): transposed convolutions of 4 x 4 from 4 x 4 to 64 x 64."""
    sizes = (128, 64, 48, 32, 3)
    layers = [nn.ConvTranspose2d(100, sizes[0], 4)]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)]
    return nn.Sequential(*layers, nn.Tanh()).eval(), (torch.randn(1, 100, 1, 1),)


def super_resolution() -> ModelWithInputs:
    """ESPCN (Shi et al., 2016), three times as many pixels a side, and a context layer with a dilated window."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=2, dilation=2), nn.Tanh()),
        *(nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)),
    ).eval(), (torch.randn(1, 1, 80, 80),)


class MixerBlock(nn.Module):
    """Tolstikhin et al. (2021): dense layers across patches, then across channels."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(2)])
        self.across = nn.Sequential(nn.Linear(patches, patches // 2), nn.GELU(), nn.Linear(patches // 2, patches))
        self.along = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


def mixer() -> ModelWithInputs:
    """196 patches of 256 channels."""
    return nn.Sequential(MixerBlock(196, 256), MixerBlock(196, 256)).eval(), (torch.randn(1, 196, 256),)


class Speech(nn.Module):
    """Samples through strided convolutions as in wav2vec 2.0, then one of Conformer's convolution modules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 10, stride=5)
        self.others = nn.ModuleList([nn.Conv1d(width, width, 3, stride=2) for _ in range(4)])
        self.norm = nn.LayerNorm(width)
        self.gate, self.out = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.others:
            x = layer(gelu(x))
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + self.out(silu(self.depthwise(nn.functional.glu(self.gate(x), 1))))


def speech() -> ModelWithInputs:
    """A second of sound at 8 kHz, 128 channels."""
    return Speech(128).eval(), (torch.randn(1, 1, 8000),)


class Recommender(nn.Module):
    """DLRM (Naumov et al., 2019) behind its embeddings: products of all pairs of features between stacks of dense layers."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs = (features + 1) ** 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.head = nn.Linear(256, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        own = self.bottom(dense)
        joined = torch.cat([own[:, None], sparse], 1)
        products = torch.bmm(joined, joined.transpose(1, 2)).flatten(1)
        return self.head(self.top(torch.cat([own, products], 1)))


def recommender() -> ModelWithInputs:
    """A batch of 64 with 26 embeddings of 64 numbers each."""
    return Recommender(26, 64).eval(), (torch.randn(64, 13), torch.randn(64, 26, 64))


class Tagger(nn.Module):
    """A recurrent layer that reads in both directions, and a dense one on every step."""

    def __init__(self, kind: type[nn.RNNBase], inputs: int, units: int) -> None:
        super().__init__()
        self.layer = kind(inputs, units, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * units, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


def lstm_tagger() -> ModelWithInputs:
    """48 steps of 96 numbers, 128 units."""
    return Tagger(nn.LSTM, 96, 128).eval(), (torch.randn(1, 48, 96),)


def gru_tagger() -> ModelWithInputs:
    """Four sequences of 32 steps of 64 numbers, 96 units."""
    return Tagger(nn.GRU, 64, 96).eval(), (torch.randn(4, 32, 64),)


class Inception(nn.Module):
    """Branches of 1 x 1, 3 x 3, 5 x 5 and 1 x 7 windows side by side, as in Szegedy et al. (2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(channels, 48, 1), nn.Conv2d(channels, 64, 3, padding=1)
        self.five = nn.Sequential(nn.Conv2d(channels, 16, 1), nn.ReLU(), nn.Conv2d(16, 32, 5, padding=2))
        self.long = nn.Conv2d(channels, 48, (1, 7), padding=(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.avg_pool2d(x, 3, stride=1, padding=1)
        return torch.cat([relu(self.one(pooled)), relu(self.three(x)), self.five(x), relu(self.long(x))], 1)


def inception() -> ModelWithInputs:
    """28 x 28 and 14 x 14 pixels, 192 channels."""
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(Inception(192), pool, Inception(192)).eval(), (torch.randn(1, 192, 28, 28),)


NETWORKS: dict[str, Callable[[], ModelWithInputs]] = {
    **MODELS,
    **{
        builder.__name__: builder
        for builder in (
            *(resnext, efficientnet, unet, generator, super_resolution, inception),
            *(mixer, speech, recommender, lstm_tagger, gru_tagger),
        )
    },
}
QUICK = ("unet", "mixer", "recommender", "lstm_tagger")
"""Networks of a `--quick` set: they take seconds to prepare."""
