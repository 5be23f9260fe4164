"""Who is asking, and whether they may.

A token is looked up once per request at the app's edge, before the body is read; routes then declare the scopes they
accept. An admin may do whatever a project allows, an operator nothing inside any: only manage tokens (ADR 0040).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import cookie_parser

from pitchpipe.errors import Forbidden, Unauthorized
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Scope
from service.db import Database
from service.store import sessions, tokens
from service.store.tokens import Operator, Principal

SESSION_COOKIE = "pitchpipe_session"
_BEARER = HTTPBearer(auto_error=False, description="made by `pitchpipe tokens create`")
MAX_TOKEN_CHARS = 512
_MAX_CACHED = 4096
"""Entries; a cache this small costs nothing to drop and fill again."""


@dataclass
class _Known:
    expires: float
    principal: Principal | Operator
    renewing: bool = False


class Authenticator:
    """Turns a header into a Principal or an Operator: Authorization, or with `sessions_of` the cookies. Thread-safe.

    A valid token is remembered for `cache_secs`, so that a busy worker costs one look-up per interval and not one per
    request; only digests are kept. A revocation through this process is obeyed at once, one through another process
    within `cache_secs`. Refusals are never remembered.
    """

    def __init__(
        self,
        database: Database,
        cache_secs: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        read: Callable[[str | None], str] | None = None,
        look: Callable[..., Principal | Operator] = tokens.authenticate,
    ) -> None:
        """read: the secret in a header, raising Unauthorized without one; by default a bearer token. look: whose it is."""
        self._database = database
        self._cache_secs = cache_secs
        self._clock = clock
        self._read = read or _bearer
        self._look = look
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def remembered(self, header: str | None) -> Principal | Operator | None:
        """What is remembered of the header's token, or None where the database is to be asked.

        Raises Unauthorized on a header that is no bearer token. When half of the time is over for which an answer is
        remembered, one caller gets None and asks the database, so that not all of them have to ask at once later.
        """
        token = self._read(header)
        now = self._clock()
        with self._lock:
            found = self._known.get(sha256(token.encode()))
            if found is None or found.expires <= now:
                return None
            if not found.renewing and found.expires - now < self._cache_secs / 2:
                found.renewing = True
                return None
            return found.principal

    def authenticate(self, header: str | None) -> Principal | Operator:
        """Raises Unauthorized unless the header carries a token that is valid now."""
        token = self._read(header)
        with self._database.reading() as session:
            principal = self._look(session, token)
        with self._lock:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[sha256(token.encode())] = _Known(self._clock() + self._cache_secs, principal)
        return principal

    def forget(self) -> None:
        """Drops what is remembered; called after every revocation."""
        with self._lock:
            self._known.clear()


def sessions_of(database: Database, cache_secs: float) -> Authenticator:
    """The authenticator of the dashboard's sessions, by the header `Cookie`."""
    return Authenticator(database, cache_secs, read=session_secret, look=sessions.authenticate)


def session_secret(header: str | None) -> str:
    """The session's secret in the header `Cookie`. Raises Unauthorized without one."""
    secret = cookie_parser(header or "").get(SESSION_COOKIE, "")
    if not secret or len(secret) > MAX_TOKEN_CHARS or not secret.isascii():
        raise Unauthorized("sign in with a token")
    return secret


def _bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise Unauthorized("send a token: `Authorization: Bearer <token>`")
    return token.strip()


def _needs(*scopes: Scope) -> Callable[[Request, HTTPAuthorizationCredentials | None], Awaitable[Principal]]:
    allowed = {*scopes, Scope.ADMIN}

    # The credentials are declared for the OpenAPI document only; the edge has judged them already.
    # Not a plain function: the framework would send it through a thread.
    async def principal(
        request: Request, _credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Principal:
        found = _asking(request)
        if isinstance(found, Operator) or found.scope not in allowed:
            raise _refused(found, allowed)
        return found

    return principal


async def _manager(
    request: Request, _credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Principal | Operator:
    found = _asking(request)
    if not isinstance(found, Operator) and found.scope is not Scope.ADMIN:
        raise _refused(found, {Scope.ADMIN, Scope.OPERATOR})
    return found


async def _everyone(
    request: Request, _credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Principal | Operator:
    return _asking(request)


def _asking(request: Request) -> Principal | Operator:
    found = request.scope.get("pitchpipe.principal")
    if not isinstance(found, Principal | Operator):
        raise Unauthorized("send a token: `Authorization: Bearer <token>`")
    return found


def _refused(found: Principal | Operator, allowed: set[Scope]) -> Forbidden:
    names = " or ".join(sorted(scope.value for scope in allowed))
    scope = Scope.OPERATOR if isinstance(found, Operator) else found.scope
    return Forbidden(f"this needs a token of scope {names}; this one is of scope {scope.value}")


User = Annotated[Principal, Depends(_needs(Scope.USER))]
Worker = Annotated[Principal, Depends(_needs(Scope.WORKER))]
Anyone = Annotated[Principal, Depends(_needs(Scope.USER, Scope.WORKER))]
Manager = Annotated[Principal | Operator, Depends(_manager)]
"""An admin, who manages the tokens of its own project, or an operator, who manages all."""
Everyone = Annotated[Principal | Operator, Depends(_everyone)]
"""Whoever has a token."""
