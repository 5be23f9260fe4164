"""Networks written by hand that see: image to image, generators, detectors, and convolutions in their forms."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from .small import Builder, built, image, normal


class _Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class _UNet(nn.Module):
    """Two levels down and up, by transposed convolutions or by interpolation."""

    def __init__(self, *, interpolates: bool = False) -> None:
        super().__init__()
        self.interpolates = interpolates
        self.first, self.second, self.bottom = _Block(3, 8), _Block(8, 16), _Block(16, 32)
        self.up = nn.Conv2d(32, 16, 1) if interpolates else nn.ConvTranspose2d(32, 16, 2, 2)
        self.join, self.last = _Block(32, 16), nn.Conv2d(24, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        below = self.bottom(functional.max_pool2d(second, 2))
        if self.interpolates:
            below = functional.interpolate(below, scale_factor=2.0, mode="bilinear", align_corners=False)
        joined = self.join(torch.cat([self.up(below), second], 1))
        found: torch.Tensor = self.last(torch.cat([functional.interpolate(joined, scale_factor=2.0), first], 1))
        return found


class _Diffusion(nn.Module):
    """A denoiser with a time embedding, group norms and attention at its bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.into, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, 1)
        self.norm, self.mid, self.mix = (
            nn.GroupNorm(4, 16),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.MultiheadAttention(16, 4, batch_first=True),
        )
        self.up, self.out = nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(8) / 8)
        angles = when[:, None] * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        skip = self.into(x)
        y = self.down(skip)
        y = y + self.mid(functional.silu(self.norm(y))) + time
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.mix(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        found: torch.Tensor = self.out(torch.cat([self.up(y), skip], 1))
        return found


class _Autoencoder(nn.Module):
    """A variational autoencoder that is given its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.latent, self.out = (
            nn.Linear(64, 32),
            nn.Linear(32, 16),
            nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 64)),
        )

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, spread = self.latent(functional.leaky_relu(self.into(x.flatten(1)), 0.2)).chunk(2, -1)
        found = torch.sigmoid(self.out(mean + noise * torch.exp(0.5 * spread)))
        return found.view_as(x), mean, spread


class _Detector(nn.Module):
    """One scale of boxes and classes on a grid, decoded, the best ones chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_Block(3, 8), nn.MaxPool2d(2), _Block(8, 16), nn.MaxPool2d(2))
        self.boxes, self.classes = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.body(x)
        rows, columns = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
        middle = torch.stack([columns, rows], -1).reshape(1, -1, 2) + 0.5
        raw = self.boxes(y).flatten(2).transpose(1, 2)
        centre, size = middle + raw[..., :2].tanh(), raw[..., 2:].clamp(-4, 4).exp()
        boxes = torch.cat([centre - size / 2, centre + size / 2], -1)
        scores = self.classes(y).flatten(2).transpose(1, 2).sigmoid()
        best, which = scores.amax(-1).topk(5, 1)
        return boxes, scores, best, boxes.gather(1, which.unsqueeze(-1).expand(-1, -1, 4))


class _Pyramid(nn.Module):
    """Features of three sizes joined from above, and dilated convolutions side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.dilated = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for stage in self.stages:
            x = torch.relu(stage(x))
            found.append(x)
        for at in (1, 0):
            found[at] = found[at] + functional.interpolate(found[at + 1], size=found[at].shape[-2:], mode="nearest")
        pooled = functional.adaptive_avg_pool2d(found[0], 1).expand_as(found[0])
        return [*found, torch.cat([each(found[0]) for each in self.dilated] + [pooled], 1)]


class _Mixer(nn.Module):
    """Products over patches, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, 16, 8, 8), nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.over = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.within = nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate="tanh"), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.over(self.norms[0](y).transpose(1, 2)).transpose(1, 2)
        return (y + self.within(self.norms[1](y))).mean(1)


class _Residual(nn.Module):
    """Convolutions with squeeze and excitation, channel shuffles, depthwise ones, and other norms and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.Hardswish())
        self.wide, self.deep = nn.Conv2d(16, 32, 1, groups=4), nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.squeeze, self.excite, self.narrow = nn.Linear(32, 8), nn.Linear(8, 32), nn.Conv2d(32, 16, 1)
        self.prelu, self.head = nn.PReLU(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = functional.relu6(self.wide(x))
        y = y.view(y.shape[0], 4, 8, *y.shape[2:]).transpose(1, 2).reshape(y.shape)
        y = functional.mish(self.deep(y))
        share = functional.hardsigmoid(self.excite(functional.softplus(self.squeeze(y.mean((2, 3))))))
        y = self.prelu(self.narrow(y * share[:, :, None, None]))
        found: torch.Tensor = self.head((x + y).amax((2, 3)))
        return found


def _generator() -> nn.Module:
    return nn.Sequential(
        *(nn.ConvTranspose2d(16, 16, 4, 1, 0), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()),
    )


def _discriminator() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 8, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, 2, 1),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.2),
        ),
        *(nn.Flatten(), nn.Linear(16 * 8 * 8, 1), nn.Sigmoid()),
    )


def _upscaler() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))


def _video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.AvgPool3d(2), nn.Conv3d(8, 4, 1), nn.Flatten()
    )


def _alexnet() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 8, 5, 2, 2),
            nn.ReLU(),
            nn.LocalResponseNorm(5),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(8, 16, 3, padding=1),
        ),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)),
    )


MODELS: dict[str, Builder] = {
    "unet": built(_UNet, image),
    "unet_interpolating": built(lambda: _UNet(interpolates=True), image),
    "diffusion_unet": built(_Diffusion, lambda: image(16), lambda: torch.rand(2) * 100),
    "variational_autoencoder": built(_Autoencoder, normal(2, 1, 8, 8), normal(2, 8)),
    "grid_detector": built(_Detector, image),
    "feature_pyramid": built(_Pyramid, image),
    "mlp_mixer": built(_Mixer, image),
    "shuffled_residual": built(_Residual, image),
    "generator": built(_generator, normal(2, 16, 1, 1)),
    "discriminator": built(_discriminator, image),
    "super_resolution": built(_upscaler, lambda: image(16)),
    "video_convolutions": built(_video, normal(2, 2, 4, 8, 8)),
    "alexnet_like": built(_alexnet, lambda: image(64)),
}
