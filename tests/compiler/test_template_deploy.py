"""A model whose workloads have templates, built as a deployment builds it, and a candidate as text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.target_kind import kind_of
from tests.compiler import programs
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tests.compiler.programs import workloads_of
from tests.compiler.test_gpu_models import half_bert, text_model
from tuner.deploy import build, gpu_model
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.ingest import IngestedModel, parse_container
from tuner.measure.device_compiler import NotCompiled
from tuner.measure.gpu_lowered import Lowered
from tuner.measure.listing import list_code
from tuner.templates.kernels import THEN, template_of
from tuner.templates.text import is_template, parse

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch


@pytest.fixture(scope="module")
def model() -> IngestedModel:
    return parse_container(half_bert())


@pytest.fixture(scope="module")
def texts(model: IngestedModel) -> dict[str, str]:
    """The best point by the estimate, by workload that has one."""
    points = {key: kind_of(HOPPER).templates(one, HOPPER) for key, one in workloads_of(model.ir, HOPPER).items()}
    return {digest: some[0].text for digest, some in points.items() if some}


def test_all_of_a_layer_but_its_look_up_has_templates(model: IngestedModel, texts: dict[str, str]) -> None:
    assert len(workloads_of(model.ir, HOPPER)) - len(texts) == 1
    assert {parse(text).template for text in texts.values()} == {"contraction-1", "rows-1"}


def test_a_deployed_model_launches_the_kernels_of_templates(model: IngestedModel, texts: dict[str, str]) -> None:
    scheduled = schedule_model(model, HOPPER, texts)
    assert set(scheduled.tuned) == set(texts)
    assert not scheduled.refused
    program = compile_scheduled(scheduled)
    names = [program.kernels[launch.kernel].name for launch in program.run]
    assert len([name for name in names if name in {"contraction", "sum_of_parts", "rows"}]) >= len(texts)
    assert [launch.programmatic for launch in program.run] == [False, *[True] * (len(names) - 1)]
    assert decode(encode(program)) == program


@pytest.mark.long
def test_a_schedule_that_the_compiler_refuses_costs_no_other(
    model: IngestedModel, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lower, (broken, *_) = gpu_model.lower, texts

    def refusing(mod: Any, target: Any, name: str = "main") -> Lowered:
        if template_of(mod[name]) is not None and digests[name] == broken:
            raise NotCompiled("a register is missing")
        return lower(mod, target, name)

    scheduled = schedule_model(model, HOPPER, texts)
    digests = {variable.name_hint: digest for variable, _, digest in scheduled.unscheduled}
    monkeypatch.setattr(gpu_model, "lower", refusing)
    found, _ = build.compiled_model(model, HOPPER, texts, None, compile_scheduled)
    assert set(found.tuned) == set(texts) - {broken}
    assert found.refused[broken].endswith("a register is missing")


@pytest.mark.long
def test_calls_whose_joined_kernel_the_compiler_refuses_stay_apart(
    model: IngestedModel, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    divided = {
        digest: re.sub('"step":[0-9]+', '"step":16', text.replace('"parts":1', '"parts":2'))
        for digest, text in texts.items()
    }
    scheduled = schedule_model(model, HOPPER, divided)
    lower, joined = gpu_model.lower, list[str]()

    def refusing(mod: Any, target: Any, name: str = "main") -> Lowered:
        if THEN in (mod[name].attrs or {}):
            joined.append(name)
            raise NotCompiled("a register is missing")
        return lower(mod, target, name)

    monkeypatch.setattr(gpu_model, "lower", refusing)
    program = compile_scheduled(scheduled)
    assert joined
    monkeypatch.setattr(gpu_model, "join_calls", lambda _flow, _functions: None)
    assert compile_scheduled(scheduled) == program


def test_another_kind_of_target_refuses_templates_by_name(texts: dict[str, str]) -> None:
    torch.manual_seed(0)
    module, examples = text_model("Bert", 1, "sdpa")
    model = parse_container(from_torch(module.eval(), examples)[0])
    (text, *_) = texts.values()
    digests = workloads_of(model.ir, programs.TARGET)
    scheduled = schedule_model(model, programs.TARGET, dict.fromkeys(digests, text))
    assert set(scheduled.refused) == set(digests)
    assert all("no templates" in reason for reason in scheduled.refused.values())


def test_a_template_is_listed_as_its_workload_its_program_and_its_ptx() -> None:
    workload = TEN["attention, scores"]()
    text = kind_of(HOPPER).templates(workload, HOPPER)[0].text
    assert is_template(text)
    listing = list_code(
        b"", {}, workload=workload.digest, ir=workload.ir, trace=text, target=HOPPER.key, compiled=True
    )  # fmt: skip
    assert listing["failed"] is None
    assert "pitchpipe.template" in listing["tir"]
    assert "tl.dot(" in listing["code"]["triton"]
    assert ".entry contraction(" in listing["code"]["ptx"]
    wrong = list_code(
        b"", {}, workload=workload.digest, ir=workload.ir, trace=text.replace("-1", "-0"), target=HOPPER.key, compiled=True
    )  # fmt: skip
    assert "no template" in wrong["failed"]
    with pytest.raises(InvalidTrace):
        parse(text.replace("-1", "-0"))
