"""How an ATen graph is cut into what is compiled and what stays with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402  # needs torch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from pitchpipe.torch_backend.partition import split  # noqa: E402
from tuner.ingest import parse_container  # noqa: E402
from tuner.ingest.torch_fx import from_graph, unsupported  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402


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


def test_strides_of_axes_of_one_element_cut_nothing() -> None:
    """What torch.compile writes behind a global average pool of images with their channels last; other strides read memory,
    which a compiled program arranges as it likes."""

    def pooled(x: Any, w: Any) -> Any:
        mean = (x * 2).mean((2, 3), True)
        return mean.as_strided((2, 8, 1, 1), (8, 1, 8, 8)).flatten(1).relu() @ w

    def turned(x: Any, w: Any) -> Any:
        return (x * 2).as_strided((2, 8, 4, 4), (128, 1, 32, 8)).mean((2, 3)).relu() @ w

    images = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    w = torch.randn(8, 3)
    for program, x, whole in ((pooled, images, True), (turned, images.contiguous(), False)):
        found = split(make_fx(program)(x, w), {"w_1"}, unsupported)
        assert any("as_strided" in node.name for node in found.module.graph.nodes) != whole
        assert torch.equal(found.module(x, w), program(x, w))


def test_what_lies_the_same_is_no_gather() -> None:
    def program(x: Any, w: Any) -> Any:
        return (x * 2).mean((2, 3), True).as_strided((2, 8, 1, 1), (8, 1, 8, 8)).flatten(1) @ w

    images = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    captured = make_fx(program, tracing_mode="fake")(images, torch.randn(8, 3))
    assert "as_strided" not in str(load_ir(parse_container(from_graph(captured, {"w_1"})).ir))
