"""Records that have features: what cost models are trained and judged on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.measure import MEASURE_VERSION
from service.tables import Record


@dataclass(frozen=True, kw_only=True)
class MeasuredSample:
    """A record as a sample."""

    seq: int
    """Its place in the order of arrival."""
    workload: str
    features: bytes
    secs: float | None
    """Median seconds; None for a failure."""
    created_at: float


def newest(session: Session, project: str, target_kind: str, limit: int, *, after: int = 0) -> list[MeasuredSample]:
    """Samples of the newest `limit` records with features that arrived after number `after`, newest first."""
    rows = session.execute(
        select(Record.seq, Record.workload, Record.features, Record.secs, Record.created_at)
        .where(
            Record.project == project,
            Record.target_kind == target_kind,
            Record.measure_version == MEASURE_VERSION,
            Record.features.is_not(None),
            Record.seq > after,
        )
        .order_by(Record.seq.desc())
        .limit(limit)
    )
    return [
        MeasuredSample(
            seq=row.seq, workload=row.workload, features=row.features, secs=row.secs, created_at=row.created_at
        )
        for row in rows
    ]


def last(session: Session, project: str, target_kind: str) -> int:
    """Number of the newest record; 0 without one."""
    found = session.scalar(
        select(func.max(Record.seq)).where(Record.project == project, Record.target_kind == target_kind)
    )
    return found or 0
