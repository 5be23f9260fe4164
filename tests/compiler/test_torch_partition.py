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


def test_views_that_are_wanted_outside_are_made_outside() -> None:
    """There they share the memory of what they are views of, whatever inside reads them too."""

    def program(x: Any, w: Any) -> Any:
        y = x @ w
        left, right = y.split(2, 1)
        turned = left.t().unsqueeze(0)
        return y, turned, right, turned.exp() * right.exp().sum(), x.t(), x.t() @ x

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    captured = make_fx(program)(x, w)
    found = split(captured, {"w_1"}, lambda _node: None)
    (inner,) = [found.module.get_submodule(name) for name in found.nodes]
    assert len(inner.graph.output_node().args[0]) == 3, "of what computes alone"
    results = found.module(x, w)
    for one, right in zip(results, program(x, w), strict=True):
        assert torch.equal(one, right)
        assert one.stride() == right.stride()
    results[0].zero_()
    assert not results[1].any()
    assert not results[2].any()
    assert results[4].data_ptr() == x.data_ptr()
