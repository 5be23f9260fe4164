"""What torch.compile's backend must not change: state, random numbers, memory; and sizes, one bucket at a time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.torch_here import never_slow, steps_here

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.torch_backend import paired_benchmark, rehearsal, run  # noqa: E402

OPTIONS = {"on_miss": "default", "deadline_secs": 600}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("right")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(cache / tmp_path.name))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    steps_here(monkeypatch)
    never_slow(monkeypatch)
    torch.manual_seed(0)
    torch_backend.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    torch_backend.recompile()


def compiled(function: Any, **more: Any) -> Any:
    return torch.compile(function, backend="pitchpipe", options=OPTIONS, **more)


def check_equal(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for a, r in zip(found, expected, strict=True):
        assert torch.allclose(a, r, rtol=1e-3, atol=1e-5)
        assert a.stride() == r.stride()
        assert a.requires_grad == r.requires_grad


class Dropping(nn.Module):  # type: ignore[misc]
    """Dropout between two halves that can be compiled, and a norm with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        y = f.dropout(f.gelu(self.norm(self.up(x))), 0.5, self.training)
        return self.down(f.dropout(y, 0.3, self.training))


def test_a_training_step_with_dropout_draws_what_eager_draws() -> None:
    model, x = Dropping().train(), torch.randn(6, 8)
    twin = copy.deepcopy(model)
    step = compiled(twin)
    for seed in (3, 4):
        outcomes = []
        for one, call in ((model, model), (twin, step)):
            one.zero_grad()
            torch.manual_seed(seed)
            loss = call(x).square().mean()
            loss.backward()
            outcomes.append([loss.detach(), *(p.grad for p in one.parameters()), *one.buffers(), torch.rand(3)])
        for a, r in zip(*outcomes, strict=True):
            assert torch.allclose(a.float(), r.float(), rtol=1e-3, atol=1e-5)
    (report,) = torch_backend.reports()
    assert report.runs == "pitchpipe", report
    assert any("draws random numbers" in reason for graph in report.graphs for reason in graph.left), report


@pytest.mark.long
@pytest.mark.parametrize(
    "draws",
    [
        torch.rand_like,
        torch.randn_like,
        lambda y: torch.bernoulli(torch.sigmoid(y)),
        lambda y: torch.empty_like(y).exponential_(),
        lambda y: torch.randint(0, 9, y.shape).to(y.dtype),
    ],
    ids=["uniform", "normal", "bernoulli", "exponential", "integers"],
)
def test_random_operators_stay_with_pytorch_and_keep_their_order(draws: Callable[[Any], Any]) -> None:
    weight, x = torch.randn(8, 8), torch.randn(4, 8)

    def program(x: Any) -> Any:
        y = torch.relu(x @ weight)
        z = y + draws(y)
        return (f.gelu(z @ weight) + torch.rand(8),)

    outcomes = []
    for function in (program, compiled(program)):
        with torch.no_grad():
            torch.manual_seed(1)
            outcomes.append([*function(x), *function(x), torch.rand(2)])
    check_equal(outcomes[1], outcomes[0])


def test_what_is_written_into_arguments_is_compared_and_kept() -> None:
    weight = torch.randn(8, 8)

    def program(x: Any, total: Any) -> Any:
        y = torch.relu(x @ weight) @ weight
        total.add_(y.sum(0))
        return y * total, x

    states = [torch.zeros(8), torch.zeros(8)]
    outcomes = []
    x = torch.randn(4, 8)
    with torch.no_grad():
        for function, state in zip((program, compiled(program)), states, strict=True):
            outcomes.append([*function(x, state), *function(x, state)])
    check_equal(outcomes[1], outcomes[0])
    check_equal(states[1:], states[:1])
    assert outcomes[1][1] is x or outcomes[1][1].data_ptr() == x.data_ptr()


def test_a_compiled_side_that_forgets_a_write_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 8)

    def program(x: Any, total: Any) -> Any:
        y = torch.relu(x @ weight) @ weight
        total.add_(1)
        return (y,)

    original = rehearsal.Rehearsal.__call__

    def forgetful(self: Any, function: Any) -> Any:
        found = original(self, function)
        if hasattr(getattr(function, "__self__", None), "graph"):  # what Dynamo captured
            return found
        return paired_benchmark.Outcome(tensors=[*found.tensors[:-1], found.tensors[-1] - 1], facts=found.facts)

    monkeypatch.setattr(rehearsal.Rehearsal, "__call__", forgetful)
    total = torch.zeros(8)
    with torch.no_grad(), pytest.warns(torch_backend.BackendWarning, match="off eager's"):
        compiled(program)(torch.randn(4, 8), total)
    assert torch.equal(total, torch.ones(8))
    (report,) = torch_backend.reports()
    assert report.runs == "eager"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="PyTorch remembers seeds for accelerators that are there")
