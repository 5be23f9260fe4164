"""Tuning inside a model's graph, on a device that is a fake where every kernel takes a microsecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.gpu import variants
from pitchpipe.gpu.program import Program
from pitchpipe.gpu.testing import FakeDriver
from pitchpipe.target_kind import kind_of
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.programs import workloads_of
from tests.compiler.test_gpu_models import half_bert
from tuner.deploy.build import identify
from tuner.ingest import parse_container
from tuner.measure import gpu_turn
from tuner.templates.text import parse
from tuner.tuning import in_graph

pytest.importorskip("triton")
PARTS = "parts"
"""The argument of a contraction that says among how many blocks its sums are divided: a second kernel adds them."""


@pytest.fixture(scope="module")
def model() -> bytes:
    return half_bert()


@pytest.fixture(scope="module")
def by_kernels(model: bytes) -> dict[str, tuple[str, str]]:
    """Of each contraction a point of two kernels, and one of one kernel."""
    found = {}
    for digest, workload in workloads_of(parse_container(model).ir, HOPPER).items():
        points = [point.text for point in kind_of(HOPPER).templates(workload, HOPPER)]
        texts = [text for text in points if not parse(text).arguments.get("cluster")]
        divided = [text for text in texts if parse(text).arguments.get(PARTS, 1) > 1]
        whole = [text for text in texts if parse(text).arguments.get(PARTS, 1) == 1]
        if divided and whole:
            found[digest] = divided[0], whole[0]
    assert len(found) > 1
    return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[float], None]]:
    """The fake, wherever a driver is asked for; the function says by how much fresh processes take longer after a change."""
    slower = [1.0]

    def nothing(*_: Any) -> None:
        pass

    class Kernels(dict[str, Any]):
        """Every name is one of a kernel that does nothing."""

        def __contains__(self, name: object) -> bool:
            return True

        def __missing__(self, name: str) -> Any:
            return nothing

    made = FakeDriver(Kernels())

    def fresh(program: Program, inputs: Any, params: Any, lists: Sequence[Any], *, processes: int, rounds: int) -> Any:
        found = variants.Variants(program, inputs, params, using=lambda: made).secs(lists, processes * rounds)
        return [found[0], [secs * slower[0] for secs in found[1]]]

    monkeypatch.setattr(in_graph, "driver", lambda: made)
    monkeypatch.setattr(in_graph, "Variants", partial(variants.Variants, using=lambda: made))
    monkeypatch.setattr(in_graph, "in_fresh_processes", fresh)
    monkeypatch.setattr(gpu_turn, "lock_path", lambda: str(tmp_path / "lock"))

    def set_slower(factor: float) -> None:
        slower[0] = factor

    yield set_slower
    assert not made.contexts


def tuned(
    model: bytes, by_kernels: dict[str, tuple[str, str]], seconds: float = 60.0, unserved: str | None = None
) -> dict[str, Any]:
    return in_graph.tune_in_graph(
        model,
        {},
        model_format="relax",
        target=HOPPER.key,
        traces={digest: divided for digest, (divided, _) in by_kernels.items() if digest != unserved},
        alternatives={digest: ["no schedule", whole] for digest, (_, whole) in by_kernels.items()},
        seconds=seconds,
    )


@pytest.mark.long
def test_the_schedules_with_fewer_kernels_win(
    model: bytes, by_kernels: dict[str, tuple[str, str]], device: Any
) -> None:
    found = tuned(model, by_kernels)
    assert found["choice"] == dict.fromkeys(by_kernels, 2)
    assert {(workload, number) for workload, number, _ in found["refused"]} == {(digest, 1) for digest in by_kernels}
    assert found["before"]["processes"] == found["after"]["processes"] == 3
    calls = identify(model, {}, model_format="relax", target=HOPPER.key, own=True)["weights"]
    saved = sum(calls[digest] for digest in by_kernels) * 1e-6
    assert found["before"]["run_secs"][0] - found["after"]["run_secs"][0] == pytest.approx(saved)
    assert [one["changed"] for one in found["rounds"]] == [len(by_kernels), 0]


@pytest.mark.long
def test_what_runs_its_default_schedule_gets_another_if_the_model_is_faster_with_it(
    model: bytes, by_kernels: dict[str, tuple[str, str]], device: Any
) -> None:
    """The default is one kernel, as the other schedule is."""
    unserved, *others = by_kernels
    found = tuned(model, by_kernels, unserved=unserved)
    assert found["choice"] == dict.fromkeys(others, 2)
    assert found["trials"] == tuned(model, by_kernels)["trials"] + 1
    divided = {digest: (one, one) for digest, (one, _) in by_kernels.items()}
    assert tuned(model, divided, unserved=unserved)["choice"] == {}


@pytest.mark.long
def test_what_fresh_processes_do_not_confirm_is_not_chosen(
    model: bytes, by_kernels: dict[str, tuple[str, str]], device: Any
) -> None:
    device(2.0)
    found = tuned(model, by_kernels)
    assert found["choice"] == {}
    assert found["rounds"][0]["gain"] > 0


@pytest.mark.long
def test_without_time_nothing_is_changed(model: bytes, by_kernels: dict[str, tuple[str, str]], device: Any) -> None:
    found = tuned(model, by_kernels, seconds=0.0)
    assert (found["choice"], found["rounds"], found["trials"]) == ({}, [], 0)
    assert found["before"] is found["after"] is None


def test_contexts_are_of_the_order_in_which_a_model_launches(model: bytes) -> None:
    known = identify(model, {}, model_format="relax", target=HOPPER.key, own=True)
    assert set(known["contexts"]) == set(known["workloads"])
    around = [pair for context in known["contexts"].values() for pair in context["neighbours"]]
    assert sum(pair["before"] is None for pair in around) == sum(pair["after"] is None for pair in around) == 1
    cpu = identify(model, {}, model_format="relax", target='{"kind":"llvm","mcpu":"znver4","num_cores":2}', own=True)
    assert cpu["contexts"] == {}
