"""torch.compile on tuned schedules: a real server and worker, real children, and a network that is late, cuts off or fails.

Each model is tuned with a few trials, as mode max-autotune does it. Then every case is a process's first use of the model:
results are eager's at every call, whatever the network does; where it does well, tuned schedules are found and judged.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import lookup
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.wire.record import Tier
from tests.proxy import Proxy

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402

TRIALS = 4
WAITING = 600
PATIENCE_SECS = 900.0
"""For a model, on a machine that is busy with something else; its tuning included."""


class Residual(nn.Module):  # type: ignore[misc]
    """A block of a residual network that halves its size, and the head, for 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(3, 8, 1, 2, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(3)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return self.head(torch.relu(y + self.norms[2](self.short(x))).mean((2, 3)))


class Recurrent(nn.Module):  # type: ignore[misc]
    """A classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):  # type: ignore[misc]
    """Of a layer of BERT, with its norm."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        read = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(x + self.o(read))


class Step(nn.Module):  # type: ignore[misc]
    """The loss of a small network with a norm in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))

    def forward(self, x: Any) -> Any:
        return self.body(x).square().mean()


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "residual": (lambda: Residual().eval(), (1, 3, 8, 8), ()),
    "lstm": (lambda: Recurrent().eval(), (2, 5, 8), ()),
    "attention": (lambda: Attention().eval(), (1, 12, 32), ((1, 7, 32),)),
    "step": (lambda: Step().train(), (4, 8), ()),
}
"""Model, the shape of its input, and further ones where a size varies."""


def model_of(name: str) -> tuple[Any, list[Any]]:
    """The same in every process, and its inputs."""
    torch.manual_seed(0)
    build, shape_of_first, others = CASES[name]
    model = build()
    inputs = [torch.randn(shape) for shape in (shape_of_first, *others)]
    for x in inputs:
        if len(inputs) > 1:
            torch._dynamo.mark_dynamic(x, 1)
    return model, inputs


def outcome(model: Any, x: Any) -> list[Any]:
    """What a call gives: an output; of a step its loss, all gradients, and the statistics of its norms."""
    if not model.training:
        with torch.no_grad():
            return [model(x)]
    model.zero_grad()
    loss = model(x)
    loss.backward()
    buffers = [one.clone() for one in model.buffers()]
    return [loss.detach(), *(one.grad.clone() for one in model.parameters()), *buffers]


def check_equal(found: list[Any], expected: list[Any]) -> None:
    largest = max(float(one.abs().max()) for one in expected)
    for a, r in zip(found, expected, strict=True):
        assert torch.allclose(a, r, rtol=1e-3, atol=1e-4 * largest)


def decided() -> bool:
    return all(one.runs != "undecided" for one in torch_backend.reports())


def tiers() -> dict[Tier, int]:
    found: dict[Tier, int] = {}
    for report in torch_backend.reports():
        for graph in report.graphs:
            for part in graph.partitions:
                for tier, count in part.tiers.items():
                    found[tier] = found.get(tier, 0) + count
    return found


def run(name: str, options: dict[str, Any], least_calls: int = 1) -> None:
    """Uses a model until it is decided what runs it, and compares each call's outcome with eager's."""
    model, inputs = model_of(name)
    torch_backend.recompile()
    with torch._dynamo.config.patch(allow_rnn=True):
        twin = copy.deepcopy(model)
        compiled = torch.compile(twin, backend="pitchpipe", options=options)
        calls, until = 0, time.monotonic() + PATIENCE_SECS
        while calls < least_calls or not decided():
            for x in inputs:
                check_equal(outcome(compiled, x), outcome(model, x))
            calls += 1
            assert time.monotonic() < until, torch_backend.reports()
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    torch_backend.recompile()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that fails is repeated for a moment only."""
    monkeypatch.setattr(lookup, "PATIENCE_SECS", 3.0)


@pytest.fixture(scope="module")
def service(embedded: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service for this module, and a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PITCHPIPE_TOKEN", embedded.token or "")
        patch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("tuned-cache")))
        yield embedded


@pytest.fixture(scope="module")
def have_tuned(service: Client) -> Callable[[str], None]:
    """Tunes a model, once."""
    done: set[str] = set()

    def tune(name: str) -> None:
        if name not in done:
            run(name, {"url": service.url, "mode": "max-autotune", "trials": TRIALS})
            done.add(name)

    return tune


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", CASES)
def test_tuned_schedules_are_found_and_judged_through_a_late_network(
    service: Client, have_tuned: Callable[[str], None], name: str
) -> None:
    have_tuned(name)
    with Proxy(service.url, mood="late") as proxy:
        run(name, {"url": proxy.url, "deadline_secs": WAITING}, 2)
    assert tiers().get(Tier.EXACT, 0) > 0
    reports = torch_backend.reports()
    assert any(one.eager_secs is not None for one in reports), reports
    assert {one.runs for one in reports} <= {"pitchpipe", "eager"}


@pytest.mark.long
@pytest.mark.parametrize("mood", ["truncated", "failing"])
@pytest.mark.parametrize("name", CASES)
def test_a_network_that_fails_costs_the_schedules_and_nothing_else(
    service: Client, impatient: None, name: str, mood: Any
) -> None:
    with Proxy(service.url, mood=mood) as proxy:
        with pytest.warns(torch_backend.BackendWarning, match="gives no schedules"):
            run(name, {"url": proxy.url, "deadline_secs": WAITING}, 2)
        assert proxy.requests > 0
    assert {one.runs for one in torch_backend.reports()} == {"eager"}
    assert tiers().get(Tier.EXACT, 0) == 0


def test_a_network_that_breaks_after_its_probe_leaves_eager(
    service: Client, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pitchpipe.deploy import lookup
    from pitchpipe.torch_backend import schedules

    with Proxy(service.url) as proxy:
        healthy = schedules._healthy

        def then_broken(url: str, options: Any) -> None:
            healthy(url, options)
            proxy.mood = "truncated"

        monkeypatch.setattr(schedules, "_healthy", then_broken)
        monkeypatch.setattr(lookup, "PATIENCE_SECS", 2.0)
        with pytest.warns(torch_backend.BackendWarning, match="gives no schedules"):
            run("attention", {"url": proxy.url, "deadline_secs": WAITING}, 2)
    assert {one.runs for one in torch_backend.reports()} == {"eager"}


@pytest.mark.long
def test_what_the_service_said_earlier_is_used_while_it_fails(
    service: Client, have_tuned: Callable[[str], None]
) -> None:
    have_tuned("attention")
    with Proxy(service.url) as proxy:
        run("attention", {"url": proxy.url, "deadline_secs": WAITING})
        found = tiers()
        proxy.mood = "failing"
        with pytest.warns(torch_backend.BackendWarning, match="gives no schedules"):
            run("attention", {"url": proxy.url, "deadline_secs": WAITING})
    assert tiers() == found
    assert any("earlier answers" in graph.source for one in torch_backend.reports() for graph in one.graphs)
    assert cache_dir().exists()
