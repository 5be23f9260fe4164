"""Tuning records and the best of them. A query sees records of its own project and exactly its own target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, false, func, or_, select, true, update
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidInput, NotFound
from pitchpipe.wire.context import Context
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import MEASURE_VERSION, Timed
from pitchpipe.wire.record import Best, Origin, RecordView, TuningRecord, WonInContext
from pitchpipe.wire.target import Target
from service.db import instant, now
from service.store import workloads
from service.store.paging import page
from service.store.values import (
    Circumstances,
    best_of,
    get_device,
    get_target,
    get_toolchain,
    insert,
    measurement,
    put_device,
    put_target,
    put_toolchain,
    target_digest,
)
from service.tables import BestRow, InContextRow, JobTask, Project, Record, StoredDevice, StoredToolchain, spelled


def add(
    session: Session, project: str, records: Sequence[TuningRecord], features: Mapping[str, bytes] | None = None
) -> int:
    """Stores records, except those whose id is known; returns how many were new.

    features: candidate digest -> packed features, which are stored with the candidate's record.
    """
    rows = [_row(session, project, record, features or {}) for record in records]
    if not rows:
        return 0
    return len(session.scalars(insert(session, Record).on_conflict_do_nothing().returning(Record.id), rows).all())


def list_(
    session: Session,
    project: str,
    *,
    workload: str | None = None,
    target: Target | None = None,
    timed: bool | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[TuningRecord], str | None]:
    """Newest first; `timed` False gives failures only."""
    query = select(Record).where(Record.project == project)
    if workload is not None:
        query = query.where(Record.workload == workload)
    if target is not None:
        query = query.where(Record.target_key == target_digest(target))
    if timed is not None:
        query = query.where(Record.secs.is_not(None) if timed else Record.secs.is_(None))
    rows, following = page(session, query, Record.id, "rec", cursor, limit)
    return [_record(session, row) for row in rows], following


def view(session: Session, project: str, record: str) -> RecordView:
    """One record with its workload, the name and the baseline of its task in the newest job, and where it won inside models.

    Raises NotFound.
    """
    row = session.execute(select(Record).where(Record.project == project, Record.id == record)).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no record {record}")
    task = session.scalars(
        select(JobTask.body)
        .where(JobTask.project == project, JobTask.workload == row.workload, JobTask.target_key == row.target_key)
        .order_by(JobTask.job.desc())
        .limit(1)
    ).first()
    known = {name: task[name] for name in ("name", "baseline") if name in task} if task is not None else {}
    contexts = session.scalars(
        select(InContextRow)
        .where(InContextRow.project == project, InContextRow.workload == row.workload, InContextRow.record == row.id)
        .order_by(InContextRow.confirmed_at.desc())
    )
    return RecordView(
        record=_record(session, row),
        ir=workloads.get(session, project, row.workload).ir,
        won_in=tuple(
            WonInContext(
                context=Context.model_validate(won.neighbours),
                model=won.model,
                before_secs=won.before_secs,
                after_secs=won.after_secs,
                stands=bool(won.instead),
                at=instant(won.confirmed_at),
            )
            for won in contexts
        ),
        **known,
    )


def for_task(session: Session, project: str, workload: str, target: Target) -> list[TuningRecord]:
    """Every record of this measure version for exactly this workload and target, oldest first."""
    rows = session.scalars(
        select(Record)
        .where(
            Record.project == project,
            Record.workload == workload,
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
        )
        .order_by(Record.seq)
    )
    return [_record(session, row) for row in rows]


def fastest(
    session: Session, project: str, workload: str, target: Target, n: int, here: Collection[Circumstances] | None = None
) -> tuple[tuple[str, float | None], ...]:
    """(trace, least median seconds) of at most `n` candidates: the fastest first, then those without a time, oldest first.

    here: only records measured under one of these circumstances count, since times under others are not comparable.
    """
    secs, trace = func.min(Record.secs), func.min(Record.trace)
    rows = session.execute(
        select(trace, secs)
        .where(
            Record.project == project,
            Record.workload == workload,
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
            true() if here is None else measured_under(session, here),
        )
        .group_by(Record.candidate)
        .order_by(secs.asc().nulls_last(), func.min(Record.seq))
        .limit(n)
    )
    return tuple((trace, secs) for trace, secs in rows)


def measured_under(session: Session, circumstances: Collection[Circumstances]) -> ColumnElement[bool]:
    """Whether a Record was measured under one of the circumstances."""
    classes = {each.device_class for each in circumstances}
    devices = session.execute(
        select(StoredDevice.key, StoredDevice.device_class, StoredDevice.body["driver"].as_string()).where(
            StoredDevice.device_class.in_(classes)
        )
    ).all()
    labels = {each.toolchain for each in circumstances}
    toolchains = session.execute(
        select(StoredToolchain.key, StoredToolchain.label).where(StoredToolchain.label.in_(labels))
    ).all()
    by_toolchain = (
        (key, [d for d, of, driver in devices if any(Circumstances(of, label, driver).same(c) for c in circumstances)])
        for key, label in toolchains
    )
    return or_(
        false(),
        *(and_(Record.toolchain_key == toolchain, Record.device_key.in_(keys)) for toolchain, keys in by_toolchain),
    )


def set_best(
    session: Session, project: str, workload: str, target: Target, best: Best, *, effort: float = 0.0, owed: float = 0.0
) -> None:
    """Serves `best` from now on, in place of the older one of its device class.

    `effort` and `owed` (see BestRow) are its first values; larger ones of the older stay where circumstances are the same.
    One that was found by a search is not replaced by a transferred one, nor one that was pinned by any.

    Raises InvalidInput unless its record is a timed one of this project, workload, target, trace and device class, and
    was no slower than the baseline. A `best` without a record says that the baseline won.
    """
    worker = None
    if best.record is not None:
        row = session.execute(
            select(Record).where(Record.project == project, Record.id == best.record)
        ).scalar_one_or_none()
        key = (workload, target_digest(target), MEASURE_VERSION)
        if row is None or (row.workload, row.target_key, row.measure_version) != key:
            raise InvalidInput(f"{best.record} is not a record of this workload and target")
        if row.secs is None:
            raise InvalidInput(f"{best.record} failed: {row.failure}; only a verified time is served")
        if candidate_digest(workload, best.trace) != row.candidate:
            raise InvalidInput(f"{best.record} has another trace")
        if get_device(session, row.device_key).device_class != best.device_class:
            raise InvalidInput(f"{best.record} was measured on another device class")
        if best.baseline_secs is not None and best.secs > best.baseline_secs:
            raise InvalidInput(f"{best.record} is slower than the baseline, which is served in its place")
        worker = row.worker
    elif best.secs != best.baseline_secs:
        raise InvalidInput("a best without a record is the baseline itself: its time is the baseline's")
    if (best.origin is Origin.TRANSFERRED) != (best.source is not None):
        raise InvalidInput("a schedule names the workload that it was transferred from exactly when it was")
    columns = best.model_dump(exclude={"confirmed_at", "device_class"}) | {
        "confirmed_at": best.confirmed_at.timestamp(),
        "replayed_from": None if best.replayed_from is None else best.replayed_from.model_dump(mode="json"),
        "worker": worker,
    }
    begun = {"effort": effort, "owed": owed}
    next_generation(session, project)
    statement = insert(session, BestRow).values(
        project=project,
        target_key=put_target(session, target),
        workload=workload,
        measure_version=MEASURE_VERSION,
        device_class=best.device_class,
        **columns,
        **begun,
    )
    given = statement.excluded
    differs = or_(BestRow.toolchain != given.toolchain, BestRow.driver != given.driver)
    kept = {
        name: case(
            (or_(differs, BestRow.__table__.c[name] < given[name]), given[name]), else_=BestRow.__table__.c[name]
        )
        for name in begun
    }
    session.execute(
        statement.on_conflict_do_update(
            index_elements=list(BestRow.__table__.primary_key),
            set_={name: given[name] for name in columns} | kept,
            where=and_(
                BestRow.pinned_at.is_(None),
                or_(given.origin == spelled(Origin.TUNED), BestRow.origin == spelled(Origin.TRANSFERRED)),
            ),
        )
    )


def next_generation(session: Session, project: str) -> None:
    """Raises the project's generation. Called before a transaction changes what is served, so that the lock on the
    project's row orders such transactions."""
    at = cast(now(session) * 1e6, BigInteger)
    session.execute(
        update(Project)
        .where(Project.id == project)
        .values(generation=case((Project.generation >= at, Project.generation + 1), else_=at))
    )