def test_rehearsals_draw_the_same_and_leave_nothing_in_pytorch() -> None:
    rehearse = rehearsal.Rehearsal([torch.zeros(4)], [], stepping=False)
    before = len(torch.cuda._queued_calls)
    first, second = (rehearse(lambda x: [x + torch.rand_like(x)]).tensors for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert len(torch.cuda._queued_calls) == before


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_right(kind: Any) -> None:
    model, x = (
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(kind).eval(),
        torch.randn(4, 16).to(kind),
    )
    with torch.no_grad():
        found, expected = compiled(model)(x), model(x)
    assert paired_benchmark.difference([found], [expected]) is None
    assert found.dtype is kind


@pytest.mark.long
def test_a_graph_can_be_run_backwards_twice() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(2, 8)
    loss = compiled(model)(x).sum()
    loss.backward(retain_graph=True)
    first = [one.grad.clone() for one in model.parameters()]
    loss.backward()
    for one, once in zip(model.parameters(), first, strict=True):
        assert torch.allclose(one.grad, 2 * once)


class Recomputing(nn.Module):  # type: ignore[misc]
    """Dropout inside a checkpoint, whose backward draws its mask a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8))
        self.outer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(self.inner, self.outer(x), use_reentrant=False)


@pytest.mark.parametrize("options", [OPTIONS, {}], ids=["compiled", "without schedules"])
def test_activation_checkpointing_has_eagers_gradients(options: dict[str, Any]) -> None:
    model, x = Recomputing().train(), torch.randn(4, 8)
    gradients = []
    for call in (model, torch.compile(model, backend="pitchpipe", options=options)):
        model.zero_grad()
        torch.manual_seed(0)
        call(x).square().sum().backward()
        gradients.append([one.grad.clone() for one in model.parameters()] + [torch.rand(2)])
    check_equal(gradients[1], gradients[0])


def test_a_zero_among_whole_divisors_is_eagers_error_and_ends_no_process() -> None:
    def program(x: Any, y: Any) -> Any:
        return x * 2 + 1, (x + 1) // y, (x - 1) % y, torch.relu(x) * 3

    fast = compiled(program)
    x, y = torch.arange(-4, 4), torch.tensor(3)
    with torch.no_grad():
        check_equal(fast(x, y), program(x, y))
        (report,) = torch_backend.reports()
        assert report.runs == "pitchpipe", report
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fast(x, torch.tensor(0))


RAISING: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
    "sum at an index": (lambda y, i: y.index_add(0, i, y[:2]), torch.tensor([0, 1]), torch.tensor([0, -1])),
    "copy at an index": (lambda y, i: y.index_copy(0, i, y[:2]), torch.tensor([0, 1]), torch.tensor([0, 9])),
    "sum at indices": (lambda y, i: y.scatter_add(0, i, y), torch.zeros(2, 8).long(), torch.full((2, 8), 9)),
    "largest at indices": (
        lambda y, i: y.scatter_reduce(0, i, y, "amax"),
        torch.zeros(2, 8).long(),
        torch.full((2, 8), -1),
    ),
    "put": (lambda y, i: y.put(i, y[0, :2]), torch.tensor([0, -1]), torch.tensor([0, 99])),
    "bag of rows": (lambda y, i: f.embedding_bag(i, y), torch.tensor([[0, 1]]), torch.tensor([[0, 9]])),
    "cross entropy": (f.binary_cross_entropy, torch.zeros(4, 8), torch.full((4, 8), 2.0)),
}


@pytest.mark.parametrize("name", RAISING)
def test_errors_that_values_cause_are_eagers(name: str) -> None:
    operator, good, bad = RAISING[name]
    weight, x = torch.randn(8, 8), torch.randn(4, 8)

    def program(x: Any, given: Any) -> Any:
        return (operator(torch.sigmoid(x @ weight), given) * 2,)

    fast = compiled(program)
    with torch.no_grad():
        check_equal(fast(x, good), program(x, good))
        with pytest.raises((RuntimeError, IndexError)) as expected:
            program(x, bad)
        with pytest.raises(type(expected.value)):
            fast(x, bad)
    (report,) = torch_backend.reports()
    assert report.runs == "pitchpipe", report


class Words(nn.Module):  # type: ignore[misc]
    """Embeddings of its argument and of a buffer, and a bias by a buffer of places, as of windowed attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.up = nn.Embedding(9, 8), nn.Embedding(6, 8), nn.Linear(8, 8)
        self.register_buffer("order", torch.arange(6).expand(1, -1).clone())
        self.register_buffer("pairs", torch.randint(-5, 5, (4, 4)))
        self.biases = nn.Parameter(torch.randn(5))

    def forward(self, rows: Any) -> Any:
        x = self.words(rows) + self.places(self.order[:, : rows.shape[1]])
        masked = torch.where(self.pairs > 0, torch.tensor(0.0), torch.finfo(x.dtype).min)
        y = self.up(x)
        return (y @ y.mT + self.biases[self.pairs] + masked).softmax(-1) @ y, y


def test_indices_of_arguments_and_buffers_are_compiled_and_an_error_as_before() -> None:
    model = Words().eval()
    fast, rows = compiled(model), torch.tensor([[0, 8, 3, 1]])
    with torch.no_grad():
        check_equal(fast(rows), model(rows))
        (program,) = torch_backend.reports()
        (graph,) = program.graphs
        assert (program.runs, graph.left, len(graph.partitions)) == ("pitchpipe", {}, 1), program
        for bad in (9, -1):
            with pytest.raises(IndexError):
                fast(torch.tensor([[0, bad, 0, 0]]))
        check_equal(fast(rows.flip(1)), model(rows.flip(1)))
        for buffer, more in ((model.order, 3), (model.pairs, 9)):
            buffer += more
            with pytest.raises(IndexError):
                fast(rows)
            buffer -= more
        check_equal(fast(rows), model(rows))
        model.order.copy_(model.order.flip(1))
        check_equal(fast(rows), model(rows))
    assert program.runs == "pitchpipe", program


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_constants_and_indices_of_half_precision_models_are_eagers(dtype: Any) -> None:
    """A table of sines, a causal mask of positions by a running sum, negative places, and a row where an id is largest."""
    words, up, places = nn.Embedding(9, 16).to(dtype), nn.Linear(16, 16).to(dtype), torch.tensor([[-1, 0], [2, -3]])

    def program(rows: Any) -> Any:
        at = torch.ones_like(rows[:1]).cumsum(1) - 1
        x = up(words(rows) + torch.arange(4, dtype=dtype).sin()[:, None])
        mask = torch.where(at[0][:, None] >= at[0], torch.tensor(0.0, dtype=dtype), torch.finfo(dtype).min)
        return (x @ x.mT + mask).softmax(-1) @ x, up.weight[places], x[torch.arange(2), rows.argmax(-1)]

    rows = torch.tensor([[0, 8, 3, 1], [2, 2, 7, 0]])
    with torch.no_grad():
        for found, right in zip(compiled(program)(rows), program(rows), strict=True):
            assert found.dtype == right.dtype
            assert torch.allclose(found, right, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    (report,) = torch_backend.reports()
    assert (report.runs, report.graphs[0].left) == ("pitchpipe", {}), report


def test_a_change_of_weights_through_data_is_seen() -> None:
    model, average, x = mlp(), mlp(), torch.randn(4, 8)
    fast = compiled(average)
    with torch.no_grad():
        assert torch.allclose(fast(x), average(x), atol=1e-5)
        (report,) = torch_backend.reports()
        assert report.runs == "pitchpipe", report
        for mine, new in zip(average.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.5).add_(new.data, alpha=0.5)
        assert torch.allclose(fast(x), average(x), atol=1e-5)


def test_what_other_processes_take_part_in_is_run_as_often_as_the_program_runs_it(tmp_path: Path) -> None:
    distributed = torch.distributed
    weight, x = torch.randn(8, 8), torch.randn(4, 8)

    def program(x: Any) -> Any:
        y = torch.relu(x @ weight)
        distributed.all_reduce(y)
        return (y @ weight,)

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with torch.no_grad():
            check_equal(compiled(program)(x), program(x))
        reports = torch_backend.reports()
        assert [report.runs for report in reports] == ["eager"], reports
        assert "other processes take part" in reports[0].reason
    finally:
        distributed.destroy_process_group()


def test_complex_numbers_within_a_graph_are_compiled() -> None:
    """A layer by Fourier transforms, and rotations as complex numbers."""

    def program(x: Any, angles: Any) -> Any:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)
        x = torch.view_as_real(turned).flatten(-2).softmax(-1)
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real
        return x + mixed.tanh()

    x, angles = torch.randn(2, 6, 16), torch.randn(6, 8)
    with torch.no_grad():
        check_equal([compiled(program)(x, angles)], [program(x, angles)])
    (report,) = torch_backend.reports()
    assert report.graphs[0].left == {}, report


def test_conjugated_results_are_compared() -> None:
    weight = torch.randn(8, 8)

    def program(x: Any, z: Any) -> Any:
        return torch.relu(x @ weight) * 2 + 1, z.conj()

    x, z = torch.randn(4, 8), torch.randn(3, dtype=torch.complex64)
    with torch.no_grad():
        found, expected = compiled(program)(x, z), program(x, z)
    check_equal(found, expected)
    (report,) = torch_backend.reports()
    assert report.runs == "pitchpipe", report


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_inference_is_one_partition_with_what_is_around_it(causal: bool) -> None:
    weight = torch.randn(3, 16, 16)

    def program(x: Any) -> Any:
        q, k, v = ((x @ one).unflatten(-1, (2, 8)).transpose(1, 2) for one in weight)
        return torch.relu(f.scaled_dot_product_attention(q, k, v, is_causal=causal)).transpose(1, 2).flatten(2)

    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        check_equal([compiled(program)(x)], [program(x)])
    (graph,) = torch_backend.reports()[0].graphs
    assert len(graph.partitions) == 1, graph
    assert not graph.left, graph


@pytest.mark.long
def test_attention_in_training_has_eagers_gradients() -> None:
    weight = torch.randn(3, 16, 16)

    def program(x: Any) -> Any:
        q, k, v = (torch.relu(x @ one).unflatten(-1, (2, 8)).transpose(1, 2) for one in weight)
        return f.scaled_dot_product_attention(q, k, v)

    gradients = []
    for function in (program, compiled(program)):
        torch.manual_seed(0)
        x = torch.randn(2, 6, 16, requires_grad=True)
        function(x).square().sum().backward()
        gradients.append(x.grad)
    check_equal(gradients[1:], gradients[:1])
    (report,) = torch_backend.reports()
    assert report.runs == "pitchpipe", report


def rows(model: Any, *sizes: int) -> list[Any]:
    return [torch.randn(size, 8) for size in sizes]


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(-1)).eval()


