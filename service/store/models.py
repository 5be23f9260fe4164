"""Uploaded models and the verdict on them; their bytes are blobs.

A model is checked after its upload (service/coordination/model_checks.py). The row of one that was refused is kept for a
while and is not listed: requests for it, and uploads of the same bytes, get the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, case, delete, exists, func, literal, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound, PitchpipeError, from_problem
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import ModelFormat, ModelView
from service.db import clock, instant, now
from service.states import ModelState
from service.store.paging import page
from service.store.values import insert
from service.tables import Job, Model

REFUSAL_SECS = 600.0
"""How long a refusal is remembered: the cause may be a time limit on a busy machine, or an operator that a later version
supports."""


@dataclass(frozen=True, kw_only=True)
class UncheckedModel:
    """A model without a verdict yet."""

    id: str
    project: str
    format: ModelFormat
    digest: str


def create(
    session: Session, project: str, *, name: str, format: ModelFormat, digest: str, size_bytes: int
) -> ModelView:
    """The same bytes in the same format are the same model: the older one is returned, with its name.

    Raises the reason when that one was refused within the last REFUSAL_SECS.
    """
    forgotten = and_(Model.state == ModelState.INVALID, Model.checked_at < now(session) - REFUSAL_SECS)
    found = session.scalars(
        insert(session, Model)
        .values(
            id=new_id("mdl"),
            project=project,
            name=name,
            format=format,
            digest=digest,
            size_bytes=size_bytes,
            state=ModelState.UNCHECKED,
            created_at=clock(session),
        )
        .on_conflict_do_update(
            index_elements=[Model.project, Model.digest, Model.format],
            set_={"state": case((forgotten, literal(ModelState.UNCHECKED, Model.state.type)), else_=Model.state)},
        )
        .returning(Model),
        execution_options={"populate_existing": True},
    )
    return _judged(found.one())


def get(session: Session, project: str, model: str) -> ModelView:
    """Raises NotFound, and the reason when the model was refused."""
    return _judged(_row(session, project, model))


def ingested(session: Session, project: str, model: str) -> str | None:
    """Digest of the blob with the ingested model; None until it was checked. Raises as `get` does."""
    row = _row(session, project, model)
    _judged(row)
    return row.ingested


def compare(session: Session, project: str, model: str, comparison: Comparison) -> ModelView:
    """Stores a client's comparison of the model. One that says "not compared" does not replace a real one.

    Raises as `get` does.
    """
    locked = select(Model.id).where(Model.project == project, Model.id == model).with_for_update()
    session.execute(locked)
    row = _row(session, project, model)
    _judged(row)
    if comparison.compared or row.comparison is None or not Comparison.model_validate(row.comparison).compared:
        row.comparison = comparison.model_dump(mode="json", exclude_none=True)
        session.flush()
    return _view(row)


def list_(
    session: Session, project: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[ModelView], str | None]:
    """Newest first, without those that were refused."""
    query = select(Model).where(Model.project == project, Model.state != ModelState.INVALID)
    rows, following = page(session, query, Model.id, "mdl", cursor, limit)
    return [_view(row) for row in rows], following


def unchecked(session: Session, limit: int) -> list[UncheckedModel]:
    """Models to check next: round robin over projects, within a project the oldest first."""
    turn = func.row_number().over(partition_by=Model.project, order_by=Model.id)
    rows = session.execute(
        select(Model.id, Model.project, Model.format, Model.digest)
        .where(Model.state == ModelState.UNCHECKED)
        .order_by(turn, Model.id)
        .limit(limit)
    )
    return [UncheckedModel(id=row.id, project=row.project, format=row.format, digest=row.digest) for row in rows]


def accept(session: Session, model: str, blob: str) -> None:
    """Records that the model can be tuned; `blob` has the ingested model. Changes nothing once there is a verdict."""
    _decide(session, model, state=ModelState.VALID, ingested=blob, error=None, error_code=None)


def refuse(session: Session, model: str, reason: PitchpipeError) -> None:
    """Records that the model cannot be tuned, and deletes refusals older than REFUSAL_SECS. Changes nothing once there is a
    verdict."""
    _decide(session, model, state=ModelState.INVALID, ingested=None, error=reason.detail, error_code=reason.code)
    old = Model.checked_at < now(session) - REFUSAL_SECS
    session.execute(
        delete(Model).where(Model.state == ModelState.INVALID, old, ~exists().where(Job.model == Model.id)),
        execution_options={"synchronize_session": False},
    )


def _decide(session: Session, model: str, **verdict: object) -> None:
    session.execute(
        update(Model)
        .where(Model.id == model, Model.state == ModelState.UNCHECKED)
        .values(checked_at=clock(session), **verdict)
    )


def _row(session: Session, project: str, model: str) -> Model:
    found = select(Model).where(Model.project == project, Model.id == model)
    row = session.execute(found.execution_options(populate_existing=True)).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no model {model}")
    return row


def _judged(row: Model) -> ModelView:
    if row.state is ModelState.INVALID:
        raise from_problem(400, row.error_code or "", row.error or "")
    return _view(row)


def _view(row: Model) -> ModelView:
    return ModelView(
        id=row.id,
        name=row.name,
        format=row.format,
        digest=row.digest,
        size_bytes=row.size_bytes,
        created_at=instant(row.created_at),
        checked=row.state is ModelState.VALID,
        comparison=comparison_of(row.comparison),
    )


def comparison_of(stored: dict[str, object] | None) -> Comparison | None:
    """The comparison that `compare` stored with a model; None where nobody has told one."""
    return None if stored is None else Comparison.model_validate(stored)
