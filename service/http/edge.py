"""What happens to a request before a route sees it: counted, shed, authenticated, capped; in that order.

    request -> Edge -> Shortcut -> routes
                 count      every answer, by route and status
                 shed       503 + Retry-After when too much is at work, before any work is done
                 authenticate   401 before the body is read
                 cap        413 as soon as the declared or the received size passes the cap, 408 when no more comes
                 last net   an exception nobody meant to raise becomes a 500 that tells nothing

Long polls and event streams hold no thread while they wait, so they are counted apart: a thousand idle workers must
not shed the requests that do work. An upload is counted as work until it is stored and as waiting until it is judged.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pitchpipe.errors import Overloaded, PitchpipeError, TooLarge
from service.http import problems
from service.http.areas import Area, area_of
from service.http.context import Context

log = structlog.get_logger("pitchpipe.http")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Edge:
    """ASGI middleware; one per app."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context
        # Counted on the event loop only, so plain integers do.
        self._running = {"request": 0, "waiting": 0}
        self._shown = {kind: context.metrics.running.labels(kind) for kind in self._running}
        settings = context.settings
        self._limits = {"request": settings.max_requests, "waiting": settings.max_waiting}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        instance = f"urn:pitchpipe:request:{secrets.token_hex(8)}"
        scope["pitchpipe.instance"] = instance
        status = 0

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        kind = _kind(scope)
        try:
            with self._slot(kind) as slot:
                scope["pitchpipe.slot"] = slot
                await self._authenticate(scope)
                body = _guarded(receive, scope, self._cap(scope), self._context.settings.body_silence_secs)
                await self._app(scope, body, send_counted)
        except PitchpipeError as error:
            if status == 0:
                await problems.of_error(error, instance)(scope, receive, send_counted)
        except HTTPException as error:
            # The framework answers its own; the body may be refused before it sees the request.
            if status == 0:
                response = await problems.of_http(Request(scope), error)
                await response(scope, receive, send_counted)
        except Exception:
            log.exception("unexpected error", instance=instance, method=scope["method"], path=scope["path"])
            if status == 0:
                await problems.unexpected(instance)(scope, receive, send_counted)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            metrics = self._context.metrics
            # A label for every method somebody makes up would fill the memory.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            metrics.requests.labels(method, route, str(status)).inc()
            if kind == "request":
                metrics.latency.labels(method, route).observe(time.perf_counter() - started)

    @contextmanager
    def _slot(self, kind: str | None) -> Iterator[Slot]:
        """Probes (`kind` None) are always let in: an overloaded process is still alive."""
        if kind is not None and not self.has_room(kind):
            self._context.metrics.shed.inc()
            raise Overloaded(
                f"{self._limits[kind]} requests are at work; try again shortly",
                retry_after_secs=self._context.settings.retry_after_secs,
            )
        slot = Slot(self, kind)
        self.count(kind, 1)
        try:
            yield slot
        finally:
            self.count(slot.kind, -1)

    def count(self, kind: str | None, change: int) -> None:
        """One more, or one less, of a kind is running."""
        if kind is not None:
            self._running[kind] += change
            self._shown[kind].inc(change)

    def has_room(self, kind: str) -> bool:
        return self._running[kind] < self._limits[kind]

    async def _authenticate(self, scope: Scope) -> None:
        area = area_of(scope["path"])
        if area is Area.API:
            authenticator, name = self._context.authenticator, "authorization"
        elif area is Area.PAGE:
            authenticator, name = self._context.sessions, "cookie"
        else:
            return
        header = Headers(scope=scope).get(name)
        principal = authenticator.remembered(header)
        if principal is None:
            principal = await run_in_threadpool(authenticator.authenticate, header)
        scope["pitchpipe.principal"] = principal

    def _cap(self, scope: Scope) -> int:
        upload = scope["method"] == "POST" and scope["path"] in ("/v1/models", "/jobs")
        return self._context.settings.max_model_bytes if upload else self._context.settings.max_body_bytes


class Slot:
    """What a request is counted as. Used on the event loop only."""

    def __init__(self, edge: Edge, kind: str | None) -> None:
        self._edge = edge
        self.kind = kind

    def wait(self) -> None:
        """The work is done and the request only waits for news now: its slot goes to another, if there is room."""
        if self.kind == "request" and self._edge.has_room("waiting"):
            self._edge.count(self.kind, -1)
            self.kind = "waiting"
            self._edge.count(self.kind, 1)


def _kind(scope: Scope) -> str | None:
    path = scope["path"]
    if path in ("/healthz", "/readyz", "/metrics"):
        return None
    waits = path == "/v1/leases" or (path.startswith(("/v1/jobs/", "/jobs/")) and path.endswith(("/events", "/live")))
    return "waiting" if waits else "request"


class _BodyRefused(HTTPException):
    """An HTTPException, because FastAPI turns any other exception of a body's reading into `400`."""


def _guarded(receive: Receive, scope: Scope, cap_bytes: int, silence_secs: float) -> Receive:
    """`receive` that raises once the body passes the cap or stops coming. What declares too much is refused at once.

    A body that never ends would hold its slot for ever: a few of them, and nobody else is served.
    """
    declared = Headers(scope=scope).get("content-length", "")
    too_large = f"the body is larger than {cap_bytes} bytes"
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > cap_bytes):
        raise TooLarge(f"{too_large}: it declares {declared[:20]}")
    received_bytes, complete = 0, False

    async def guarded() -> Message:
        nonlocal received_bytes, complete
        if complete:
            # What comes now is only the news that the client has gone, which may take as long as it likes.
            return await receive()
        try:
            async with asyncio.timeout(silence_secs):
                found = await receive()
        except TimeoutError as error:
            raise _BodyRefused(408, f"no more of the body came for {silence_secs:g} s") from error
        complete = not found.get("more_body", False)
        received_bytes += len(found.get("body", b""))
        if received_bytes > cap_bytes:
            raise _BodyRefused(413, too_large)
        return found

    return guarded
