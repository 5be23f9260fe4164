"""Tuning inside a model on a real GPU: variants are timed, the one that is faster for certain wins, and it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pitchpipe.embedded import Embedded
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.sdk import load
from pitchpipe.target_kind import kind_named, kind_of
from pitchpipe.tuning.inside import tune_inside
from pitchpipe.tuning.job import submit_or_resume, watched
from pitchpipe.wire.comparison import not_compared
from pitchpipe.wire.job import Budget
from pitchpipe.wire.target import Target
from tests.compiler.programs import workloads_of
from tuner.ingest import parse_container
from tuner.templates.text import parse
from tuner.tuning.in_graph import tune_in_graph

torch = pytest.importorskip("torch")

from tests.acceptance.test_gpu_runtime import Encoder  # noqa: E402  # needs torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(scope="module")
def target() -> Target:
    found = kind_named("cuda").detect()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def encoder() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return Encoder(width=768, heads=12).half().eval().cuda(), torch.randn(1, 128, 768).half().cuda()


@pytest.fixture(scope="module")
def model(encoder: tuple[Any, Any]) -> LocalModel:
    module, x = encoder
    return local_model(module.cpu(), (x.cpu(),))


def test_schedules_that_an_estimate_puts_last_lose_their_places(model: LocalModel, target: Target) -> None:
    """Of each contraction the worst point by the estimate runs, and the best one is tried."""
    own, others = {}, {}
    for digest, workload in workloads_of(parse_container(model.data).ir, target).items():
        texts = [point.text for point in kind_of(target).templates(workload, target)]
        if texts and parse(texts[0]).template.startswith("contraction"):
            own[digest], others[digest] = texts[-1], [texts[0]]
    assert others
    found = tune_in_graph(
        model.data,
        {},
        model_format=model.format.value,
        target=target.key,
        traces=own,
        alternatives=others,
        seconds=120.0,
    )
    assert set(found["choice"].values()) == {1}
    assert found["rounds"][0]["gain"] > 0.05
    assert max(found["after"]["run_secs"]) < min(found["before"]["run_secs"])
    assert len(found["after"]["run_secs"]) == 18


def test_a_tuned_model_is_tuned_inside_and_stays_right(
    encoder: tuple[Any, Any], model: LocalModel, target: Target, tmp_path: Path
) -> None:
    module, x = encoder
    with Embedded(f"sqlite:///{tmp_path}/db", target) as client:
        budget = Budget(trials=64, seconds=60.0)
        watched(client, submit_or_resume(client, model, target, budget, 0, not_compared("a test")), lambda _: None)
        schedules, found = tune_inside(client, model, target, tmp_path / "cache", seconds=30.0)
    assert found is not None
    assert found.trials > 0
    in_context = {answer.workload for answer in schedules.response.answers if answer.context is not None}
    assert in_context <= set(found.changed)
    compiled = load(model, schedules, cache=tmp_path / "cache")
    torch.testing.assert_close(torch.from_dlpack(compiled(x.cuda())), module.cuda()(x.cuda()), rtol=2e-2, atol=2e-2)
