"""What a task's trials show together: every time in the order of measuring, and failures by their kind."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.target import Target
from service.store.values import target_digest
from service.tables import Record

MOST_POINTS = 5000
"""Newest trials that are plotted."""
_MESSAGES = 3
_MESSAGE_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failures of one kind."""

    kind: str
    count: int
    messages: tuple[str, ...]
    """Some that differ, the newest first."""


def times(session: Session, project: str, workload: str, target: Target) -> list[tuple[str, float | None]]:
    """(record id, median seconds or None where it failed) of the newest MOST_POINTS trials, the oldest first."""
    rows = session.execute(
        select(Record.id, Record.secs)
        .where(*_of(project, workload, target))
        .order_by(Record.seq.desc())
        .limit(MOST_POINTS)
    )
    return [(row.id, row.secs) for row in rows][::-1]


def fastest(session: Session, project: str, workload: str, target: Target, n: int) -> list[tuple[str, float]]:
    """(record id, median seconds) of the `n` fastest trials, the fastest first."""
    rows = session.execute(
        select(Record.id, Record.secs)
        .where(*_of(project, workload, target), Record.secs.is_not(None))
        .order_by(Record.secs, Record.seq)
        .limit(n)
    )
    return [(row.id, row.secs) for row in rows]


def failures(session: Session, project: str, workload: str, target: Target) -> list[FailureGroup]:
    """The kinds of failures, the most frequent first."""
    of = _of(project, workload, target)
    counted = session.execute(
        select(Record.failure, func.count().label("times"))
        .where(*of, Record.failure.is_not(None))
        .group_by(Record.failure)
        .order_by(func.count().desc(), Record.failure)
    ).all()
    detail = Record.result["detail"].as_string()
    rank = func.row_number().over(partition_by=(Record.failure, detail), order_by=Record.seq.desc())
    newest = (
        select(Record.failure, detail.label("detail"), Record.seq, rank.label("rank"))
        .where(*of, Record.failure.is_not(None))
        .subquery()
    )
    order = func.row_number().over(partition_by=newest.c.failure, order_by=newest.c.seq.desc())
    some = select(newest.c.failure, newest.c.detail, order.label("place")).where(newest.c.rank == 1).subquery()
    told = session.execute(
        select(some.c.failure, some.c.detail).where(some.c.place <= _MESSAGES).order_by(some.c.place)
    ).all()
    return [
        FailureGroup(
            kind=str(kind),
            count=times,
            messages=tuple(text[:_MESSAGE_CHARS] for failure, text in told if failure == kind and text),
        )
        for kind, times in counted
    ]


def _of(project: str, workload: str, target: Target) -> tuple[ColumnElement[bool], ...]:
    return (
        Record.project == project,
        Record.workload == workload,
        Record.target_key == target_digest(target),
        Record.measure_version == MEASURE_VERSION,
    )