@pytest.mark.long
def test_each_bucket_competes_at_the_callers_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = rehearsal.Rehearsal.__call__

    def looked_at(self: Any, function: Any) -> Any:
        seen.extend(
            len(one)
            for one in self._arguments
            if isinstance(one, torch.Tensor) and one.dim() == 2 and one.shape[1] == 8 and len(one) in (5, 11)
        )
        return original(self, function)

    monkeypatch.setattr(rehearsal.Rehearsal, "__call__", looked_at)
    model = mlp()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for x in rows(model, 5, 11):
            assert torch.allclose(fast(x), model(x), atol=1e-5)
    (report,) = torch_backend.reports()
    assert [list(bucket.sizes.values()) for bucket in report.buckets] == [[8], [16]]
    assert [[list(sizes.values()) for sizes in bucket.tried] for bucket in report.buckets] == [[[5]], [[11]]]
    assert set(seen) == {5, 11}, "both sides ran unpadded arguments"


def test_a_bucket_that_loses_stays_eager_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_benchmark, "MARGIN", 0.98)
    ratios = {8: 0.5, 16: 2.0}
    judged: list[int] = []

    def judge(ours: Any, theirs: Any) -> float:
        (rows_,) = {len(one) for one in theirs().tensors}
        judged.append(rows_)
        assert paired_benchmark.difference(ours().tensors, theirs().tensors) is None
        return ratios[8 if rows_ <= 8 else 16]

    def go_on(_self: Any, ours: Any, theirs: Any, **_: Any) -> paired_benchmark.Verdict:
        ratio = judge(ours, theirs)
        return paired_benchmark.Verdict(use=ratio > 1, reason="a test says so", secs=1.0, eager_secs=ratio, ratio=ratio)

    monkeypatch.setattr(paired_benchmark.PairedBenchmark, "go_on", go_on)
    ran: list[int] = []
    original = run.Runner.__call__
    monkeypatch.setattr(
        run.Runner, "__call__", lambda self, *given: ran.append(len(given[-1])) or original(self, *given)
    )
    model = mlp()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for x in rows(model, 6, 12):
            fast(x)
        assert judged == [6, 12]
        ran.clear()
        for x in rows(model, 6, 5, 12, 13):
            assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert judged == [6, 12], "fewer rows lose, more rows win: nobody asks again"
        assert ran, "the winner runs compiled"
        (report,) = torch_backend.reports()
        assert [bucket.runs for bucket in report.buckets] == ["eager", "pitchpipe"]
        ran.clear()
        fast(rows(model, 6)[0])
        assert not ran, "the loser runs eagerly"
        fast(rows(model, 9)[0])
        assert judged == [6, 12], "a lead of 2 pays for a padding of 16 / 9"


