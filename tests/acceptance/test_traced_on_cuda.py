"""What PyTorch traces on a GPU into operators of its kernels: ingested, built by default and compared with eager mode there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pitchpipe

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(600),
]
functional, nn = torch.nn.functional, torch.nn


class Of(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any], *modules: Any) -> None:
        super().__init__()
        self.function, self.modules_ = function, nn.ModuleList(modules)

    def forward(self, *given: Any) -> Any:
        return self.function(*self.modules_, *given)


attend = functional.scaled_dot_product_attention
CASES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "attention": (Of(attend), [(1, 4, 16, 64)] * 3),
    "attention, causal": (Of(lambda q, k, v: attend(q, k, v, is_causal=True)), [(1, 4, 16, 64)] * 3),
    "attention, a mask": (Of(lambda q, k, v, m: attend(q, k, v, m)), [(1, 4, 16, 64)] * 3 + [(1, 4, 16, 16)]),
    "attention, odd extents": (Of(lambda q, k, v, m: attend(q, k, v, m)), [(1, 2, 17, 30)] * 3 + [(1, 2, 17, 17)]),
    "attention, shared keys": (
        Of(lambda q, k, v: attend(q, k, v, enable_gqa=True)),
        [(1, 8, 16, 64), *[(1, 2, 16, 64)] * 2],
    ),
    "attention of a layer": (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), [(2, 8, 64)]),
    "RMS norm": (nn.RMSNorm(64), [(4, 64)]),
    "LSTM": (nn.LSTM(32, 32, batch_first=True), [(4, 5, 32)]),
    "GRU": (nn.GRU(32, 32, bidirectional=True), [(4, 5, 32)]),
    "LSTM cell": (nn.LSTMCell(32, 32), [(4, 32)]),
    "GRU cell": (nn.GRUCell(32, 32), [(4, 32)]),
    "grid": (Of(lambda x, g: functional.grid_sample(x, g, align_corners=True)), [(1, 4, 8, 8), (1, 8, 8, 2)]),
    "max pool": (nn.MaxPool2d(3, 2, 1), [(1, 8, 15, 15)]),
    "transposed convolution": (nn.ConvTranspose2d(8, 8, 3), [(1, 8, 9, 9)]),
    "resize": (Of(lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear")), [(1, 8, 9, 9)]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_module_on_a_gpu_gives_what_eager_mode_gives(name: str, dtype: Any, tmp_path: Path) -> None:
    module, shapes = CASES[name]
    torch.manual_seed(0)
    module = module.eval().to("cuda", dtype)
    given = tuple(torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*given))
    loaded = pitchpipe.load(module, None, given, target="cuda", cache=tmp_path)
    for found, wanted in zip(torch.utils._pytree.tree_leaves(loaded(*given)), expected, strict=True):
        found = torch.from_dlpack(found) if not isinstance(found, torch.Tensor) else found
        error = (found.float() - wanted.float()).abs().max() / wanted.float().abs().max()
        assert error < (2e-2 if dtype is torch.float16 else 1e-3)
