"""torch.compile(model, backend="pitchpipe"): right, and as without us wherever we have nothing to offer."""

from __future__ import annotations

import copy
import queue
import shutil
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.answers import KeptAnswer
from pitchpipe.deploy import lookup, misses, usage
from pitchpipe.deploy.artifact import cache_dir, open_library
from pitchpipe.errors import InvalidInput, MeasurementFailed
from pitchpipe.model import comparison
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import JobState
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.miss import MissReport
from pitchpipe.wire.record import Best, LookupResponse, ScheduleAnswer, Tier
from tests.torch_here import never_slow, steps_here

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.torch_backend import cutting, graphs, paired_benchmark, part, run  # noqa: E402
from pitchpipe.torch_backend.options import parse  # noqa: E402

WAITING = 600
"""Seconds: calls wait for everything, so that the first one is decided."""
DEFAULT = {"on_miss": "default", "deadline_secs": WAITING}
"""Compiles without schedules."""
NOWHERE, AWAY = "http://127.0.0.1:9", "http://127.0.0.1:10"
"""Nobody listens on either; at AWAY the fake service is taken to have been."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, no local database, nothing compiled before; a compiled side never loses for being slow."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    never_slow(monkeypatch)
    torch.manual_seed(0)
    torch_backend.recompile()
    shutil.rmtree(cache_dir() / "verdicts", ignore_errors=True)  # of other rules; libraries are shared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    torch_backend.recompile()


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without children."""
    steps_here(monkeypatch)


class Small(nn.Module):
    """A convolution with its norm, a buffer, a gelu and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.up, self.down, self.last = nn.Linear(8, 12), nn.Linear(12, 6), nn.LayerNorm(6)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return torch.softmax(self.last(self.down(torch.nn.functional.gelu(self.up(y)))) + self.shift, -1)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(-1)).eval()


def close(a: Any, b: Any) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-6))


def test_an_inference_sees_every_change_of_its_weights(warm: None) -> None:
    model = Small().eval()
    before = copy.deepcopy(model.state_dict())
    compiled = torch.compile(model, backend="pitchpipe", fullgraph=True, options=DEFAULT)
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        found = compiled(x)
        assert close(found, model(x))
        kept = found.clone()
        model.conv.weight.mul_(2)
        model.shift.add_(1)
        assert close(compiled(x), model(x))
        assert not close(compiled(x), kept)
        model.up.weight.data = torch.randn(12, 8)
        assert close(compiled(x), model(x))
        assert list(compiled.state_dict()) == [f"_orig_mod.{name}" for name in before]
        model.load_state_dict(before)
        assert torch.equal(compiled(x), kept)
        assert torch.equal(found, kept)  # a result is the program's own
    explained = torch_backend.explain(model, (x,), options=DEFAULT)
    (part_report,) = explained.programs[0].graphs[0].partitions
    assert part_report.runs in ("undecided", "pitchpipe"), explained


@torch.library.custom_op("pitchpipe_tests::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody but the program knows."""
    return x.flip(0)


turned.register_fake(torch.empty_like)


