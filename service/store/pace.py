"""How many trials a second a worker makes, from the records that it left."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.tables import Record

NEWEST = 500
"""Records that are looked at."""
LONGEST_GAP_SECS = 60.0
"""Between two records of a worker that has work; after a longer gap it had none, and the gap is left out."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The newest records of a worker, and the seconds in which it made them."""

    records: int
    secs: float
    """From the first to the last, without gaps in which it had nothing to measure."""

    @property
    def per_sec(self) -> float | None:
        """Trials a second."""
        return self.records / self.secs if self.secs > 0 else None


def of_worker(session: Session, project: str, worker: str) -> Pace | None:
    """Of its newest records; None with fewer than two."""
    times = session.scalars(
        select(Record.created_at)
        .where(Record.project == project, Record.worker == worker)
        .order_by(Record.seq.desc())
        .limit(NEWEST)
    ).all()
    if len(times) < 2:
        return None
    gaps = (newer - older for newer, older in pairwise(times))
    return Pace(records=len(times), secs=sum(gap for gap in gaps if 0 < gap <= LONGEST_GAP_SECS))
