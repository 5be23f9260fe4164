"""Signing in and out, and the API's documentation, which needs no session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pitchpipe.errors import Forbidden, Unauthorized
from service.http.areas import Area, area_of
from service.http.auth import MAX_TOKEN_CHARS, SESSION_COOKIE, session_secret
from service.http.context import Context, Ctx
from service.http.pages.rendering import render
from service.http.pages.view import from_elsewhere, no_forgery
from service.store import sessions, tokens

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def documentation() -> Response:
    """Swagger UI over the OpenAPI document; nothing is fetched from elsewhere."""
    return HTMLResponse(render("docs.html"))


@router.get("/sign-in")
def sign_in_page(next: str = "/") -> Response:
    """The form."""
    return HTMLResponse(render("sign_in.html", next=inside(next), refusal=None))


@router.post("/sign-in")
def sign_in(
    request: Request,
    context: Ctx,
    token: Annotated[str, Form(max_length=MAX_TOKEN_CHARS)] = "",
    next: Annotated[str, Form(max_length=4096)] = "/",
) -> Response:
    """Exchanges a token for a session."""
    if from_elsewhere(request):
        raise Forbidden("another site sent this request")
    try:
        with context.database.reading() as session:
            token_id = tokens.authenticate(session, token.strip()).token_id
    except Unauthorized:
        # Without the token: what was typed is not sent back.
        page = render("sign_in.html", next=inside(next), refusal="The token is not valid, or was revoked.")
        return HTMLResponse(page, status_code=401)
    with context.database.transaction() as session:
        secret = sessions.begin(session, token_id, context.settings.session_secs)
    return _signed_in(request, context, secret, inside(next))


@router.get("/sign-in/{code}")
def open_link(request: Request, context: Ctx, code: str) -> Response:
    """Opens a session by a link that was made for that, once."""
    with context.database.transaction() as session:
        secret = sessions.open_link(session, code, context.settings.session_secs)
    return _signed_in(request, context, secret, "/")


@router.post("/sign-out", dependencies=[Depends(no_forgery)])
def sign_out(request: Request, context: Ctx) -> Response:
    """Ends the session."""
    with context.database.transaction() as session:
        sessions.end(session, session_secret(request.headers.get("cookie")))
    context.sessions.forget()
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


def _signed_in(request: Request, context: Context, secret: str, to: str) -> Response:
    response = RedirectResponse(to, status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=int(context.settings.session_secs),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    response.headers["cache-control"] = "no-store"
    return response


def inside(path: str) -> str:
    """The path if it is of one of our pages, else the first page: nobody is led elsewhere by signing in."""
    plain = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    return path if plain and area_of(path.partition("?")[0]) is Area.PAGE else "/"