class Mixed(nn.Module):
    """Two halves that can be compiled, and the program's own operator between them that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.a(x))
        return self.b(turned(y)).t(), y, x.clone()


def test_what_cannot_be_compiled_stays_with_pytorch_and_is_named(warm: None) -> None:
    model, x = Mixed().eval(), torch.randn(4, 8)
    with torch.no_grad():
        explained = torch_backend.explain(model, (x,), options=DEFAULT)
        compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT)
        found, expected = compiled(x), model(x)
    assert all(close(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
    (graph,) = explained.programs[0].graphs
    assert [one.runs for one in graph.partitions] == ["pitchpipe", "pitchpipe"]
    assert any("turned" in reason for reason in graph.left)
    assert "turned" in str(explained)
    assert "Graphs captured: 1, graph breaks: 0" in str(explained)


def test_results_are_not_shared_with_arguments(warm: None) -> None:
    def program_(x: Any, weight: Any) -> Any:
        y = torch.relu(x @ weight)
        return y.clone(), y, x.clone()

    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        first, second, third = torch.compile(program_, backend="pitchpipe", options=DEFAULT)(x, weight)
        before, kept = x.clone(), second.clone()
        third.zero_()
        first.zero_()
    assert torch.equal(x, before)
    assert torch.equal(second, kept)


def test_a_training_step_has_eagers_gradients_and_statistics(warm: None) -> None:
    model, x = Small().train(), torch.randn(4, 3, 9, 9)
    explained = torch_backend.explain(copy.deepcopy(model), (x,), options=DEFAULT)
    assert [graph.kind for graph in explained.programs[0].graphs] == ["forward", "backward"]
    for graph in explained.programs[0].graphs:
        assert "pitchpipe" in [one.runs for one in graph.partitions], graph
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="pitchpipe", options=DEFAULT)
    steps = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, twin)]
    for _ in range(2):
        for one, optimiser in zip((model, compiled), steps, strict=True):
            optimiser.zero_grad()
            one(x).square().sum().backward()
        for mine, other in zip(twin.parameters(), model.parameters(), strict=True):
            assert torch.allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
        for optimiser in steps:
            optimiser.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(twin.state_dict()[name], value, rtol=1e-3, atol=1e-5), name


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch reads by itself
def test_compiled_autograd_works(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp().train(), torch.randn(4, 8)
    model(x).square().sum().backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    ran = []
    original = run.Runner.__call__
    monkeypatch.setattr(run.Runner, "__call__", lambda self, *args: ran.append(1) or original(self, *args))

    def train(x: Any) -> Any:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    captures = torch._dynamo.utils.counters["compiled_autograd"]["captures"]
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(train, backend="pitchpipe", options=DEFAULT)(x)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] > captures
    assert ran
    for one, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(one.grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes that graphs were compiled for."""
    seen: list[dict[str, int]] = []
    original = graphs.Graph.prepare

    def recording(self: Any, sizes: dict[str, int]) -> Any:
        found = original(self, sizes)
        seen.append(found[1].sizes)
        return found

    monkeypatch.setattr(graphs.Graph, "prepare", recording)
    return seen


def test_a_batch_is_built_once_per_bucket(warm: None, fixed: list[dict[str, int]]) -> None:
    model = mlp()
    compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT, dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for batch in (5, 7, 8, 6, 3, 4):
            x = torch.randn(batch, 8)
            found = compiled(x)
            assert found.is_contiguous()
            assert close(found, model(x))
    assert [list(sizes.values()) for sizes in fixed] == [[8], [4]]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


def test_rows_that_know_of_each_other_are_not_padded(warm: None, fixed: list[dict[str, int]]) -> None:
    weight = torch.randn(8, 8)
    compiled = torch.compile(lambda x: torch.softmax(x @ weight, 0), backend="pitchpipe", options=DEFAULT)
    with torch.no_grad():
        for batch in (5, 6):
            x = torch.randn(batch, 8)
            torch._dynamo.mark_dynamic(x, 0)
            assert close(compiled(x), torch.softmax(x @ weight, 0))
    assert [list(sizes.values()) for sizes in fixed] == [[5], [6]]


def failing(*_: object, **__: object) -> Any:
    raise MeasurementFailed("the child died")


@pytest.mark.parametrize(
    ("mode", "options", "cause"),
    [
        (
            None,
            {"on_mis": "eager"},
            "unknown option 'on_mis': the options are mode, url, target, min_tier, on_miss, deadline",
        ),
        (None, {"on_miss": "default schedule"}, "on_miss is one of eager, inductor, default"),
        (None, {"min_tier": "best"}, "min_tier is one of exact, same_arch, compatible_isa, transferred"),
        (None, {"deadline_secs": -1}, "deadline_secs is a number of at least 0"),
        (None, {"target": '{"kind": "llvm"}'}, "needs mcpu"),
        (None, {"mode": "fast"}, "unknown mode 'fast'"),
        ("fastest", None, "unknown mode 'fastest': one of default, reduce-overhead, max-autotune"),
    ],
)
def test_options_that_are_not_known_are_an_error_that_names_those_that_are(
    mode: str | None, options: Any, cause: str
) -> None:
    with pytest.raises(InvalidInput, match=cause):
        parse(mode, options)


