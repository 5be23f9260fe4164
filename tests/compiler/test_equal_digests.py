"""Equal work is an equal workload, whether a model comes from torch.export, from torch.compile or from an ONNX file."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pitchpipe.model.strip import strip_onnx  # noqa: E402  # these need torch
from pitchpipe.torch_backend.graph_text import decode, encode  # noqa: E402
from pitchpipe.torch_backend.partition import split  # noqa: E402
from pitchpipe.torch_operators.decompositions import inference_decompositions  # noqa: E402
from pitchpipe.wire.target import Target  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.scene import OTHER_TARGET  # noqa: E402
from tuner.graph.prepare import prepare  # noqa: E402
from tuner.ingest import IngestedModel, IngestLimits, parse_container  # noqa: E402
from tuner.ingest.onnx_reader import read_onnx  # noqa: E402
from tuner.ingest.torch_export import from_torch, quiet  # noqa: E402
from tuner.ingest.torch_fx import from_graph, unsupported  # noqa: E402
from tuner.tasks import workload_functions  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402

nn = torch.nn
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Residual(nn.Module):  # type: ignore[misc,name-defined]
    """A stem and a basic block of a ResNet, and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(nn.functional.relu6(self.norms[0](self.stem(x))), 3, 2, 1)
        inner = nn.functional.relu(self.norms[1](self.first(x)))
        x = nn.functional.relu(x + self.norms[2](self.second(inner)))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):  # type: ignore[misc,name-defined]
    """A layer of a transformer's encoder, attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(32, eps=1e-12), nn.LayerNorm(32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in "qkvo")
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = (each(y).view(1, 8, 2, 16).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(1, 8, 32))
        return self.last(x + self.down(nn.functional.gelu(self.up(x))))


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "residual": (Residual, (1, 3, 32, 32)),
    "encoder": (Encoder, (1, 8, 32)),
}


def exported(module: Any, x: Any) -> list[IngestedModel]:
    return [parse_container(from_torch(module, (x,))[0])]


def captured(module: Any, x: Any) -> list[IngestedModel]:
    """What torch.compile's backend cuts out of the one graph."""
    texts: list[tuple[bytes, set[str]]] = []

    def compiler(graph: Any, _inputs: Any) -> Any:
        static = torch._guards.TracingContext.get().fw_metadata.static_input_indices
        placeholders = graph.graph.find_nodes(op="placeholder")
        texts.append((encode(graph), {node.name for at, node in enumerate(placeholders) if at in static}))
        return torch._functorch._aot_autograd.utils.make_boxed_func(graph.forward)

    def backend(graph: Any, inputs: Any) -> Any:
        return torch._dynamo.backends.common.aot_autograd(
            fw_compiler=compiler, inference_compiler=compiler, decompositions=inference_decompositions()
        )(graph, inputs)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(module, backend=backend)(x)
    found = []
    for text, weights in texts:
        parts = split(decode(text), weights, unsupported)
        assert not parts.left
        found += [
            parse_container(from_graph(parts.module.get_submodule(name), own)) for name, own in parts.weights.items()
        ]
    return found


def written(module: Any, x: Any) -> list[IngestedModel]:
    """As an ONNX file, in which GELU is five nodes."""
    file = io.BytesIO()
    with quiet(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17)
    return [read_onnx(strip_onnx(file.getvalue()).data, IngestLimits())]


def digests(models: Iterable[IngestedModel], target: Target) -> set[str]:
    return {digest for model in models for _, _, digest in workload_functions(prepare(load_ir(model.ir), target))}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MODULES)
def test_equal_work_has_equal_digests_on_every_way(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module, x = make().eval().to(TYPES[dtype]), torch.randn(shape).to(TYPES[dtype])
    models = exported(module, x)
    for other in (captured(module, x), written(module, x)):
        for target in (TARGET, OTHER_TARGET):
            assert digests(models, target) == digests(other, target)
