"""Tokens: an admin makes, lists and revokes those of its project, an operator all. What the caller
may do is read from the database, not from what the process remembers of its token."""

from __future__ import annotations

from fastapi import APIRouter, Response

from pitchpipe.wire.job import TokenCreated, TokenRequest
from pitchpipe.wire.page import TokenPage
from service.http.auth import Manager
from service.http.context import Context, Ctx, Cursor, Limit
from service.http.problems import BODY, documented
from service.store import tokens
from service.store.tokens import Operator, Principal

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=201, responses=documented(*BODY, 404))
def create_token(context: Ctx, manager: Manager, request: TokenRequest, response: Response) -> TokenCreated:
    """A new token; its text is in this answer and nowhere else. A project comes into being with the first token that an
    operator makes for it. An admin makes no operator, and of another project nothing."""
    created = create(context, manager, request)
    response.headers["Cache-Control"] = "no-store"
    return created


def create(context: Context, manager: Principal | Operator, request: TokenRequest) -> TokenCreated:
    """A new token that the manager makes. Raises as the store does."""
    tokens.may_create(manager, request)
    with context.database.transaction() as session:
        tokens.hold(session, manager)
        return tokens.create(session, request)


@router.get("", responses=documented(400))
def list_tokens(context: Ctx, manager: Manager, cursor: Cursor = None, limit: Limit = 50) -> TokenPage:
    """Tokens of the admin's project, or for an operator of all, newest first, without their text."""
    with context.database.reading() as session:
        items, next_cursor = tokens.list_(session, cursor, limit, project=managed(manager))
    return TokenPage(items=tuple(items), next_cursor=next_cursor)


@router.delete("/{token_id}", status_code=204, response_class=Response, responses=documented(404))
def revoke_token(context: Ctx, manager: Manager, token_id: str) -> None:
    """From now on the token is refused."""
    revoke(context, manager, token_id)


def revoke(context: Context, manager: Principal | Operator, token_id: str) -> None:
    """Revokes a token, and with it the sessions that it was exchanged for. Raises as the store does."""
    with context.database.transaction() as session:
        tokens.hold(session, manager, token_id)
        tokens.revoke(session, token_id, project=managed(manager))
    context.authenticator.forget()
    context.sessions.forget()


def managed(manager: Manager) -> str | None:
    """The project whose tokens the manager sees; None for all."""
    return None if isinstance(manager, Operator) else manager.project
