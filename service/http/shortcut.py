"""Look-ups without the framework, whose layers cost more than the answer: a deployment asks for little else.

    Edge -> Shortcut -> a well-formed look-up: what its route answers, in a thread
                     -> anything else: the framework, to which the request looks untouched

So there is one definition of every refusal, the framework's, and one of the answer, the route's.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pitchpipe.wire import job
from pitchpipe.wire.record import LookupRequest
from service.http.context import Context
from service.http.routes import schedules
from service.store.tokens import Principal

_ROUTE = next(
    route
    for route in schedules.router.routes
    if isinstance(route, APIRoute) and route.endpoint is schedules.lookup_schedules
)
_SCOPES = (job.Scope.USER, job.Scope.ADMIN)
_THREADS = 3
"""Enough to wait for the database; with more they wait for each other and for the event loop."""


class Shortcut:
    """ASGI app in front of the framework's; `Edge` has authenticated and capped what reaches it."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("pitchpipe.principal")
        if not isinstance(principal, Principal) or principal.scope not in _SCOPES or not _is_lookup(scope):
            await self._app(scope, receive, send)
            return
        message = await receive()
        headers = Headers(scope=scope)
        known = headers.get("if-none-match")
        request = None if len(known or "") > schedules.MAX_TAGS_CHARS else _parsed(message, headers.get("content-type"))
        if request is None:
            await self._app(scope, _again(message, receive), send)
            return
        scope["route"] = _ROUTE
        response = await asyncio.get_running_loop().run_in_executor(
            self._threads, schedules.answer_lookup, self._context, principal.project, request, known
        )
        await response(scope, receive, send)


def _is_lookup(scope: Scope) -> bool:
    return bool(scope["path"] == _ROUTE.path and scope["method"] == "POST")


def _parsed(message: Message, content_type: str | None) -> LookupRequest | None:
    """The request, if the message is a whole body that holds one."""
    if message["type"] != "http.request" or message.get("more_body", False) or content_type != "application/json":
        return None
    try:
        return LookupRequest.model_validate_json(message["body"])
    except ValidationError:
        return None


def _again(message: Message, receive: Receive) -> Receive:
    """`receive` that begins with what was received already."""
    waiting = [message]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
