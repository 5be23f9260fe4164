"""`torch.compile` sees recurrent layers whole where nothing is differentiated, and leaves other backends what they see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.exc import Unsupported

from pitchpipe import torch_backend

OPTIONS = {"on_miss": "default", "deadline_secs": 3600}


class Reader(nn.Module):
    """Convolution, recurrent layers in both directions, classifier."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.before = nn.Conv1d(16, 64, 3, padding=1)
        self.layer = layer(64, 128, 2, bidirectional=True, batch_first=True)
        self.after = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(self.layer(torch.relu(self.before(x)).transpose(1, 2))[0])


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    torch_backend.recompile()
    yield
    torch_backend.recompile()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads PyTorch computes with, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("layer", "count"), [(nn.LSTM, 2), (nn.LSTM, 1), (nn.GRU, 2), (nn.RNN, 2)])
def test_a_recurrent_layer_is_part_of_one_graph(
    layer: type[nn.RNNBase], count: int, threads: Callable[[int], None]
) -> None:
    threads(count)  # they wait for each other inside of the layer
    torch.manual_seed(0)
    model, x = Reader(layer).eval(), torch.randn(2, 16, 24)
    compiled = torch.compile(model, backend="pitchpipe", options=OPTIONS, fullgraph=True)
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    (program,) = torch_backend.reports()
    (graph,) = program.graphs
    assert [len(graph.left), len(graph.partitions)] == [0, 1]
    assert config.allow_rnn is False


def test_with_gradients_the_layer_stays_with_torch() -> None:
    torch.manual_seed(0)
    model, x = Reader(nn.LSTM), torch.randn(2, 16, 24)
    compiled = torch.compile(model, backend="pitchpipe", options=OPTIONS)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert not torch_backend.reports()


def test_other_backends_see_what_they_saw() -> None:
    with torch.no_grad(), pytest.raises(Unsupported):
        torch.compile(Reader(nn.LSTM).eval(), backend=lambda module, _: module, fullgraph=True)(torch.randn(2, 16, 24))
