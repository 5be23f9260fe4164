"""The tables of the dashboard, as listings (listing.py)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, String, case, func, select, type_coerce
from sqlalchemy.orm import Session

from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.target import Target
from service.db import clock
from service.store.listing import Listing, Row
from service.store.misses import value_secs
from service.store.values import target_digest
from service.tables import (
    BestRow,
    BrowserSession,
    CostModelChangeRow,
    CostModelRow,
    Job,
    JobTask,
    Miss,
    Model,
    Project,
    Record,
    StoredDevice,
    StoredTarget,
    StoredWorkload,
    Token,
    WorkerRow,
)


def _text(column: Any) -> ColumnElement[str]:
    """A column of states as the text that it is stored as."""
    return type_coerce(column, String)


def _target(body: Any) -> ColumnElement[str]:
    """A target in a word: its processor or its architecture."""
    return func.coalesce(body["mcpu"].as_string(), body["arch"].as_string(), body["kind"].as_string())


def jobs(project: str, *, running: bool = False) -> Listing:
    """Jobs of a project; with `running` those that have not ended."""
    progress, query = Job.progress, select(Job.id).join(Model, Model.id == Job.model).where(Job.project == project)
    return Listing(
        query=query.where(Job.finished_at.is_(None)) if running else query,
        columns={
            "id": Job.id,
            "model": Model.name,
            "state": _text(Job.state),
            "origin": _text(Job.origin),
            "trials": Job.trials,
            "failed_trials": Job.failed_trials,
            "best_secs": progress["best_secs"].as_float(),
            "spent_secs": Job.spent_secs,
            "created_at": Job.created_at,
            "finished_at": Job.finished_at,
        },
        key=Job.id,
        searched=("id", "model"),
        filters=("state", "origin"),
        sort="-created_at",
    )


def tasks(project: str, job: str) -> Listing:
    """Tasks of a job, with the best time measured so far of each, and what there is left to gain of a run of the model."""
    # One entry of an index a task, where grouping would read every record of the job's workloads.
    fastest = (
        select(func.min(Record.secs))
        .where(
            Record.project == project,
            Record.workload == JobTask.workload,
            Record.target_key == JobTask.target_key,
            Record.measure_version == MEASURE_VERSION,
        )
        .correlate(JobTask)
        .scalar_subquery()
    )
    weight, body = JobTask.body["weight"].as_integer(), JobTask.body
    best = func.coalesce(JobTask.tuned_secs, fastest)
    return Listing(
        query=select(JobTask.job)
        .join(StoredTarget, StoredTarget.key == JobTask.target_key)
        .where(JobTask.job == job, JobTask.project == project),
        columns={
            "job": JobTask.job,
            "position": JobTask.position,
            "name": body["name"].as_string(),
            "target": _target(StoredTarget.body),
            "kind": body["kind"].as_string(),
            "weight": weight,
            "trials": JobTask.trials,
            "failed_trials": JobTask.failed_trials,
            "untuned_secs": JobTask.untuned_secs,
            "best_secs": best,
            "bound_secs": JobTask.bound_secs,
            "share": JobTask.bound_secs / best,
            "left_secs": case((best > JobTask.bound_secs, weight * (best - JobTask.bound_secs)), else_=None),
        },
        key=JobTask.position,
        searched=("name",),
        filters=("kind",),
        sort="-left_secs",
    )


def trials(project: str, workload: str, target: Target) -> Listing:
    """Everything measured of a task."""
    return Listing(
        query=select(Record.id).where(
            Record.project == project,
            Record.workload == workload,
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
        ),
        columns={
            "seq": Record.seq,
            "id": Record.id,
            "secs": Record.secs,
            "failure": Record.failure,
            "detail": Record.result["detail"].as_string(),
            "worker": Record.worker,
            "created_at": Record.created_at,
        },
        key=Record.seq,
        searched=("id", "detail"),
        filters=("failure",),
        sort="secs",
    )


def workers(project: str) -> Listing:
    """Workers of a project."""
    return Listing(
        query=select(WorkerRow.id)
        .join(StoredDevice, StoredDevice.key == WorkerRow.device_key)
        .join(StoredTarget, StoredTarget.key == WorkerRow.target_key)
        .where(WorkerRow.project == project),
        columns={
            "id": WorkerRow.id,
            "name": WorkerRow.name,
            "state": _text(WorkerRow.state),
            "device": StoredDevice.body["model"].as_string(),
            "target": _target(StoredTarget.body),
            "trials": WorkerRow.trials,
            "steadiness": WorkerRow.steadiness["ratio"].as_float(),
            "flops_per_sec": WorkerRow.roofline["flops_per_sec"].as_float(),
            "last_seen_at": WorkerRow.last_seen_at,
        },
        key=WorkerRow.id,
        searched=("name", "device"),
        filters=("state",),
        sort="-last_seen_at",
    )


def schedules(project: str) -> Listing:
    """What a project serves, one row for each workload, target and device class."""
    devices = (
        select(StoredDevice.device_class, func.min(StoredDevice.body["model"].as_string()).label("model"))
        .group_by(StoredDevice.device_class)
        .subquery()
    )
    return Listing(
        query=select(BestRow.workload)
        .join(StoredTarget, StoredTarget.key == BestRow.target_key)
        .outerjoin(
            StoredWorkload,
            (StoredWorkload.project == BestRow.project) & (StoredWorkload.digest == BestRow.workload),
        )
        .outerjoin(devices, devices.c.device_class == BestRow.device_class)
        .where(BestRow.project == project, BestRow.measure_version == MEASURE_VERSION),
        columns={
            "workload": BestRow.workload,
            "operators": StoredWorkload.signature["operators"].as_string(),
            "target": _target(StoredTarget.body),
            "device": devices.c.model,
            "secs": BestRow.secs,
            "baseline_secs": BestRow.baseline_secs,
            "speedup": BestRow.baseline_secs / BestRow.secs,
            "origin": _text(BestRow.origin),
            "record": BestRow.record,
            "confirmed_at": BestRow.confirmed_at,
            "pinned_at": BestRow.pinned_at,
            "target_key": BestRow.target_key,
            "device_class": BestRow.device_class,
        },
        key=BestRow.workload + BestRow.target_key + BestRow.device_class,
        searched=("workload", "operators", "device"),
        filters=("origin", "target"),
        sort="-confirmed_at",
    )


def misses(session: Session, project: str) -> Listing:
    """What deployments missed."""
    at = clock(session)

    def with_value(row: Row) -> Row:
        return row | {"value_secs": value_secs(row.pop("rank"), at)}

    return Listing(
        query=select(Miss.workload)
        .join(StoredTarget, StoredTarget.key == Miss.target_key)
        .outerjoin(Model, (Model.id == Miss.model) & (Model.project == Miss.project))
        .where(Miss.project == project),
        columns={
            "workload": Miss.workload,
            "target": _target(StoredTarget.body),
            "model": Model.name,
            "rank": Miss.rank,
            "runs": Miss.runs,
            "default_secs": Miss.default_secs,
            "stage": _text(Miss.stage),
            "job": Miss.job,
            "reported_at": Miss.reported_at,
        },
        key=Miss.workload + Miss.target_key,
        searched=("workload", "model"),
        filters=("stage",),
        sort="-rank",
        finish=with_value,
    )


def cost_models(project: str) -> Listing:
    """Versions of a project's cost models."""
    row = CostModelRow
    return Listing(
        query=select(row.id).where(row.project == project),
        columns={
            "id": row.id,
            "target_kind": row.target_kind,
            "version": row.version,
            "state": _text(row.state),
            "origin": _text(row.origin),
            "parent": row.parent,
            "samples": row.samples,
            "tasks": row.data["tasks"].as_integer(),
            "held_out_tasks": row.metrics["held_out_tasks"].as_float(),
            "pairwise": row.metrics["pairwise"].as_float(),
            "shadow_tasks": row.shadow["tasks"].as_integer(),
            "shadow_pairwise": row.shadow["pairwise"].as_float(),
            "shadow_rival": row.shadow["rival_pairwise"].as_float(),
            "reason": row.reason,
            "created_at": row.created_at,
        },
        key=row.id,
        searched=("id", "reason"),
        filters=("target_kind", "state"),
        sort="-created_at",
    )


