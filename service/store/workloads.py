"""Workloads of a project, by digest."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.task import Workload
from service.db import clock
from service.store.values import insert
from service.tables import StoredWorkload


def put(session: Session, project: str, workload: Workload) -> None:
    """Idempotent: a digest never changes its IR."""
    session.execute(
        insert(session, StoredWorkload)
        .values(
            project=project,
            digest=workload.digest,
            ir=workload.ir,
            schema_version=workload.schema_version,
            created_at=clock(session),
        )
        .on_conflict_do_nothing()
    )


def get(session: Session, project: str, digest: str) -> Workload:
    """Raises NotFound."""
    row = session.execute(
        select(StoredWorkload).where(StoredWorkload.project == project, StoredWorkload.digest == digest)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no workload {digest}")
    return Workload(digest=row.digest, ir=row.ir, schema_version=row.schema_version)
