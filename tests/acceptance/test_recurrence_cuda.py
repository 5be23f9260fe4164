"""Recurrent layers on a GPU: what eager mode computes, in every type, and by torch.compile."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pitchpipe

torch = pytest.importorskip("torch")

from pitchpipe import torch_backend  # noqa: E402  # needs torch
from pitchpipe.torch_backend import paired_benchmark  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(600),
]
nn, leaves = torch.nn, torch.utils._pytree.tree_leaves
TYPES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far results may be from float64's, of the largest value."""
FORMS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    # name: (options of the layer, (batch, steps))
    "one kernel holds the loop": ({"hidden_size": 32}, (4, 100)),
    "a kernel a step": ({"hidden_size": 256}, (1, 100)),
    "many rows": ({"hidden_size": 200}, (37, 9)),
    "two layers, two directions": ({"hidden_size": 96, "num_layers": 2, "bidirectional": True}, (3, 17)),
    "a long sequence": ({"hidden_size": 128, "bias": False}, (2, 600)),
}


def made(cell: str, form: str, dtype: Any) -> tuple[Any, tuple[Any, ...]]:
    """A layer on the GPU, and its inputs: a sequence and first states."""
    torch.manual_seed(0)
    options, (batch, steps) = FORMS[form]
    layer = getattr(nn, cell)(48, batch_first=True, **options).eval().to("cuda", dtype)
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    x = torch.randn(batch, steps, 48, device="cuda", dtype=dtype)
    h, c = (torch.randn(count, batch, options["hidden_size"], device="cuda", dtype=dtype) for _ in range(2))
    return layer, (x, (h, c) if cell == "LSTM" else h)


def check(found: Any, layer: Any, given: tuple[Any, ...]) -> None:
    """Compares with the layer in float64, which PyTorch runs on the host."""
    dtype = layer.weight_ih_l0.dtype
    with torch.no_grad():
        exact = copy.deepcopy(layer).to("cpu", torch.float64)
        wanted = exact(*torch.utils._pytree.tree_map(lambda one: one.to("cpu", torch.float64), given))
    for one, expected in zip(leaves(found), leaves(wanted), strict=True):
        one = torch.from_dlpack(one) if not isinstance(one, torch.Tensor) else one
        assert one.dtype == dtype
        assert (one.double().cpu() - expected).abs().max() < TYPES[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_a_loaded_layer_gives_what_its_equations_say(cell: str, form: str, dtype: Any, tmp_path: Path) -> None:
    layer, given = made(cell, form, dtype)
    loaded = pitchpipe.load(layer, None, given, target="cuda", cache=tmp_path)
    check(loaded(*leaves(given)), layer, given)
    check(loaded(*leaves(given)), layer, given)  # its graph, replayed


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, no database, a cache of its own; a compiled side never loses for being slow."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    monkeypatch.setattr(paired_benchmark, "MARGIN", float("inf"))
    with warnings.catch_warnings(), torch._dynamo.config.patch(allow_rnn=True):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        torch_backend.recompile()
        yield


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_torch_compile_runs_a_whole_layer(cell: str, dtype: Any) -> None:
    layer, given = made(cell, "two layers, two directions", dtype)
    options = {"on_miss": "default", "deadline_secs": 600}
    compiled = torch.compile(layer, backend="pitchpipe", options=options)
    with torch.no_grad():
        for _ in range(3):
            check(compiled(*given), layer, given)
    (report,) = torch_backend.reports()
    assert [part.runs for graph in report.graphs for part in graph.partitions] == ["pitchpipe"], report


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_tuned_layer_gives_what_its_equations_say(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    layer, given = made(cell, "a kernel a step", torch.float16)
    tuned = pitchpipe.tune(layer, given, trials=16)
    check(tuned(*given), layer, given)
