"""Layers of a transformer's encoder that PyTorch computes by one operator: taken apart, they compute the same."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pitchpipe.torch_operators.decompositions import inference_decompositions  # noqa: E402  # needs torch

aten, nn = torch.ops.aten, torch.nn
ROWS = torch.arange(5)
MASKS = {
    "none": (None, None),
    "of rows": (ROWS[:, None] < ROWS, 0),
    "of padding": (torch.tensor([[5], [3]]) <= ROWS, 1),
    "of numbers": (torch.where(torch.tensor([[5], [3]]) <= ROWS, -torch.inf, 0.0), 1),
    "of heads": ((ROWS[:, None] < ROWS).expand(2, 4, 5, 5), 2),
    "of all": (torch.tensor([[5], [0]]) <= ROWS, 1),
}


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention() -> list[Any]:
    """Size, heads, and the weights and biases of both projections."""
    return [8, 4, drawn(24, 8), drawn(24), drawn(8, 8), drawn(8)]


def agree(operator: Any, *given: Any) -> None:
    found, expected = inference_decompositions()[operator](*given), operator(*given)
    for one, wanted in zip(
        *((each if isinstance(each, tuple) else (each,)) for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, wanted, equal_nan=True)
        assert wanted is None or one.stride() == wanted.stride()


@pytest.mark.filterwarnings("ignore:Converting mask")
@pytest.mark.parametrize("mask", MASKS)
def test_attention_of_several_heads(mask: str) -> None:
    x = drawn(2, 5, 8)
    for wanted, averaged in ((True, True), (True, False), (False, True)):
        hidden, kind = MASKS[mask]
        agree(aten._native_multi_head_attention.default, x, x, x, *attention(), hidden, wanted, averaged, kind)


@pytest.mark.filterwarnings("ignore:Converting mask")
@pytest.mark.parametrize("mask", MASKS)
def test_a_layer_of_an_encoder(mask: str) -> None:
    norms, network = [drawn(8), drawn(8) + 1, drawn(8), drawn(8)], [drawn(16, 8), drawn(16), drawn(8, 16), drawn(8)]
    for gelu, norm_first in product((False, True), repeat=2):
        given = [*attention(), gelu, norm_first, 1e-3, *norms, *network, *MASKS[mask]]
        agree(aten._transformer_encoder_layer_fwd.default, drawn(2, 5, 8), *given)


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_captured_encoder_is_taken_apart(dynamic: bool) -> None:
    from torch._dynamo.backends.common import aot_autograd

    operators: list[str] = []

    def note(graph: Any, _examples: Any) -> Any:
        operators.extend(str(each.target) for each in graph.graph.nodes if each.op == "call_function")
        return graph

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, heads = nn.TransformerEncoder(layer, 2).eval(), nn.MultiheadAttention(8, 2, batch_first=True).eval()
    capture = aot_autograd(fw_compiler=note, decompositions=inference_decompositions())
    with torch.no_grad():
        torch.compile(lambda x: heads(*[encoder(x)] * 3), backend=capture, dynamic=dynamic)(drawn(2, 5, 8))
    assert sum("mm" in name for name in operators) == 2 * 6 + 4
    assert not any("encoder_layer" in name or "multi_head" in name for name in operators)
