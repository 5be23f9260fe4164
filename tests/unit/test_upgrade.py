"""What `pitchpipe schedules upgrade` asks of a service, and what it tells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pitchpipe import upgrade
from pitchpipe.upgrade import Upgrade
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobOrigin, JobState, JobView, Progress, Replay, TaskView
from pitchpipe.wire.record import Earlier
from pitchpipe.wire.task import TaskKind
from pitchpipe.wire.upgrade import UPGRADED_PER_JOB, Outdated, OutdatedList, UpgradeRequest, UpgradeStage
from tuner.tuning.testing import TARGET

SERVED = Earlier(
    record="rec", secs=2.0, device_class=sha256(b"device"), toolchain="older", measured_at=datetime.now(UTC)
)


class Service:
    """A client of a service that keeps the list; `outcomes` by number of the workload, KEPT where they tell nothing."""

    def __init__(self, count: int, outcomes: dict[int, Replay | None] | None = None) -> None:
        self.workloads = [sha256(bytes([n])) for n in range(count)]
        self.stages = dict.fromkeys(self.workloads, UpgradeStage.REPLAY)
        self.outcomes = {self.workloads[n]: outcome for n, outcome in (outcomes or {}).items()}
        self.requests: list[UpgradeRequest] = []
        self.views: dict[str, JobView] = {}
        self.cancelled: list[str] = []
        self.slow = self.broken = False

    def outdated(self, limit: int) -> OutdatedList:
        items = [
            Outdated(workload=w, target=TARGET, stage=s, value_secs=1.0, served=SERVED, reason="because")
            for w, s in sorted(self.stages.items(), key=lambda item: item[1] is UpgradeStage.RETUNE)
        ]
        return OutdatedList(items=tuple(items[:limit]), total=len(items))

    def jobs(self) -> list[JobView]:
        return list(self.views.values())

    def upgrade(self, request: UpgradeRequest) -> JobView:
        self.requests.append(request)
        return self.begin(request.stage, request.workloads)

    def begin(self, stage: UpgradeStage, workloads: tuple[str, ...]) -> JobView:
        origin = JobOrigin.UPGRADE if stage is UpgradeStage.REPLAY else JobOrigin.RETUNE
        view = JobView(
            id=f"job_{len(self.views)}",
            model="mdl",
            model_name="model",
            targets=(TARGET,),
            budget=Budget(trials=1),
            seed=0,
            state=JobState.TUNING,
            origin=origin,
            progress=Progress(),
            tasks=tuple(self.task(workload, Replay.DUE) for workload in workloads),
            created_at=datetime.now(UTC),
        )
        self.views[view.id] = view
        return view

    def task(self, workload: str, replay: Replay | None, tuned_secs: float | None = None) -> TaskView:
        return TaskView(
            workload=workload,
            target=TARGET,
            name="matmul",
            kind=TaskKind.TUNED,
            weight=1,
            flops=1.0,
            bytes=1.0,
            trials=4,
            failed_trials=0,
            reused=False,
            replay=replay,
            untuned_secs=10.0,
            tuned_secs=tuned_secs,
            earlier=SERVED,
            earlier_baseline_secs=9.0,
        )

    def wait(self, job: str, timeout_secs: float | None, on_view: Any) -> JobView:
        view = self.views[job]
        on_view(view)
        if self.slow and timeout_secs is not None:
            return view
        if self.broken:
            self.views[job] = view.model_copy(update={"state": JobState.FAILED, "error": "the disk is full"})
            return self.views[job]
        tasks = []
        for task in view.tasks:
            replay = self.outcomes.get(task.workload, Replay.KEPT)
            if view.origin is JobOrigin.RETUNE or replay in (Replay.KEPT, Replay.CHANGED):
                self.stages.pop(task.workload)
            elif replay is not Replay.UNDECIDED:
                self.stages[task.workload] = UpgradeStage.RETUNE
            after = 1.5 if view.origin is JobOrigin.RETUNE else 2.1
            tasks.append(self.task(task.workload, replay if view.origin is JobOrigin.UPGRADE else None, after))
        update = {"state": JobState.DONE, "tasks": tuple(tasks), "progress": Progress(trials=4 * len(tasks))}
        self.views[job] = view.model_copy(update=update)
        return self.views[job]

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        self.views[job] = self.views[job].model_copy(update={"state": JobState.CANCELLED})

    def job(self, job: str) -> JobView:
        return self.views[job]


def run(service: Service, **options: Any) -> dict[str, Any]:
    return Upgrade(service, **{"trials": 0, **options}).run()  # type: ignore[arg-type]


def test_all_is_replayed_job_by_job_in_the_services_order_and_each_outcome_is_counted() -> None:
    outcomes = {0: Replay.CHANGED, 1: Replay.LOST, 2: Replay.FAILED, 3: Replay.UNDECIDED}
    service = Service(UPGRADED_PER_JOB + 4, outcomes)
    report = run(service)
    assert [request.workloads for request in service.requests] == [
        tuple(service.workloads[:UPGRADED_PER_JOB]),
        tuple(service.workloads[UPGRADED_PER_JOB:]),
    ]
    assert report["summary"] == {
        "kept": UPGRADED_PER_JOB,
        "changed": 1,
        "lost": 1,
        "failed": 1,
        "undecided": 1,
        "not_reached": 0,
    }
    assert report["trials"] == 4 * (UPGRADED_PER_JOB + 4)
    row = report["rows"][0]
    assert (row["secs_before"], row["secs_after"]) == (2.0, 2.1)
    assert (row["baseline_secs_before"], row["baseline_secs_after"]) == (9.0, 10.0)


def test_what_came_out_worse_is_searched_after_everything_was_replayed() -> None:
    service = Service(3, {1: Replay.LOST})
    report = run(service, trials=7)
    assert [(each.stage, len(each.workloads), each.trials) for each in service.requests] == [
        (UpgradeStage.REPLAY, 3, 7),
        (UpgradeStage.RETUNE, 1, 7),
    ]
    (again,) = [row for row in report["rows"] if row["tuned_again"]]
    assert (again["outcome"], again["secs_before"], again["secs_after"]) == ("lost", 2.0, 1.5)
    assert (report["tuned_again"], report["left"]) == (1, 0)


def test_a_limit_bounds_the_workloads_and_the_others_are_told() -> None:
    service = Service(4, {0: Replay.LOST})
    report = run(service, limit=2, trials=7)
    assert [each.workloads for each in service.requests] == [
        tuple(service.workloads[:2]),
        (service.workloads[0],),
    ], "a search for what was taken up is not another workload"
    assert report["summary"]["not_reached"] == 2
    assert report["left"] == 2


def test_a_job_that_the_time_runs_out_for_is_cancelled_and_its_workloads_were_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, now = Service(3), [0.0]
    service.slow = True
    monkeypatch.setattr(upgrade.time, "monotonic", lambda: now[0])

    def late(view: JobView) -> None:
        now[0] += 100.0

    report = run(service, seconds=60.0, on_view=late)
    assert service.cancelled == ["job_0"]
    assert len(service.requests) == 1
    assert report["summary"]["not_reached"] == 3 == len(report["rows"])


def test_a_job_of_an_upgrade_that_was_interrupted_is_taken_up_first() -> None:
    service = Service(3)
    begun = service.begin(UpgradeStage.REPLAY, tuple(service.workloads[:2]))
    report = run(service)
    assert begun.id in service.views
    assert [request.workloads for request in service.requests] == [tuple(service.workloads[2:])]
    assert report["summary"]["kept"] == 3


def test_what_is_undecided_stays_left_and_is_not_tried_twice_in_a_run() -> None:
    service = Service(1, {0: Replay.UNDECIDED})
    report = run(service)
    assert len(service.requests) == 1
    assert (report["summary"]["undecided"], report["left"]) == (1, 1)


def test_a_job_that_failed_is_told_and_not_begun_again() -> None:
    service = Service(1)
    service.broken = True
    report = run(service)
    assert report["errors"] == ["job_0: the disk is full"]
    assert (report["summary"]["not_reached"], report["left"], len(service.requests)) == (1, 1, 1)
