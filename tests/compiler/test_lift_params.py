"""Models return what depends on their weights alone, though nothing of it is computed when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pitchpipe.model.strip import strip_onnx
from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tests.compiler.test_torch_layers import prepared
from tuner.deploy.finish import finish
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "a function of a weight": lambda weight, _x: weight * 2,
    "a weight as it is": lambda weight, _x: weight,
    "several": lambda weight, _x: (weight * 2, weight, weight.T.reshape(-1)),
    "one of several": lambda weight, x: (weight * 2, x + weight),
    "a constant and a weight": lambda weight, _x: (torch.zeros(3), weight),
    "a constant": lambda _weight, _x: torch.arange(6.0).reshape(2, 3),
    "its input": lambda weight, x: (x, weight, weight),
}


class Holding(torch.nn.Module):  # type: ignore[misc]
    """A module with one weight, given to a function beside the input."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function, self.weight = function, torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Any) -> Any:
        return self.function(self.weight, x)


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_weights_alone_are_pytorchs(name: str) -> None:
    module, x = Holding(RESULTS[name]), torch.randn(3, 4)
    mod, ingested, weights = prepared(module, (x,))
    found = run(finish(mod, TARGET), ingested, weights, [x.numpy()])
    expected = (
        module(x) if name in ("several", "one of several", "a constant and a weight", "its input") else (module(x),)
    )
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-6)
    assert sum(call_counts(mod).values()) == (1 if name == "one of several" else 0), "the rest is done with the weights"


def test_results_that_an_onnx_graph_only_stores_are_onnx_runtimes() -> None:
    nodes = [
        node("Identity", ["w"], ["same"]),
        node("Mul", ["w", "w"], ["square"]),
        node("Constant", [], ["fixed"], value_floats=[1.0, 2.0]),
    ]
    made = model(nodes, {}, ["same", "square", "fixed", "w"], {"w": np.arange(12, dtype=np.float32).reshape(3, 4)})
    stripped = strip_onnx(made.SerializeToString())
    ingested = read_onnx(stripped.data, IngestLimits())
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, stripped.weights, [])
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {})
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
