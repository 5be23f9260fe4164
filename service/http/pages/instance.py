"""The instance: versions, settings and where each comes from, tokens without their text, and who is signed in."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from pydantic import SecretStr
from starlette.responses import Response

from pitchpipe.wire.job import Scope, TokenCreated, TokenRequest
from service.http.context import Context
from service.http.pages.tables import Column, Spec
from service.http.pages.view import EveryView, ManagerView, View, no_forgery
from service.http.routes import tokens as token_routes
from service.settings import Settings
from service.store import listings, sessions

router = APIRouter(prefix="/instance", include_in_schema=False, dependencies=[Depends(no_forgery)])

_TOKENS = (
    Column(name="id", title="Token"),
    Column(name="project", title="Project"),
    Column(name="scope", title="Scope"),
    Column(name="label", title="Label"),
    Column(name="created_at", title="Made (UTC)", shown="when"),
    Column(name="revoked_at", title="Revoked (UTC)", shown="when"),
)
_SESSIONS = (
    Column(name="id", title="Session"),
    Column(name="token", title="Token"),
    Column(name="label", title="Label"),
    Column(name="scope", title="Scope"),
    Column(name="created_at", title="Since (UTC)", shown="when"),
    Column(name="expires_at", title="Until (UTC)", shown="when"),
)
_LIBRARIES = ("pitchpipe", "fastapi", "uvicorn", "sqlalchemy", "psycopg", "apache-tvm", "xgboost-cpu")


@router.get("")
def instance_page(view: EveryView) -> Response:
    """Versions for everybody; the rest for those who manage tokens."""
    return _page(view)


@router.post("/tokens")
def create_token(
    view: ManagerView,
    scope: Annotated[Scope, Form()],
    label: Annotated[str, Form(max_length=128)] = "",
    project: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Makes a token and shows its text, once."""
    own = None if view.scope is Scope.OPERATOR else view.project_name
    named = None if scope is Scope.OPERATOR else project or own
    created = token_routes.create(view.context, view.viewer, TokenRequest(project=named, scope=scope, label=label))
    return _page(view, created)


@router.post("/tokens/{token_id}/revoke")
def revoke_token(view: ManagerView, token_id: str) -> Response:
    """Revokes a token; whoever signed in with it is signed out."""
    token_routes.revoke(view.context, view.viewer, token_id)
    return view.back("/instance")


@router.post("/sessions/{session_id}/end")
def end_session(view: ManagerView, session_id: str) -> Response:
    """Signs somebody out."""
    with view.context.database.transaction() as session:
        sessions.revoke(session, session_id, project=token_routes.managed(view.viewer))
    view.context.sessions.forget()
    return view.back("/instance")


def _page(view: View, created: TokenCreated | None = None) -> Response:
    manages = view.may(Scope.ADMIN, Scope.OPERATOR)
    tables: list[Spec] = []
    if manages:
        of = token_routes.managed(view.viewer)
        tables = [
            Spec(
                id="tokens",
                title="Tokens",
                listing=listings.tokens(of),
                columns=_TOKENS,
                choices={"scope": tuple(Scope)},
            ),
            Spec(id="sessions", title="Signed in", listing=listings.sessions(of), columns=_SESSIONS, choices={}),
        ]
    return view.page(
        "instance.html",
        *tables,
        manages=manages,
        created=created,
        scopes=[scope for scope in Scope if scope is not Scope.OPERATOR or view.scope is Scope.OPERATOR],
        versions=_versions(),
        settings=_settings(view.context) if manages else [],
    )


def _versions() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed here"))
    return found


def _settings(context: Context) -> list[tuple[str, str, str]]:
    """(variable, value, where it came from) of every setting; what is secret is not told."""
    found = []
    for name, field in Settings.model_fields.items():
        variable, value = f"PITCHPIPE_{name.upper()}", getattr(context.settings, name)
        told = "(set)" if isinstance(value, SecretStr) else str(value)
        if name == "database_url":
            told = context.database.url  # without its password
        by_default = value == field.get_default(call_default_factory=True)
        origin = "environment" if variable in os.environ else ("default" if by_default else "command line")
        found.append((variable, told, origin))
    return found
