"""Programs made at random, compiled with the compiler's own schedules: results are eager's, in values, strides and state.

A program is a few operators on values of few shapes; what is drawn covers types, broadcasting, views, reductions, writes
into arguments and random numbers. Steps run in this process; no service is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.torch_here import never_slow, steps_here

torch = pytest.importorskip("torch")
from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.torch_backend import paired_benchmark  # noqa: E402

OPTIONS = {"on_miss": "default", "deadline_secs": 600}
EXAMPLES = 12
WIDTH = 8

UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": torch.nn.functional.softplus,
    "abs": torch.abs,
    "square": torch.square,
    "negated": lambda x: 1 - x,
    "softmax": lambda x: torch.softmax(x, -1),
    "sum": lambda x: x.sum(0, keepdim=True),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "largest": lambda x: x.amax(-1, keepdim=True),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "flipped": lambda x: x.flip(0),
    "last row": lambda x: x[-1:],
    "other half": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "clamped": lambda x: x.clamp(-0.5, 0.5),
    "masked": lambda x: torch.where(x > 0, x, x * 0.1),
    "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "cumulated": lambda x: x.cumsum(0),
    "wide and back": lambda x: x.double().mul(2).to(x.dtype),
    "whole numbers": lambda x: (x * 4).round().to(torch.int64).clamp(-3, 3).to(x.dtype),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "noise": lambda x: x + torch.rand_like(x),
    "as it is": lambda x: x,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "times": lambda x, y: x * y,
    "less": lambda x, y: torch.minimum(x, y),
    "divided": lambda x, y: x / (y.square() + 1),
    "product": lambda x, y: x @ y.expand(WIDTH, WIDTH),
}
DRAWS = ("dropout", "noise")
Steps = list[tuple[str, int, int]]


@st.composite
def programs(draw: Any) -> tuple[Steps, int, bool, Any, int]:
    """Operators with the values they take, rows of x, whether a buffer is written into, a type, a seed."""
    count = draw(st.integers(3, 7))
    steps = [
        (draw(st.sampled_from([*UNARY, *BINARY])), draw(st.integers(0, 20)), draw(st.integers(0, 20)))
        for _ in range(count)
    ]
    kind = draw(st.sampled_from([torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16]))
    return steps, draw(st.sampled_from([1, 3, 4])), draw(st.booleans()), kind, draw(st.integers(0, 1 << 16))


def goes_together(name: str, x: Any, y: Any) -> bool:
    """Whether an operator of two takes tensors of these shapes."""
    if name == "product":
        return x.shape[-1] == WIDTH and all(extent in (1, WIDTH) for extent in y.shape)
    return all(a == b or 1 in (a, b) for a, b in zip(x.shape, y.shape, strict=True))


def program(steps: Steps, writes: bool) -> Callable[..., Any]:
    def run(x: Any, w: Any, state: Any) -> Any:
        values = [x, w, x @ w]
        for name, a, b in steps:
            first, second = values[a % len(values)], values[b % len(values)]
            if name in BINARY and goes_together(name, first, second):
                values.append(BINARY[name](first, second))
            else:
                values.append(UNARY.get(name, torch.relu)(first))
            if name in DRAWS:  # What nobody reads is not drawn in a compiled program, whoever compiles it.
                state.add_(values[-1].sum())
        if writes:
            state.add_(values[-1].sum())
        return values[-1], values[-2] @ w if values[-2].shape[-1] == WIDTH else values[-2]

    return run


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Steps in this process, which has imported TVM; what is right is used, however slow."""

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    steps_here(monkeypatch)
    never_slow(monkeypatch)
    yield
    torch_backend.recompile()


@pytest.mark.long
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=programs())
def test_a_program_made_at_random_gives_what_eager_gives(made: tuple[Steps, int, bool, Any, int]) -> None:
    steps, rows, writes, kind, seed = made
    torch_backend.recompile()
    torch.manual_seed(seed)
    x, w, state = torch.randn(rows, WIDTH).to(kind), torch.randn(WIDTH, WIDTH).to(kind), torch.zeros(()).to(kind)
    run = program(steps, writes)
    compiled = torch.compile(run, backend="pitchpipe", options=OPTIONS)
    states = [state.clone(), state.clone()]
    with torch.no_grad():
        for call in range(2):
            for given_x in (x, -x, x * 16)[: 2 * call + 1]:
                outcomes = []
                for function, mine in zip((run, compiled), states, strict=True):
                    torch.manual_seed(call)
                    outcomes.append([*function(given_x, w, mine), mine])
                    following = torch.rand(2)
                    outcomes[-1].append(following)
                expected, found = outcomes
                wrong = paired_benchmark.difference(found, expected)
                assert wrong is None, (wrong, torch_backend.reports())
                for a, r in zip(found, expected, strict=True):
                    assert a.stride() == r.stride() or a.numel() <= 1 or 1 in a.shape
                for mine in states:
                    mine.zero_()
