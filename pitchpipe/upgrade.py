"""`pitchpipe schedules upgrade`: replays what is served from another toolchain, driver or device class, job by job.

The service keeps the list of what is left and orders it by value; this takes the first of it, has a job made, waits, and
asks again. So it can be interrupted at any moment, and two of them do no harm to each other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pitchpipe.client import Client
from pitchpipe.errors import InvalidTransition
from pitchpipe.wire.job import JobOrigin, JobState, JobView, Replay, TaskView
from pitchpipe.wire.upgrade import UPGRADED_PER_JOB, Outdated, UpgradeRequest, UpgradeStage

ORIGINS = (JobOrigin.UPGRADE, JobOrigin.RETUNE)
NOT_REACHED = "not_reached"
OUTCOMES = (*(replay.value for replay in Replay if replay is not Replay.DUE), NOT_REACHED)
MAX_LISTED = 200
"""Of what is left, asked for at a time: the page's limit."""


class Upgrade:
    """One run of the command. `limit` bounds the workloads it takes up, `seconds` its time, `trials` the search for each
    workload whose replay did not hold (0: none)."""

    def __init__(
        self,
        client: Client,
        *,
        limit: int | None = None,
        seconds: float | None = None,
        trials: int,
        on_view: Callable[[JobView], object] = lambda _: None,
    ) -> None:
        self._client, self._trials, self._on_view = client, trials, on_view
        self._left = limit
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._tried: set[tuple[UpgradeStage, str, str]] = set()
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._errors: list[str] = []
        self._spent = 0

    def run(self) -> dict[str, Any]:
        """The report. Raises the errors of the client; what was done by then is in the service."""
        started = time.monotonic()
        job = self._interrupted() or self._next()
        while job is not None:
            self._take(self._wait(job))
            job = self._next()
        left = self._client.outdated(limit=MAX_LISTED)
        for each in left.items:
            if each.stage is UpgradeStage.REPLAY:
                self._rows.setdefault(
                    (each.workload, each.target.key),
                    _row(each.workload, each.target.key, NOT_REACHED, each.served.secs, None),
                )
        rows = list(self._rows.values())
        return {
            "summary": {name: sum(row["outcome"] == name for row in rows) for name in OUTCOMES},
            "tuned_again": sum(row["tuned_again"] for row in rows),
            "left": left.total,
            "rows": rows,
            "errors": self._errors,
            "trials": self._spent,
            "seconds": time.monotonic() - started,
        }

    def _interrupted(self) -> JobView | None:
        """The job of an upgrade that did not wait for it, if there is one."""
        unfinished = (job for job in self._client.jobs() if job.origin in ORIGINS and not job.state.ended)
        return next(unfinished, None)

    def _next(self) -> JobView | None:
        """A job on the most valuable workloads that nobody has tried in this run; None when there are none."""
        if self._overdue:
            return None
        due = [each for each in self._client.outdated(limit=MAX_LISTED).items if self._wanted(each)]
        if not due:
            return None
        first = due[0]
        together = [each for each in due if (each.stage, each.target) == (first.stage, first.target)]
        chosen: list[str] = []
        for each in together[:UPGRADED_PER_JOB]:
            known = (each.workload, each.target.key) in self._rows
            if not known and self._left is not None:
                if self._left == 0:
                    continue
                self._left -= 1
            chosen.append(each.workload)
        if not chosen:
            return None
        self._tried |= {(first.stage, workload, first.target.key) for workload in chosen}
        request = UpgradeRequest(
            target=first.target, workloads=tuple(chosen), stage=first.stage, trials=max(1, self._trials)
        )
        return self._client.upgrade(request)

    def _wanted(self, each: Outdated) -> bool:
        if each.stage is UpgradeStage.RETUNE and not self._trials:
            return False
        if (each.stage, each.workload, each.target.key) in self._tried:
            return False
        return self._left != 0 or (each.workload, each.target.key) in self._rows

    @property
    def _overdue(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _wait(self, job: JobView) -> JobView:
        """The job as it ended; one that the time runs out for is cancelled, and what it did not reach stays on the list."""
        timeout_secs = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        view = self._client.wait(job.id, timeout_secs=timeout_secs, on_view=self._on_view)
        if not view.state.ended:
            with contextlib.suppress(InvalidTransition):  # It has ended meanwhile.
                self._client.cancel(job.id)
            view = self._client.job(job.id)
        return view

    def _take(self, view: JobView) -> None:
        self._spent += view.progress.trials
        if view.state is JobState.FAILED:
            self._errors.append(f"{view.id}: {view.error}")
        for task in view.tasks:
            key = task.workload, task.target.key
            if view.origin is JobOrigin.UPGRADE:
                if task.replay is not None:
                    self._rows[key] = _replayed(task)
                continue
            before = None if task.earlier is None else task.earlier.secs
            row = self._rows.setdefault(key, _row(*key, Replay.LOST.value, before, task.name))
            if view.state is JobState.DONE and task.tuned_secs is not None:
                row |= {"secs_after": task.tuned_secs, "baseline_secs_after": task.untuned_secs, "tuned_again": True}


def _replayed(task: TaskView) -> dict[str, Any]:
    reached = task.replay is not None and task.replay is not Replay.DUE
    outcome = task.replay.value if reached and task.replay is not None else NOT_REACHED
    row = _row(task.workload, task.target.key, outcome, task.earlier.secs if task.earlier else None, task.name)
    return row | {
        "toolchain_before": None if task.earlier is None else task.earlier.toolchain,
        "baseline_secs_before": task.earlier_baseline_secs,
        "secs_after": task.tuned_secs if reached else None,
        "baseline_secs_after": task.untuned_secs if reached else None,
        "trials": task.trials,
    }


def _row(workload: str, target: str, outcome: str, before: float | None, name: str | None) -> dict[str, Any]:
    return {
        "workload": workload,
        "target": target,
        "name": name,
        "outcome": outcome,
        "toolchain_before": None,
        "secs_before": before,
        "secs_after": None,
        "baseline_secs_before": None,
        "baseline_secs_after": None,
        "trials": 0,
        "tuned_again": False,
    }
