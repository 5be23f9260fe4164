"""What a slice drops is not computed, and what it keeps stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch
from torch.nn import functional as f  # noqa: E402

from tests.compiler.models import model, node  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_graph import expected, ingest_here, run  # noqa: E402
from tests.compiler.test_torch_layers import Of, check, prepared  # noqa: E402
from tuner.deploy.finish import finish  # noqa: E402
from tuner.graph.prepare import call_counts, prepare  # noqa: E402
from tuner.tasks import workload_functions  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402
from tuner.workload.compulsory import least_flops  # noqa: E402


class Block(nn.Module):  # type: ignore[misc]
    """A transformer's layer, normalised first."""

    def __init__(self, width: int = 32, heads: int = 4, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.behind = nn.LayerNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        y = self.before(x)
        q, k, v = (
            each(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        a, b = self.up(self.behind(x)).chunk(2, -1)
        return x + self.down(f.silu(a) * b)


class Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self, at: int, *, causal: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(causal=causal) for _ in range(2))
        self.norm, self.head, self.at = nn.LayerNorm(32), nn.Linear(32, 10), at

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))[:, self.at]


def flops(module: Any, *inputs: Any) -> float:
    """Of the products of a prepared module, and of what else is summed."""
    mod, *_ = prepared(module, inputs)
    counts = call_counts(mod)
    return sum(least_flops(function) * counts[variable.name_hint] for variable, function, _ in workload_functions(mod))


W, B = torch.randn(24, 16), torch.randn(16)
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], float]] = {
    # name: (function, shape of its argument, share of the products' operations that remains at most)
    "rows": (lambda x: (x @ W + B).relu()[:, -1], (3, 8, 24), 1 / 8),
    "columns": (lambda x: f.gelu(x @ W + B)[..., 2:6], (3, 8, 24), 1 / 4),
    "every other row": (lambda x: (x @ W + B)[:, ::2], (1, 24, 24), 1 / 2),
    "a batch": (lambda x: (x @ x.mT).softmax(-1)[1], (4, 8, 8), 1 / 4),
    "rows and columns": (lambda x: (x @ W + B).tanh()[:, :12, 8:], (1, 24, 24), 1 / 4),
    "columns, and rows of several": (lambda x: (x @ W + B).tanh()[:, :4, 8:], (3, 8, 24), 1 / 2),
    "one part of two": (lambda x: (x @ W + B).chunk(2, -1)[1] * 2, (3, 8, 24), 1 / 2),
    "behind a permutation": (lambda x: (x @ W + B).permute(2, 0, 1)[:, :, 3], (3, 8, 24), 1 / 8),
    "behind a mean": (lambda x: (x @ W + B).sin().mean(1)[:2], (8, 3, 24), 1 / 4),
    "behind a concatenation": (lambda x: torch.cat([x @ W, x @ W.sin()], -1)[:, 2:8], (1, 24, 24), 1 / 4),
    "a slice of a slice": (lambda x: (x @ W + B)[..., 4:12][..., 2:6], (3, 8, 24), 1 / 4),
    "behind a norm": (lambda x: f.layer_norm(x @ W + B, (16,), B, B)[:, 0], (3, 8, 24), 1 / 8),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_slice_drops_is_not_computed(name: str) -> None:
    function, shape, share = CASES[name]
    module, x = Of(function), torch.randn(shape)
    check(module, x)
    whole = 2 * (x @ x.mT if "batch" in name else x @ W).numel() * x.shape[-1] * (2 if "concatenation" in name else 1)
    besides = x.numel()  # sums of norms and means
    assert 0 < flops(module, x) <= whole * share + besides


KEPT: dict[str, Callable[..., Any]] = {
    "the whole is read too": lambda x: ((y := x @ W)[:, :2] * 2, y.sin()),
    "other parts are read too": lambda x: ((y := x @ W)[:, :2] * 2, y[:, 1:].sin()),
    "along a softmax": lambda x: ((x @ W).softmax(-1)[..., :4] * 2,),
    "along a sum": lambda x: ((x @ W).cumsum(1)[:, 3:] * 2,),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_needed_is_computed(name: str) -> None:
    function, x = KEPT[name], torch.randn(3, 8, 24)
    for at in range(len(function(x))):
        check(Of(lambda x, at=at: function(x)[at]), x)


@pytest.mark.long
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("causal", [False, True])
def test_of_the_last_layer_of_a_classifier_keys_and_values_remain(at: int, causal: bool) -> None:
    model, x = Classifier(at, causal=causal), torch.randn(2, 24, 32)
    check(model, x)
    layer = flops(Block(causal=causal), x)
    assert flops(model, x) < 1.6 * layer, "two layers and a head"


def test_a_slice_that_turns_an_axis_round_turns_it_round() -> None:
    """Which PyTorch has not and ONNX has, beside an axis of which a part is kept."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(size=(24, 16)).astype(np.float32),
        "starts": np.array([7, 2]),
        "ends": np.array([-100, 6]),
        "axes": np.array([1, 2]),
        "steps": np.array([-1, 1]),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Relu", ["y"], ["z"]),
        node("Slice", ["z", "starts", "ends", "axes", "steps"], ["kept"]),
    ]
    proto = model(nodes, {"x": [3, 8, 24]}, ["kept"], constants)
    inputs = [rng.normal(size=(3, 8, 24)).astype(np.float32)]
    ingested, weights = ingest_here(proto)
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    (right,) = expected(proto, inputs)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
