"""Records by id, for lock files: of this project, confirmed once, for a target that the asking one includes. And what a user
pins of all that is served, for everybody."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, null, select, update
from sqlalchemy.orm import Session

from pitchpipe import target_kind
from pitchpipe.errors import NotFound
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.pin import Pin, PinnedSchedule, PinRequest, PinResponse
from service.db import now
from service.store.lookups import one_of
from service.store.values import targets
from service.tables import Batch, BestRow, CandidateRow, InContextRow, Record


def resolve(session: Session, project: str, request: PinRequest) -> PinResponse:
    """One answer per pin. A record that something faster replaced still resolves: that is what a lock is for."""
    ids = [pin.record for pin in request.pins]
    workloads = [pin.workload for pin in request.pins]
    columns = (Record.id, Record.workload, Record.target_key, Record.measure_version, Record.trace, Record.secs)
    rows = session.execute(select(*columns).where(Record.project == project, one_of(session, Record.id, ids)))
    found = {row.id: row for row in rows}
    known = targets(session, {row.target_key for row in found.values()})
    served = set(
        session.scalars(
            select(BestRow.record).where(BestRow.project == project, one_of(session, BestRow.workload, workloads))
        )
    )
    in_context = session.execute(
        select(InContextRow.record, InContextRow.instead).where(
            InContextRow.project == project, one_of(session, InContextRow.workload, workloads)
        )
    ).all()
    served |= {row.record for row in in_context if row.instead}
    once = {row.record for row in in_context} | set(
        session.scalars(
            select(CandidateRow.record)
            .join(Batch, Batch.id == CandidateRow.batch)
            .where(
                Batch.project == project,
                Batch.purpose == Purpose.CONFIRM,
                one_of(session, Batch.workload, workloads),
                one_of(session, CandidateRow.record, ids),
            )
        )
    )

    def one(pin: Pin) -> PinnedSchedule:
        row = found.get(pin.record)
        reason = _refusal(pin, row, request, known, confirmed=pin.record in served | once)
        if row is None or reason:
            return PinnedSchedule(workload=pin.workload, record=pin.record, reason=reason)
        return PinnedSchedule(
            workload=pin.workload, record=pin.record, trace=row.trace, secs=row.secs, served=pin.record in served
        )

    return PinResponse(schedules=tuple(one(pin) for pin in request.pins))


def hold(session: Session, project: str, workload: str, target_key: str, device_class: str, *, pinned: bool) -> None:
    """Pins a best, so that nothing takes its place, or unpins it. Idempotent; raises NotFound where none is served."""
    of = (
        BestRow.project == project,
        BestRow.workload == workload,
        BestRow.target_key == target_key,
        BestRow.device_class == device_class,
        BestRow.measure_version == MEASURE_VERSION,
    )
    at = func.coalesce(BestRow.pinned_at, now(session)) if pinned else null()
    changed = session.execute(update(BestRow).where(*of).values(pinned_at=at).returning(BestRow.workload))
    if changed.scalar_one_or_none() is None:
        raise NotFound("no schedule is served for this workload, target and device class")


def _refusal(pin: Pin, row: Any, request: PinRequest, known: Any, *, confirmed: bool) -> str:
    """Why the record may not be run; empty when it may."""
    if row is None:
        return "no such record in this project"
    if row.workload != pin.workload:
        return "the record is of another workload"
    if row.secs is None or not confirmed:
        return "the record was never confirmed against the baseline"
    if row.measure_version != MEASURE_VERSION:
        return "the record is from an older way of measuring"
    fit = target_kind.fit(request.target, known[row.target_key])
    return "" if fit.fits else f"the record is for {target_kind.describe(known[row.target_key])}: {fit.reason}"