def test_strides_of_cut_results_are_eagers() -> None:
    weight = torch.randn(8, 8)

    def program(x: Any) -> Any:
        y = torch.relu(x @ weight)
        return y.t(), (y @ weight).unsqueeze(1).expand(-1, 2, -1), y.t().contiguous().t()

    fast = compiled(program, dynamic=True)
    with torch.no_grad():
        for size in (5, 7, 8):
            x = torch.randn(size, 8)
            check_equal(fast(x), program(x))


def test_results_share_memory_as_eagers_do() -> None:
    def program(x: Any) -> Any:
        for _ in range(4):
            x = f.silu(x) * 1.1 + 0.1
        turned = x.permute(0, 2, 1)
        return x, turned, turned.mean(1)

    run = compiled(program)
    x = torch.randn(2, 6, 5)
    check_equal(run(x), program(x))
    assert torch_backend.reports()[0].runs == "pitchpipe"
    base, view, _ = run(x)
    base.zero_()
    assert not view.any()


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.where(x @ x.mT > 0, torch.full_like(x @ x.mT, float("inf")), 0.0),
        lambda x: sum(torch.var_mean(torch.relu(x @ x.mT), 1, unbiased=False)),
        lambda x: torch.ldexp(torch.relu(x @ x.mT), x.round().int()[:, :1]),
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval(),
    ],
    ids=["infinities", "variance and mean", "ldexp", "encoder of a view"],
)
def test_operators_of_inference_are_compiled(program: Any) -> None:
    run, x = compiled(program), torch.randn(6, 6, 6).transpose(0, 1)
    with torch.no_grad():
        check_equal([run(x)], [program(x)])
        report = torch_backend.explain(program, (x,), options=OPTIONS).programs[0]
    assert report.runs == "pitchpipe"
    assert not any(graph.left for graph in report.graphs)


