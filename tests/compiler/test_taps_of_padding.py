"""Taps that read padding are not computed: convolutions with dilations near the extent of what they read stay as they were."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_torch_layers import check  # noqa: E402
from tuner.graph import taps_of_padding  # noqa: E402
from tuner.graph.prepare import prepare  # noqa: E402
from tuner.ingest import DEFAULT_LIMITS  # noqa: E402
from tuner.ingest.relax_reader import read_relax  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402

C1, C2, C3 = nn.Conv1d, nn.Conv2d, nn.Conv3d
CASES: dict[str, tuple[Any, tuple[int, ...], int]] = {
    # name: (convolution, input, taps that remain)
    "one tap reads data": (C2(8, 16, 3, padding=12, dilation=12), (1, 8, 11, 9), 1),
    "few positions of the outer taps": (C2(8, 16, 3, padding=9, dilation=9), (1, 8, 11, 12), 9),
    "without a bias": (C2(8, 16, 3, padding=9, dilation=9, bias=False), (2, 8, 11, 12), 9),
    "one dimension": (C2(8, 16, 3, padding=(1, 20), dilation=(1, 20)), (1, 8, 11, 12), 3),
    "strides": (C2(8, 16, 3, padding=9, dilation=9, stride=(2, 3)), (1, 8, 11, 12), 9),
    "strides and an even kernel": (C1(8, 16, 4, padding=13, dilation=7, stride=2), (2, 8, 14), 4),
    "causal": (C1(8, 16, 3, padding=32, dilation=16), (2, 8, 20), 3),
    "volumes": (C3(4, 8, (1, 3, 3), padding=(0, 6, 5), dilation=(1, 6, 5)), (1, 4, 3, 7, 6), 9),
}
KEPT = {
    "mostly data": (C2(8, 16, 3, padding=2, dilation=2), (1, 8, 11, 12)),
    "groups": (C2(8, 16, 3, padding=12, dilation=12, groups=2), (1, 8, 11, 9)),
    "many taps": (C2(8, 16, 5, padding=8, dilation=4), (1, 8, 11, 9)),
}


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taps_of_padding, "LEAST_SAVED_FLOPS", 0.0)


def convolutions(module: Any, x: Any) -> int:
    """Calls of convolutions in the graph after the pass."""
    found: list[int] = []

    def watch(name: str, mod: Any) -> None:
        if name == "reassociate":
            text = str(mod["main"].script())
            found.append(sum(text.count(f"R.nn.conv{d}d(") for d in (1, 2, 3)))

    data, _ = from_torch(module.eval(), (x,))
    prepare(load_ir(read_relax(data, DEFAULT_LIMITS).ir), TARGET, watch=watch)
    return found[0]


@pytest.mark.parametrize("name", CASES)
def test_taps_become_products_with_what_they_read(name: str) -> None:
    torch.manual_seed(0)
    layer, shape, taps = CASES[name]
    module, x = nn.Sequential(layer, nn.ReLU()), torch.randn(*shape)
    assert convolutions(module, x) == taps
    check(module, x)


@pytest.mark.parametrize("name", KEPT)
def test_other_convolutions_stay(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = KEPT[name]
    module, x = nn.Sequential(layer, nn.ReLU()), torch.randn(*shape)
    assert convolutions(module, x) == 1
    check(module, x)


def test_small_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taps_of_padding, "LEAST_SAVED_FLOPS", 5e7)
    layer, shape, _ = CASES["one tap reads data"]
    assert convolutions(layer, torch.randn(*shape)) == 1
