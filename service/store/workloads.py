"""Workloads of a project, by digest."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.task import Signature, Workload
from service.db import clock
from service.store.values import insert
from service.tables import StoredWorkload


def put(session: Session, project: str, workload: Workload, signature: Signature | None = None) -> None:
    """Stores the workload if it is new. One that is stored without a signature gets the given one."""
    signed: dict[str, Any] = {"signature": None, "anchor": None, "size": None}
    if signature is not None:
        signed = {
            "signature": signature.model_dump(mode="json"),
            "anchor": signature.anchor,
            "size": size(signature),
        }
    statement = insert(session, StoredWorkload).values(
        project=project,
        digest=workload.digest,
        ir=workload.ir,
        schema_version=workload.schema_version,
        created_at=clock(session),
        **signed,
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[StoredWorkload.project, StoredWorkload.digest],
            set_=signed,
            where=StoredWorkload.anchor.is_(None) & statement.excluded.anchor.is_not(None),
        )
    )


def size(signature: Signature) -> float:
    """log2 of the FLOPs, by which workloads of one anchor are indexed: neighbours have about the same shape."""
    return math.log2(signature.flops + 1.0)


def get(session: Session, project: str, digest: str) -> Workload:
    """Raises NotFound."""
    row = session.execute(
        select(StoredWorkload).where(StoredWorkload.project == project, StoredWorkload.digest == digest)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no workload {digest}")
    return Workload(digest=row.digest, ir=row.ir, schema_version=row.schema_version)
