"""Operators that memory bounds, as PyTorch writes them, for memory_bound_cuda.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

F, H, B = "float32", "float16", "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operator as PyTorch writes it, and the shapes and type of its tensors."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = H
    indices_below: int | None = None
    """The last tensor holds indices below this number, of int64."""
    untouched: int = 0
    """Bytes of the tensors that are not read."""


def cases() -> dict[str, Case]:
    """Every operator by name, of 1 to 140 MB."""

    def norm(x: Any, g: Any, s: Any) -> Any:
        return torch.nn.functional.layer_norm(x, g.shape, g, s)

    def pool(x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 3, 2, 1)

    def depthwise(x: Any, w: Any) -> Any:
        y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=1, groups=w.shape[3])
        return torch.clamp(y, 0, 6).permute(0, 2, 3, 1)

    def rms(x: Any, g: Any) -> Any:
        return torch.nn.functional.rms_norm(x, g.shape, g)

    def group(x: Any, g: Any, s: Any) -> Any:
        return torch.nn.functional.group_norm(x, 8, g, s)

    def softmax(x: Any) -> Any:
        return torch.softmax(x, -1)

    def gelu(x: Any) -> Any:
        return torch.nn.functional.gelu(x)

    def turned(*axes: int) -> Callable[..., Any]:
        return lambda x: x.permute(*axes).contiguous()

    return {
        "softmax 96x128x128": Case(function=softmax, shapes=((96, 128, 128),)),
        "softmax 16384x197": Case(function=softmax, shapes=((16384, 197),), dtype=B),
        "softmax 4096x1024": Case(function=softmax, shapes=((4096, 1024),)),
        "softmax 8192x512": Case(function=softmax, shapes=((8192, 512),), dtype=F),
        "softmax 256x32768": Case(function=softmax, shapes=((256, 32768),)),
        "softmax over 21 channels": Case(function=lambda x: torch.softmax(x, 1), shapes=((8, 21, 256, 256),)),
        "layer norm 1024x768": Case(function=norm, shapes=((1024, 768), (768,), (768,))),
        "layer norm 8192x1024": Case(function=norm, shapes=((8192, 1024), (1024,), (1024,)), dtype=B),
        "layer norm 16384x768": Case(function=norm, shapes=((16384, 768), (768,), (768,)), dtype=F),
        "residual and layer norm 4096x1024": Case(
            function=lambda x, r, g, s: norm(x + r, g, s),
            shapes=((4096, 1024), (4096, 1024), (1024,), (1024,)),
        ),
        "rms norm 4096x4096": Case(function=rms, shapes=((4096, 4096), (4096,))),
        "group norm 8x64x56x56": Case(function=group, shapes=((8, 64, 56, 56), (64,), (64,))),
        "max pooling 8x64x112x112": Case(function=pool, shapes=((8, 64, 112, 112),)),
        "average pooling 8x128x56x56": Case(
            function=lambda x: torch.nn.functional.avg_pool2d(x, 2), shapes=((8, 128, 56, 56),)
        ),
        "mean over space 32x7x7x2048": Case(function=lambda x: x.mean((1, 2)), shapes=((32, 7, 7, 2048),)),
        "depthwise 8x112x112x96": Case(function=depthwise, shapes=((8, 112, 112, 96), (3, 3, 1, 96))),
        "transpose 4096x4096": Case(function=turned(1, 0), shapes=((4096, 4096),)),
        "transpose 1000x3000": Case(function=turned(1, 0), shapes=((1000, 3000),), dtype=F),
        "heads 16x512x16x64": Case(function=turned(0, 2, 1, 3), shapes=((16, 512, 16, 64),)),
        "keys 16x512x16x64": Case(function=turned(0, 2, 3, 1), shapes=((16, 512, 16, 64),)),
        "images to channels last 32x3x224x224": Case(function=turned(0, 2, 3, 1), shapes=((32, 3, 224, 224),)),
        "images to channels first 8x56x56x256": Case(function=turned(0, 3, 1, 2), shapes=((8, 56, 56, 256),)),
        "gelu 128x3072": Case(function=gelu, shapes=((128, 3072),)),
        "gelu 4096x3072": Case(function=gelu, shapes=((4096, 3072),)),
        "bias and gelu 4096x3072": Case(function=lambda x, b: gelu(x + b), shapes=((4096, 3072), (3072,)), dtype=B),
        "sum 2048x4096": Case(function=lambda x, y: x + y, shapes=((2048, 4096), (2048, 4096)), dtype=F),
        "residual and relu 8x56x56x256": Case(
            function=lambda x, y: torch.relu(x + y), shapes=((8, 56, 56, 256), (8, 56, 56, 256))
        ),
        "gate 2048x11008": Case(
            function=lambda x, y: torch.nn.functional.silu(x) * y, shapes=((2048, 11008), (2048, 11008))
        ),
        "scaled channels 8x56x56x96": Case(function=lambda x, g: x * g, shapes=((8, 56, 56, 96), (8, 1, 1, 96))),
        "conversion 4096x4096": Case(function=lambda x: x.to(torch.float16), shapes=((4096, 4096),), dtype=F),
        "clip 1024x1024": Case(function=lambda x: torch.clamp(x, 0, 6), shapes=((1024, 1024),)),
        "sum of everything 4096x4096": Case(function=lambda x: x.sum(), shapes=((4096, 4096),), dtype=F),
        "sums of 64 rows of 262144": Case(function=lambda x: x.sum(1), shapes=((64, 262144),)),
        "sums of 65536 rows of 64": Case(function=lambda x: x.sum(1), shapes=((65536, 64),)),
        "means of 768 columns of 32768": Case(function=lambda x: x.mean(0), shapes=((32768, 768),)),
        "largest over the middle 64x1024x512": Case(function=lambda x: x.amax(1), shapes=((64, 1024, 512),)),
        "largest positions 4096x1000": Case(function=lambda x: x.argmax(1), shapes=((4096, 1000),), dtype=F),
        "slice 4096x3072 of 4096": Case(
            function=lambda x: x[:, 512:3584] * 1.5, shapes=((4096, 4096),), untouched=4096 * 1024 * 2
        ),
        "tokens 64x(1 + 196)x768": Case(
            function=lambda x, y: torch.cat([x, y], 1), shapes=((64, 1, 768), (64, 196, 768))
        ),
        "channels 8x56x56x(64 + 128)": Case(
            function=lambda x, y: torch.cat([x, y], 3), shapes=((8, 56, 56, 64), (8, 56, 56, 128))
        ),
        "border 8x112x112x64": Case(
            function=lambda x: torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1)), shapes=((8, 112, 112, 64),)
        ),
        "rows of a table 8192 of 30522x768": Case(
            function=lambda table, at: table[at],
            shapes=((30522, 768), (8192,)),
            indices_below=30522,
            untouched=(30522 - 8192) * 768 * 2,
        ),
    }
