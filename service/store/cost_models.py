"""The registry of cost models: versions, which of them serves, and what replaced what for which reason.

Advisory: all of this may be lost without changing an answer. Of a project and kind of target at most one version serves and
at most one is in the shadow; partial unique indexes say so, and writers take turns by the project's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, defer

from pitchpipe.errors import InvalidTransition, NotFound
from pitchpipe.wire.cost_model import (
    CostModelChange,
    CostModelDetail,
    CostModelOrigin,
    CostModelState,
    CostModelView,
    Marks,
    TaskMarks,
    TrainingData,
)
from pitchpipe.wire.ids import new_id
from service.db import clock
from service.store import paging
from service.tables import CostModelChangeRow, CostModelRow, Project

MOST_CHANGES = 100
"""Changes that a version's details tell."""


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """A version to be added; digests are of blobs."""

    digest: str
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    origin: CostModelOrigin = CostModelOrigin.TRAINED
    reason: str = ""
    parent: int | None = None
    judge: str | None = None
    seen: int = 0
    data: TrainingData | None = None
    held_out: Sequence[TaskMarks] = ()


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What the predictor needs of a version; digests are of blobs."""

    version: int
    digest: str
    judge: str | None
    seen: int


def add(session: Session, project: str, target_kind: str, new: NewVersion) -> int:
    """The new version, counted from 1 per project and kind of target; it is in the shadow, and what was there is
    superseded."""
    _lock(session, project)
    version = (session.scalar(select(func.max(CostModelRow.version)).where(*_of(project, target_kind))) or 0) + 1
    session.execute(
        update(CostModelRow)
        .where(*_of(project, target_kind), CostModelRow.state == CostModelState.SHADOW)
        .values(state=CostModelState.SUPERSEDED, reason=f"version {version} came before it was decided on")
    )
    session.add(
        CostModelRow(
            id=new_id("cm"),
            project=project,
            target_kind=target_kind,
            version=version,
            digest=new.digest,
            metrics=dict(new.metrics),
            samples=new.samples,
            created_at=clock(session),
            origin=new.origin,
            state=CostModelState.SHADOW,
            reason=new.reason,
            parent=new.parent,
            judge=new.judge,
            seen=new.seen,
            data=None if new.data is None else new.data.model_dump(mode="json"),
            held_out_tasks=_document(new.held_out),
        )
    )
    session.flush()
    return version


def serve(
    session: Session,
    project: str,
    target_kind: str,
    version: int,
    reason: str,
    *,
    by: str | None = None,
    rollback: bool = False,
) -> None:
    """Lets a version serve in the place of the one that does; nothing happens if it does already. `by` is the id of the
    token of who wants it, None for the rule. Raises NotFound."""
    _lock(session, project)
    present = serving(session, project, target_kind)
    if present is not None and present.version == version:
        return
    if present is not None:
        told = f"version {version} replaced it: {reason}"
        _move(session, project, target_kind, present.version, CostModelState.REPLACED, told)
    if not _move(session, project, target_kind, version, CostModelState.SERVING, reason):
        raise NotFound(f"no version {version} of the cost model for {target_kind}")
    session.add(
        CostModelChangeRow(
            project=project,
            target_kind=target_kind,
            version=version,
            replaced=None if present is None else present.version,
            rollback=rollback,
            reason=reason,
            by=by,
            at=clock(session),
        )
    )
    session.flush()


def refuse(session: Session, project: str, target_kind: str, version: int, reason: str) -> None:
    """Takes a version out of the shadow, because it is worse than the one that serves."""
    _move(session, project, target_kind, version, CostModelState.REFUSED, reason, CostModelState.SHADOW)


def explain(session: Session, project: str, target_kind: str, version: int, reason: str) -> None:
    """Says why a version is still in the shadow."""
    _move(session, project, target_kind, version, CostModelState.SHADOW, reason, CostModelState.SHADOW)


def mark(session: Session, project: str, target_kind: str, version: int, tasks: Sequence[TaskMarks]) -> None:
    """Keeps a version's marks on what was measured since it was trained, in place of earlier ones."""
    values = {"shadow": summary(tasks).model_dump(mode="json"), "shadow_tasks": _document(tasks)}
    of = (*_of(project, target_kind), CostModelRow.version == version)
    session.execute(update(CostModelRow).where(*of).values(**values))


