"""What is tried inside a model, and what becomes of it: a service and a device that are made up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import lookup
from pitchpipe.deploy.identity import Identity
from pitchpipe.errors import StepDied
from pitchpipe.model.local import LocalModel
from pitchpipe.tuning import inside
from pitchpipe.tuning.inside import outside, tune_inside, tune_inside_or_tell
from pitchpipe.wire.context import Contender, ContendersRequest, ContendersResponse, InContext, contexts_of
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, ModelFormat
from pitchpipe.wire.record import Best, LookupRequest, LookupResponse, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target

GPU = Target(kind="cuda", arch="sm_90")
CPU = Target(kind="llvm", mcpu="znver5", num_cores=2)
A, B, C, D, E = (sha256(name.encode()) for name in "abcde")
KNOWN = Identity(
    workloads=(A, B, C), weights={A: 1, B: 12, C: 1}, signatures={}, toolchain="tvm", contexts=contexts_of([A, B, C])
)
LARGER = Identity(
    workloads=(A, B, C, D, E), weights={A: 1, B: 12, C: 1, D: 2, E: 3}, signatures={}, toolchain="tvm",
    contexts=contexts_of([A, B, C, D, E]),
)  # fmt: skip
"""Of D and E the job timed candidates, and confirmed none."""
MODEL = LocalModel(name="net", format=ModelFormat.RELAX, data=b"graph", weights={})
SECS = {A: 3e-6, B: 1e-6, C: 1e-6, D: 5e-6, E: 2e-6}


def best(workload: str) -> Best:
    return Best(
        record=f"rec-{workload[:4]}", trace=f"alone {workload[:4]}", secs=SECS[workload], secs_low=SECS[workload],
        secs_high=SECS[workload], baseline_secs=1e-5, device_class=sha256(b"class"), toolchain="tvm",
        confirmed_at=datetime.now(UTC),
    )  # fmt: skip


class Service(Client):
    """Serves C from elsewhere, and D and E not at all; of the others it has five schedules."""

    def __init__(self) -> None:
        self.lookups: list[LookupRequest] = []
        self.asked: list[ContendersRequest] = []
        self.put: list[InContext] = []

    def lookup(self, request: LookupRequest, *, cache: Path | None = None) -> LookupResponse:
        self.lookups.append(request)
        return LookupResponse(
            answers=tuple(
                ScheduleAnswer(
                    workload=one,
                    tier=Tier.NONE if one in (D, E) else Tier.SAME_ARCH if one == C else Tier.EXACT,
                    reason="a test",
                    best=None if one in (D, E) else best(one),
                )
                for one in request.workloads
            )
        )

    def contenders(self, request: ContendersRequest) -> ContendersResponse:
        self.asked.append(request)
        return ContendersResponse(
            contenders=tuple(
                Contender(
                    workload=one,
                    record=f"rec-{at}" if at else best(one).record,
                    trace=f"{at} {one[:4]}" if at else best(one).trace,
                    secs=SECS[one] * (1 + 0.1 * at),
                )
                for one in request.workloads
                for at in range(5)
            )
        )

    def put_in_context(self, report: InContext) -> InContext:
        self.put.append(report)
        return report


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Says what the step that times finds; the orders that it got."""
    orders: list[dict[str, Any]] = []

    def answers(choice: dict[str, int] | Exception, cores: int = 16) -> list[dict[str, Any]]:
        def step(name: str, model: bytes, **order: Any) -> dict[str, Any]:
            assert (name, model) == ("tune_in_graph", b"graph")
            orders.append(order)
            if isinstance(choice, Exception):
                raise choice
            return {
                "choice": choice,
                "rounds": [{"changed": 1, "gain": 0.02}, {"changed": 0, "gain": 0.0}],
                "trials": 9,
                "before": {"run_secs": [3e-4] * 18, "processes": 3},
                "after": {"run_secs": [2.94e-4] * 18, "processes": 3},
                "refused": [[A, 1, "a test"]],
                "build_secs": 4.0,
                "search_secs": 2.0,
            }

        monkeypatch.setattr(inside, "run_step", step)
        monkeypatch.setattr(inside, "usable_cores", lambda: cores)
        return orders

    monkeypatch.setattr(inside.identity, "identify", lambda *_: KNOWN)
    monkeypatch.setattr(lookup, "device_class", lambda _: sha256(b"class"))
    return answers


