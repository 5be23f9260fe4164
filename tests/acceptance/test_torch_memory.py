"""What calls through torch.compile take and give: any tensor, and memory that nobody else has. No virtual machine runs them."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.deploy.artifact import cache_dir
from tests.torch_here import never_slow, steps_here

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.torch_backend import run  # noqa: E402

OPTIONS = {"on_miss": "default", "deadline_secs": 600}
WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8)
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, *WHOLE, torch.bool)
SHAPES = ((5, 7), (1,), (), (0, 3))


@pytest.fixture(autouse=True)
def without_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    steps_here(monkeypatch)
    never_slow(monkeypatch)
    asked: list[Any] = []
    by_machine = run.Runner._by_machine
    monkeypatch.setattr(run.Runner, "_by_machine", lambda *given: asked.append(given) or by_machine(*given))
    torch.manual_seed(0)
    torch_backend.recompile()
    shutil.rmtree(cache_dir() / "verdicts", ignore_errors=True)  # of other rules; libraries are shared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    assert not asked
    assert {one.runs for one in torch_backend.reports()} == {"pitchpipe"}, torch_backend.reports()
    torch_backend.recompile()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="pitchpipe", options=OPTIONS)


def check(found: Any, expected: Any) -> None:
    for a, r in zip(found, expected, strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (r.dtype, r.shape, r.stride(), r.device)
        assert torch.allclose(a.double(), r.double(), rtol=1e-2 if r.dtype.itemsize == 2 else 1e-4, atol=1e-5)


def layers(x: Any, weight: Any) -> Any:
    """Results in another order of axes, that are another result, an argument and a constant."""
    y = torch.relu(x @ weight)
    return y @ weight, y.t() * 2, y, y.clone(), x.clone(), weight.clone(), torch.arange(8.0)


@pytest.mark.long
def test_every_type_and_shape_is_right() -> None:
    def program(*tensors: Any) -> Any:
        return [~one if one.dtype is torch.bool else one * 2 - 1 for one in tensors]

    given = [torch.randint(-30, 30, shape).to(kind) for kind in TYPES for shape in SHAPES]
    with torch.no_grad():
        fast = compiled(program)
        for _ in range(2):
            check(fast(*given), program(*given))


def test_a_tensor_is_taken_however_it_lies() -> None:
    weight, room = torch.randn(8, 8), torch.randn(200)
    given = {
        "aligned": torch.randn(4, 8),
        "not aligned": room[1:33].view(4, 8),
        "a leaf": torch.randn(4, 8, requires_grad=True),
        "strided": torch.randn(8, 4).t(),
        "repeated": torch.randn(8).expand(4, 8),
        "negated when it is read": torch._neg_view(room[:32].view(4, 8)),
    }
    with torch.no_grad():
        fast = compiled(layers)
        for x in given.values():
            before = x.clone()
            check(fast(x, weight), layers(x, weight))
            assert torch.equal(x, before)


def test_results_are_the_callers_own() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        fast, expected = compiled(layers), layers(x, weight)
        first, second = fast(x, weight), fast(x, weight)
        places = [set(range(one.data_ptr(), one.data_ptr() + one.nbytes)) for one in (*first, *second, x, weight)]
        assert not any(one & other for one, other in itertools.combinations(places, 2))
        for one in second:
            one.fill_(7)
        check(fast(x, weight), expected)
        check(first, expected)


def test_threads_get_results_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()
    fast = compiled(model)
    given = [torch.randn(4, 32) for _ in range(4)]
    with torch.no_grad():
        expected = [model(x) for x in given]
        fast(given[0])

    def wrong(at: int) -> int:
        with torch.no_grad():
            results = [fast(given[at]) for _ in range(100)]
        return sum(not torch.allclose(one, expected[at], rtol=1e-4, atol=1e-5) for one in results)

    with ThreadPoolExecutor(len(given)) as threads:
        assert list(threads.map(wrong, range(len(given)))) == [0] * len(given)


def test_a_default_device_is_not_that_of_results() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        fast = compiled(lambda x, weight: torch.relu(x @ weight) @ weight)
        with torch.device("meta"):
            found = [fast(x, weight) for _ in range(2)]
    check(found, [torch.relu(x @ weight) @ weight] * 2)
