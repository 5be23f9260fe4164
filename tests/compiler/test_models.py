"""Ten whole models beside eager: what benchmarks/coverage.py does for all of them, in a minute of the suite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.model import comparison
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.prepare import prepare
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.relax_reader import read_relax
from tuner.lowering.fastmath import expand_intrinsics
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import training_step
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
    ingested = read_relax(data, DEFAULT_LIMITS)
    built = expand_intrinsics(finish(prepare(load_ir(ingested.ir), TARGET), TARGET))
    for inputs in comparison.input_sets([each.numpy() for each in examples])[1:]:
        with torch.no_grad():
            outputs = module(*map(torch.from_numpy, inputs))
        expected = [each.numpy() for each in torch.utils._pytree.tree_leaves(outputs)]
        assert comparison.difference(run(built, ingested, weights, inputs), expected) is None


@pytest.mark.parametrize("name", OURS)
def test_a_network_computes_what_eager_does(name: str) -> None:
    check(OWN[name])


@pytest.mark.long
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_an_architecture_of_transformers_computes_what_eager_does(name: str) -> None:
    pytest.importorskip("transformers")
    check(THEIRS[name])


class Convolved(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A convolution, a norm and a rectifier, whose gradient is `slope` times what it should be."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.convolution, self.norm, self.slope = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), slope

    def forward(self, x: Any) -> Any:
        y, slope = self.norm(self.convolution(x)), self.slope
        y.register_hook(lambda gradient: gradient * slope)
        return torch.relu(y)


def test_eager_rounds_otherwise_in_another_order_of_memory_and_for_other_draws() -> None:
    x, tokens = torch.randn(2, 3, 8, 8), torch.arange(4)
    same, *nudged = training_step.rounded_otherwise([x, tokens], 2.0**-20)
    assert torch.equal(same[0], x)
    assert same[0].is_contiguous(memory_format=torch.channels_last)
    drawn = []
    for one, whole in nudged:
        torch.manual_seed(1)  # as a step does
        assert torch.equal(whole, tokens)
        assert 0 < float((one / x - 1).abs().max()) < 2.0**-17
        drawn.append(one)
    assert len(drawn) == training_step.NUDGES
    assert not any(torch.equal(a, b) for at, a in enumerate(drawn) for b in drawn[:at])
    assert len(list(training_step.rounded_otherwise([tokens], 2.0**-20))) == training_step.NUDGES


@pytest.mark.parametrize(("slope", "is_right"), [(1.0, True), (1.01, False)])
def test_rounding_excuses_no_wrong_gradient(slope: float, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = Convolved(), torch.randn(2, 3, 8, 8)

    def compiled(model: Any, **_: Any) -> Any:
        def run(one: Any) -> Any:
            model.slope = slope
            try:
                return model(one)
            finally:
                model.slope = 1.0

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    told: dict[str, Any] = {}
    found = training_step.train(module, None, [[x], [2 * x]], None, tell=told.update)
    assert isinstance(found, float) is is_right, found
    assert told == ({} if is_right else {"train_nudged": True})
