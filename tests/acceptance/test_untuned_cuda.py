"""A model that nobody tuned, on a real GPU: products run templates that were checked there, and results are PyTorch's."""

from __future__ import annotations

from pathlib import Path

import pytest

import pitchpipe
from pitchpipe.deploy.artifact import Manifest

torch = pytest.importorskip("torch")

from tests.acceptance.test_gpu_runtime import Encoder  # noqa: E402  # needs torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(600),
]


def test_what_has_no_trial_runs_a_template_that_was_checked_on_this_gpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Encoder(width=768, heads=12).half().eval(), torch.randn(1, 128, 768).half()
    model = pitchpipe.load(module, None, (x,), target="cuda", cache=tmp_path)
    (manifest,) = (Manifest.model_validate_json(one.read_bytes()) for one in tmp_path.rglob("manifest.json"))
    assert manifest.defaults
    assert not manifest.refused
    assert set(manifest.defaults) <= set(manifest.untuned)
    with torch.no_grad():
        wanted = module.cuda()(x.cuda())
        found = torch.from_dlpack(model(x.cuda()))
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
