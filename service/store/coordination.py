"""Which coordinator is active: a row that one holder renews and any other may take once it is overdue."""

from __future__ import annotations

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from service.db import now
from service.store.values import insert
from service.tables import Holder

_ROLE = "coordinator"


class RoleLost(Exception):
    """Another coordinator took over: what this one has in memory is no longer true."""


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
    """Keeps the role where it is until the transaction ends; raises RoleLost if another has it already.

    For writes that the next coordinator counts on having seen: one that was held up past its TTL must not make them.
    """
    found = session.execute(select(Holder.holder).where(Holder.role == _ROLE).with_for_update()).scalar_one_or_none()
    if found != holder:
        raise RoleLost(f"{holder} no longer coordinates")


def vacate(session: Session) -> None:
    """Nobody holds the role: for a process that knows it is alone, after one that was killed with it."""
    session.execute(update(Holder).where(Holder.role == _ROLE).values(expires_at=0.0))


def release(session: Session, holder: str) -> None:
    """Gives the role back, so that the next coordinator need not wait; nothing happens if another holds it."""
    session.execute(update(Holder).where(Holder.role == _ROLE, Holder.holder == holder).values(expires_at=0.0))
