"""A torch module through the SDK and a real service: submitted, fetched, loaded, and right. Real processes, SQLite."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import building
from pitchpipe.deploy.artifact import CompiledModel, open_artifact
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.identity import identify
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.errors import IntegrityError, InvalidInput, NotFound, PitchpipeError
from pitchpipe.model.local import local_model
from pitchpipe.profile import _kernels, profile
from pitchpipe.sdk import load, submit
from pitchpipe.target_kind import Step
from pitchpipe.wire.job import JobState, JobView
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.record import Tier
from pitchpipe.wire.target import Target
from tests.compiler import models

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

TRIALS = 8


class TwoBranches(nn.Module):
    """A convolution on one input, a layer with a residual on the other; both results are outputs."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, 16)
        self.up, self.out = nn.Linear(16, 48), nn.Linear(48, 16)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, image: Any, words: Any) -> Any:
        features = self.head(f.relu(self.norm(self.conv(image))).mean((2, 3)))
        return features, words + self.out(f.gelu(self.up(words)))


def made(channels: int = 16) -> tuple[Any, tuple[Any, Any]]:
    torch.manual_seed(0)
    return TwoBranches(channels).eval(), (torch.randn(1, 3, 16, 16), torch.randn(1, 6, 16))


def worst_error(model: Callable[..., Any], module: Any, inputs: Any) -> float:
    """Largest error relative to the largest output, over the outputs."""
    with torch.no_grad():
        expected = [value.numpy() for value in module(*inputs)]
    found = model(*inputs)
    assert [part.shape for part in found] == [part.shape for part in expected]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def job(embedded: Client, this_target: Target) -> JobView:
    module, inputs = made()
    submitted = submit(module, inputs, target=this_target, trials=TRIALS, client=embedded)
    return embedded.wait(submitted.id, timeout_secs=400)


@pytest.fixture(scope="module")
def schedules(job: JobView, embedded: Client, this_target: Target) -> Schedules:
    return fetch(job, target=this_target, client=embedded)


@pytest.fixture(scope="module")
def compiled(schedules: Schedules, cache: Path) -> CompiledModel:
    module, inputs = made()
    return load(module, schedules, inputs, cache=cache)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails whatever would build."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(building, "run_step", refuse)
    return


def test_a_submitted_module_is_tuned(job: JobView) -> None:
    assert job.state is JobState.DONE, job.error
    assert job.progress.trials == TRIALS
    assert job.model_name == "TwoBranches"


def test_a_tuned_module_computes_what_it_computed(compiled: CompiledModel, schedules: Schedules, job: JobView) -> None:
    assert {*compiled.manifest.tuned, *compiled.manifest.untuned} == {task.workload for task in job.tasks}
    tuned = {workload for workload, trace in schedules.traces.items() if trace != BASELINE_TRACE}
    assert set(compiled.manifest.tuned) == tuned
    assert worst_error(compiled, *made()) < 1e-3


def test_a_profile_tells_the_time_of_every_task_inside_the_model(
    schedules: Schedules, job: JobView, cache: Path
) -> None:
    module, inputs = made()
    found = profile(module, inputs, schedules=schedules, runs=3, cache=cache)
    tasks = {kernel.workload: kernel for kernel in found.kernels if kernel.workload is not None}
    assert {workload: kernel.calls for workload, kernel in tasks.items()} == {
        task.workload: task.weight for task in job.tasks
    }
    for answer in schedules.response.answers:
        kernel = tasks[answer.workload]
        assert kernel.secs > 0
        assert answer.best is not None
        assert kernel.task_secs == pytest.approx(kernel.calls * answer.best.secs)
    assert {each.name for each in found.between} >= {"vm.builtin.alloc_storage", "vm.builtin.alloc_tensor"}
    assert found.dispatch_secs + found.kernel_secs + sum(each.secs for each in found.between) == pytest.approx(
        found.secs
    )
    events = json.loads(found.chrome_trace())["traceEvents"]
    assert [event["name"] for event in events] == [name for name, _ in found.steps]


