"""The records of a project as the tuner asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.target import Target
from service.db import Database
from service.store import batches, records
from service.store.values import Circumstances, target_digest
from service.tables import Record


class SqlRecordStore:
    """The tuner's RecordStore on a project's tables. Thread-safe; each call is one transaction, durable on return.

    device_class, toolchain: which of several bests `best` prefers.
    here: target -> circumstances, or None for any. `fastest` returns only candidates that were measured under one of them,
    and `best` none that was measured under one of them without ever getting a time.
    """

    def __init__(
        self,
        database: Database,
        project: str,
        *,
        device_class: str | None = None,
        toolchain: str | None = None,
        here: Callable[[Target], Collection[Circumstances] | None] = lambda _: None,
    ) -> None:
        self._database, self._project = database, project
        self._device_class, self._toolchain = device_class, toolchain
        self._here = here

    def add(self, found: Sequence[TuningRecord]) -> None:
        with self._database.transaction() as session:
            records.add(session, self._project, found)

    def for_task(self, workload: str, target: Target) -> list[TuningRecord]:
        with self._database.reading() as session:
            return records.for_task(session, self._project, workload, target)

    def fastest(self, workload: str, target: Target, n: int) -> tuple[tuple[str, float | None], ...]:
        here = self._here(target)
        with self._database.reading() as session:
            return records.fastest(session, self._project, workload, target, n, here)

    def best(self, workload: str, target: Target) -> Best | None:
        here = self._here(target)
        with self._database.reading() as session:
            found = records.bests(session, self._project, [workload], target, self._device_class, self._toolchain).get(
                workload
            )
            if found is None or here is None or not _failed(session, self._project, target, found, workload, here):
                return found
        return None

    def set_best(self, workload: str, target: Target, best: Best) -> None:
        with self._database.transaction() as session:
            records.set_best(session, self._project, workload, target, best)

    def seen(self, workload: str, target: Target) -> frozenset[str]:
        with self._database.reading() as session:
            return batches.seen(session, self._project, workload, target)


def _failed(
    session: Session, project: str, target: Target, best: Best, workload: str, here: Collection[Circumstances]
) -> bool:
    """Whether the schedule was measured under one of the circumstances, and never had a time there."""
    times = session.scalars(
        select(Record.secs).where(
            Record.project == project,
            Record.workload == workload,
            Record.target_key == target_digest(target),
            Record.measure_version == MEASURE_VERSION,
            Record.candidate == candidate_digest(workload, best.trace),
            records.measured_under(session, here),
        )
    ).all()
    return bool(times) and all(secs is None for secs in times)
