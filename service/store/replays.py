"""Schedules that were found under other circumstances than those of the workers that would use them now.

Circumstances are device class, toolchain and driver (values.Circumstances). Under others a schedule may be slow, compute
something else or not compile; so it is replayed (built, checked, timed) before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, Select, and_, case, func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import MEASURE_VERSION, Candidate, FailureKind
from pitchpipe.wire.record import Best, Earlier
from pitchpipe.wire.target import Target
from service.db import instant
from service.states import CandidateState
from service.store.records import measured_under
from service.store.values import Circumstances, best_of, get_circumstances, get_device, get_toolchain, target_digest
from service.tables import Batch, BestRow, CandidateRow, Record, spelled


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is known of a workload when a job begins."""

    workload: str
    best: Best | None
    """Served; None where candidates were timed and none was confirmed."""
    effort: float
    """Trials per task that the job which confirmed it offered."""
    current: bool
    """Whether it was confirmed under the circumstances of a worker that is active now."""


def circumstances_of(best: Best | Earlier | BestRow) -> Circumstances:
    """The circumstances under which it was confirmed."""
    return Circumstances(best.device_class, best.toolchain, best.driver)


def found(
    session: Session, project: str, workloads: Collection[str], target: Target, here: Collection[Circumstances]
) -> list[Found]:
    """What is known of the workloads for exactly this target; those of which nothing is known are left out.

    Of several bests of a workload one confirmed under one of the circumstances `here` counts first, then one of the same
    device class, then one of the same toolchain; among equals the newest.
    """
    chosen = standing(session, project, target, here, workloads)
    known = {
        workload: Found(workload=workload, best=best_of(row, row.trace), effort=row.effort, current=current)
        for workload, (row, current) in chosen.items()
    }
    for workload in _measured_elsewhere(session, project, set(workloads) - known.keys(), target, here):
        known[workload] = Found(workload=workload, best=None, effort=0.0, current=False)
    return [known[workload] for workload in dict.fromkeys(workloads) if workload in known]


def standing(
    session: Session,
    project: str,
    target: Target,
    here: Collection[Circumstances],
    workloads: Collection[str] | None = None,
) -> dict[str, tuple[BestRow, bool]]:
    """workload -> (the best that counts, in the order that `found` states; whether it was confirmed under `here`).

    workloads: None for all of the project.
    """
    classes, toolchains = ({getattr(each, name) for each in here} for name in ("device_class", "toolchain"))
    query = _bests(project, target)
    if workloads is not None:
        query = query.where(BestRow.workload.in_(set(workloads)))
    chosen: dict[str, tuple[tuple[object, ...], BestRow]] = {}
    for row in session.scalars(query.execution_options(populate_existing=True)):
        own = circumstances_of(row)
        rank = (
            not any(own.same(each) for each in here),
            row.device_class not in classes,
            row.toolchain not in toolchains,
            -row.confirmed_at,
            row.device_class,
        )
        if row.workload not in chosen or rank < chosen[row.workload][0]:
            chosen[row.workload] = rank, row
    return {workload: (row, not rank[0]) for workload, (rank, row) in chosen.items()}


def _measured_elsewhere(
    session: Session, project: str, workloads: Collection[str], target: Target, here: Collection[Circumstances]
) -> list[str]:
    """The workloads that have a timed record, but no record at all under the circumstances `here`."""
    rows = session.scalars(
        select(Record.workload)
        .where(
            Record.project == project,
            Record.workload.in_(workloads),
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
        )
        .group_by(Record.workload)
        .having(func.min(Record.secs).is_not(None), func.sum(case((measured_under(session, here), 1), else_=0)) == 0)
    )
    return list(rows)


def measured_by(session: Session, job: str, target: Target) -> frozenset[Circumstances]:
    """The circumstances under which the job has measured for the target."""
    rows = session.execute(
        select(Record.device_key, Record.toolchain_key)
        .join(CandidateRow, (CandidateRow.project == Record.project) & (CandidateRow.record == Record.id))
        .where(CandidateRow.job == job, CandidateRow.target_key == target_digest(target))
        .distinct()
    )
    return frozenset(get_circumstances(session, row.device_key, row.toolchain_key) for row in rows)


