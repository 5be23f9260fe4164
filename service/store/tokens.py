"""Projects and their tokens. Only a token's SHA-256 is stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import NotFound, Unauthorized
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import Scope, TokenCreated, TokenRequest, TokenView
from service.db import clock, instant
from service.store.paging import page
from service.store.values import insert
from service.tables import Project, Token

TOKEN_PREFIX = "pp_"
"""Lets people and secret scanners recognise a token."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who a token stands for."""

    project: str
    """Project id."""
    project_name: str
    scope: Scope
    token_id: str


def bootstrap(session: Session, project_name: str) -> str:
    """Id of the project of that name, made if it is new."""
    session.execute(
        insert(session, Project)
        .values(id=new_id("prj"), name=project_name, created_at=clock(session))
        .on_conflict_do_nothing(index_elements=[Project.name])
    )
    return session.execute(select(Project.id).where(Project.name == project_name)).scalar_one()


def project_named(session: Session, name: str) -> str:
    """Its id; raises NotFound."""
    found = session.execute(select(Project.id).where(Project.name == name)).scalar_one_or_none()
    if found is None:
        raise NotFound(f"no project is called {name!r}")
    return found


def create(session: Session, request: TokenRequest) -> TokenCreated:
    """A new token; the project is made if it is new. The returned value is the only copy of the token."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = Token(
        id=new_id("tok"),
        project=bootstrap(session, request.project),
        scope=request.scope,
        label=request.label,
        digest=sha256(token.encode()),
        created_at=clock(session),
    )
    session.add(row)
    session.flush()
    return TokenCreated(**_view(row, request.project).model_dump(), token=token)


def adopt(session: Session, request: TokenRequest, token: str) -> None:
    """Makes a token whose text the caller chose. Idempotent; one that was revoked stays revoked."""
    session.execute(
        insert(session, Token)
        .values(
            id=new_id("tok"),
            project=bootstrap(session, request.project),
            scope=request.scope,
            label=request.label,
            digest=sha256(token.encode()),
            created_at=clock(session),
        )
        .on_conflict_do_nothing(index_elements=[Token.digest])
    )


def authenticate(session: Session, token: str) -> Principal:
    """Raises Unauthorized for a token that is unknown or revoked; the two are not told apart."""
    found = session.execute(
        select(Token, Project.name)
        .join(Project, Project.id == Token.project)
        .where(Token.digest == sha256(token.encode()), Token.revoked_at.is_(None))
    ).one_or_none()
    if found is None:
        raise Unauthorized("the token is not valid")
    row, name = found
    return Principal(project=row.project, project_name=name, scope=row.scope, token_id=row.id)


def list_(session: Session, cursor: str | None = None, limit: int = 100) -> tuple[list[TokenView], str | None]:
    """Tokens of every project, newest first; for admins."""
    rows, following = page(session, select(Token), Token.id, "tok", cursor, limit)
    names = dict(session.execute(select(Project.id, Project.name)).all())
    return [_view(row, names[row.project]) for row in rows], following


def revoke(session: Session, token_id: str) -> TokenView:
    """Idempotent. Raises NotFound."""
    session.execute(
        update(Token).where(Token.id == token_id, Token.revoked_at.is_(None)).values(revoked_at=clock(session))
    )
    found = session.execute(
        select(Token, Project.name).join(Project, Project.id == Token.project).where(Token.id == token_id)
    ).one_or_none()
    if found is None:
        raise NotFound(f"no token {token_id}")
    return _view(found[0], found[1])


def _view(row: Token, project_name: str) -> TokenView:
    return TokenView(
        id=row.id,
        project=project_name,
        scope=row.scope,
        label=row.label,
        created_at=instant(row.created_at),
        revoked_at=None if row.revoked_at is None else instant(row.revoked_at),
    )
