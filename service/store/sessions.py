"""Sessions of the dashboard: what a token was exchanged for. Only the SHA-256 of a cookie, or of a link's code, is stored.

A session stands for its token: it has the token's project and scope, and ends with it.
"""

from __future__ import annotations

import secrets

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound, Unauthorized
from pitchpipe.wire.ids import new_id, sha256
from service.db import clock, now
from service.store.tokens import Operator, Principal, who
from service.tables import BrowserSession, Project, Token

LINK_SECS = 600.0
"""How long a link can be opened."""


def begin(session: Session, token_id: str, life_secs: float) -> str:
    """A new session of the token; the returned secret, the cookie's value, is its only copy. Those that expired go."""
    at = clock(session)
    session.execute(delete(BrowserSession).where(BrowserSession.expires_at <= at))
    return _add(session, token_id, at, life_secs, once=False)


def link(session: Session, token_id: str) -> str:
    """The code of a link that opens one session of the token, within LINK_SECS."""
    return _add(session, token_id, clock(session), LINK_SECS, once=True)


def open_link(session: Session, code: str, life_secs: float) -> str:
    """A new session for a link's code. Raises Unauthorized where it was opened before, expired, or never was one.

    One conditional DELETE decides between two who open it at once.
    """
    token = session.execute(
        delete(BrowserSession)
        .where(
            BrowserSession.digest == sha256(code.encode()),
            BrowserSession.once.is_(True),
            BrowserSession.expires_at > now(session),
        )
        .returning(BrowserSession.token)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if token is None:
        raise Unauthorized("the link was opened before, or has expired; sign in with a token")
    return begin(session, token, life_secs)


def authenticate(session: Session, secret: str) -> Principal | Operator:
    """Raises Unauthorized for a session that is unknown, ended or expired, or whose token was revoked."""
    found = session.execute(
        select(Token, Project.name)
        .join(BrowserSession, BrowserSession.token == Token.id)
        .outerjoin(Project, Project.id == Token.project)
        .where(
            BrowserSession.digest == sha256(secret.encode()),
            BrowserSession.once.is_(False),
            BrowserSession.expires_at > now(session),
            Token.revoked_at.is_(None),
        )
    ).one_or_none()
    if found is None:
        raise Unauthorized("the session has ended; sign in again")
    return who(found[0], found[1])


def end(session: Session, secret: str) -> None:
    """Ends the session of that secret; idempotent."""
    session.execute(delete(BrowserSession).where(BrowserSession.digest == sha256(secret.encode())))


def revoke(session: Session, session_id: str, *, project: str | None = None) -> None:
    """Ends a session. Raises NotFound, also for one that is not of the project, where one is given."""
    named = select(BrowserSession.id).join(Token, Token.id == BrowserSession.token)
    named = named.where(BrowserSession.id == session_id, *([] if project is None else [Token.project == project]))
    found = session.execute(named).scalar_one_or_none()
    if found is None:
        raise NotFound(f"no session {session_id}")
    session.execute(delete(BrowserSession).where(BrowserSession.id == found))


def _add(session: Session, token_id: str, at: float, life_secs: float, *, once: bool) -> str:
    secret = secrets.token_urlsafe(32)
    session.add(
        BrowserSession(
            id=new_id("ses"),
            token=token_id,
            digest=sha256(secret.encode()),
            once=once,
            created_at=at,
            expires_at=at + life_secs,
        )
    )
    session.flush()
    return secret
