"""Squeeze and excitation: convolutions of images of one pixel, whose results scale the channels of larger images."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.graphs import kernels
from tests.compiler.test_gpu_models import checked
from tests.compiler.test_torch_layers import check, operators

torch = pytest.importorskip("torch")
nn = torch.nn


class Excitation(nn.Module):  # type: ignore[misc,name-defined]
    """A block as EfficientNet, MobileNetV3 and RegNet have it."""

    def __init__(self, channels: int = 16, squeezed: int = 8) -> None:
        super().__init__()
        self.before, self.behind = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.before(x))
        scale = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return self.behind(x * torch.sigmoid(self.excite(scale)))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_block_is_six_kernels_and_its_sigmoid_is_computed_once_a_channel(batch: int) -> None:
    found = operators(check(Excitation(), torch.randn(batch, 16, 12, 12)))
    assert [name for name in found if name != "transpose"] == [
        *("convd_add_relu", "mean", "convd_add_relu", "convd_add_tir_sigmoid", "multiply_next", "convd_add"),
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_so_it_is_on_a_gpu(batch: int, dtype: str) -> None:
    precision = getattr(torch, dtype)
    names = kernels(checked(lambda: (Excitation().to(precision), (torch.randn(batch, 16, 12, 12).to(precision),))))
    assert sum(name != "transpose" for name in names) == 6
    assert all("conv2d" in name for name in names if "sigmoid" in name)
    assert not any("conv2d" in name for name in names if "multiply" in name)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_image_of_one_pixel_keeps_its_residual_in_the_convolution(dtype: str) -> None:
    """As the pooled branch of DeepLab's pyramid, of a batch of one."""

    class Pixel(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 8, 1)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.first(x.mean((2, 3), keepdim=True)))
            return torch.relu(self.second(y) + y)

    precision = getattr(torch, dtype)
    names = kernels(checked(lambda: (Pixel().to(precision), (torch.randn(1, 16, 12, 12).to(precision),))))
    assert len(names) == 3
