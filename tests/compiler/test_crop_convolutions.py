"""What a causal convolution drops is not computed, and what it keeps stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from tests.compiler.test_torch_layers import check, prepared  # noqa: E402

C1, C2, C3 = nn.Conv1d, nn.Conv2d, nn.Conv3d
CASES = {
    # name: (convolution, input, slice)
    "causal": (C1(4, 8, 3, padding=2), (2, 4, 19), (..., slice(None, -2))),
    "causal, dilated": (C1(4, 8, 3, padding=8, dilation=4), (2, 4, 19), (..., slice(None, 19))),
    "causal, without a bias": (C1(4, 8, 3, padding=2, bias=False), (2, 4, 19), (..., slice(None, -2))),
    "causal, by channel": (C1(8, 8, 4, padding=3, groups=8), (2, 8, 19), (..., slice(None, 19))),
    "both ends": (C1(4, 8, 3, padding=4), (2, 4, 19), (..., slice(3, -1))),
    "steps": (C1(4, 8, 5, padding=4, stride=2), (2, 4, 19), (..., slice(1, -2))),
    "images": (C2(4, 8, 3, padding=2), (1, 4, 9, 7), (..., slice(None, -2), slice(1, -1))),
    "rows": (C2(4, 8, (3, 1), padding=(2, 0)), (1, 4, 9, 7), (slice(None), slice(None), slice(None, -2))),
    "volumes": (C3(4, 8, 3, padding=(2, 1, 1)), (1, 4, 5, 6, 7), (slice(None), slice(None), slice(None, -2))),
}
KEPT = {
    "beyond the padding": (C1(4, 8, 3, padding=1), (2, 4, 19), (..., slice(4, None))),
    "every other": (C1(4, 8, 3, padding=2), (2, 4, 19), (..., slice(None, None, 2))),
    "channels": (C1(4, 8, 3, padding=2), (2, 4, 19), (slice(None), slice(2, 5))),
    "a channel and positions": (C1(4, 8, 3, padding=2), (2, 4, 19), (slice(None), slice(2, 5), slice(None, -2))),
}


class Sliced(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Any, part: Any) -> None:
        super().__init__()
        self.layer, self.part = layer, part

    def forward(self, x: Any) -> Any:
        return torch.relu(self.layer(x)[self.part])


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_slice_becomes_less_padding(name: str) -> None:
    torch.manual_seed(0)
    layer, shape, part = CASES[name]
    module, x = Sliced(layer, part), torch.randn(*shape)
    mod, *_ = prepared(module, (x,))
    assert not any("slice" in variable.name_hint for variable in mod.functions)
    check(module, x)


@pytest.mark.parametrize("name", KEPT)
def test_other_slices_stay(name: str) -> None:
    torch.manual_seed(0)
    layer, shape, part = KEPT[name]
    module, x = Sliced(layer, part), torch.randn(*shape)
    mod, *_ = prepared(module, (x,))
    assert any("slice" in variable.name_hint for variable in mod.functions)
    check(module, x)


def test_a_convolution_that_something_else_reads_stays() -> None:
    class Twice(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = C1(4, 8, 3, padding=2)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return y[..., :-2] + y.amax(-1, keepdim=True)

    check(Twice(), torch.randn(2, 4, 19))