def unreplayed(
    session: Session,
    project: str,
    workload: str,
    target: Target,
    here: Collection[Circumstances],
    n: int,
    *,
    first: str | None = None,
    without: Collection[str] = (),
) -> list[tuple[Candidate, bytes | None]]:
    """At most `n` candidates that were timed, but never measured under the circumstances `here`, with their features.

    The candidate with the digest `first` comes first, then the fastest. Left out are the digests `without` and candidates
    that are already queued for a replay.
    """
    if n < 1:
        return []
    secs = func.min(Record.secs)
    under = func.sum(case((measured_under(session, here), 1), else_=0))
    waiting = (
        select(CandidateRow.id)
        .where(
            CandidateRow.project == project,
            CandidateRow.workload == workload,
            CandidateRow.target_key == target_digest(target),
            CandidateRow.digest == Record.candidate,
            CandidateRow.purpose == spelled(Purpose.REPLAY),
            CandidateRow.state.in_([spelled(state) for state in CandidateState if not state.terminal]),
        )
        .exists()
    )
    rows = session.execute(
        select(Record.candidate, func.min(Record.trace).label("trace"))
        .where(*_of(project, workload, target), Record.candidate.not_in(list(without)), ~waiting)
        .group_by(Record.candidate)
        .having(and_(secs.is_not(None), under == 0))
        .order_by(case((Record.candidate == first, 0), else_=1), secs, Record.candidate)
        .limit(n)
    ).all()
    features = session.execute(
        select(Record.candidate, Record.features).where(
            *_of(project, workload, target),
            Record.candidate.in_([row.candidate for row in rows]),
            Record.features.is_not(None),
        )
    )
    known: dict[str, bytes | None] = dict(features.all())
    return [(Candidate.of(workload, row.trace), known.get(row.candidate)) for row in rows]


def failures(session: Session, job: str, workload: str, target: Target) -> list[FailureKind | None]:
    """The failure of every candidate of a task that the job replayed, in the order of results; None for one with a time."""
    rows = session.scalars(
        select(Record.failure)
        .join(CandidateRow, (CandidateRow.project == Record.project) & (CandidateRow.record == Record.id))
        .join(Batch, Batch.id == CandidateRow.batch)
        .where(
            Batch.job == job,
            Batch.workload == workload,
            Batch.target_key == target_digest(target),
            Batch.purpose == Purpose.REPLAY,
        )
        .order_by(Record.seq)
    )
    return [None if failure is None else FailureKind(failure) for failure in rows]


def first_found(session: Session, project: str, workload: str, target: Target, best: Best) -> Earlier | None:
    """The measurement in which the schedule of a best was first found; None if that was under the circumstances of the best.

    It is taken from the bests that are or were served with this trace, which pass it on from replay to replay, else from
    the oldest timed record of the trace.
    """
    own = circumstances_of(best)
    served = [
        best_of(row, row.trace)
        for row in session.scalars(
            _bests(project, target).where(BestRow.workload == workload).order_by(BestRow.confirmed_at)
        )
        if row.trace == best.trace
    ]
    told = [one.replayed_from for one in served if one.replayed_from is not None]
    told += [one.provenance() for one in served]
    for earlier in told:
        if not circumstances_of(earlier).same(own):
            return earlier
    oldest = session.execute(_oldest(project, workload, target, candidate_digest(workload, best.trace))).one_or_none()
    found = None if oldest is None else _measured(session, oldest)
    return None if found is None or circumstances_of(found).same(own) else found


def _oldest(project: str, workload: str, target: Target, candidate: str) -> Select[*tuple[object, ...]]:
    return (
        select(Record.id, Record.secs, Record.device_key, Record.toolchain_key, Record.created_at)
        .where(*_of(project, workload, target), Record.candidate == candidate, Record.secs.is_not(None))
        .order_by(Record.seq)
        .limit(1)
    )


def _measured(session: Session, row: Row[*tuple[object, ...]]) -> Earlier:
    device = get_device(session, row.device_key)
    return Earlier(
        record=row.id,
        secs=row.secs,
        device_class=device.device_class,
        driver=device.driver,
        toolchain=get_toolchain(session, row.toolchain_key).key,
        measured_at=instant(row.created_at),
    )


def _of(project: str, workload: str, target: Target) -> Sequence[ColumnElement[bool]]:
    return (
        Record.project == project,
        Record.workload == workload,
        Record.target_key == target_digest(target),
        Record.measure_version == MEASURE_VERSION,
    )


def _bests(project: str, target: Target) -> Select[BestRow]:
    return select(BestRow).where(
        BestRow.project == project,
        BestRow.target_key == target_digest(target),
        BestRow.measure_version == MEASURE_VERSION,
    )
