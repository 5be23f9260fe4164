"""What served schedules saved deployments, by day.

A deployment tells how often it ran a schedule that a look-up had served, with that schedule's seconds and the baseline's in
the confirming run. Its runs saved

    runs x (baseline - schedule)

The baseline is the unscheduled program, and on a CPU nobody who has Pitchpipe runs that: what has no tuned schedule runs
its default schedule. So what was saved over default schedules is summed beside it, of those workloads whose default schedule
was ever timed on a device of the class that confirmed the schedule. Its time is the least median of its trials, since a
timing that was disturbed must not look like a saving. On a GPU the baseline is the default schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import BASELINE_TRACE, MEASURE_VERSION
from pitchpipe.wire.miss import ServedCount
from pitchpipe.wire.savings import Saved, SavedDay, Savings
from pitchpipe.wire.target import Target
from service.db import clock, instant
from service.store.values import insert, target_digest
from service.tables import JobTask, Record, SavedRow, StoredDevice

_MAX_RUNS = 10**12
"""Most runs that one report adds: millions of reports a day fit into a column."""
_EPOCH = date(1970, 1, 1)
_NOTHING = Saved(runs=0, baseline_saved_secs=0.0, default_runs=0, default_saved_secs=0.0)


class _Place(NamedTuple):
    """What a time is comparable within, of one project and target."""

    workload: str
    device_class: str


def counted(
    session: Session, project: str, target: Target, told: Sequence[ServedCount]
) -> list[tuple[ServedCount, str]]:
    """The counts whose record is one of the project for that workload and target, with the device class that it was
    measured on. Only reads."""
    if not told:
        return []
    rows = session.execute(
        select(Record.id, Record.workload, StoredDevice.device_class)
        .join(StoredDevice, StoredDevice.key == Record.device_key)
        .where(
            Record.project == project,
            Record.id.in_({each.record for each in told}),
            Record.target_key == target_digest(target),
        )
    )
    classes = {(record, workload): device_class for record, workload, device_class in rows}
    found = ((each, classes.get((each.record, each.workload))) for each in told)
    return [(each, device_class) for each, device_class in found if device_class is not None]


def add(session: Session, project: str, target: Target, runs: Sequence[tuple[ServedCount, str]]) -> None:
    """Adds what these runs, as `counted` found them, saved to today's sums."""
    if not runs:
        return
    baselines = {_Place(each.workload, device): each.baseline_secs for each, device in runs}
    defaults = _default_secs(session, project, target, baselines)
    sums = {"runs": 0, "baseline_saved_secs": 0.0, "default_runs": 0, "default_saved_secs": 0.0}
    for each, device in runs:
        sums["runs"] += each.runs
        if each.baseline_secs is not None:
            sums["baseline_saved_secs"] += each.runs * (each.baseline_secs - each.secs)
        default_secs = defaults.get(_Place(each.workload, device))
        if default_secs is not None:
            sums["default_runs"] += each.runs
            sums["default_saved_secs"] += each.runs * (default_secs - each.secs)
    for name in ("runs", "default_runs"):
        sums[name] = min(sums[name], _MAX_RUNS)
    statement = insert(session, SavedRow).values(project=project, day=_today(session), **sums)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=list(SavedRow.__table__.primary_key),
            set_={name: SavedRow.__table__.c[name] + statement.excluded[name] for name in sums},
        )
    )


def by_day(session: Session, project: str, days: int) -> Savings:
    """The last `days` days, today included."""
    today = _today(session)
    rows = session.scalars(select(SavedRow).where(SavedRow.project == project, SavedRow.day > today - days))
    known = {
        row.day: Saved(
            runs=row.runs,
            baseline_saved_secs=row.baseline_saved_secs,
            default_runs=row.default_runs,
            default_saved_secs=row.default_saved_secs,
        )
        for row in rows
    }
    return Savings(
        days=tuple(
            SavedDay(day=_EPOCH + timedelta(days=day), **dict(known.get(day, _NOTHING)))
            for day in range(today - days + 1, today + 1)
        )
    )


def _default_secs(
    session: Session, project: str, target: Target, baselines: Mapping[_Place, float | None]
) -> dict[_Place, float]:
    """Seconds of default schedules, where they are known. `baselines`: those of the confirming runs."""
    traces = _default_traces(session, project, target, {place.workload for place in baselines})
    found: dict[_Place, float] = {}
    for place, baseline_secs in baselines.items():
        default, baseline = traces.get(place.workload, (None, None))
        if default is not None and default == baseline and baseline_secs is not None:
            found[place] = baseline_secs
    candidates = {
        candidate_digest(workload, default): workload
        for workload, (default, baseline) in traces.items()
        if default is not None and default != baseline
    }
    rows = session.execute(
        select(Record.workload, StoredDevice.device_class, func.min(Record.secs))
        .join(StoredDevice, StoredDevice.key == Record.device_key)
        .where(
            Record.project == project,
            Record.workload.in_(set(candidates.values())),
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
            Record.candidate.in_(candidates),
        )
        .group_by(Record.workload, StoredDevice.device_class)
    )
    timed = {_Place(workload, device_class): secs for workload, device_class, secs in rows if secs is not None}
    return found | timed


def _default_traces(
    session: Session, project: str, target: Target, workloads: Collection[str]
) -> dict[str, tuple[str | None, str]]:
    """workload -> (trace of its default schedule, trace of its baseline), as the newest job has them."""
    asked = (
        JobTask.project == project,
        JobTask.workload.in_(workloads),
        JobTask.target_key == target_digest(target),
    )
    last = func.max(JobTask.job).label("job")
    newest = select(JobTask.workload, last).where(*asked).group_by(JobTask.workload).subquery()
    rows = session.execute(
        select(JobTask.workload, JobTask.body["fixed"].as_string(), JobTask.body["baseline"].as_string())
        .join(newest, (JobTask.workload == newest.c.workload) & (JobTask.job == newest.c.job))
        .where(*asked)
    )
    return {workload: (default, baseline or BASELINE_TRACE) for workload, default, baseline in rows}


def _today(session: Session) -> int:
    return (instant(clock(session)).date() - _EPOCH).days
