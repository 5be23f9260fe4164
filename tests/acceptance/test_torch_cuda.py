"""torch.compile(model, backend="pitchpipe") on a GPU: tensors stay there, and CUDA graphs are replayed."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.gpu.driver import Driver  # noqa: E402
from pitchpipe.torch_backend import paired_benchmark  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

LAYERS, CALLS = 12, 5


@pytest.fixture(autouse=True)
def alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, no database, a cache of its own; a compiled side never loses for being slow."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    monkeypatch.setattr(paired_benchmark, "MARGIN", float("inf"))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        torch_backend.recompile()
        yield


def deep() -> Any:
    """Many small kernels."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Softmax(-1)).cuda().eval()


def launches(call: Any) -> collections.Counter[str]:
    """What CALLS calls of compiled code ask of the driver: kernels (`launch`) and graphs (`launch_graph`)."""
    found = collections.Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("launch", "launch_graph"):
            original = getattr(Driver, name)

            def counted(*arguments: Any, _name: str = name, _original: Any = original) -> Any:
                found[_name] += 1
                return _original(*arguments)

            patch.setattr(Driver, name, counted)
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    return found


@torch.no_grad()
def test_reduce_overhead_replays_graphs_that_see_changed_weights() -> None:
    model, x = deep(), torch.randn(64, 256, device="cuda")
    plain = torch.compile(model, backend="pitchpipe", options={"on_miss": "default", "deadline_secs": 600})
    assert torch.allclose(plain(x), model(x), atol=1e-6)
    one_by_one = launches(lambda: plain(x))
    assert one_by_one["launch_graph"] == 0
    assert one_by_one["launch"] >= CALLS * LAYERS
    torch._dynamo.reset()
    options = {"on_miss": "default", "mode": "reduce-overhead", "deadline_secs": 600}
    replayed = torch.compile(model, backend="pitchpipe", options=options)
    for _ in range(3):
        found = replayed(x)
    assert found.device == x.device
    assert torch.allclose(found, model(x), atol=1e-6)
    at_once = launches(lambda: replayed(x))
    assert at_once == {"launch_graph": CALLS}
    model[0].weight.mul_(1.5)
    assert torch.allclose(replayed(2 * x), model(2 * x), atol=1e-6)


@torch.no_grad()
def test_kernels_run_on_the_current_stream() -> None:
    model, x = deep(), torch.randn(64, 256, device="cuda")
    compiled = torch.compile(model, backend="pitchpipe", options={"on_miss": "default", "deadline_secs": 600})
    compiled(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # what is not on this stream would read y before it is there
        y = x + 1
        found = compiled(y)
    side.synchronize()
    assert torch.allclose(found, model(x + 1), atol=1e-6)