def tuned(service: Service, seconds: float = 10.0) -> Any:
    return tune_inside(service, MODEL, GPU, Path("/nowhere"), seconds=seconds)


def test_the_fastest_few_of_what_was_measured_here_are_tried_the_costliest_task_first(device: Any) -> None:
    service, orders = Service(), device({})
    schedules, found = tuned(service)
    (order,) = orders
    assert order["alternatives"] == {
        B: [f"1 {B[:4]}", f"2 {B[:4]}"],
        A: [f"1 {A[:4]}", f"2 {A[:4]}"],
    }, "what is served already and what is far slower are left out"
    assert list(order["alternatives"]) == [B, A]
    assert order["traces"] == {one: f"alone {one[:4]}" for one in (A, B, C)}
    assert order["seconds"] == 10.0
    assert service.asked[0].workloads == (B, A)
    assert (found.tried, found.changed, found.gain, service.put) == (3, (), 0.0, [])
    assert "none of 3" in str(found)
    assert schedules.traces == order["traces"]


def test_what_the_job_had_no_seconds_to_confirm_is_tried_first(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside.identity, "identify", lambda *_: LARGER)
    service, orders = Service(), device({D: 1})
    tuned(service)
    (order,) = orders
    assert list(order["alternatives"]) == [D, E, B, A]
    assert order["alternatives"][D] == [best(D).trace, f"1 {D[:4]}"]
    assert order["traces"].keys() == {A, B, C}
    ((chosen,),) = [report.chosen for report in service.put]
    assert (chosen.workload, chosen.record, chosen.context) == (D, best(D).record, LARGER.contexts[D])


def test_what_won_is_stored_with_its_contexts_and_looked_up_again(device: Any) -> None:
    service = Service()
    device({B: 2})
    schedules, found = tuned(service)
    (report,) = service.put
    (chosen,) = report.chosen
    assert (chosen.workload, chosen.context, chosen.record) == (B, KNOWN.contexts[B], "rec-2")
    assert (report.model, report.target, report.before.processes) == ("net", GPU, 3)
    assert len(service.lookups) == 2
    assert {one.workload: one.context for one in service.lookups[1].contexts} == {
        workload: context.digest for workload, context in KNOWN.contexts.items()
    }
    assert found.gain == pytest.approx(0.02)
    assert str(found) == "1 task with other schedules in the model: 300.0 to 294.0 us, 2.0% less"
    assert schedules.response.answers


def test_little_time_or_few_cores_try_less(device: Any) -> None:
    orders = device({}, cores=2)
    tuned(Service(), seconds=1.0)
    assert list(orders[0]["alternatives"]) == [B]
    assert len(orders[0]["alternatives"][B]) == 2
    schedules, found = tuned(Service(), seconds=0.1)
    assert (len(schedules.response.answers), found) == (3, None)
    assert len(orders) == 1, "no time, no step"


def test_what_fails_is_told_and_changes_nothing(device: Any, caplog: pytest.LogCaptureFixture) -> None:
    service, said = Service(), list[str]()
    device(StepDied("the driver is gone"))
    result = tune_inside_or_tell(service, MODEL, GPU, Path("/nowhere"), Budget(seconds=60.0), said.append)
    assert result == (None, None)
    assert "net was not tuned inside: the driver is gone" in caplog.text
    assert said == ["net: trying the fastest schedules inside the model"]
    assert service.put == []


def test_a_tenth_of_the_seconds_is_for_tuning_inside(device: Any) -> None:
    orders = device({})
    assert outside(Budget(seconds=100.0, trials=500), GPU) == Budget(seconds=90.0, trials=500)
    assert outside(Budget(trials=500), GPU) == Budget(trials=500)
    assert outside(Budget(seconds=100.0), CPU) == Budget(seconds=100.0)
    tune_inside_or_tell(Service(), MODEL, GPU, Path("/nowhere"), Budget(seconds=100.0))
    tune_inside_or_tell(Service(), MODEL, GPU, Path("/nowhere"), Budget(trials=500))
    assert [order["seconds"] for order in orders] == [10.0, inside.MOST_SECS]


def test_models_for_a_cpu_are_not_tuned_inside() -> None:
    assert tune_inside_or_tell(Service(), MODEL, CPU, Path("/nowhere"), Budget(seconds=60.0)) == (None, None)
