"""How an ATen graph is cut into what is compiled and what stays with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402  # needs torch

from pitchpipe.torch_backend.partition import split  # noqa: E402


def test_what_depends_on_weights_alone_stays_with_pytorch() -> None:
    """As the parameters of a state-space model before they become complex."""

    def program(x: Any, w: Any) -> Any:
        return x @ (w @ w).sin()

    captured = make_fx(program)(torch.ones(2, 3), torch.ones(3, 3))
    found = split(captured, {"w_1"}, lambda node: "it is a sine" if "sin" in str(node.target) else None)
    assert list(found.nodes.values()) == [("mm_1",)]
    assert found.left == {"it depends on weights alone": 1, "it is a sine": 1}
