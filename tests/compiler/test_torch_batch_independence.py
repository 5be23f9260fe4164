"""Padding a batch is allowed exactly where it is proved to change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch._aot_autograd.utils import make_boxed_func  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from pitchpipe.torch_backend.batch_independence import is_batch_independent  # noqa: E402
from pitchpipe.torch_backend.decompositions import whole_operators  # noqa: E402
from pitchpipe.torch_backend.dynamic import bucket  # noqa: E402
from pitchpipe.torch_operators.decompositions import inference_decompositions  # noqa: E402

W = torch.randn(8, 8)
KERNEL = torch.randn(4, 3, 3, 3)


def attention(x: Any, _: Any) -> Any:
    q = (x @ W).view(x.shape[0], 6, 2, 4).transpose(1, 2)
    mixed = torch.softmax(q @ q.transpose(-1, -2), -1) @ q
    return x + mixed.transpose(1, 2).reshape(x.shape[0], 6, 8)


def recurrent(x: Any, w: Any) -> Any:
    """A plain RNN over the middle axis."""
    return torch.rnn_tanh(x, x.new_zeros(1, x.shape[0], 8), [w, w], False, 1, 0.0, False, False, True)


APART: dict[str, Callable[[Any, Any], Any]] = {
    "a dense layer": lambda x, w: f.layer_norm(f.gelu(x @ w), (8,)),
    "attention": attention,
    "a mean over other axes": lambda x, w: (x @ w).mean(1),
    "a broadcast row": lambda x, w: x + w[0],
    "rolled channels": lambda x, w: x.roll((2, -1), (1, 2)) @ w,
    "joined channels": lambda x, w: torch.cat([x, x * 2], -1),
    "a recurrent layer": recurrent,
    "a flattened batch": lambda x, w: (x.reshape(-1, 8) @ w).reshape(x.shape[0], 48),
    "images": lambda x, w: f.conv2d(x[:, :, :6].reshape(-1, 1, 6, 6).expand(-1, 3, 6, 6), KERNEL, padding=1),
}
MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "a softmax over the batch": lambda x, w: torch.softmax(x, 0),
    "a mean over the batch": lambda x, w: x.mean(0),
    "a product over the batch": lambda x, w: x.flatten(1).t() @ x.flatten(1),
    "the batch's own size": lambda x, w: x / x.shape[0],
    "the number of a row": lambda x, w: x + torch.arange(x.shape[0])[:, None, None],
    "rows shifted": lambda x, w: x.flip(0),
    "rows rolled": lambda x, w: x.roll((1, 1), (2, 0)),
    "all elements rolled": lambda x, w: x.roll(1),
    "rows joined": lambda x, w: torch.cat([x, x], 0),
    "rows folded inside": lambda x, w: x.transpose(0, 1).reshape(6, -1).sum(1),
    "the batch's size as a value": lambda x, w: (x * 2, torch.full((2,), x.shape[0])),
    "rows of a cumulative sum": lambda x, w: x.cumsum(0),
    "random numbers": lambda x, w: f.dropout(x, 0.5),
}


def proved(function: Callable[[Any, Any], Any]) -> bool:
    found: list[bool] = []

    def judge(module: Any, _inputs: Any) -> Any:
        sizes = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        (batch,) = [size for size in sizes if isinstance(size, torch.SymInt)]
        found.append(is_batch_independent(module, batch.node.expr))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    x = torch.randn(5, 6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad(), whole_operators():
        torch.compile(function, backend=aot_autograd(fw_compiler=judge, decompositions=inference_decompositions()))(
            x, W
        )
    (verdict,) = found
    return verdict


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart_are_proved_to_be(name: str) -> None:
    assert proved(APART[name])


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_know_of_each_other_are_never_padded(name: str) -> None:
    assert not proved(MIXED[name])


def test_buckets_are_powers_of_two() -> None:
    assert [bucket(size) for size in (1, 2, 3, 5, 8, 9, 100)] == [1, 2, 4, 8, 8, 16, 128]
