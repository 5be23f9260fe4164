"""Image rows that no register tile divides are computed a little longer, and results are what they were."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from tests.compiler.test_torch_layers import check, prepared  # noqa: E402

C1, C2, C3 = nn.Conv1d, nn.Conv2d, nn.Conv3d
PRIME = {
    # name: (convolution, input)
    "steps": (C2(32, 48, 3, stride=2), (1, 32, 21, 39)),
    "padding and a stride": (C2(32, 48, 5, stride=2, padding=2), (2, 32, 9, 73)),
    "dilation": (C2(32, 48, 3, padding=2, dilation=2), (1, 32, 9, 37)),
    "one dimension": (C1(64, 64, 3, stride=2), (1, 64, 399)),
    "volumes": (C3(32, 32, 3, stride=2), (1, 32, 5, 7, 39)),
}
OTHERS = {
    "a length that is divided": (C2(32, 48, 3, stride=2), (1, 32, 21, 49)),
    "one tap": (C2(256, 48, 1), (1, 256, 5, 19)),
    "Winograd's": (C2(32, 48, 3, padding=1), (1, 32, 9, 37)),
    "short sums": (C2(3, 48, 3, stride=2), (1, 3, 21, 75)),
    "groups": (C2(64, 64, 5, groups=2), (1, 64, 9, 41)),
}


def positions(module: Any, x: Any) -> list[int]:
    """Of the last axis of the convolution's result."""
    mod, *_ = prepared(module, (x,))
    found = [f for variable, f in mod.functions.items() if "conv" in variable.name_hint]
    return [int(f.params[-1].ty.shape[-2]) for f in found]


@pytest.mark.parametrize("name", PRIME)
def test_rows_of_a_prime_length_are_computed_longer(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = PRIME[name]
    module, x = nn.Sequential(layer, nn.ReLU()), torch.randn(*shape)
    (found,) = positions(module, x)
    length = layer(x).shape[-1]
    assert length < found <= length + 8
    kernels = check(module, x)
    assert len(kernels) <= 4
    assert not any("conv" in name and "slice" in name for name in kernels), kernels


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_other_rows_stay(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = OTHERS[name]
    module, x = nn.Sequential(layer, nn.ReLU()), torch.randn(*shape)
    assert positions(module, x) == [layer(x).shape[-1]]
    check(module, x)