def test_a_kernel_is_its_task_although_its_schedule_lays_a_weight_out_anew(
    schedules: Schedules, job: JobView, this_target: Target, cache: Path
) -> None:
    known = identify(cache, local_model(*made()), this_target)
    steps = [Step(name=f"{name}_prepacked", kernel=True, secs=1e-3) for name in known.functions]
    kernels = _kernels(steps, known, schedules)
    assert {kernel.workload for kernel in kernels} == {task.workload for task in job.tasks}


def test_arrays_of_numpy_and_of_torch_give_the_same(compiled: CompiledModel) -> None:
    _, inputs = made()
    for ours, theirs in zip(compiled(*inputs), compiled(*(value.numpy() for value in inputs)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "awkward",
    [
        lambda x: x.clone().requires_grad_(),
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].reshape(x.shape),
        lambda x: np.asfortranarray(x.numpy()),
    ],
    ids=["requires grad", "strided", "not aligned", "column-major"],
)
def test_tensors_that_cannot_be_shared_are_copied(compiled: CompiledModel, awkward: Callable[[Any], Any]) -> None:
    image, words = made()[1]
    for ours, theirs in zip(compiled(awkward(image), awkward(words)), compiled(image, words), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_results_and_weights_are_not_shared_with_the_caller(
    compiled: CompiledModel, schedules: Schedules, cache: Path, no_child: None
) -> None:
    module, inputs = made()
    first = compiled(*inputs)
    kept = [part.copy() for part in first]
    compiled(*(-value for value in inputs))
    for part, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(part, copy)
    own = {name: value.detach() for name, value in module.state_dict().items()}
    model = load(module, schedules, inputs, weights=own, cache=cache)
    before = model(*inputs)
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    for part, copy in zip(model(*inputs), before, strict=True):
        np.testing.assert_array_equal(part, copy)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda image, words: (image[:, :, :6], words), r"image must be float32\[1, 3, 16, 16\], not float32\[1, 3, 6"),
        (lambda image, words: (image, words.double()), r"words must be float32\[1, 6, 16\], not float64"),
        (lambda image, words: (image.numpy(), words.int().numpy()), r"words must be float32\[1, 6, 16\], not int32"),
        (lambda image, words: (image,), "takes 2 arrays, not 1"),
        (lambda image, words: (image, [["a"], ["b", "c"]]), "words is no array"),
        (lambda image, words: (image, None), "words is no array"),
        (lambda image, words: (image, words.to_sparse()), "words is no array"),
    ],
)
def test_a_wrong_input_is_named(compiled: CompiledModel, change: Callable[..., Any], cause: str) -> None:
    inputs = change(*made()[1])
    with pytest.raises(InvalidInput, match=cause):
        compiled(*inputs)


def test_a_second_load_takes_what_the_first_one_built(
    compiled: CompiledModel, schedules: Schedules, cache: Path, no_child: None
) -> None:
    module, inputs = made()
    assert worst_error(load(module, schedules, inputs, cache=cache), module, inputs) < 1e-3


def test_other_weights_need_no_other_build(
    compiled: CompiledModel, schedules: Schedules, cache: Path, no_child: None
) -> None:
    module, inputs = made()
    nn.init.normal_(module.conv.weight)
    nn.init.uniform_(module.norm.running_var, 0.5, 1.5)
    assert worst_error(load(module, schedules, inputs, cache=cache), module, inputs) < 1e-3


def test_a_damaged_artifact_is_found_out_and_built_again(
    compiled: CompiledModel, schedules: Schedules, cache: Path
) -> None:
    folder, target = artifact(cache, compiled), compiled.manifest.target
    for name in ("manifest.json", "model.so"):
        data = (folder / name).read_bytes()
        (folder / name).unlink()  # this process has the old file mapped
        (folder / name).write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
        with pytest.raises(IntegrityError):
            open_artifact(folder, target, {})
    module, inputs = made()
    assert worst_error(load(module, schedules, inputs, cache=cache), module, inputs) < 1e-3
    open_artifact(folder, target, {name: value.numpy() for name, value in module.state_dict().items()})


