"""Versions of the cost model, with their metrics. Advisory: all of this may be lost without changing an answer."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pitchpipe.wire.ids import new_id
from service.db import clock
from service.tables import CostModelRow, Project


def add(
    session: Session, project: str, target_kind: str, digest: str, metrics: Mapping[str, float], samples: int
) -> int:
    """The new version, counted from 1 per project and target kind. `digest` is the blob's."""
    # Two writers must not count to the same version.
    session.execute(select(Project.id).where(Project.id == project).with_for_update(key_share=True))
    newest = session.execute(
        select(func.max(CostModelRow.version)).where(
            CostModelRow.project == project, CostModelRow.target_kind == target_kind
        )
    ).scalar_one()
    version = (newest or 0) + 1
    session.add(
        CostModelRow(
            id=new_id("cm"),
            project=project,
            target_kind=target_kind,
            version=version,
            digest=digest,
            metrics=dict(metrics),
            samples=samples,
            created_at=clock(session),
        )
    )
    session.flush()
    return version


def latest(session: Session, project: str, target_kind: str) -> tuple[int, str] | None:
    """(version, blob digest) of the newest one."""
    found = session.execute(
        select(CostModelRow.version, CostModelRow.digest)
        .where(CostModelRow.project == project, CostModelRow.target_kind == target_kind)
        .order_by(CostModelRow.version.desc())
        .limit(1)
    ).one_or_none()
    return None if found is None else (found.version, found.digest)


def metrics(session: Session, project: str, target_kind: str, version: int) -> dict[str, float] | None:
    """Metrics on held-out tasks of one version; None if there is no such version."""
    return session.execute(
        select(CostModelRow.metrics).where(
            CostModelRow.project == project,
            CostModelRow.target_kind == target_kind,
            CostModelRow.version == version,
        )
    ).scalar_one_or_none()
