"""A model with alternatives for its tensor functions: every variant launches what the model with these schedules launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.gpu.executable import GpuModel
from pitchpipe.gpu.program import Place, Pointer, Program, TensorMap
from pitchpipe.gpu.variants import Drawn
from pitchpipe.target_kind import kind_of
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.programs import workloads_of
from tests.compiler.test_gpu_model import device_of, evaluated, flows, settled
from tests.compiler.test_gpu_models import half_bert
from tuner.deploy.alternatives import Alternatives, add_calls, compile_alternatives
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.deploy.flow import Flow
from tuner.deploy.gpu_model import assemble
from tuner.ingest import IngestedModel, parse_container
from tuner.measure.gpu_lowered import KernelCall, Lowered
from tuner.templates.text import is_template, parse

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def model() -> IngestedModel:
    return parse_container(half_bert())


def divides(text: str) -> bool:
    arguments = parse(text).arguments
    return arguments.get("parts", 1) > 1 and not arguments["cluster"]


@pytest.fixture(scope="module")
def texts(model: IngestedModel) -> dict[str, list[str]]:
    """Three points of each workload that has templates, the second one divides a sum where any does."""
    found = {}
    for digest, one in workloads_of(model.ir, HOPPER).items():
        points = kind_of(HOPPER).templates(one, HOPPER)
        if len(points) > 2:
            first, second, third, *_ = (point.text for point in points)
            found[digest] = [first, next((each.text for each in points if divides(each.text)), second), third]
    return found


@pytest.fixture(scope="module")
def built(model: IngestedModel, texts: dict[str, list[str]]) -> Alternatives:
    own = {digest: points[0] for digest, points in texts.items()}
    others = {digest: [*points[1:], '{"args":{},"template":"no-1"}'] for digest, points in texts.items()}
    return compile_alternatives(model, HOPPER, own, others)


def shown(program: Program, at: Sequence[int]) -> list[Any]:
    """Launches without what memory plans and tables decide."""

    def argument(one: Any) -> Any:
        if isinstance(one, TensorMap):
            return argument(one.base), replace(one, base=Pointer(buffer=0))
        if not isinstance(one, Pointer):
            return one
        buffer = program.buffers[one.buffer]
        return "scratch" if buffer.place is Place.SCRATCH else (buffer, one.offset)

    launches = [program.run[i] for i in at]
    return [
        (
            program.codes[program.kernels[launch.kernel].code],
            program.kernels[launch.kernel].name,
            [argument(one) for one in launch.arguments],
            launch.grid,
            launch.block,
            launch.shared_bytes,
            launch.cluster,
        )
        for launch in launches
    ]


@pytest.mark.long
def test_every_variant_launches_what_the_model_with_its_schedules_does(
    model: IngestedModel, texts: dict[str, list[str]], built: Alternatives
) -> None:
    one, other, *_ = texts
    everywhere = {digest: 1 for digest in texts if (digest, 1) not in built.refused}
    for choice in ({}, {one: 1}, {one: 2, other: 1}, everywhere):
        traces = {digest: points[choice.get(digest, 0)] for digest, points in texts.items()}
        alone = compile_scheduled(schedule_model(model, HOPPER, traces))
        assert shown(built.program, built.launches(choice)) == shown(alone, range(len(alone.run)))
    whole = len(built.launches({}))
    divided = [digest for digest, points in texts.items() if divides(points[1])]
    more = [len(built.launches({digest: 1})) - whole for digest in divided]
    assert sorted(more) == [0, 0, 1, 1], "norms add the parts of what they follow, a kernel those of other products"
    assert len(built.launches(everywhere)) == whole + sum(more)


def test_the_program_is_one_that_can_be_handed_over(built: Alternatives) -> None:
    assert decode(encode(built.program)) == built.program
    assert sum(call.launches for call in built.calls) == len(built.program.run)


def test_an_alternative_that_is_none_is_left_out_and_said(texts: dict[str, list[str]], built: Alternatives) -> None:
    joined = {digest for digest, number in built.refused if number == 1}
    assert len(joined) == 1, "the norm behind products"
    assert set(built.refused) == {(digest, 3) for digest in texts} | {(digest, 2) for digest in joined} | {
        (digest, 1) for digest in joined
    }
    assert all(reason for reason in built.refused.values())
    assert not any(3 in call.schedules for call in built.calls)


@pytest.mark.long
def test_an_alternative_that_the_compiler_refuses_costs_no_other(
    model: IngestedModel, texts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.deploy import gpu_model

    lower = gpu_model.lower

    def failing(mod: Any, target: Any, name: str) -> Lowered:
        if name.endswith("_alternative2"):
            raise RuntimeError("no such tile")
        return lower(mod, target, name)

    monkeypatch.setattr(gpu_model, "lower", failing)
    digest = next(iter(texts))
    own = {key: points[0] for key, points in texts.items()}
    built = compile_alternatives(model, HOPPER, own, {digest: texts[digest][1:]})
    assert set(built.refused) == {(digest, 2)}
    assert "no such tile" in built.refused[digest, 2]
    assert {n for call in built.calls if call.workload == digest for n in call.schedules} == {0, 1}


@pytest.mark.long
def test_a_default_schedule_stands_beside_templates(model: IngestedModel, texts: dict[str, list[str]]) -> None:
    digest, points = next(iter(texts.items()))
    default = kind_of(HOPPER).default_trace(workloads_of(model.ir, HOPPER)[digest], HOPPER)
    assert not is_template(default)
    built = compile_alternatives(model, HOPPER, {digest: points[0]}, {digest: [default]})
    assert not built.refused
    assert built.launches({digest: 1}) != built.launches({})


@settings(max_examples=60, deadline=None)
@given(flows(), st.data())
def test_every_variant_of_a_random_graph_computes_the_same_in_planned_memory(
    found: tuple[Flow, dict[str, Lowered]], data: st.DataObject
) -> None:
    """Alternatives differ in their kernels and workspaces; a variant whose memory another's launch took would differ."""
    flow, lowered = found
    plain = settled(flow, lowered)
    own = {step.function: len(step.arguments) for step in flow.run if not step.function.startswith("copy")}
    schedules = {}
    for name in own:
        of = lowered[name]
        more = data.draw(st.integers(8, 3000).map(lambda n: 8 * n))
        spare = KernelCall(
            kernel=f"{name}_spare_0", arguments=(own[name] + len(of.workspaces),), grid=(1, 1, 1), block=(1, 1, 1),
            shared_bytes=0,
        )  # fmt: skip
        lowered[f"{name}'"] = Lowered(
            calls=(spare, *of.calls), workspaces=(*of.workspaces, more), source=f"{name}'"
        )  # fmt: skip
        schedules[name] = [(f"{name}'", 1)]
    calls = add_calls(flow, lowered, schedules, {name: name for name in own})
    program = assemble(flow, lowered, {one.source: b"code" for one in lowered.values()})
    alternatives = Alternatives(program=program, calls=calls, refused={})
    driver = device_of(flow, lowered)
    specs = [
        [Drawn(name=f"t{at}", dtype="int64", shape=program.buffers[at].shape) for at in program.at(place)]
        for place in (Place.INPUT, Place.WEIGHT)
    ]
    ours = GpuModel(program, *specs, using=lambda: driver)
    rng = np.random.default_rng(0)
    inputs, weights = ([rng.integers(0, 1000, spec.shape) for spec in of] for of in specs)
    ours.bind({spec.name: one for spec, one in zip(specs[1], weights, strict=True)})
    right = evaluated(plain, lowered, inputs, weights)
    choice = {name: data.draw(st.integers(0, 1)) for name in own}
    launches = alternatives.launches(choice)
    if not launches:
        return
    with ours.variants([launches], *inputs) as replay:
        assert replay(0, 2) == pytest.approx(1e-6 * len(launches))
    for at, view in zip(program.at(Place.OUTPUT), plain.outputs, strict=True):
        found_now = np.frombuffer(driver.view(ours._on(0).staging(at), 8 * view.shape[0]), np.int64)
        np.testing.assert_array_equal(found_now, right[id(view.tensor)])
