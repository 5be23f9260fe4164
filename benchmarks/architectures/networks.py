"""Networks written by hand, each of which has a pattern of its own: attention over channels, cosine attention, gates of
diffusion, dense blocks, fused resolutions, series, speech, recommendation and molecules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .small import Builder, built, image, normal


class _ChannelAttention(nn.Module):
    """Cross-covariance attention of XCiT (El-Nouby et al., 2021): channels attend to channels."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm, self.out = heads, nn.LayerNorm(width), nn.Linear(width, width)
        self.inner, self.temperature = nn.Linear(width, 3 * width), nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        of_heads = self.inner(self.norm(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = of_heads.permute(2, 0, 3, 4, 1)
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        shares = (query @ key.transpose(-2, -1) * self.temperature).softmax(-1)
        return x + self.out((shares @ value).permute(0, 3, 1, 2).reshape(batch, length, width))


class _CosineWindow(nn.Module):
    """A window of Swin V2 (Liu et al., 2022): scaled cosines, and a bias that a network makes of log-spaced distances."""

    def __init__(self, width: int = 32, heads: int = 4, side: int = 4) -> None:
        super().__init__()
        self.heads, self.inner, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        self.of_distance = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, heads, bias=False))
        reach = torch.arange(1.0 - side, side)
        table = torch.stack(torch.meshgrid(reach, reach, indexing="ij"), -1) / (side - 1) * 8
        places = torch.stack(torch.meshgrid(*(torch.arange(side),) * 2, indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None]).permute(1, 2, 0) + side - 1
        self.register_buffer("table", torch.sign(table) * torch.log2(table.abs() + 1) / 3)
        self.register_buffer("index", apart[..., 0] * (2 * side - 1) + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.inner(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cosines = functional.normalize(query, dim=-1) @ functional.normalize(key, dim=-1).transpose(-2, -1)
        bias = self.of_distance(self.table).view(-1, self.heads)[self.index.view(-1)]
        bias = 16 * torch.sigmoid(bias.view(length, length, -1).permute(2, 0, 1))
        shares = (cosines * torch.clamp(self.scale, max=math.log(100.0)).exp() + bias).softmax(-1)
        found: Tensor = self.out((shares @ value).transpose(1, 2).reshape(batch, length, width))
        return found


class _GlobalResponse(nn.Module):
    """A block of ConvNeXt V2 (Woo et al., 2023): each channel is scaled by its share of the image's energy."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma, self.beta = nn.Parameter(torch.randn(4 * width)), nn.Parameter(torch.randn(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        energy = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        share = energy / (energy.mean(-1, keepdim=True) + 1e-6)
        return x + self.narrow(self.gamma * (y * share) + self.beta + y).permute(0, 3, 1, 2)


class _LinearAttention(nn.Module):
    """Attention of EfficientViT (Cai et al., 2023): ReLU in place of softmax, at two scales, its divisor one more row."""

    def __init__(self, width: int = 32, head: int = 8) -> None:
        super().__init__()
        self.head, self.inner, self.out = head, nn.Conv2d(width, 3 * width, 1), nn.Conv2d(2 * width, width, 1)
        self.wider = nn.Sequential(
            nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width),
            nn.Conv2d(3 * width, 3 * width, 1, groups=3 * width // head),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        inner = self.inner(x)
        both = torch.cat([inner, self.wider(inner)], 1).reshape(batch, -1, 3 * self.head, height * width)
        query, key, value = both.split(self.head, 2)
        value = functional.pad(value, (0, 0, 0, 1), value=1.0)
        found = (value @ functional.relu(key).transpose(-1, -2)) @ functional.relu(query)
        found = found[:, :, :-1] / (found[:, :, -1:] + 1e-6)
        return x + self.out(found.reshape(batch, -1, height, width))


class _Conditioned(nn.Module):
    """A block of DiT (Peebles and Xie, 2023): shifts, scales and gates come from the embedded step of diffusion."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.step, self.gates = nn.Linear(16, width), nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(8, device=step.device) / 8)
        gates = self.gates(self.step(torch.cat([angles.cos(), angles.sin()], -1)))[:, None].chunk(6, -1)
        y = self.norm(x) * (1 + gates[0]) + gates[1]
        x = x + gates[2] * self.attention(y, y, y, need_weights=False)[0]
        return x + gates[5] * self.inner(self.norm(x) * (1 + gates[3]) + gates[4])


class _Triangle(nn.Module):
    """Triangular multiplication of AlphaFold 2 (Jumper et al., 2021): edges of a pair from those to all third ones."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        y = self.norm(pairs)
        left, right = (functional.glu(part(y), -1) for part in (self.left, self.right))
        found = self.out(self.after(torch.einsum("bikc,bjkc->bijc", left, right)))
        return pairs + torch.sigmoid(self.gate(y)) * found


class _Resolutions(nn.Module):
    """An exchange of HRNet (Wang et al., 2020): each of three resolutions gets the sum of all."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        self.stems = nn.ModuleList(nn.Conv2d(3, width, 3, 2 << nth, 1) for nth, width in enumerate(widths))
        self.up, self.down = nn.ModuleDict(), nn.ModuleDict()
        for to, width in enumerate(widths):
            for of, other in enumerate(widths):
                if of > to:
                    self.up[f"{of}{to}"] = nn.Conv2d(other, width, 1)
                elif of < to:
                    steps = (nn.Conv2d(width if nth else other, width, 3, 2, 1) for nth in range(to - of))
                    self.down[f"{of}{to}"] = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        branches = [functional.relu(stem(x)) for stem in self.stems]
        found = []
        for to, total in enumerate(branches):
            for of, other in enumerate(branches):
                if of > to:
                    other = self.up[f"{of}{to}"](other)
                    total = total + functional.interpolate(other, size=branches[to].shape[2:], mode="bilinear")
                elif of < to:
                    total = total + self.down[f"{of}{to}"](other)
            found.append(functional.relu(total))
        return tuple(found)


class _Dense(nn.Module):
    """A residual dense block and its upsampling in ESRGAN (Wang et al., 2018)."""

    def __init__(self, width: int = 16, growth: int = 8) -> None:
        super().__init__()
        sizes = [(width + nth * growth, growth if nth < 4 else width) for nth in range(5)]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(inputs, outputs, 3, padding=1) for inputs, outputs in sizes)
        self.last = nn.Conv2d(width, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        known = [self.first(x)]
        for nth, layer in enumerate(self.layers):
            y = layer(torch.cat(known, 1))
            known.append(functional.leaky_relu(y, 0.2) if nth < 4 else y)
        return functional.pixel_shuffle(self.last(known[0] + 0.2 * known[-1]), 2)


class _Boxes(nn.Module):
    """The end of an anchor-free detector: distances as expectations over bins, and the best boxes by their scores."""

    def __init__(self, bins: int = 8, classes: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU())
        self.bins, self.distances, self.scores = bins, nn.Conv2d(16, 4 * bins, 1), nn.Conv2d(16, classes, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        batch, _, height, width = y.shape
        shares = self.distances(y).view(batch, 4, self.bins, -1).softmax(2)
        away = (shares * torch.arange(float(self.bins), device=x.device).view(1, 1, -1, 1)).sum(2)
        rows, columns = (torch.arange(size, device=x.device) + 0.5 for size in (height, width))
        centres = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).view(1, 2, -1)
        boxes = torch.cat([centres - away[:, :2], centres + away[:, 2:]], 1) * 4
        scores = self.scores(y).flatten(2).sigmoid().amax(1)
        best, at = scores.topk(5, 1)
        return torch.gather(boxes, 2, at[:, None].expand(-1, 4, -1)), best


class _Speaker(nn.Module):
    """ECAPA-TDNN's pooling (Desplanques et al., 2020): means and deviations over time, weighted by attention."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(8, width, 5, padding=2), nn.Conv1d(width, width, 3, padding=2, dilation=2)
        self.attend = nn.Sequential(nn.Conv1d(3 * width, 16, 1), nn.Tanh(), nn.Conv1d(16, width, 1))
        self.out = nn.Linear(2 * width, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.second(functional.relu(self.first(x))))
        around = torch.cat([y, y.mean(2, True).expand_as(y), y.std(2, keepdim=True).expand_as(y)], 1)
        shares = self.attend(around).softmax(2)
        mean = (y * shares).sum(2)
        deviation = ((y * y * shares).sum(2) - mean * mean).clamp(min=1e-4).sqrt()
        return functional.normalize(self.out(torch.cat([mean, deviation], 1)), dim=1)


class _Patches(nn.Module):
    """PatchTST (Nie et al., 2023): patches of series that overlap, of each channel alone, normalised and back."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, norm_first=True, activation="gelu")
        self.embed, self.layers = nn.Linear(8, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(11 * width, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        patches = ((x - mean) / deviation).transpose(1, 2).unfold(-1, 8, 4)
        batch, channels, count, size = patches.shape
        found = self.layers(self.embed(patches.reshape(batch * channels, count, size)))
        return self.out(found.flatten(1)).view(batch, channels, 6).transpose(1, 2) * deviation + mean


class _Interest(nn.Module):
    """Deep interest network (Zhou et al., 2018): what was seen weighs as it relates to what is asked for."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.items = nn.Embedding(50, width, padding_idx=0)
        self.relate = nn.Sequential(nn.Linear(4 * width, 16), nn.PReLU(), nn.Linear(16, 1))
        self.out = nn.Sequential(nn.Linear(2 * width, 16), nn.PReLU(16), nn.Linear(16, 2))

    def forward(self, seen: Tensor, asked: Tensor) -> Tensor:
        keys = self.items(seen)
        query = self.items(asked)[:, None].expand_as(keys)
        weights = self.relate(torch.cat([query, keys, query - keys, query * keys], -1)).squeeze(-1)
        weights = weights.masked_fill(seen == 0, 1.0 - 2.0**32).softmax(1)
        pooled = (weights[:, None] @ keys).squeeze(1)
        found: Tensor = self.out(torch.cat([pooled, query[:, 0]], 1)).log_softmax(1)
        return found


class _Molecule(nn.Module):
    """SchNet (Schuett et al., 2017): filters from distances, which fade to nothing at a radius."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.atoms, self.mix, self.out = nn.Embedding(10, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.filter = nn.Sequential(nn.Linear(12, width), nn.Softplus(), nn.Linear(width, width))
        self.register_buffer("centres", torch.linspace(0, 4, 12))

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        apart = torch.cdist(places, places)
        filters = self.filter(torch.exp(-4 * (apart[..., None] - self.centres) ** 2))
        filters = filters * (0.5 * (torch.cos(apart * math.pi / 4) + 1) * (apart < 4))[..., None]
        x = self.atoms(kinds)
        for _ in range(2):
            x = x + torch.einsum("bijc,bjc->bic", filters, self.mix(x))
        found: Tensor = self.out(functional.softplus(x)).sum((1, 2))
        return found


def _seen() -> Tensor:
    found = torch.randint(1, 50, (4, 10))
    found[:, 7:] = 0
    return found


MODELS: dict[str, Builder] = {
    "channel_attention": built(lambda: nn.Sequential(_ChannelAttention(), _ChannelAttention()), normal(2, 20, 32)),
    "cosine_window": built(_CosineWindow, normal(3, 16, 32)),
    "global_response": built(lambda: nn.Sequential(nn.Conv2d(3, 16, 4, 4), _GlobalResponse()), image),
    "linear_attention_at_two_scales": built(_LinearAttention, normal(1, 32, 7, 7)),
    "diffusion_transformer": built(_Conditioned, normal(2, 9, 32), lambda: torch.tensor([10, 500])),
    "triangle_multiplication": built(_Triangle, normal(1, 9, 9, 16)),
    "fused_resolutions": built(_Resolutions, image),
    "residual_dense": built(_Dense, image),
    "boxes_by_distances": built(_Boxes, image),
    "speaker": built(_Speaker, normal(2, 8, 30)),
    "series_in_patches": built(_Patches, normal(2, 48, 3)),
    "interest": built(_Interest, _seen, lambda: torch.randint(1, 50, (4,))),
    "molecule": built(_Molecule, lambda: torch.randint(0, 10, (2, 7)), normal(2, 7, 3)),
}
