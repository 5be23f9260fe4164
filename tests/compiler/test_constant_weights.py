"""Constants that a schedule lays out: once, when weights are bound, as the weights are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.programs import TARGET, unchecked
from tests.compiler.test_graph import run
from tuner.deploy.build import schedule_model
from tuner.graph.prepare import call_counts
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.relax_reader import read_relax
from tuner.tvm_compat import to_tvm_target

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch


class Spectrum(torch.nn.Module):  # type: ignore[misc]
    """Products with the matrices of a Fourier transform of a prime extent, which are constants, behind a product with a weight or
    alone."""

    def __init__(self, weight: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(127, 127) if weight else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        found = torch.fft.rfft(self.first(x))
        return found.real + found.imag


@pytest.mark.parametrize("weight", [True, False])
def test_a_constant_is_laid_out_when_weights_are_bound(weight: bool) -> None:
    module, x = Spectrum(weight), torch.randn(32, 127)
    data, weights = from_torch(module.eval(), (x,))
    ingested = read_relax(data, DEFAULT_LIMITS)
    finished = schedule_model(ingested, TARGET, {}, defaults=unchecked).module
    called = call_counts(finished)
    assert any("prepacked" in name for name in called), "a schedule lays out what it multiplies by"
    assert not [name for name in called if "weight_prepack" in name]
    (result,) = run(finished, ingested, weights, [x.numpy()], to_tvm_target(TARGET))
    with torch.no_grad():
        np.testing.assert_allclose(result, module(x).numpy(), rtol=1e-4, atol=1e-4)