def summary(tasks: Sequence[TaskMarks]) -> Marks:
    """Means over tasks; of the rival over those that it was marked on."""

    def mean(values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values else None

    return Marks(
        tasks=len(tasks),
        pairwise=mean([task.pairwise for task in tasks]),
        peak_1=mean([task.peak_1 for task in tasks]),
        peak_5=mean([task.peak_5 for task in tasks]),
        rival_pairwise=mean([task.rival_pairwise for task in tasks if task.rival_pairwise is not None]),
    )


def serving(session: Session, project: str, target_kind: str) -> Stored | None:
    """The version that searches use."""
    return _in_state(session, project, target_kind, CostModelState.SERVING)


def in_shadow(session: Session, project: str, target_kind: str) -> Stored | None:
    """The version that is to be decided on."""
    return _in_state(session, project, target_kind, CostModelState.SHADOW)


def held_out_beside(
    session: Session, project: str, target_kind: str, version: int, parent: int
) -> tuple[TaskMarks, ...]:
    """A version's marks on held-out tasks, if they were made beside the version `parent`."""
    of = (*_of(project, target_kind), CostModelRow.version == version, CostModelRow.parent == parent)
    return _tasks(session.scalar(select(CostModelRow.held_out_tasks).where(*of)))


def is_known(session: Session, project: str, target_kind: str, digest: str) -> bool:
    """Whether a version with these bytes was ever added."""
    found = select(CostModelRow.id).where(*_of(project, target_kind), CostModelRow.digest == digest).limit(1)
    return session.scalar(found) is not None


def list_(
    session: Session, project: str, target_kind: str | None, cursor: str | None, limit: int
) -> tuple[list[CostModelView], str | None]:
    """Versions, newest first, a page at a time; of all kinds of targets or of one."""
    query = select(CostModelRow).where(CostModelRow.project == project).options(*_WITHOUT_TASKS)
    if target_kind is not None:
        query = query.where(CostModelRow.target_kind == target_kind)
    rows, following = paging.page(session, query, CostModelRow.id, "cm", cursor, limit)
    return [CostModelView(**_fields(row)) for row in rows], following


def get(session: Session, project: str, version_id: str) -> CostModelDetail:
    """One version with its tasks and the changes of its kind of target. Raises NotFound."""
    row = _row(session, project, version_id)
    changes = session.scalars(
        select(CostModelChangeRow)
        .where(CostModelChangeRow.project == project, CostModelChangeRow.target_kind == row.target_kind)
        .order_by(CostModelChangeRow.id.desc())
        .limit(MOST_CHANGES)
    )
    return CostModelDetail(
        **_fields(row),
        held_out_tasks=_tasks(row.held_out_tasks),
        shadow_tasks=_tasks(row.shadow_tasks),
        changes=tuple(
            CostModelChange(
                version=change.version,
                replaced=change.replaced,
                reason=change.reason,
                by=change.by,
                at=datetime.fromtimestamp(change.at, UTC),
            )
            for change in changes
        ),
    )


def promote(session: Session, project: str, version_id: str, by: str) -> None:
    """Lets a version serve because a user wants it, whatever its marks. Idempotent; raises NotFound."""
    row = _row(session, project, version_id)
    serve(session, project, row.target_kind, row.version, "promoted by a user", by=by)


def roll_back(session: Session, project: str, version_id: str, by: str) -> str:
    """Lets the version serve that this one, which does, replaced; returns its id. What a rollback brought back is rolled
    back to what it replaced itself.

    Raises NotFound, and InvalidTransition where the version does not serve or replaced none that is still there.
    """
    _lock(session, project)
    row = _row(session, project, version_id)
    if row.state is not CostModelState.SERVING:
        raise InvalidTransition(f"version {row.version} does not serve: it is {row.state.value}")
    replaced = session.scalar(
        select(CostModelChangeRow.replaced)
        .where(
            CostModelChangeRow.project == project,
            CostModelChangeRow.target_kind == row.target_kind,
            CostModelChangeRow.version == row.version,
            CostModelChangeRow.rollback.is_(False),
        )
        .order_by(CostModelChangeRow.id.desc())
        .limit(1)
    )
    earlier = session.scalar(
        select(CostModelRow.id).where(*_of(project, row.target_kind), CostModelRow.version == replaced)
    )
    if replaced is None or earlier is None:
        raise InvalidTransition(f"version {row.version} replaced none that is still there")
    reason = f"version {row.version} was rolled back by a user"
    serve(session, project, row.target_kind, replaced, reason, by=by, rollback=True)
    return earlier


_WITHOUT_TASKS = (defer(CostModelRow.held_out_tasks), defer(CostModelRow.shadow_tasks))


def _of(project: str, target_kind: str) -> tuple[Any, ...]:
    return CostModelRow.project == project, CostModelRow.target_kind == target_kind


def _lock(session: Session, project: str) -> None:
    """Until the transaction ends, no other changes versions of the project."""
    session.execute(select(Project.id).where(Project.id == project).with_for_update(key_share=True))


def _move(
    session: Session,
    project: str,
    target_kind: str,
    version: int,
    state: CostModelState,
    reason: str,
    only: CostModelState | None = None,
) -> bool:
    """Whether there is such a version, in the state `only` if one is given; it is in the other state now."""
    of = (*_of(project, target_kind), CostModelRow.version == version)
    where = of if only is None else (*of, CostModelRow.state == only)
    moved = update(CostModelRow).where(*where).values(state=state, reason=reason).returning(CostModelRow.id)
    return session.execute(moved).scalar_one_or_none() is not None


def _in_state(session: Session, project: str, target_kind: str, state: CostModelState) -> Stored | None:
    row = session.execute(
        select(CostModelRow.version, CostModelRow.digest, CostModelRow.judge, CostModelRow.seen).where(
            *_of(project, target_kind), CostModelRow.state == state
        )
    ).one_or_none()
    if row is None:
        return None
    return Stored(version=row.version, digest=row.digest, judge=row.judge, seen=row.seen)


def _row(session: Session, project: str, version_id: str) -> CostModelRow:
    found = session.scalar(
        select(CostModelRow)
        .where(CostModelRow.project == project, CostModelRow.id == version_id)
        .execution_options(populate_existing=True)
    )
    if found is None:
        raise NotFound(f"no cost model {version_id[:64]}")
    return found


def _fields(row: CostModelRow) -> dict[str, Any]:
    """What a CostModelView tells of a version."""
    metrics = row.metrics
    return {
        "id": row.id,
        "target_kind": row.target_kind,
        "version": row.version,
        "origin": row.origin,
        "state": row.state,
        "reason": row.reason or "",
        "parent": row.parent,
        "samples": row.samples,
        "data": None if row.data is None else TrainingData.model_validate(row.data),
        "held_out": Marks(
            tasks=int(metrics.get("held_out_tasks", 0)),
            pairwise=metrics.get("pairwise"),
            peak_1=metrics.get("peak@1"),
            peak_5=metrics.get("peak@5"),
            rival_pairwise=metrics.get("rival_pairwise"),
        ),
        "shadow": None if row.shadow is None else Marks.model_validate(row.shadow),
        "created_at": datetime.fromtimestamp(row.created_at, UTC),
    }


def _document(tasks: Sequence[TaskMarks]) -> dict[str, Any] | None:
    return {"tasks": [task.model_dump(mode="json") for task in tasks]} if tasks else None


def _tasks(document: dict[str, Any] | None) -> tuple[TaskMarks, ...]:
    return tuple(TaskMarks.model_validate(task) for task in (document or {}).get("tasks", ()))
