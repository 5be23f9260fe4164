"""The shapes of operator_shapes_cuda.py as small modules of PyTorch, with example inputs.

Images lie N x H x W x C in memory for everybody, as MetaSchedule's do. The modules exchange the axes to PyTorch's order and
back, which in PyTorch moves nothing: it is what `channels_last` means there. Sequences and volumes are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

CAPSULE = 4
"""Rows and columns of a capsule."""
Made = tuple[nn.Module, list[tuple[int, ...]]]
"""A module and the shapes of its inputs."""
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CONVOLVES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def made(
    kind: str, shape: Sequence[Any], *, device: str = "cpu", dtype: Any = torch.float16
) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module in evaluation mode, and inputs drawn from the normal distribution: numbers as activations are."""
    with torch.device(device):
        module, inputs = MAKERS[kind](*shape)
        drawn = tuple(torch.randn(one).to(dtype) for one in inputs)
    return module.to(dtype).eval(), drawn


def channels_last(module: nn.Module) -> nn.Module:
    """The module, whose convolutions' weights now lie with the input's channels last, or the output's where they are
    transposed."""
    for one in module.modules():
        if isinstance(one, CONVOLVES):
            one.weight.data = one.weight.data.movedim(1, -1).contiguous().movedim(-1, 1)
    return module


class Wrapper(nn.Module):
    """A module with another one in it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Convolution(Wrapper):
    """Of x, N x extents x CI, to N x extents x CO."""

    def forward(self, x: Any) -> Any:
        return self.inner(x.movedim(-1, 1)).movedim(1, -1)


class ResidualConvolution(Wrapper):
    """The same, to which a residual of the result's shape is added before a ReLU."""

    def forward(self, x: Any, residual: Any) -> Any:
        return torch.relu(self.inner(x.movedim(-1, 1)) + residual.movedim(-1, 1)).movedim(1, -1)


class ResidualLinear(Wrapper):
    """Of x, M x K, and a residual, M x N."""

    def forward(self, x: Any, residual: Any) -> Any:
        return self.inner(x) + residual


class CapsuleConvolution(nn.Module):
    """Of x, N x H x W x 4 x 4 x CI: elements of capsules are products of matrices, which are summed over a window and over
    the input's channels. The result is N x OH x OW x 4 x 4 x CO."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding
        terms = kernel * kernel * CAPSULE * inputs
        self.weight = nn.Parameter(torch.randn(kernel, kernel, CAPSULE, CAPSULE, inputs, outputs) * terms**-0.5)

    def forward(self, x: Any) -> Any:
        padded = nn.functional.pad(x, (0, 0) * 3 + (self.padding, self.padding) * 2)
        windows = padded.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)
        return torch.einsum("nhwikcyx,yxkjcd->nhwijd", windows, self.weight)


class BatchedProduct(nn.Module):
    """Of B x N x K and B x K x M."""

    def forward(self, x: Any, y: Any) -> Any:
        return torch.bmm(x, y)


class AttentionScores(nn.Module):
    """Of queries and keys, batch x sequence x heads x width: batch x heads x sequence x sequence, not scaled."""

    def forward(self, query: Any, key: Any) -> Any:
        return torch.matmul(query.transpose(1, 2), key.permute(0, 2, 3, 1))


class Norm(nn.Module):
    """The Euclidean norm of each of B matrices."""

    def forward(self, x: Any) -> Any:
        return torch.linalg.vector_norm(x, dim=(1, 2))


def _linear(rows: int, columns: int, length: int, epilogue: str) -> Made:
    inner = nn.Linear(length, columns)
    if epilogue == "residual":
        return ResidualLinear(inner), [(rows, length), (rows, columns)]
    return (nn.Sequential(inner, nn.GELU()) if epilogue == "gelu" else inner), [(rows, length)]


def _inner(dims: int, shape: Sequence[int], bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution over so many dims, of the parameters from CI on; and the shape of its input."""
    extents, (inputs, outputs, *more) = shape[: dims + 1], shape[dims + 1 :]
    return CONVOLUTIONS[dims](inputs, outputs, *more, bias=bias), (*extents, inputs)


def _convolution(dims: int) -> Callable[..., Made]:
    def make(*shape: int) -> Made:
        inner, image = _inner(dims, shape, False)
        return Convolution(inner), [image]

    return make


def _residual_convolution(*shape: int) -> Made:
    inner, image = _inner(2, shape, True)
    batch, tall, wide, _, outputs, kernel, stride, padding = shape
    result = (batch, *((extent + 2 * padding - kernel) // stride + 1 for extent in (tall, wide)), outputs)
    return ResidualConvolution(inner), [image, result]


def _normalised_convolution(*shape: int) -> Made:
    """A convolution with a bias, a batch norm with statistics of its own, and a ReLU."""
    inner, image = _inner(2, shape, True)
    norm = nn.BatchNorm2d(shape[4])
    for one, low, high in ((norm.weight, 0.5, 1.5), (norm.running_var, 0.5, 1.5), (norm.running_mean, -0.2, 0.2)):
        nn.init.uniform_(one, low, high)
    nn.init.uniform_(norm.bias, -0.2, 0.2)
    return Convolution(nn.Sequential(inner, norm, nn.ReLU())), [image]


def _depthwise(batch: int, tall: int, wide: int, channels: int, kernel: int, stride: int, padding: int) -> Made:
    inner = nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels, bias=False)
    return Convolution(inner), [(batch, tall, wide, channels)]


def _transposed(*shape: int) -> Made:
    batch, tall, wide, inputs, outputs, kernel, stride, padding = shape
    inner = nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, bias=False)
    return Convolution(inner), [(batch, tall, wide, inputs)]


def _capsule(*shape: int) -> Made:
    batch, tall, wide, inputs, *more = shape
    return CapsuleConvolution(inputs, *more), [(batch, tall, wide, CAPSULE, CAPSULE, inputs)]


def _batched_product(batch: int, rows: int, columns: int, length: int) -> Made:
    return BatchedProduct(), [(batch, rows, length), (batch, length, columns)]


MAKERS: dict[str, Callable[..., Made]] = {
    "LIN": _linear,
    "RES": _residual_convolution,
    "C1D": _convolution(1),
    "C2D": _convolution(2),
    "C3D": _convolution(3),
    "GMM": _batched_product,
    "GRP": _convolution(2),
    "DIL": _convolution(2),
    "DEP": _depthwise,
    "T2D": _transposed,
    "CAP": _capsule,
    "NRM": lambda *shape: (Norm(), [shape]),
    "SFM": lambda *shape: (nn.Softmax(dim=1), [shape]),
    "CBR": _normalised_convolution,
    "TBG": lambda *shape: (AttentionScores(), [shape, shape]),
}
