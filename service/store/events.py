"""A job's event stream. Sequence numbers start at 1 and have no gaps."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.job import EventKind, JobEvent
from service.db import clock, instant
from service.tables import Job, JobEventRow

_MAX_SEQ = 2**31 - 1


def append(session: Session, job: str, kind: EventKind, data: Mapping[str, object]) -> int:
    """The new event's number. The job's row orders concurrent writers, so readers never see a gap that fills later."""
    seq = session.execute(
        update(Job).where(Job.id == job).values(last_event=Job.last_event + 1).returning(Job.last_event)
    ).scalar_one_or_none()
    if seq is None:
        raise NotFound(f"no job {job}")
    session.add(JobEventRow(job=job, seq=seq, kind=kind, data=dict(data), at=clock(session)))
    session.flush()
    return seq


def after(session: Session | Connection, project: str, job: str, seq: int, limit: int = 100) -> list[JobEvent]:
    """Events numbered above `seq`, oldest first. Raises NotFound."""
    if session.execute(select(Job.id).where(Job.project == project, Job.id == job)).scalar_one_or_none() is None:
        raise NotFound(f"no job {job}")
    rows = session.execute(
        select(JobEventRow.seq, JobEventRow.kind, JobEventRow.data, JobEventRow.at)
        .where(JobEventRow.job == job, JobEventRow.seq > max(0, min(seq, _MAX_SEQ)))
        .order_by(JobEventRow.seq)
        .limit(limit)
    )
    return [JobEvent(seq=row.seq, kind=row.kind, data=row.data, at=instant(row.at)) for row in rows]
