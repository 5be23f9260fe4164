"""Networks written by hand: image to image, generators, mixers, graphs, and attention in its forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from .small import VOCABULARY, Builder, image, scaled, tokens


def _built(make: Callable[[], nn.Module], *inputs: Callable[[], torch.Tensor]) -> Builder:
    return lambda: (scaled(make()).eval(), tuple(one() for one in inputs))


def _normal(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


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


class _Set(nn.Module):
    """Points, their maximum over all of them beside each."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.both = nn.Conv1d(3, 16, 1), nn.Conv1d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.selu(self.each(x))
        return functional.glu(self.both(torch.cat([y, y.amax(-1, keepdim=True).expand_as(y)], 1)), 1)


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
    "unet": _built(_UNet, image),
    "unet_interpolating": _built(lambda: _UNet(interpolates=True), image),
    "diffusion_unet": _built(_Diffusion, lambda: image(16), lambda: torch.rand(2) * 100),
    "variational_autoencoder": _built(_Autoencoder, _normal(2, 1, 8, 8), _normal(2, 8)),
    "grid_detector": _built(_Detector, image),
    "feature_pyramid": _built(_Pyramid, image),
    "mlp_mixer": _built(_Mixer, image),
    "graph_network": _built(lambda: _Graph(by_index_add=True), _normal(10, 8), lambda: torch.randint(0, 10, (2, 30))),
    "graph_network_scattering": _built(
        lambda: _Graph(by_index_add=False), _normal(10, 8), lambda: torch.randint(0, 10, (2, 30))
    ),
    "multi_head_attention": _built(lambda: _Attention(4, 4), _normal(2, 9, 32)),
    "multi_query_attention": _built(lambda: _Attention(4, 1, is_causal=True), _normal(2, 9, 32)),
    "grouped_attention_rotated": _built(lambda: _Attention(4, 2, rotates=True), _normal(2, 9, 32)),
    "attention_with_a_hidden_row": _built(lambda: _Attention(4, 4, hides=True), _normal(2, 9, 32)),
    "dense_mixture_of_experts": _built(_Experts, _normal(2, 5, 16)),
    "torch_transformer": _built(_Transformer, tokens, tokens),
    "wavenet": _built(_Waves, _normal(2, 1, 40)),
    "coupling_flow": _built(_Flow, _normal(3, 16)),
    "vector_quantised": _built(_Quantised, _normal(2, 6, 16)),
    "recommender": _built(_Recommender, _normal(4, 5), lambda: torch.randint(0, 20, (4, 3))),
    "shuffled_residual": _built(_Residual, image),
    "point_set": _built(_Set, _normal(2, 3, 20)),
    "generator": _built(_generator, _normal(2, 16, 1, 1)),
    "discriminator": _built(_discriminator, image),
    "super_resolution": _built(_upscaler, lambda: image(16)),
    "video_convolutions": _built(_video, _normal(2, 2, 4, 8, 8)),
    "vocoder": _built(_vocoder, _normal(2, 8, 12)),
    "alexnet_like": _built(_alexnet, lambda: image(64)),
}
