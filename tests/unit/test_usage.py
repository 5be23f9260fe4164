"""Use feedback: calls of compiled models become reports of how often their workloads ran."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.deploy import usage
from pitchpipe.deploy.artifact import Runs
from pitchpipe.deploy.identity import Identity
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.errors import Unreachable
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.miss import MissReceipt, MissReport, ServedCount
from pitchpipe.wire.record import Best, LookupResponse, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
EXACT, NEAR, FAR, NONE, PLAIN = (sha256(name.encode()) for name in ("exact", "near", "far", "none", "plain"))
WEIGHTS = {EXACT: 2, NEAR: 1, FAR: 3, NONE: 5, PLAIN: 1}
RECORD = new_id("rec")


def best(record: str | None = RECORD) -> Best:
    return Best(
        record=record,
        trace="[[],[]]",
        secs=1e-3,
        secs_low=1e-3,
        secs_high=1e-3,
        baseline_secs=4e-3 if record is not None else 1e-3,
        device_class="0" * 64,
        toolchain="tvm",
        confirmed_at=datetime.now(UTC),
    )


def schedules() -> Schedules:
    told = {
        EXACT: (Tier.EXACT, best()),
        NEAR: (Tier.SAME_ARCH, best()),
        FAR: (Tier.COMPATIBLE_ISA, best()),
        NONE: (Tier.NONE, None),
        PLAIN: (Tier.EXACT, best(None)),
    }
    answers = tuple(
        ScheduleAnswer(workload=workload, tier=tier, reason="a test says so", best=best)
        for workload, (tier, best) in told.items()
    )
    return Schedules(target=TARGET, response=LookupResponse(answers=answers))


def identity() -> Identity:
    return Identity(workloads=tuple(WEIGHTS), weights=WEIGHTS, signatures={}, toolchain="tvm")


class Service:
    """What a client would be to the reporter."""

    def __init__(self) -> None:
        self.told: list[MissReport] = []
        self.error: Exception | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Any]:
        yield self

    def report_misses(self, report: MissReport) -> MissReceipt:
        if self.error is not None:
            raise self.error
        self.told.append(report)
        return MissReceipt(counted=len(report.misses) + len(report.served))

    def runs(self) -> tuple[dict[str, int], dict[str, int]]:
        """Of what was missed and of what was served, since it was last asked."""
        told, self.told = self.told, []
        return (
            {one.workload: one.runs for each in told for one in each.misses},
            {one.workload: one.runs for each in told for one in each.served},
        )


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """Nothing but the test's own calls reports."""
    monkeypatch.setattr(usage, "_start", lambda: None)
    return Service()


def test_what_ran_since_the_last_report_is_told_by_workload(service: Service) -> None:
    runs = Runs(tuned=[EXACT, NEAR, FAR])
    runs.done = 4  # Before anybody asked.
    usage.follow(runs, schedules(), identity(), service)
    usage.report()
    assert service.told == []
    runs.done += 10
    usage.report()
    (report,) = service.told
    assert (report.target, report.model) == (TARGET, None)
    count = ServedCount(workload=EXACT, runs=20, record=RECORD, secs=1e-3, baseline_secs=4e-3)
    assert count in report.served
    assert service.runs() == ({FAR: 30, NONE: 50}, {EXACT: 20, NEAR: 10})
    usage.report()
    assert service.told == []
    runs.done += 1
    usage.report()
    assert service.runs() == ({FAR: 3, NONE: 5}, {EXACT: 2, NEAR: 1})


def test_a_schedule_that_does_not_apply_here_did_not_run(service: Service) -> None:
    runs = Runs()
    usage.follow(runs, schedules(), identity(), service)
    runs.tuned, runs.done = (NEAR,), 1  # Known once it is built.
    usage.report()
    assert service.runs() == ({FAR: 3, NONE: 5}, {NEAR: 1})


def test_a_report_that_fails_is_lost_and_costs_nothing_else(service: Service) -> None:
    runs, others = Runs(tuned=[EXACT]), Service()
    usage.follow(runs, schedules(), identity(), service)
    more = Runs(tuned=[EXACT])
    usage.follow(more, schedules(), identity(), others)
    service.error = Unreachable("nobody is there")
    runs.done = more.done = 5
    usage.report()
    assert others.runs()[1] == {EXACT: 10}
    service.error = None
    runs.done += 1
    usage.report()
    assert service.runs()[1] == {EXACT: 2}


def test_a_report_has_no_more_workloads_than_a_service_takes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_REPORTED", 1)
    runs = Runs(tuned=[EXACT])
    usage.follow(runs, schedules(), identity(), service)
    runs.done = 1
    usage.report()
    assert [(len(each.misses), len(each.served)) for each in service.told] == [(1, 1), (1, 0)]


def test_a_model_that_is_gone_is_followed_no_longer(service: Service) -> None:
    runs = Runs()
    usage.follow(runs, schedules(), identity(), service)
    runs.done = 1
    del runs
    gc.collect()
    usage.report()
    assert service.told == []


def test_one_thread_reports_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    class Thread:
        def __init__(self, **options: Any) -> None:
            assert options["daemon"], "a program does not wait for it"

        def start(self) -> None:
            began.append("thread")

        def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(usage, "_thread", None)
    monkeypatch.setattr(usage, "threading", SimpleNamespace(Thread=Thread))
    runs = [Runs(), Runs()]
    for each in runs:
        usage.follow(each, schedules(), identity(), Service())
    assert began == ["thread"]


def test_reports_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class Ended(Exception):
        pass

    def sleep(secs: float) -> None:
        slept.append(secs)
        if len(slept) > 8:
            raise Ended

    monkeypatch.setattr(usage, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(Ended):
        usage._report_now_and_then()
    assert slept == [15, 30, 60, 120, 240, 480, 900, 900, 900]