def test_an_empty_url_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PITCHPIPE_URL", "")
    assert parse(None, None).url is None
    monkeypatch.setenv("PITCHPIPE_URL", NOWHERE)
    assert parse("max-autotune", {}).url == NOWHERE


def test_a_wrong_option_reaches_the_program() -> None:
    compiled = torch.compile(mlp(), backend="pitchpipe", options={"on_mis": "eager"})
    with pytest.raises(Exception, match="unknown option 'on_mis'"):
        compiled(torch.randn(2, 8))


def test_with_nobody_to_ask_the_program_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "aot_autograd", failing)
    model, x = mlp(), torch.randn(4, 8)
    assert torch.equal(torch.compile(model, backend="pitchpipe")(x), model(x))


def test_a_service_that_is_down_costs_one_warning(warm: None) -> None:
    model, x = mlp(), torch.randn(4, 8)
    options = {"url": NOWHERE, "deadline_secs": 30}

    def run_twice() -> list[Any]:
        found = []
        for given in (x, x[:2]):
            torch._dynamo.reset()
            found.append(torch.compile(model, backend="pitchpipe", options=options)(given))
        return found

    with torch.no_grad():
        with pytest.warns(torch_backend.BackendWarning, match="gives no schedules") as caught:
            found = run_twice()
        assert torch.equal(found[0], model(x))
        assert torch.equal(found[1], model(x[:2]))
        assert len([one for one in caught if one.category is torch_backend.BackendWarning]) == 1
        explained = torch_backend.explain(model, (x,), options=options)
    assert f"warning: pitchpipe: {NOWHERE} gives no schedules" in str(explained)
    assert explained.programs[0].runs == "eager"


def test_a_service_that_is_down_is_not_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "run_step", failing)
    model, x = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8)).eval(), torch.randn(4, 8)
    compiled = torch.compile(model, backend="pitchpipe", options={"url": NOWHERE, "deadline_secs": 30})
    with torch.no_grad(), pytest.warns(torch_backend.BackendWarning, match="gives no schedules") as caught:
        assert torch.equal(compiled(x), model(x))
    assert len([one for one in caught if one.category is torch_backend.BackendWarning]) == 1


@pytest.mark.parametrize("broken", ["make", "open_library"])
def test_a_library_that_cannot_be_had_costs_one_warning(
    warm: None, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(part, broken, failing)
    model, x = mlp(), torch.randn(4, 8)
    compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT)
    with torch.no_grad():
        with pytest.warns(torch_backend.BackendWarning, match="the child died") as caught:
            found = [compiled(x), compiled(x)]
        assert all(torch.equal(one, model(x)) for one in found)
    assert len([one for one in caught if one.category is torch_backend.BackendWarning]) == 1


def test_a_library_that_fails_later_costs_one_warning(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(), torch.randn(4, 8)
    compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT)
    with torch.no_grad():
        compiled(x)
        monkeypatch.setattr(run.Runner, "__call__", failing)
        with pytest.warns(torch_backend.BackendWarning, match="goes on in eager mode"):
            assert torch.equal(compiled(x), model(x))
        assert torch.equal(compiled(x), model(x))


def test_wrong_results_are_never_used(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run.Runner.__call__
    monkeypatch.setattr(run.Runner, "__call__", lambda self, *args: tuple(1.01 * one for one in original(self, *args)))
    model, x = mlp(), torch.randn(4, 8)
    compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT)
    with torch.no_grad(), pytest.warns(torch_backend.BackendWarning, match="off eager's"):
        assert torch.equal(compiled(x), model(x))


def test_a_result_may_be_as_far_off_as_rounding_makes_eagers_own() -> None:
    r = torch.randn(1000)
    assert paired_benchmark.difference([r + 0.01], [r]) is not None
    assert paired_benchmark.difference([r + 0.01], [r], [r + 0.005]) is None
    assert paired_benchmark.difference([r + 0.01], [r], [r + 1e-6]) is not None
    assert paired_benchmark.difference([-r], [r], [r + 10.0]) is not None, "noise is no excuse for another result"


