"""Uploaded models: what they are; their bytes are blobs."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import ModelFormat, ModelView
from service.db import clock, instant
from service.store.paging import page
from service.store.values import insert
from service.tables import Model


def create(
    session: Session, project: str, *, name: str, format: ModelFormat, digest: str, size_bytes: int
) -> ModelView:
    """The same bytes in the same format are the same model: the older one is returned, with its name."""
    session.execute(
        insert(session, Model)
        .values(
            id=new_id("mdl"),
            project=project,
            name=name,
            format=format,
            digest=digest,
            size_bytes=size_bytes,
            created_at=clock(session),
        )
        .on_conflict_do_nothing(index_elements=[Model.project, Model.digest, Model.format])
    )
    found = select(Model).where(Model.project == project, Model.digest == digest, Model.format == format)
    return _view(session.execute(found).scalar_one())


def get(session: Session, project: str, model: str) -> ModelView:
    """Raises NotFound."""
    row = session.execute(select(Model).where(Model.project == project, Model.id == model)).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no model {model}")
    return _view(row)


def list_(
    session: Session, project: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[ModelView], str | None]:
    """Newest first."""
    rows, following = page(session, select(Model).where(Model.project == project), Model.id, "mdl", cursor, limit)
    return [_view(row) for row in rows], following


def _view(row: Model) -> ModelView:
    return ModelView(
        id=row.id,
        name=row.name,
        format=row.format,
        digest=row.digest,
        size_bytes=row.size_bytes,
        created_at=instant(row.created_at),
    )
