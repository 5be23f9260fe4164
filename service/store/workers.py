"""Workers: who they are, whether they answer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.lease import WorkerRegistration, WorkerState, WorkerView
from service import states
from service.db import clock, instant, now
from service.store.paging import page
from service.store.values import get_device, get_target, get_toolchain, insert, put_device, put_target, put_toolchain
from service.tables import WorkerRow

_HISTORY_KEPT = 20
"""Transitions kept per worker: enough to tell what happened."""


def register(session: Session, project: str, registration: WorkerRegistration) -> WorkerView:
    """The worker of that name, made if it is new, active, and described as it says now."""
    at = clock(session)
    described = {
        "device_key": put_device(session, registration.device),
        "target_key": put_target(session, registration.target),
        "toolchain_key": put_toolchain(session, registration.toolchain),
        "last_seen_at": at,
    }
    session.execute(
        insert(session, WorkerRow)
        .values(
            id=new_id("wrk"),
            project=project,
            name=registration.name,
            state=WorkerState.ACTIVE,
            history=[[WorkerState.ACTIVE.value, at]],
            trials=0,
            created_at=at,
            **described,
        )
        .on_conflict_do_update(index_elements=[WorkerRow.project, WorkerRow.name], set_=described)
    )
    row = session.execute(
        select(WorkerRow)
        .where(WorkerRow.project == project, WorkerRow.name == registration.name)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).scalar_one()
    if row.state is not WorkerState.ACTIVE:
        _enter(session, row, WorkerState.ACTIVE)
    return _view(session, row)


def get(session: Session, project: str, worker: str) -> WorkerView:
    """Raises NotFound."""
    return _view(session, _find(session, project, worker))


def list_(
    session: Session, project: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[WorkerView], str | None]:
    """Newest first."""
    query = select(WorkerRow).where(WorkerRow.project == project)
    rows, following = page(session, query, WorkerRow.id, "wrk", cursor, limit)
    return [_view(session, row) for row in rows], following


def touch(session: Session, project: str, worker: str, *, measured: int = 0) -> WorkerState:
    """The worker was heard of, and measured so many: a lost one is active again. Its state. Raises NotFound."""
    found = session.execute(
        update(WorkerRow)
        .where(WorkerRow.project == project, WorkerRow.id == worker)
        .values(last_seen_at=now(session), trials=WorkerRow.trials + measured)
        .returning(WorkerRow.state)
    ).scalar_one_or_none()
    if found is None:
        raise NotFound(f"no worker {worker}")
    if found is WorkerState.LOST:
        _enter(session, _find(session, project, worker), WorkerState.ACTIVE)
        return WorkerState.ACTIVE
    return found


def set_state(session: Session, project: str, worker: str, to: WorkerState) -> WorkerView:
    """Idempotent. Raises NotFound, and InvalidTransition, which tells the history."""
    row = _find(session, project, worker, lock=True)
    if row.state is not to:
        states.worker_transition(worker, [WorkerState(state) for state, _ in row.history], to)
        _enter(session, row, to)
    return _view(session, row)


def lost(session: Session, timeout_secs: float) -> list[str]:
    """Marks workers that were not heard of for this long; their ids. Their leases expire by themselves."""
    rows = session.scalars(
        select(WorkerRow)
        .where(
            WorkerRow.state.in_((WorkerState.ACTIVE, WorkerState.DRAINING)),
            WorkerRow.last_seen_at <= now(session) - timeout_secs,
        )
        .order_by(WorkerRow.id)
        .with_for_update(skip_locked=True, key_share=True)
        .execution_options(populate_existing=True)
    ).all()
    for row in rows:
        _enter(session, row, WorkerState.LOST)
    return [row.id for row in rows]


def active(session: Session, project: str) -> list[WorkerView]:
    """Workers that take leases now."""
    rows = session.scalars(select(WorkerRow).where(WorkerRow.project == project, WorkerRow.state == WorkerState.ACTIVE))
    return [_view(session, row) for row in rows]


def _find(session: Session, project: str, worker: str, *, lock: bool = False) -> WorkerRow:
    query = select(WorkerRow).where(WorkerRow.project == project, WorkerRow.id == worker)
    if lock:
        query = query.with_for_update(key_share=True)
    row = session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no worker {worker}")
    return row


def _enter(session: Session, row: WorkerRow, state: WorkerState) -> None:
    history: list[Any] = [*row.history, [state.value, clock(session)]][-_HISTORY_KEPT:]
    row.state, row.history = state, history
    session.flush()


def _view(session: Session, row: WorkerRow) -> WorkerView:
    return WorkerView(
        id=row.id,
        name=row.name,
        state=row.state,
        device=get_device(session, row.device_key),
        target=get_target(session, row.target_key),
        toolchain=get_toolchain(session, row.toolchain_key),
        last_seen_at=instant(row.last_seen_at),
        trials=row.trials,
    )
