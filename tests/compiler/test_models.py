"""Ten whole models beside eager: what benchmarks/coverage.py does for all of them, in a minute of the suite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pitchpipe import comparison
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.fastmath import expand_intrinsics
from tuner.graph import finish, prepare
from tuner.ingest import ingest
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    from architectures import images, layers, recurrent, text, vision
finally:
    sys.path.remove(str(FOLDER))

OWN = {**images.MODELS, **layers.MODELS, **recurrent.MODELS}
OURS = (
    "lstm_last_step",
    "gru_bidirectional_last_step",
    "minimal_gated_unit",
    "multi_query_attention",
    "unet",
    "coupling_flow",
)
THEIRS = {**text.MODELS, **vision.MODELS}
OF_TRANSFORMERS = ("falcon", "gpt2", "bit", "t5")


def check(builder: Any) -> None:
    torch.manual_seed(0)
    module, examples = builder()
    data, weights = from_torch(module, examples)
    ingested = ingest(data, ModelFormat.RELAX)
    built = expand_intrinsics(finish(prepare(load_ir(ingested.ir), TARGET)))
    for inputs in comparison.input_sets([each.numpy() for each in examples])[1:]:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, inputs))
        expected = [each.numpy() for each in torch.utils._pytree.tree_leaves(outputs)]
        assert comparison.difference(run(built, ingested, weights, inputs), expected) is None


@pytest.mark.parametrize("name", OURS)
def test_a_network_computes_what_eager_does(name: str) -> None:
    check(OWN[name])


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_an_architecture_of_transformers_computes_what_eager_does(name: str) -> None:
    pytest.importorskip("transformers")
    check(THEIRS[name])
