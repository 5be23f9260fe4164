"""How an ATen graph is cut into what is compiled and what stays with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402  # needs torch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from pitchpipe.torch_backend.partition import split  # noqa: E402


def test_what_depends_on_weights_alone_stays_with_pytorch() -> None:
    """As the parameters of a state-space model before they become complex."""

    def program(x: Any, w: Any) -> Any:
        return x @ (w @ w).sin()

    captured = make_fx(program)(torch.ones(2, 3), torch.ones(3, 3))
    found = split(captured, {"w_1"}, lambda node: "it is a sine" if "sin" in str(node.target) else None)
    assert list(found.nodes.values()) == [("mm_1",)]
    assert found.left == {"it depends on weights alone": 1, "it is a sine": 1}


def test_a_graph_is_cut_while_another_thread_captures_a_program() -> None:
    """What a capture says about nodes is torch's global state."""

    def program(x: Any, w: Any) -> Any:
        y = x @ w
        return (y * 2).sin(), y.flip(0) @ w

    x, w = torch.randn(2, 3), torch.randn(3, 3)
    captured = make_fx(program)(x, w)
    with fx.traceback.preserve_node_meta(), fx.traceback.annotate({"of": "another program"}):
        found = split(captured, {"w_1"}, lambda node: "it is a flip" if "flip" in str(node.target) else None)
    assert len(found.nodes) == 2
    assert not any("custom" in node.meta for node in found.module.graph.nodes)
    for one, right in zip(found.module(x, w), program(x, w), strict=True):
        assert torch.equal(one, right)
