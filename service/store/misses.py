"""Misses, the workloads that deployments found no schedule for: counted, ranked by the seconds spent on them, and given to
jobs within the project's budget.

A second spent without a schedule counts half after HALF_LIFE_SECS. All values decay at the same rate, so their order does
not change while nothing is reported. `rank` is the logarithm of a value as it would be at time zero,

    rank = ln(sum_i v_i exp(k t_i)),  k = ln 2 / HALF_LIFE_SECS,  value(t) = exp(rank - k t)

so an index on it never has to be updated for the decay (Cormode et al., "Forward Decay", ICDE 2009).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, case, delete, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import IdempotencyConflict, PitchpipeError
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.job import Budget, JobOrigin, JobRequest, JobState
from pitchpipe.wire.miss import (
    HALF_LIFE_SECS,
    IdleBudget,
    MissCount,
    MissReceipt,
    MissReport,
    MissStage,
    MissView,
)
from pitchpipe.wire.target import Target
from service.db import clock, instant
from service.store import jobs, models, records, savings
from service.store.values import get_target, insert, put_target, target_digest
from service.tables import Job, JobTask, Miss, MissReportRow, Project, WorkerRow, spelled

MAX_KEPT = 4096
"""Misses kept of a project; beyond that the least valuable are deleted."""
REPORTS_KEPT_SECS = 86400.0
"""How long a repeated report is recognised."""
UNKNOWN_SECS = 1e-3
"""Assumed seconds of one run where they are not known: misses of one report are then ranked by their runs."""
MAX_VALUE_SECS = 1e7
"""Most that one report may add to the value of a workload: a hundred days."""
TRANSFER_TRIALS = 4
"""Trials of a miss's first job, which re-fits as many schedules of similar workloads (service/coordination/job_run.py,
DONORS)."""
TUNE_TRIALS = 64
"""Trials of a miss's second job, which searches."""
MISSES_PER_JOB = 16
_DECAY = math.log(2) / HALF_LIFE_SECS
_DAY_SECS = 86400

_PLAN = (
    (MissStage.WAITING, MissStage.TRANSFERRING, JobOrigin.TRANSFER, TRANSFER_TRIALS),
    (MissStage.TRANSFERRED, MissStage.TUNING, JobOrigin.MISSES, TUNE_TRIALS),
)
"""(stage, stage while a job works on it, that job's origin, trials per workload), in the order in which jobs are made."""
_AFTER = {MissStage.TRANSFERRING: MissStage.TRANSFERRED, MissStage.TUNING: MissStage.TUNED}


def report(session: Session, project: str, body: MissReport, key: str | None = None) -> MissReceipt:
    """Counts what a deployment missed, and what it saved by schedules that were served. A report with a key that was used
    counts nothing and gives the earlier receipt.

    Raises NotFound for an unknown model, the reason of its refusal for one that was refused, and IdempotencyConflict for
    the same key with another body.
    """
    digest = json_digest(body.model_dump(mode="json"))
    if key is not None and (before := _reported(session, project, key, digest)) is not None:
        return before
    if body.model is not None:
        models.get(session, project, body.model)
    told = _summed(body.misses)
    carriers: dict[str, str] = (
        dict.fromkeys(told, body.model) if body.model else _carriers(session, project, list(told), body.target)
    )
    counted = sorted(workload for workload in told if carriers.get(workload))
    served = savings.counted(session, project, body.target, body.served)
    receipt = MissReceipt(
        counted=len({*counted, *(each.workload for each, _ in served)}),
        unknown=tuple(workload for workload in told if workload not in counted),
    )
    if key is not None:
        session.execute(
            update(MissReportRow)
            .where(MissReportRow.project == project, MissReportRow.key == key)
            .values(counted=receipt.counted, unknown=",".join(receipt.unknown))
        )
    if counted:
        _count(session, project, body.target, [told[workload] for workload in counted], carriers, body.model)
    savings.add(session, project, body.target, served)  # The row that all reports of a day change is locked last.
    return receipt


def list_(session: Session, project: str, target: Target | None = None, limit: int = 100) -> list[MissView]:
    """Misses of every stage, the most valuable first."""
    query = select(Miss).where(Miss.project == project)
    if target is not None:
        query = query.where(Miss.target_key == target_digest(target))
    at = clock(session)
    return [
        MissView(
            workload=row.workload,
            target=get_target(session, row.target_key),
            model=row.model,
            value_secs=value_secs(row.rank, at),
            runs=row.runs,
            default_secs=row.default_secs,
            stage=row.stage,
            job=row.job,
            reported_at=instant(row.reported_at),
        )
        for row in session.scalars(query.order_by(Miss.rank.desc()).limit(limit))
    ]


def value_secs(rank: float, at: float) -> float:
    """The value of a miss at the moment `at`."""
    return math.exp(rank - _DECAY * at)


