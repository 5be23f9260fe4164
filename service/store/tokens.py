"""Projects and their tokens. Only a token's SHA-256 is stored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import Forbidden, InvalidInput, NotFound, Unauthorized
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
    """Who a project's token stands for."""

    project: str
    """Project id."""
    project_name: str
    scope: Scope
    """Any but operator."""
    token_id: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Whoever manages the tokens of all projects. Has no project, so what asks for one's rows cannot be asked by it."""

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
        raise _no_project(name)
    return found


def may_create(manager: Principal | Operator, request: TokenRequest) -> None:
    """Returns if the manager, an admin or an operator, may make that token.

    An operator may make any. An admin may make those of its project: Forbidden for an operator's; NotFound for
    another project's, whether there is such a project or not.
    """
    if isinstance(manager, Operator):
        return
    if request.scope is Scope.OPERATOR:
        raise Forbidden("a token of scope operator is made by an operator, or on the machine of the service")
    if request.project is not None and request.project != manager.project_name:
        raise _no_project(request.project)


def create(session: Session, request: TokenRequest) -> TokenCreated:
    """A new token; the project is made if it is new. The returned value is the only copy of the token.

    Asks for nobody's permission: `may_create`. Raises InvalidInput for an operator with a project, and any other
    scope without one.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = Token(
        id=new_id("tok"),
        project=_project(session, request),
        scope=request.scope,
        label=request.label,
        digest=sha256(token.encode()),
        created_at=clock(session),
    )
    session.add(row)
    session.flush()
    return TokenCreated(**_view(row, request.project).model_dump(), token=token)


def adopt(session: Session, request: TokenRequest, token: str) -> None:
    """Makes a token whose text the caller chose. Idempotent; one that was revoked stays revoked. Raises as `create`."""
    session.execute(
        insert(session, Token)
        .values(
            id=new_id("tok"),
            project=_project(session, request),
            scope=request.scope,
            label=request.label,
            digest=sha256(token.encode()),
            created_at=clock(session),
        )
        .on_conflict_do_nothing(index_elements=[Token.digest])
    )


def authenticate(session: Session, token: str) -> Principal | Operator:
    """Raises Unauthorized for a token that is unknown or revoked; the two are not told apart."""
    found = session.execute(
        select(Token, Project.name)
        .outerjoin(Project, Project.id == Token.project)
        .where(Token.digest == sha256(token.encode()), Token.revoked_at.is_(None))
    ).one_or_none()
    if found is None:
        raise Unauthorized("the token is not valid")
    return who(found[0], found[1])


def who(row: Token, project_name: str) -> Principal | Operator:
    """Who a token stands for."""
    if row.project is None:
        return Operator(token_id=row.id)
    return Principal(project=row.project, project_name=project_name, scope=row.scope, token_id=row.id)


def hold(session: Session, manager: Principal | Operator, token_id: str | None = None) -> None:
    """Raises Unauthorized if the manager's token was revoked; then it is not until the transaction has ended.

    Servers remember for a while who a token stands for, and a revoked one must not make itself a successor meanwhile.
    token_id: another that the transaction is about to revoke. Both are locked in one order, since two managers may
    revoke each other's.
    """
    locked = select(Token.id).where(Token.id.in_({manager.token_id, token_id or manager.token_id}))
    valid = session.execute(locked.where(Token.revoked_at.is_(None)).order_by(Token.id).with_for_update()).scalars()
    if manager.token_id not in valid.all():
        raise Unauthorized("the token is not valid")


def list_(
    session: Session, cursor: str | None = None, limit: int = 100, *, project: str | None = None
) -> tuple[list[TokenView], str | None]:
    """Tokens of a project, newest first; without one those of every project, and the operators'."""
    query = select(Token) if project is None else select(Token).where(Token.project == project)
    rows, following = page(session, query, Token.id, "tok", cursor, limit)
    wanted = {row.project for row in rows if row.project is not None}
    names = dict(session.execute(select(Project.id, Project.name).where(Project.id.in_(wanted))).all())
    return [_view(row, row.project and names[row.project]) for row in rows], following


def revoke(session: Session, token_id: str, *, project: str | None = None) -> TokenView:
    """Idempotent. Raises NotFound, also for a token that is not of the project, where one is given."""
    named = [Token.id == token_id, *([] if project is None else [Token.project == project])]
    session.execute(update(Token).where(*named, Token.revoked_at.is_(None)).values(revoked_at=clock(session)))
    found = session.execute(
        select(Token, Project.name).outerjoin(Project, Project.id == Token.project).where(*named)
    ).one_or_none()
    if found is None:
        raise NotFound(f"no token {token_id}")
    return _view(found[0], found[1])


def _project(session: Session, request: TokenRequest) -> str | None:
    """Id of the project of a new token."""
    if request.scope is Scope.OPERATOR:
        if request.project is not None:
            raise InvalidInput("a token of scope operator has no project: it manages the tokens of all")
        return None
    if request.project is None:
        raise InvalidInput(f"project: a token of scope {request.scope.value} needs one")
    return bootstrap(session, request.project)


def _no_project(name: str) -> NotFound:
    return NotFound(f"no project is called {name!r}")


def _view(row: Token, project_name: str | None) -> TokenView:
    return TokenView(
        id=row.id,
        project=project_name,
        scope=row.scope,
        label=row.label,
        created_at=instant(row.created_at),
        revoked_at=None if row.revoked_at is None else instant(row.revoked_at),
    )
