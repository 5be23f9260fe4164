"""Whole models prepared for a GPU: as few calls as their architecture needs, and what eager computes, run on this processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.model.comparison import difference, input_sets
from tests.compiler.graphs import GPU, run_here
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import parse_container
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import kernels
    from architectures import images, layers, text, vision
finally:
    sys.path.remove(str(FOLDER))

BUILDERS = {**text.MODELS, **vision.MODELS, **images.MODELS, **layers.MODELS}


def checked(builder: Callable[[], Any]) -> Any:
    """The module of a builder's model prepared for a GPU, after it computed what eager computes."""
    torch.manual_seed(0)
    module, examples = builder()
    data, weights = from_torch(module.eval(), examples)
    model = parse_container(data)
    prepared = prepare(load_ir(model.ir), GPU)
    (inputs,) = input_sets([each.numpy() for each in examples])[1:2]
    with torch.no_grad():
        outputs = module(*map(torch.from_numpy, inputs))
    expected = [each.numpy() for each in torch.utils._pytree.tree_leaves(outputs)]
    found = run_here(prepared, inputs, [np.asarray(weights[spec.name]) for spec in model.params])
    assert difference(found, expected) is None
    return prepared


def calls(prepared: Any) -> int:
    return sum(call_counts(prepared).values())


class FirstOutput(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: Any) -> Any:
        return self.model(x, return_dict=False, **self.options)[0]


SMALL = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


def text_model(name: str, layers: int, attention: str, **config: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    config = {**SMALL, "num_hidden_layers": layers, "vocab_size": 50, "attn_implementation": attention, **config}
    made = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config))
    options = {"use_cache": False} if "use_cache" in config else {}
    return FirstOutput(made, **options), (torch.randint(0, 50, (1, 12)),)


def half_bert() -> bytes:
    """A layer of BERT in half precision, as the container of its Relax function."""
    torch.manual_seed(0)
    module, examples = text_model("Bert", 1, "sdpa")
    data: bytes = from_torch(module.half().eval(), examples)[0]
    return data


@pytest.mark.long
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_layer_of_bert_is_seven_calls(attention: str) -> None:
    one, two = (checked(lambda layers=layers: text_model("Bert", layers, attention)) for layers in (1, 2))
    assert calls(two) - calls(one) == 7
    assert calls(one) <= 9  # tokens, the sum of embeddings with its norm
    assert all(kernels.kernels(two[name]) == 1 for name in call_counts(two))


@pytest.mark.long
def test_a_layer_of_llama_is_ten_calls() -> None:
    def model(layers: int) -> Any:
        return text_model("Llama", layers, "eager", num_key_value_heads=4, use_cache=False, pad_token_id=0)

    one, two = (checked(lambda layers=layers: model(layers)) for layers in (1, 2))
    # Two norms, four products, attention, two rotations, and what joins the halves of the gated product.
    assert calls(two) - calls(one) == 10


@pytest.mark.long
def test_a_layer_of_a_vision_transformer_is_seven_calls() -> None:
    transformers = pytest.importorskip("transformers")

    def model(layers: int) -> Any:
        config = transformers.ViTConfig(image_size=32, patch_size=8, num_hidden_layers=layers, **SMALL)
        return FirstOutput(transformers.ViTModel(config)), (torch.randn(1, 3, 32, 32),)

    one, two = (checked(lambda layers=layers: model(layers)) for layers in (1, 2))
    assert calls(two) - calls(one) == 7


class InvertedResidual(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, size: int = 1, groups: int = 1) -> list[Any]:
            made = torch.nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
            norm = torch.nn.BatchNorm2d(outputs)
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            torch.nn.init.uniform_(norm.running_mean, -0.5, 0.5)
            return [made, norm]

        steps = [*convolution(width, inner), torch.nn.ReLU6(), *convolution(inner, inner, 3, inner), torch.nn.ReLU6()]
        self.steps = torch.nn.Sequential(*steps, *convolution(inner, width))

    def forward(self, x: Any) -> Any:
        return x + self.steps(x)


def test_an_inverted_residual_is_three_convolutions() -> None:
    def model() -> Any:
        blocks = [InvertedResidual(8, 16) for _ in range(2)]
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *blocks), (torch.randn(1, 3, 10, 10),)

    prepared = checked(model)
    convolutions = sum(count for name, count in call_counts(prepared).items() if "conv2d" in name)
    assert (convolutions, calls(prepared)) == (1 + 2 * 3, 1 + 2 * 3 + 1)  # and one for the result in channels first


@pytest.mark.parametrize("name", ["unet", "multi_query_attention"])
def test_a_network_computes_what_eager_does(name: str) -> None:
    checked(BUILDERS[name])


@pytest.mark.long
def test_relative_positions_are_added_to_the_scores_as_eager_does() -> None:
    pytest.importorskip("transformers")
    prepared = checked(BUILDERS["t5"])
    assert any("attention" in name for name in call_counts(prepared))


def test_numbers_of_half_precision_are_written_into_the_functions_of_rows() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
            return normed + torch.sin(3 * x) / (2 + x.abs())

    assert calls(checked(lambda: (Scaled().half(), (torch.randn(4, 64).half(),)))) == 1
