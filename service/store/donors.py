"""Donors: similar workloads with a served schedule for the same target, with which a search may begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.measure import MEASURE_VERSION
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature
from service.store.values import target_digest
from service.tables import BestRow, JobTask, StoredWorkload

if TYPE_CHECKING:
    from tuner.search.transfer import Known

CONSIDERED = 32
"""Workloads of the same anchor that are ranked: so many with the next larger size, and as many with the next smaller."""


def known(session: Session, project: str, workload: str, target: Target) -> tuple[Signature | None, list[Known]]:
    """(the workload's signature, served schedules of others with its anchor); (None, []) where it has no signature."""
    from tuner.search.transfer import Known  # The API's processes never come here, and load nothing of the tuner.

    own = session.get(StoredWorkload, (project, workload), populate_existing=True)
    if own is None or own.signature is None or own.size is None:
        return None, []
    found = {}
    for side, order in ((StoredWorkload.size >= own.size, False), (StoredWorkload.size < own.size, True)):
        for digest, signature, trace, secs, bound_secs in _served(session, own, target, side, descending=order):
            found[digest] = Known(
                workload=digest,
                signature=Signature.model_validate(signature),
                trace=trace,
                bound_share=None if bound_secs is None else bound_secs / secs,
            )
    return Signature.model_validate(own.signature), list(found.values())


def _served(
    session: Session, own: StoredWorkload, target: Target, side: ColumnElement[bool], *, descending: bool
) -> list[tuple[str, dict[str, object], str, float, float | None]]:
    """(digest, signature, trace, seconds, bound) by size, the nearest first; a workload's newest best comes last."""
    bound = (
        select(func.max(JobTask.bound_secs))
        .where(
            JobTask.project == BestRow.project,
            JobTask.workload == BestRow.workload,
            JobTask.target_key == BestRow.target_key,
        )
        .scalar_subquery()
    )
    size = StoredWorkload.size.desc() if descending else StoredWorkload.size
    rows = session.execute(
        select(StoredWorkload.digest, StoredWorkload.signature, BestRow.trace, BestRow.secs, bound)
        .join(BestRow, (BestRow.project == StoredWorkload.project) & (BestRow.workload == StoredWorkload.digest))
        .where(
            StoredWorkload.project == own.project,
            StoredWorkload.anchor == own.anchor,
            side,
            StoredWorkload.digest != own.digest,
            BestRow.target_key == target_digest(target),
            BestRow.measure_version == MEASURE_VERSION,
            BestRow.record.is_not(None),
        )
        .order_by(size, StoredWorkload.digest, BestRow.confirmed_at)
        .limit(CONSIDERED)
    )
    return [tuple(row) for row in rows]
