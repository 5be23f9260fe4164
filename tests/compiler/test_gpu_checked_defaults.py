"""Workloads that nobody tuned for a GPU run a template, once that was checked and timed beside the default schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pitchpipe.errors import MeasurementFailed
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.task import Workload
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tuner.deploy import gpu_default_check
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.deploy.default_check import Checked, Named, expected_outputs, reference_programs
from tuner.deploy.defaults import checked_defaults
from tuner.ingest import parse_container
from tuner.ingest.torch_export import from_torch
from tuner.measure.candidate import Bench, WrongOutput
from tuner.measure.check import SETS
from tuner.measure.cuda_driver import CudaError
from tuner.measure.device_compiler import DeviceCompiler
from tuner.templates import compiler as templates
from tuner.templates.assembler import AssemblerError

torch = pytest.importorskip("torch")

needs_triton = pytest.mark.skipif(not templates.available(), reason="needs Triton")


@pytest.fixture(scope="module")
def workload() -> Workload:
    return TEN["128x768x3072, residual"]()


@pytest.fixture(scope="module")
def points(workload: Workload) -> list[str]:
    return [point.text for point in kind_of(HOPPER).templates(workload, HOPPER)[: gpu_default_check.POINTS]]


@needs_triton
def test_the_default_schedule_and_the_first_points_are_compiled_and_what_is_refused_is_left_out(
    workload: Workload, points: list[str]
) -> None:
    traces = [kind_of(HOPPER).default_trace(workload, HOPPER), *points, '[["no such instruction"],[]]']
    bench, compiler = Bench(workload.ir, HOPPER, 0), DeviceCompiler(str(HOPPER.arch))
    programs = dict(gpu_default_check._compiled(bench, traces, compiler))
    assert list(programs) == traces[:-1]
    assert all(program.run and program.codes for program in programs.values())


def test_what_is_expected_is_computed_on_the_host_for_every_set_of_inputs(workload: Workload) -> None:
    bench = Bench(workload.ir, HOPPER, 0)
    (reference,) = reference_programs([bench])
    assert [name for name, _ in expected_outputs(bench, reference)] == list(SETS)
    assert list(bench.inputs) == list(SETS)


DEFAULT, FIRST, SECOND = "the default schedule", "first", "second"


def chosen(
    monkeypatch: pytest.MonkeyPatch, secs: Mapping[str, float], errors: Mapping[str, Exception] = MappingProxyType({})
) -> Checked:
    """What is chosen where programs take so long, and some fail their check. A fake in place of a GPU."""

    class Running:
        def __init__(self, _device: Any, program: Any) -> None:
            self.name = program

        def call(self, calls: int) -> float:
            return secs[self.name] * calls

        def close(self) -> None:
            pass

    class Measuring:
        def __init__(self, _bench: Any, running: Any) -> None:
            self.name = running.name

        def check(self, _names: Any) -> None:
            if error := errors.get(self.name):
                raise error

    monkeypatch.setattr(gpu_default_check, "DeviceProgram", Running)
    monkeypatch.setattr(gpu_default_check, "Measuring", Measuring)
    monkeypatch.setattr(gpu_default_check, "GpuDevice", lambda *_: None)
    cuda: Any = SimpleNamespace(uuid="of-a-test")
    bench: Any = SimpleNamespace(reference_outputs={})
    programs: Any = {name: name for name in secs}
    return gpu_default_check._fastest(cuda, bench, b"", programs, [FIRST, SECOND])


def test_the_fastest_template_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, {DEFAULT: 3e-6, FIRST: 2e-6, SECOND: 1e-6}) == Checked(trace=SECOND)


def test_templates_that_are_slower_give_way_to_the_default_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, {DEFAULT: 1e-6, FIRST: 2e-6, SECOND: 3e-6}) == Checked(trace=BASELINE_TRACE)


WRONG = WrongOutput("it is wrong")
TOO_MUCH = CudaError("cuLaunchKernelEx", 1, "invalid argument")
ILLEGAL = CudaError("cuEventSynchronize", 700, "an illegal memory access was encountered")


@pytest.mark.parametrize("error", [WRONG, TOO_MUCH])
def test_a_template_that_fails_its_check_is_never_chosen(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    secs = {DEFAULT: 3e-6, FIRST: 1e-6, SECOND: 2e-6}
    assert chosen(monkeypatch, secs, {FIRST: error}) == Checked(trace=SECOND)
    assert chosen(monkeypatch, secs, {FIRST: error, SECOND: WRONG}) == Checked(trace=FIRST, fault=str(error))
    assert chosen(monkeypatch, secs, {DEFAULT: error, FIRST: error}) == Checked(trace=SECOND)


def test_what_leaves_the_device_unusable_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CudaError):
        chosen(monkeypatch, {DEFAULT: 3e-6, FIRST: 1e-6}, {FIRST: ILLEGAL})


@needs_triton
def test_a_model_runs_the_templates_that_were_chosen() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).half().eval()
    model = parse_container(from_torch(module, (torch.randn(64, 256).half(),))[0])
    asked: list[Named] = []

    def first_points(named: Sequence[Named], target: Any) -> dict[str, Checked]:
        asked.extend(named)
        offered = {one.workload.digest: kind_of(target).templates(one.workload, target) for one in named}
        return {digest: Checked(trace=points[0].text) for digest, points in offered.items() if points}

    scheduled = schedule_model(model, HOPPER, {}, defaults=first_points)
    assert sorted(scheduled.defaults) == sorted(scheduled.untuned) == sorted(one.workload.digest for one in asked)
    kernels = [kernel.name for kernel in compile_scheduled(scheduled).kernels]
    assert sum("contraction" in name for name in kernels) == 2


@needs_triton
def test_where_a_gpu_is_too_old_or_triton_is_broken_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: Exception) -> Callable[..., Any]:
        def refused(*_: Any) -> Any:
            raise error

        return refused

    kind = kind_of(HOPPER)
    monkeypatch.setattr(type(kind), "detect", lambda *_: HOPPER)
    assert kind.prepare_checks(HOPPER)
    for error in (templates.NotCompiled("no library"), AssemblerError("no assembler")):
        with monkeypatch.context() as broken:
            broken.setattr(templates, "warm_up", refuse(error))
            assert not kind.prepare_checks(HOPPER)
    monkeypatch.setattr(type(kind), "detect", refuse(MeasurementFailed("it is too old")))
    assert not kind.prepare_checks(HOPPER)


def test_without_a_gpu_nothing_is_checked_and_every_workload_runs_its_default_schedule(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(kind_of(HOPPER)), "detect", lambda *_: None)
    assert checked_defaults([Named(name="product", workload=workload)], HOPPER, tmp_path) == {}
    assert not list(tmp_path.iterdir())