def test_an_artifact_for_another_target_is_refused(compiled: CompiledModel, cache: Path) -> None:
    other = Target.parse({**compiled.manifest.target.attributes(), "num-cores": 63})
    with pytest.raises(InvalidInput, match="built for"):
        open_artifact(artifact(cache, compiled), other, {})


def test_a_weight_that_is_missing_or_misshapen_is_named(compiled: CompiledModel, cache: Path) -> None:
    weights = {name: value.numpy() for name, value in made()[0].state_dict().items()}
    folder, target = artifact(cache, compiled), compiled.manifest.target
    without = {name: value for name, value in weights.items() if name != "head.weight"}
    with pytest.raises(InvalidInput, match=r"'head\.weight'"):
        open_artifact(folder, target, without)
    with pytest.raises(InvalidInput, match=r"up\.weight must be float32\[48, 16\], not float32\[16, 48\]"):
        open_artifact(folder, target, {**weights, "up.weight": weights["up.weight"].T})


def test_a_job_can_be_named_by_its_id(
    job: JobView, schedules: Schedules, embedded: Client, this_target: Target
) -> None:
    assert fetch(job.id, target=this_target, client=embedded) == schedules
    assert fetch(job.model, target=this_target, client=embedded) == schedules
    with pytest.raises(NotFound):
        fetch("job_" + "0" * 20, target=this_target, client=embedded)


def test_the_module_itself_finds_what_was_tuned_for_it_exactly(schedules: Schedules, embedded: Client) -> None:
    module, inputs = made()
    found = fetch(module, inputs, client=embedded)
    assert found.traces == schedules.traces
    assert {answer.tier for answer in found.response.answers} == {Tier.EXACT}


def test_without_a_service_the_database_of_this_machine_answers_the_same(
    schedules: Schedules, embedded: Client, embedded_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = made()
    asked = fetch(module, inputs, client=embedded)
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    with pytest.raises(InvalidInput, match="PITCHPIPE_URL"):
        fetch(module, inputs)
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", embedded_database)
    found = fetch(module, inputs, report_misses=True)
    assert (found, found.traces) == (asked, schedules.traces)


def test_a_model_never_submitted_gets_no_answers_and_runs_untuned(
    embedded: Client, this_target: Target, cache: Path
) -> None:
    module, inputs = made(channels=12)
    found = fetch(module, inputs, target=this_target, client=embedded)
    new = {answer.workload for answer in found.response.answers if answer.tier is Tier.NONE}
    assert new
    model = load(module, found, inputs, cache=cache)
    assert new <= set(model.manifest.untuned)
    assert worst_error(model, module, inputs) < 1e-3


def test_a_machine_without_a_linker_compiles_in_its_own_process(
    compiled: CompiledModel, schedules: Schedules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_child: None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    module, inputs = made()
    model = load(module, schedules, inputs, cache=tmp_path / "cache")
    assert worst_error(model, module, inputs) < 1e-3
    assert model.manifest.tuned == compiled.manifest.tuned
    assert not (tmp_path / "cache").exists()


def test_a_linker_that_fails_is_named(tmp_path: Path, this_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(PitchpipeError, match="linked"):
        load(models.tiny_network().SerializeToString(), target=this_target, cache=tmp_path)
    assert not [path for path in (tmp_path / "artifacts").iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, this_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cache"):
        load(models.tiny_network().SerializeToString(), target=this_target, cache=tmp_path / "file")


def test_without_a_service_or_example_inputs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    module, inputs = made()
    with pytest.raises(InvalidInput, match="PITCHPIPE_URL"):
        submit(module, inputs)
    with pytest.raises(InvalidInput, match="example inputs"):
        load(module)


def artifact(cache: Path, compiled: CompiledModel) -> Path:
    """The folder of an artifact in the cache."""
    folders = [path for path in (cache / "artifacts").iterdir() if (path / "manifest.json").exists()]
    (found,) = [path for path in folders if compiled.manifest.library in (path / "manifest.json").read_text()]
    return found
