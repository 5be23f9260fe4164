"""Where a worker's seconds go, from the records that it left."""

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
class Spent:
    """The newest records of a worker, and the seconds in which it made them. Failed trials tell no seconds."""

    records: int
    secs: float
    """From the first to the last, without gaps in which it had nothing to measure."""
    build_secs: float
    """Summed over children, which build side by side: it can be more than `secs`."""
    timing_secs: float
    """Of the samples and the calls that made them."""

    @property
    def per_sec(self) -> float | None:
        """Trials a second."""
        return self.records / self.secs if self.secs > 0 else None


def of_worker(session: Session, project: str, worker: str) -> Spent | None:
    """Of its newest records; None with fewer than two."""
    rows = session.execute(
        select(Record.created_at, Record.result)
        .where(Record.project == project, Record.worker == worker)
        .order_by(Record.seq.desc())
        .limit(NEWEST)
    ).all()
    if len(rows) < 2:
        return None
    times = [row.created_at for row in rows]
    gaps = [newer - older for newer, older in pairwise(times)]
    # Documents of the type Timed, not parsed: the page needs three of their fields, and there are hundreds.
    timed = [row.result for row in rows if row.result["outcome"] == "timed"]
    return Spent(
        records=len(rows),
        secs=sum(gap for gap in gaps if 0 < gap <= LONGEST_GAP_SECS),
        build_secs=sum(each["build_secs"] for each in timed),
        timing_secs=sum(sum(each["run_secs"]) * (each.get("rule") or {}).get("calls", 1) for each in timed),
    )
