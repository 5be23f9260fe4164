"""A task: every trial as a point, failures by kind, where its best lies under the roofline, and the records behind that."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from pitchpipe.wire.job import TaskView
from pitchpipe.wire.measure import FailureKind, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.roofline import Roofline
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView
from service.store import jobs, listings, records, trials, workers

router = APIRouter(include_in_schema=False)

_COLUMNS = (
    Column(name="id", title="Record", link="/records/{id}"),
    Column(name="secs", title="Median", shown="seconds"),
    Column(name="failure", title="Failure", shown="words"),
    Column(name="detail", title="Message"),
    Column(name="worker", title="Worker"),
    Column(name="created_at", title="Measured (UTC)", shown="when"),
)


@router.get("/jobs/{job_id}/tasks/{position}")
def task_page(view: UserView, job_id: str, position: int) -> Response:
    """One task of a job; its trials are those of all jobs that had the same workload for the same target."""
    with view.reading() as session:
        task = jobs.task(session, view.project, job_id, position)
        of = (session, view.project, task.workload, task.target)
        measured, failed = trials.times(*of), trials.failures(*of)
        best = records.best(*of)
        served = None if best is None or best.record is None else records.view(session, view.project, best.record)
        rooflines = [each for each in workers.rooflines(session, view.project, task.target) if each is not None]
    timed = served.record.result if served is not None and isinstance(served.record.result, Timed) else None
    fastest = min((secs for _, secs in measured if secs is not None), default=None)
    table = Spec(
        id="trials",
        title="Trials",
        listing=listings.trials(view.project, task.workload, task.target),
        columns=_COLUMNS,
        choices={"failure": tuple(FailureKind)},
        empty="Nothing was measured yet.",
        rows=20,
    )
    return view.page(
        "task.html",
        table,
        job_id=job_id,
        position=position,
        task=task,
        best=best,
        fastest=fastest,
        failed=failed,
        measured=len(measured),
        points={
            "points": [[at + 1, secs] for at, (_, secs) in enumerate(measured)],
            "bound": task.bound_secs,
            "baseline": task.untuned_secs,
        },
        samples=None if timed is None else _samples(timed),
        check=None if timed is None else timed.check,
        roofline=_roofline(task, best, fastest, rooflines[0]) if rooflines and task.flops and task.bytes else None,
    )


@router.get("/records/{record_id}")
def record_page(view: UserView, record_id: str) -> Response:
    """One measured candidate: its samples, its check, its circumstances and its trace."""
    with view.reading() as session:
        found = records.view(session, view.project, record_id)
    record = found.record
    return view.page(
        "record.html",
        found=found,
        record=record,
        trace=_steps(record.trace),
        samples=_samples(record.result) if isinstance(record.result, Timed) else None,
    )


def _samples(timed: Timed) -> dict[str, Any]:
    """Every sample in the order of measuring, for a plot."""
    return {"points": [[at + 1, secs] for at, secs in enumerate(timed.run_secs)], "bound": None, "baseline": None}


def _roofline(task: TaskView, best: Best | None, fastest: float | None, roof: Roofline) -> dict[str, Any]:
    """FLOP/s against FLOPs per byte: the roofs, and where the task's best and its baseline lie.

    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009.
    """
    secs = best.secs if best is not None else fastest
    baseline_secs = task.untuned_secs or (best.baseline_secs if best is not None else None)
    return {
        "intensity": task.flops / task.bytes,
        "peak": roof.flops_per_sec,
        "levels": [{"name": level.name, "bytes_per_sec": level.bytes_per_sec} for level in roof.levels],
        "best": task.flops / secs if secs else None,
        "baseline": task.flops / baseline_secs if baseline_secs else None,
    }


def _steps(trace: str) -> str:
    """A trace with one instruction, or one decision, a line."""
    try:
        parts = json.loads(trace)
    except ValueError:
        return trace
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return json.dumps(parts, indent=1)
    return "\n\n".join("\n".join(json.dumps(step) for step in part) for part in parts)
