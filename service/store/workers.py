"""Workers: who they are, whether they answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import structlog
from sqlalchemy import and_, case, event, func, null, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.lease import Steadiness, WorkerRegistration, WorkerSeconds, WorkerState, WorkerView
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import Target
from service import states
from service.db import clock, instant, now
from service.store.paging import page
from service.store.values import (
    Circumstances,
    get_circumstances,
    get_device,
    get_target,
    get_toolchain,
    insert,
    put_device,
    put_target,
    put_toolchain,
    target_digest,
)
from service.tables import WorkerRow, spelled

log = structlog.get_logger()

_HISTORY_KEPT = 20
"""Newest state transitions that are kept of a worker."""


def register(session: Session, project: str, registration: WorkerRegistration) -> WorkerView:
    """Makes the worker of that name if it is new, sets it active and stores its description; its steadiness is reset.

    Its roofline is kept while device and target are the same, unless the registration has a new one.
    """
    at = clock(session)
    described = {
        "device_key": put_device(session, registration.device),
        "target_key": put_target(session, registration.target),
        "toolchain_key": put_toolchain(session, registration.toolchain),
        "last_seen_at": at,
        "steadiness": None,
        "noisy": None,
        "seconds": None,
    }
    told = None if registration.roofline is None else registration.roofline.model_dump(mode="json")
    same = and_(*(getattr(WorkerRow, name) == described[name] for name in ("device_key", "target_key")))
    kept = case((same, WorkerRow.roofline), else_=null())
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
            roofline=told,
            **described,
        )
        .on_conflict_do_update(
            index_elements=[WorkerRow.project, WorkerRow.name],
            set_=described | {"roofline": kept if told is None else told},
        )
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


def history(session: Session, project: str, worker: str) -> list[tuple[str, float]]:
    """(state, when it began) of the newest transitions, the newest first. Raises NotFound."""
    return [(state, at) for state, at in reversed(_find(session, project, worker).history)]


def list_(
    session: Session, project: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[WorkerView], str | None]:
    """Newest first."""
    query = select(WorkerRow).where(WorkerRow.project == project)
    rows, following = page(session, query, WorkerRow.id, "wrk", cursor, limit)
    return [_view(session, row) for row in rows], following


def touch(
    session: Session, project: str, worker: str, *, measured: int = 0, seconds: WorkerSeconds | None = None
) -> WorkerState:
    """Records that the worker was heard of and has measured `measured` more candidates; a lost one becomes active again.

    seconds: where its own went, if it told. Returns its state. Raises NotFound.
    """
    told = {} if seconds is None else {"seconds": seconds.model_dump(mode="json")}
    found = session.execute(
        update(WorkerRow)
        .where(WorkerRow.project == project, WorkerRow.id == worker)
        .values(last_seen_at=now(session), trials=WorkerRow.trials + measured, **told)
        .returning(WorkerRow.state)
    ).scalar_one_or_none()
    if found is None:
        raise NotFound(f"no worker {worker}")
    if found is WorkerState.LOST:
        _enter(session, _find(session, project, worker), WorkerState.ACTIVE)
        return WorkerState.ACTIVE
    return found


def steady(session: Session, worker: str, steadiness: Steadiness) -> None:
    """Stores the worker's steadiness. The caller has locked its row already, by `touch`.

    When the worker becomes noisy or quiet, that is logged after the transaction is committed.
    """
    row = session.get_one(WorkerRow, worker, populate_existing=True)
    turned = steadiness.noisy is not bool(row.noisy)
    row.steadiness, row.noisy = steadiness.model_dump(mode="json"), steadiness.noisy
    session.flush()
    if turned:
        tell, what = (log.warning, "worker is noisy") if steadiness.noisy else (log.info, "worker is quiet again")
        told = {"worker": worker, "name": row.name, "ratio": round(steadiness.ratio, 3)}
        event.listen(session, "after_commit", lambda _: tell(what, **told), once=True)


def quieter(session: Session, project: str, target_key: str) -> bool:
    """Whether some active worker of the target is quiet, or has not told."""
    query = select(WorkerRow.id).where(
        WorkerRow.project == project,
        WorkerRow.target_key == target_key,
        WorkerRow.state == spelled(WorkerState.ACTIVE),
        WorkerRow.noisy.is_not(True),
    )
    return session.scalar(query.limit(1)) is not None


def by_steadiness(session: Session) -> dict[str, int]:
    """Numbers of active and draining workers of all projects that are quiet, noisy, or have not told."""
    rows = session.execute(
        select(WorkerRow.noisy, func.count())
        .where(WorkerRow.state.in_((WorkerState.ACTIVE, WorkerState.DRAINING)))
        .group_by(WorkerRow.noisy)
    )
    counts = dict(rows.all())
    return {"quiet": counts.get(False, 0), "noisy": counts.get(True, 0), "unknown": counts.get(None, 0)}


def set_state(session: Session, project: str, worker: str, to: WorkerState) -> WorkerView:
    """Changes the worker's state; idempotent. Raises NotFound, and InvalidTransition, which lists the states so far."""
    row = _find(session, project, worker, lock=True)
    if row.state is not to:
        states.worker_transition(worker, [WorkerState(state) for state, _ in row.history], to)
        _enter(session, row, to)
    return _view(session, row)


def lost(session: Session, timeout_secs: float) -> list[str]:
    """Sets the state of workers that were not heard of for `timeout_secs` to lost and returns their ids. Their leases
    expire independently."""
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
    """The project's active workers, which take leases."""
    rows = session.scalars(
        select(WorkerRow).where(WorkerRow.project == project, WorkerRow.state == spelled(WorkerState.ACTIVE))
    )
    return [_view(session, row) for row in rows]


def serving(session: Session, project: str, targets: Collection[Target]) -> int:
    """The project's active workers of these targets."""
    keys = [target_digest(target) for target in targets]
    return session.scalars(
        select(func.count())
        .select_from(WorkerRow)
        .where(
            WorkerRow.project == project,
            WorkerRow.target_key.in_(keys),
            WorkerRow.state == spelled(WorkerState.ACTIVE),
        )
    ).one()


def rooflines(session: Session, project: str, target: Target) -> list[Roofline | None]:
    """The roofline of every active worker of the target; None for a worker that has not measured it."""
    rows = session.scalars(
        select(WorkerRow.roofline).where(
            WorkerRow.project == project,
            WorkerRow.target_key == target_digest(target),
            WorkerRow.state == spelled(WorkerState.ACTIVE),
        )
    ).all()
    return [None if row is None else Roofline.model_validate(row) for row in rows]


def circumstances(session: Session, project: str, target: Target) -> frozenset[Circumstances]:
    """The circumstances of the active workers of the target, under which schedules are confirmed now."""
    rows = session.execute(
        select(WorkerRow.device_key, WorkerRow.toolchain_key)
        .where(
            WorkerRow.project == project,
            WorkerRow.target_key == target_digest(target),
            WorkerRow.state == spelled(WorkerState.ACTIVE),
        )
        .distinct()
    )
    return frozenset(get_circumstances(session, row.device_key, row.toolchain_key) for row in rows)


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
        steadiness=None if row.steadiness is None else Steadiness.model_validate(row.steadiness),
        seconds=None if row.seconds is None else WorkerSeconds.model_validate(row.seconds),
        roofline=None if row.roofline is None else Roofline.model_validate(row.roofline),
    )
