"""What a browser is told that an API's client is not: headers that confine pages, and refusals as pages.

    request -> Front -> Edge -> routes
               adds     what Edge and the routes refuse is a problem document; here it becomes a page, or the way to sign in

So there is one definition of every refusal, and no page can be sent without its headers.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pitchpipe.wire.problem import PROBLEM_MEDIA_TYPE
from service.http.areas import Area, area_of
from service.http.pages.rendering import render

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # Swagger UI's icons
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MAX_PROBLEM_BYTES = 1 << 16


class Front:
    """ASGI middleware in front of Edge."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        area = area_of(scope["path"]) if scope["type"] == "http" else Area.OTHER
        if area not in (Area.PAGE, Area.ENTRANCE):
            await self._app(scope, receive, send)
            return
        problem: list[bytes] | None = None
        refused: Message = {}

        async def send_page(message: Message) -> None:
            nonlocal problem, refused
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type") == PROBLEM_MEDIA_TYPE:
                    problem, refused = [], message
                    return
                headers.update(HEADERS)
                if area is Area.PAGE:
                    headers.setdefault("cache-control", "no-store")
            elif problem is not None:
                problem.append(message.get("body", b"")[:_MAX_PROBLEM_BYTES])
                if not message.get("more_body", False):
                    response = _refusal(scope, refused, b"".join(problem))
                    problem = None
                    await response(scope, receive, send_page)
                return
            await send(message)

        await self._app(scope, receive, send_page)


def _refusal(scope: Scope, refused: Message, body: bytes) -> Response:
    """The page that tells a problem; to whoever is not signed in, where to do that."""
    headers, status = Headers(scope=scope), refused["status"]
    if status == HTTPStatus.UNAUTHORIZED and area_of(scope["path"]) is Area.PAGE:
        if "hx-request" in headers:
            # The browser goes there as a whole; a redirect would put the form into the middle of a page.
            return Response(status_code=status, headers={"hx-redirect": "/sign-in"})
        if scope["method"] in ("GET", "HEAD"):
            query = scope["query_string"].decode("latin-1")
            wanted = scope["path"] + (f"?{query}" if query else "")
            return RedirectResponse(f"/sign-in?next={quote(wanted, safe='')}", status_code=HTTPStatus.SEE_OTHER)
    problem = json.loads(body)
    page = render("problem.html", problem=problem, viewer=None)
    kept = {name: value for name, value in Headers(raw=refused["headers"]).items() if name in ("retry-after", "allow")}
    return Response(page, status_code=status, media_type="text/html", headers=kept)