def best(session: Session, project: str, workload: str, target: Target) -> Best | None:
    """The newest best of any device class for exactly this target."""
    return bests(session, project, [workload], target).get(workload)


def bests(
    session: Session,
    project: str,
    workloads: Sequence[str],
    target: Target,
    device_class: str | None = None,
    toolchain: str | None = None,
) -> dict[str, Best]:
    """The best of each workload for exactly this target, in one query; those without one are left out.

    Of several device classes the asked one comes first, then the asked toolchain, then the newest.
    """
    fits = [
        case((column == value, 0), else_=1)
        for column, value in ((BestRow.device_class, device_class), (BestRow.toolchain, toolchain))
        if value is not None
    ]
    rows = session.scalars(
        select(BestRow)
        .where(
            BestRow.project == project,
            BestRow.target_key == target_digest(target),
            BestRow.workload.in_(set(workloads)),
            BestRow.measure_version == MEASURE_VERSION,
        )
        .order_by(*fits, BestRow.confirmed_at.desc(), BestRow.device_class)
        .execution_options(populate_existing=True)
    )
    found: dict[str, Best] = {}
    for row in rows:
        if row.workload not in found:
            found[row.workload] = best_of(row, row.trace)
    return found


def add_effort(session: Session, project: str, workload: str, target: Target, device_class: str, effort: float) -> None:
    """Records that a finished job offered `effort` (trials per task) to a workload whose best it confirmed on the device
    class; the largest effort is kept."""
    session.execute(
        update(BestRow)
        .where(
            BestRow.project == project,
            BestRow.target_key == target_digest(target),
            BestRow.workload == workload,
            BestRow.measure_version == MEASURE_VERSION,
            BestRow.device_class == device_class,
        )
        .values(effort=case((BestRow.effort < effort, effort), else_=BestRow.effort), owed=0.0)
    )