def test_a_training_step_is_judged_by_what_rounding_does_to_eagers(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = paired_benchmark.compared

    def strict(ours: Any, theirs: Any, nudged: Any = None) -> Any:
        if nudged is not None:
            asked.append(paired_benchmark.difference(theirs().tensors, nudged().tensors))
            monkeypatch.setattr(comparison, "TOLERANCE", comparison.TOLERANCE | {"float32": 1e-12})
        return real(ours, theirs, nudged)

    monkeypatch.setattr(paired_benchmark, "compared", strict)
    model, x = Small().train(), torch.randn(4, 3, 9, 9)
    explained = torch_backend.explain(model, (x,), options=DEFAULT)
    assert asked == [None], "the nudge is of the size of rounding"
    assert explained.programs[0].runs == "pitchpipe", explained.programs[0].reason


def test_what_is_slower_than_eager_stays_eager_and_is_timed_once(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_benchmark, "MARGIN", 1e-9)
    model, x = mlp(), torch.randn(4, 8)
    with torch.no_grad():
        first = torch_backend.explain(model, (x,), options=DEFAULT)
        assert first.programs[0].runs == "eager"
        assert first.programs[0].eager_secs is not None
        monkeypatch.setattr(paired_benchmark.PairedBenchmark, "go_on", failing)
        monkeypatch.setattr(part, "make", failing)
        again = torch_backend.explain(model, (x,), options=DEFAULT)
    assert again.programs[0].eager_secs == first.programs[0].eager_secs
    assert not again.warnings


class FakeService:
    """Answers look-ups with the baseline's trace, and takes jobs."""

    tiers: Callable[[int], Tier] = staticmethod(lambda _: Tier.EXACT)
    jobs: list[Any] = []

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> FakeService:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def health(self) -> None:
        pass

    def lookup(self, request: Any, *, cache: Path) -> LookupResponse:
        found = LookupResponse(answers=tuple(map(self.answer, range(len(request.workloads)), request.workloads)))
        KeptAnswer(cache, AWAY, request).write("tag", found)
        return found

    def answer(self, index: int, workload: str) -> ScheduleAnswer:
        tier = self.tiers(index)
        best = None if tier is Tier.NONE else BEST
        return ScheduleAnswer(workload=workload, tier=tier, reason="a test says so", best=best)

    def upload_model(self, _data: bytes, *, name: str, format: str) -> Any:
        return SimpleNamespace(id="mdl_" + "0" * 20)

    def submit(self, request: Any) -> Any:
        self.jobs.append(request)
        return SimpleNamespace(id="job_" + "0" * 20)

    def wait(self, job: str) -> Any:
        return SimpleNamespace(id=job, state=JobState.DONE, error=None)


BEST = Best(
    record=None,
    trace=BASELINE_TRACE,
    secs=1e-6,
    secs_low=1e-6,
    secs_high=1e-6,
    baseline_secs=1e-6,
    device_class=sha256(b"device"),
    toolchain="tvm",
    confirmed_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("tiers", "options", "runs"),
    [
        (lambda index: Tier.EXACT if index == 0 else Tier.NONE, {}, "pitchpipe"),
        (lambda _: Tier.NONE, {}, "eager"),
        (lambda _: Tier.COMPATIBLE_ISA, {"min_tier": "compatible_isa"}, "pitchpipe"),
        (lambda _: Tier.COMPATIBLE_ISA, {"min_tier": "same_arch"}, "eager"),
    ],
    ids=["partly covered", "missing", "good enough", "not good enough"],
)
def test_a_partition_is_compiled_when_a_schedule_of_it_is_there(
    warm: None, monkeypatch: pytest.MonkeyPatch, tiers: Any, options: Any, runs: str
) -> None:
    monkeypatch.setattr(lookup, "Client", FakeService)
    monkeypatch.setattr(FakeService, "tiers", staticmethod(tiers))
    with torch.no_grad():
        explained = torch_backend.explain(mlp(), (torch.randn(4, 8),), options={"url": NOWHERE, **options})
    (found,) = explained.programs[0].graphs[0].partitions
    assert explained.programs[0].runs == runs, explained.programs[0]
    assert sum(found.tiers.values()) == found.workloads
    assert (found.expected_secs is not None) == (runs == "pitchpipe" and "min_tier" in options)


def test_answers_of_a_service_outlive_it(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, options = mlp(), torch.randn(4, 8), {"url": AWAY}
    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(lookup, "Client", FakeService)
            torch_backend.explain(model, (x,), options=options)
        explained = torch_backend.explain(model, (x,), options=options)
    assert explained.programs[0].runs == "pitchpipe"
    assert "earlier answers" in explained.programs[0].graphs[0].source


def test_max_autotune_submits_a_job_and_waits_for_it(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "Client", FakeService)
    monkeypatch.setattr(FakeService, "jobs", [])
    model, x = mlp(), torch.randn(4, 8)
    with torch.no_grad():
        options = {"url": NOWHERE, "trials": 8, "mode": "max-autotune"}
        compiled = torch.compile(model, backend="pitchpipe", options=options)
        assert close(compiled(x), model(x))
    assert [job.budget.trials for job in FakeService.jobs] == [8]


def test_what_is_missing_is_reported(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def record(_client: Any, model: Any, target: Any, runs: Any) -> None:
        told.put((model.format, target.kind, list(runs.values())))

    monkeypatch.setattr(misses, "report", record)
    monkeypatch.setattr(lookup, "Client", FakeService)
    monkeypatch.setattr(FakeService, "tiers", staticmethod(lambda index: Tier.NONE if index == 0 else Tier.EXACT))
    model, x = mlp(), torch.randn(4, 8)
    with torch.no_grad():
        torch.compile(model, backend="pitchpipe", options={"url": NOWHERE, "deadline_secs": WAITING})(x)
    assert told.get(timeout=180) == ("relax", "llvm", [1])


def test_how_often_what_is_served_and_missed_runs_is_reported(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[MissReport] = []
    served = BEST.model_copy(update={"record": new_id("rec"), "baseline_secs": 2e-6})

    def answer(_service: Any, index: int, workload: str) -> ScheduleAnswer:
        tier, best = (Tier.NONE, None) if index == 0 else (Tier.EXACT, served)
        return ScheduleAnswer(workload=workload, tier=tier, reason="a test says so", best=best)

    def open_tuned(folder: Path, target: Any) -> Any:
        manifest, library = open_library(folder, target)
        return manifest.model_copy(update={"tuned": manifest.untuned}), library  # the baseline's trace is no tuned one

    monkeypatch.setattr(part, "open_library", open_tuned)
    monkeypatch.setattr(usage, "_start", lambda: None)
    monkeypatch.setattr(misses, "report", lambda *_: None)
    monkeypatch.setattr(lookup, "Client", FakeService)
    monkeypatch.setattr(FakeService, "answer", answer)
    monkeypatch.setattr(FakeService, "report_misses", lambda _, report: told.append(report), raising=False)
    model, x = mlp(), torch.randn(4, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend="pitchpipe", options={"url": NOWHERE, "deadline_secs": WAITING})
        compiled(x)  # after which it is decided
        usage.report()
        told.clear()
        for _ in range(3):
            compiled(x)
    usage.report()
    (report,) = told
    assert [each.runs for each in report.misses] == [3]
    assert {(each.runs, each.record) for each in report.served} == {(3, served.record)}


def test_inductor_takes_over_where_it_is_asked_to(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    taken = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda module, _inputs: taken.append(module) or module.forward)
    model, x = mlp(), torch.randn(4, 8)
    with torch.no_grad():
        for options in ({"on_miss": "inductor"}, {"on_miss": "inductor", "url": "http://127.0.0.1:11"}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", torch_backend.BackendWarning)
                assert torch.equal(torch.compile(model, backend="pitchpipe", options=options)(x), model(x))
            torch._dynamo.reset()
    assert len(taken) == 2


def test_an_index_out_of_range_is_still_an_error(warm: None) -> None:
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    compiled = torch.compile(model, backend="pitchpipe", options=DEFAULT)
    with torch.no_grad():
        assert close(compiled(torch.tensor([0, 3])), model(torch.tensor([0, 3])))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch_backend.BackendWarning)
            with pytest.raises(IndexError):
                compiled(torch.tensor([0, 4]))