def cost_model_changes(project: str, target_kind: str) -> Listing:
    """Which version of a kind of target served since when, and why."""
    row = CostModelChangeRow
    return Listing(
        query=select(row.id).where(row.project == project, row.target_kind == target_kind),
        columns={
            "at": row.at,
            "version": row.version,
            "replaced": row.replaced,
            "by": row.by,
            "reason": row.reason,
        },
        key=row.id,
        searched=("reason",),
        sort="-at",
    )


def tokens(project: str | None) -> Listing:
    """Tokens of a project, or with None of all, without their text."""
    query = select(Token.id).outerjoin(Project, Project.id == Token.project)
    return Listing(
        query=query if project is None else query.where(Token.project == project),
        columns={
            "id": Token.id,
            "project": Project.name,
            "scope": _text(Token.scope),
            "label": Token.label,
            "created_at": Token.created_at,
            "revoked_at": Token.revoked_at,
        },
        key=Token.id,
        searched=("id", "label"),
        filters=("scope",),
        sort="-created_at",
    )


def sessions(project: str | None) -> Listing:
    """Who is signed in to the dashboard with a token of a project, or with None of any."""
    query = (
        select(BrowserSession.id).join(Token, Token.id == BrowserSession.token).where(BrowserSession.once.is_(False))
    )
    return Listing(
        query=query if project is None else query.where(Token.project == project),
        columns={
            "id": BrowserSession.id,
            "token": Token.id,
            "label": Token.label,
            "scope": _text(Token.scope),
            "created_at": BrowserSession.created_at,
            "expires_at": BrowserSession.expires_at,
        },
        key=BrowserSession.id,
        searched=("label",),
        sort="-created_at",
    )