def test_sizes_of_one_and_none_are_right() -> None:
    model = mlp()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for size in (5, 1, 0, 2, 1):
            x = torch.randn(size, 8)
            assert torch.allclose(fast(x), model(x), atol=1e-5)
            assert fast(x).shape == (size, 8)


@pytest.mark.long
def test_a_training_step_with_a_size_that_varies_is_right() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    fast = compiled(model, dynamic=True)
    for size in (5, 6, 5):
        x = torch.randn(size, 8)
        gradients = []
        for call in (model, fast):
            model.zero_grad()
            call(x).square().sum().backward()
            gradients.append([one.grad.clone() for one in model.parameters()])
        for a, r in zip(*reversed(gradients), strict=True):
            assert torch.allclose(a, r, rtol=1e-3, atol=1e-5)


def test_a_program_may_write_into_results_that_are_constants() -> None:
    """They lie in the compiled library, which gives them again."""
    weight = torch.randn(16, 16)

    def function(x: Any) -> Any:
        return torch.relu(x @ weight) @ weight, torch.zeros_like(x), torch.arange(16.0)

    again = compiled(function)
    x = torch.randn(16, 16)
    with torch.no_grad():
        for _ in range(3):
            found = again(x)
            check_equal(found, function(x))
            for one in found:
                one.add_(1)
    assert torch_backend.explain(function, (x,), options=OPTIONS).programs[0].runs == "pitchpipe"