def budget(session: Session, project: str) -> IdleBudget:
    """The project's budget in trials per day (UTC), and how many of today's were granted."""
    return _budget(session.get_one(Project, project, populate_existing=True), _today(session))


def _budget(owner: Project, today: int) -> IdleBudget:
    spent = owner.idle_spent if owner.idle_day == today else 0
    return IdleBudget(trials_per_day=owner.idle_trials, spent_today=spent)


def set_budget(session: Session, project: str, trials_per_day: int) -> IdleBudget:
    """Sets the budget from now on; trials that were granted today count against it."""
    session.execute(update(Project).where(Project.id == project).values(idle_trials=trials_per_day))
    return budget(session, project)


def due(session: Session) -> list[tuple[str, Target]]:
    """Every (project, target) that has misses to work on, a budget, and active workers without a job. Only reads."""
    waiting = select(Miss.project, Miss.target_key).join(Project, Project.id == Miss.project)
    rows = session.execute(
        waiting.where(
            Project.idle_trials > 0,
            Miss.stage.in_([spelled(stage) for stage, *_ in _PLAN]),
            select(WorkerRow.id)
            .where(
                WorkerRow.project == Miss.project, WorkerRow.target_key == Miss.target_key, WorkerRow.state == "active"
            )
            .exists(),
        ).distinct()
    ).all()
    busy = {
        (project, target.key)
        for project, request in session.execute(
            select(Job.project, Job.request).where(Job.finished_at.is_(None), Job.paused_at.is_(None))
        )
        for target in JobRequest.model_validate(request).targets
    }
    found = [(project, get_target(session, key)) for project, key in rows]
    return [(project, target) for project, target in found if (project, target.key) not in busy]