def efforts(session: Session, project: str, workloads: Sequence[str], target: Target) -> dict[str, float]:
    """workload -> the largest effort that a finished job offered it, on any device; workloads without one are left out."""
    rows = session.execute(
        select(BestRow.workload, func.max(BestRow.effort))
        .where(
            BestRow.project == project,
            BestRow.target_key == target_digest(target),
            BestRow.workload.in_(set(workloads)),
            BestRow.measure_version == MEASURE_VERSION,
            BestRow.effort > 0,
        )
        .group_by(BestRow.workload)
    )
    return dict(rows.all())


def _row(session: Session, project: str, record: TuningRecord, features: Mapping[str, bytes]) -> dict[str, Any]:
    result = record.result
    digest = result.candidate
    return {
        "project": project,
        "id": record.id,
        "workload": record.workload,
        "target_key": put_target(session, record.target),
        "target_kind": record.target.kind,
        "candidate": digest,
        "trace": record.trace,
        "secs": result.secs if isinstance(result, Timed) else None,
        "failure": None if isinstance(result, Timed) else result.kind.value,
        "result": result.model_dump(mode="json"),
        "features": features.get(digest),
        "device_key": put_device(session, record.device),
        "toolchain_key": put_toolchain(session, record.toolchain),
        "measure_version": record.measure_version,
        "worker": record.worker,
        "created_at": record.created_at.timestamp(),
        "schema_version": record.schema_version,
    }


def _record(session: Session, row: Record) -> TuningRecord:
    return TuningRecord(
        id=row.id,
        workload=row.workload,
        target=get_target(session, row.target_key),
        trace=row.trace,
        result=measurement(row),
        device=get_device(session, row.device_key),
        toolchain=get_toolchain(session, row.toolchain_key),
        measure_version=row.measure_version,
        worker=row.worker,
        created_at=instant(row.created_at),
        schema_version=row.schema_version,
    )
