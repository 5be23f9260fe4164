"""Tokens: made, listed and revoked by administrators."""

from __future__ import annotations

from fastapi import APIRouter, Response

from pitchpipe.wire.job import TokenCreated, TokenRequest
from pitchpipe.wire.page import TokenPage
from service.http.auth import Admin
from service.http.context import Ctx, Cursor, Limit
from service.http.problems import BODY, documented
from service.store import tokens

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=201, responses=documented(*BODY))
def create_token(context: Ctx, _principal: Admin, request: TokenRequest, response: Response) -> TokenCreated:
    """A new token; its text is in this answer and nowhere else. A project comes into being with its first token."""
    with context.database.transaction() as session:
        created = tokens.create(session, request)
    response.headers["Cache-Control"] = "no-store"
    return created


@router.get("", responses=documented(400))
def list_tokens(context: Ctx, _principal: Admin, cursor: Cursor = None, limit: Limit = 50) -> TokenPage:
    """Tokens of all projects, newest first, without their text."""
    with context.database.reading() as session:
        items, next_cursor = tokens.list_(session, cursor, limit)
    return TokenPage(items=tuple(items), next_cursor=next_cursor)


@router.delete("/{token_id}", status_code=204, response_class=Response, responses=documented(404))
def revoke_token(context: Ctx, _principal: Admin, token_id: str) -> None:
    """From now on the token is refused."""
    with context.database.transaction() as session:
        tokens.revoke(session, token_id)
    context.authenticator.forget()
