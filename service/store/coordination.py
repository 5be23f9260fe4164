"""Which coordinator is active: a row that one holder renews and any other may take once it is overdue."""

from __future__ import annotations

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from service.db import now
from service.store.values import insert
from service.tables import Holder

_ROLE = "coordinator"


class RoleLost(Exception):
    """Another coordinator took over, so what this one has in memory may be outdated."""


def hold(session: Session, holder: str, ttl_secs: float) -> bool:
    """Takes or renews the role for `ttl_secs`; False while another holds it. One conditional UPDATE decides."""
    session.execute(insert(session, Holder).values(role=_ROLE, holder=holder, expires_at=0.0).on_conflict_do_nothing())
    taken = session.execute(
        update(Holder)
        .where(Holder.role == _ROLE, or_(Holder.holder == holder, Holder.expires_at <= now(session)))
        .values(holder=holder, expires_at=now(session) + ttl_secs)
        .returning(Holder.role)
    )
    return taken.scalar_one_or_none() is not None


def assure(session: Session, holder: str) -> None:
    """Locks the role until the transaction ends; raises RoleLost if another holder has it.

    For writes that a coordinator must not make after its TTL ran out, since the next one has read the rows by then.
    """
    found = session.execute(select(Holder.holder).where(Holder.role == _ROLE).with_for_update()).scalar_one_or_none()
    if found != holder:
        raise RoleLost(f"{holder} no longer coordinates")


def vacate(session: Session) -> None:
    """Frees the role, whoever holds it: for a process that knows that no coordinator runs, since one may have been killed
    while it held the role."""
    session.execute(update(Holder).where(Holder.role == _ROLE).values(expires_at=0.0))


def release(session: Session, holder: str) -> None:
    """Gives the role back, so that the next coordinator need not wait; nothing happens if another holds it."""
    session.execute(update(Holder).where(Holder.role == _ROLE, Holder.holder == holder).values(expires_at=0.0))