def take(session: Session, project: str, target: Target) -> str | None:
    """Makes a job for the most valuable misses of one model, with trials granted from today's budget; returns its id.

    None where there is no miss to work on or too little is left of the budget. One transaction grants the trials, makes the
    job and marks the misses; concurrent calls wait for the lock on the project's row, which is taken before anything is
    read.
    """
    owner = session.get_one(Project, project, with_for_update={"key_share": True}, populate_existing=True)
    today = _today(session)
    granted = _budget(owner, today)
    for stage, working, origin, each in _PLAN:
        due_ = (
            select(Miss)
            .where(Miss.project == project, Miss.target_key == target_digest(target), Miss.stage == spelled(stage))
            .order_by(Miss.rank.desc())
            .execution_options(populate_existing=True)
        )
        first = session.scalars(due_.limit(1)).one_or_none()
        if first is None:
            continue
        count = min(MISSES_PER_JOB, (granted.trials_per_day - granted.spent_today) // each)
        if count < 1:
            return None
        chosen = session.scalars(due_.where(Miss.model == first.model).limit(count)).all()
        trials = each * len(chosen)
        try:
            models.get(session, project, first.model)
        except PitchpipeError:  # Refused, and forgotten or about to be.
            for row in chosen:
                row.stage = MissStage.REFUSED
            session.flush()
            return None
        owner.idle_spent, owner.idle_day = granted.spent_today + trials, today
        request = JobRequest(model=first.model, targets=(target,), budget=Budget(trials=trials))
        job, _ = jobs.submit(session, project, request, origin=origin, only=[row.workload for row in chosen])
        for row in chosen:
            row.stage, row.job = working, job.id
        session.flush()
        return job.id
    return None


def at_work(session: Session) -> bool:
    """Whether `close_ended` would find something. Only reads."""
    return session.scalar(_ended().limit(1)) is not None


def close_ended(session: Session) -> int:
    """Sets the next stage of every miss whose job has ended; returns how many there were."""
    locked = _ended().order_by(Miss.target_key, Miss.workload).with_for_update(of=Miss)  # In the order of reports.
    rows = session.scalars(locked.execution_options(populate_existing=True)).all()
    for row in rows:
        state = session.execute(select(Job.state).where(Job.id == row.job)).scalar_one()
        row.stage = _AFTER[row.stage] if state is JobState.DONE else MissStage.REFUSED
    session.flush()
    return len(rows)


def _ended() -> Select[Miss]:
    return (
        select(Miss)
        .join(Job, Job.id == Miss.job)
        .where(Miss.stage.in_([spelled(stage) for stage in _AFTER]), Job.finished_at.is_not(None))
    )


def _reported(session: Session, project: str, key: str, digest: str) -> MissReceipt | None:
    """The receipt of an earlier report with the same key; None for a new key, which is stored."""
    at = clock(session)
    session.execute(
        delete(MissReportRow).where(MissReportRow.project == project, MissReportRow.at < at - REPORTS_KEPT_SECS),
        execution_options={"synchronize_session": False},
    )
    new = session.execute(
        insert(session, MissReportRow)
        .values(project=project, key=key, body_digest=digest, counted=0, unknown="", at=at)
        .on_conflict_do_nothing()
        .returning(MissReportRow.key)
    ).scalar_one_or_none()
    if new is not None:
        return None
    row = session.get_one(MissReportRow, (project, key), populate_existing=True)
    if row.body_digest != digest:
        raise IdempotencyConflict(f"the key {key!r} was used for another report")
    return MissReceipt(counted=row.counted, unknown=tuple(filter(None, row.unknown.split(","))))


def _summed(misses: Sequence[MissCount]) -> dict[str, MissCount]:
    """The counts added up to one entry per workload, in the order of the report."""
    runs: Counter[str] = Counter()
    found: dict[str, MissCount] = {}
    for miss in misses:
        runs[miss.workload] += miss.runs
        found[miss.workload] = miss.model_copy(
            update={
                "runs": runs[miss.workload],
                "default_secs": miss.default_secs
                or (found[miss.workload].default_secs if miss.workload in found else None),
            }
        )
    return found


def _carriers(session: Session, project: str, workloads: Sequence[str], target: Target) -> dict[str, str]:
    """workload -> the newest model that a job found it in, preferably for this target; unknown ones are left out."""
    rows = session.execute(
        select(JobTask.workload, Job.model)
        .join(Job, Job.id == JobTask.job)
        .where(JobTask.project == project, JobTask.workload.in_(workloads))
        .order_by(case((JobTask.target_key == target_digest(target), 1), else_=0), Job.id)
    )
    return dict(rows.all())  # Of several rows of a workload the last counts.


def _count(
    session: Session,
    project: str,
    target: Target,
    misses: Sequence[MissCount],
    carriers: dict[str, str],
    named: str | None,
) -> None:
    """Adds to the rows of these misses. Rows are locked in the order of their digests, so that reports do not deadlock."""
    digests = [miss.workload for miss in misses]
    key, at = put_target(session, target), clock(session)
    served = records.bests(session, project, digests, target)
    done = {w for w, effort in records.efforts(session, project, digests, target).items() if effort >= TUNE_TRIALS}
    old = {row.workload: row for row in _rows(session, project, key, digests)}
    fresh: list[dict[str, Any]] = []
    for miss in misses:
        best = served.get(miss.workload)
        secs = miss.default_secs or (best.baseline_secs if best is not None else None)
        known = old.get(miss.workload)
        value = miss.runs * (secs or (known.default_secs if known is not None else None) or UNKNOWN_SECS)
        rank = math.log(min(value, MAX_VALUE_SECS)) + _DECAY * at
        fresh.append(
            {
                "project": project,
                "target_key": key,
                "workload": miss.workload,
                "model": carriers[miss.workload],
                "rank": rank,
                "runs": miss.runs,
                "default_secs": secs,
                "stage": MissStage.TUNED if miss.workload in done else MissStage.WAITING,
                "reported_at": at,
            }
        )
    new = set(session.scalars(insert(session, Miss).on_conflict_do_nothing().returning(Miss.workload), fresh))
    again = {row["workload"]: row for row in fresh if row["workload"] not in new}
    for row in _rows(session, project, key, list(again)):
        told = again[row.workload]
        row.rank = _log_sum(row.rank, told["rank"])
        row.runs = min(row.runs + told["runs"], 2**62)
        row.default_secs = told["default_secs"] or row.default_secs
        row.reported_at = at
        if named is not None and named != row.model and row.stage is MissStage.REFUSED:
            row.model, row.stage = named, MissStage.WAITING
    session.flush()
    _forget_the_least(session, project)


def _rows(session: Session, project: str, key: str, workloads: Sequence[str]) -> Sequence[Miss]:
    return session.scalars(
        select(Miss)
        .where(Miss.project == project, Miss.target_key == key, Miss.workload.in_(workloads))
        .order_by(Miss.workload)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()


def _log_sum(one: float, other: float) -> float:
    """ln(exp(one) + exp(other))."""
    return max(one, other) + math.log1p(math.exp(-abs(one - other)))


def _forget_the_least(session: Session, project: str) -> None:
    least = session.scalars(
        select(Miss.rank).where(Miss.project == project).order_by(Miss.rank.desc()).offset(MAX_KEPT).limit(1)
    ).one_or_none()
    if least is None:
        return
    # Rows that another report has locked are left to the next one, so that no two wait for each other.
    beyond = select(Miss).where(
        Miss.project == project, Miss.rank <= least, Miss.stage.not_in([spelled(stage) for stage in _AFTER])
    )
    for row in session.scalars(beyond.with_for_update(skip_locked=True)):
        session.delete(row)
    session.flush()


def _today(session: Session) -> int:
    return int(clock(session) // _DAY_SECS)
