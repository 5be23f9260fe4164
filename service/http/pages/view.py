"""What a page's handler is given: who is looking, the parts of the process, and how to answer with a page or a table."""

from __future__ import annotations

import csv
import hmac
import io
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from pitchpipe.errors import Forbidden, Unauthorized
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Scope
from service.http.auth import session_secret
from service.http.context import Context, Ctx
from service.http.pages.rendering import render
from service.http.pages.tables import Place, Spec, asked, rows_shown
from service.store import listing
from service.store.tokens import Operator, Principal

_CSV_PAGE = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell must not begin with: spreadsheets would compute it."""
NAVIGATION = (
    ("/", "Overview", True),
    ("/jobs", "Jobs", True),
    ("/workers", "Workers", False),
    ("/schedules", "Schedules", True),
    ("/misses", "Misses", True),
    ("/cost-models", "Cost models", True),
    ("/instance", "Instance", False),
)
"""(path, title, whether the scope user is needed) in the order of the menu."""


class View:
    """One request of somebody who is signed in."""

    def __init__(self, request: Request, context: Context, viewer: Principal | Operator) -> None:
        self.request, self.context, self.viewer = request, context, viewer
        self.place = Place(path=request.url.path, query=dict(request.query_params))
        """Address of the page. A part of a page that is sent later sets the page's address in place of its own."""

    @property
    def project(self) -> str:
        """Id of the viewer's project. Raises Forbidden for an operator, who has none."""
        if isinstance(self.viewer, Operator):
            raise Forbidden("an operator manages tokens and sees nothing inside projects")
        return self.viewer.project

    @property
    def project_name(self) -> str:
        """Its name. Raises Forbidden for an operator."""
        if isinstance(self.viewer, Operator):
            raise Forbidden("an operator manages tokens and sees nothing inside projects")
        return self.viewer.project_name

    @property
    def scope(self) -> Scope:
        return Scope.OPERATOR if isinstance(self.viewer, Operator) else self.viewer.scope

    @property
    def csrf(self) -> str:
        """What a form of this session carries; nobody without its cookie can know it."""
        return csrf_of(self.request)

    def may(self, *scopes: Scope) -> bool:
        """Whether the viewer has one of the scopes. An admin has all but the operator's."""
        return self.scope in scopes or (self.scope is Scope.ADMIN and scopes != (Scope.OPERATOR,))

    def reading(self) -> AbstractContextManager[Any]:
        return self.context.database.reading()

    def page(self, template: str, *specs: Spec, **values: object) -> Response:
        """The page with the tables of the specs; a table alone, as CSV, where the query says `csv=TABLE`."""
        wanted = self.place.query.get("csv")
        for spec in specs:
            if spec.id == wanted:
                return self._csv(spec)
        with self.reading() as session:
            return HTMLResponse(self.rendered(session, template, *specs, **values))

    def rendered(self, session: Any, template: str, *specs: Spec, **values: object) -> str:
        """The text of a page or of a part of one, with the rows that the session finds."""
        tables = {spec.id: rows_shown(session, spec, self.place) for spec in specs}
        menu = [
            {"path": path, "title": title, "here": _inside(self.place.path, path)}
            for path, title, inside in NAVIGATION
            if path == "/instance" or self.may(Scope.USER, *([] if inside else [Scope.WORKER]))
        ]
        return render(template, view=self, viewer=self.viewer, menu=menu, csrf=self.csrf, tables=tables, **values)

    def back(self, path: str) -> Response:
        """To another page, after something was changed."""
        return RedirectResponse(path, status_code=303)

    def _csv(self, spec: Spec) -> Response:
        wanted = asked(spec, self.place)

        def lines() -> Iterator[str]:
            buffer = io.StringIO()
            writer = csv.writer(buffer)
            cursor, begun = None, False
            while True:
                with self.reading() as session:
                    page, cursor = listing.read(
                        session,
                        spec.listing,
                        listing.Asked(
                            sort=wanted.sort,
                            search=wanted.search,
                            where=wanted.where,
                            cursor=cursor,
                            limit=_CSV_PAGE,
                        ),
                    )
                if not begun:
                    writer.writerow(page[0] if page else spec.listing.columns)
                    begun = True
                writer.writerows([_cell(value) for value in row.values()] for row in page)
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
                if cursor is None:
                    return

        headers = {"content-disposition": f'attachment; filename="{spec.id}.csv"'}
        return StreamingResponse(lines(), media_type="text/csv", headers=headers)


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _inside(path: str, page: str) -> bool:
    return path == page or (page != "/" and path.startswith(f"{page}/"))


def csrf_of(request: Request) -> str:
    """The token of the request's session against forged requests: a digest of the cookie that tells nothing about it."""
    return sha256(b"csrf\0" + session_secret(request.headers.get("cookie")).encode())


def from_elsewhere(request: Request) -> bool:
    """Whether the browser says that another site sent the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")


async def no_forgery(request: Request) -> None:
    """Refuses a request that changes something unless a page of ours sent it: every route of the pages depends on it."""
    if request.method in ("GET", "HEAD"):
        return
    if from_elsewhere(request):
        raise Forbidden("another site sent this request")
    form = await request.form()
    given = form.get("csrf")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), csrf_of(request).encode()):
        raise Forbidden("the form is not of this session; load the page again")


def _seen_by(*scopes: Scope) -> Callable[[Request, Context], Awaitable[View]]:
    async def view(request: Request, context: Ctx) -> View:
        viewer = request.scope.get("pitchpipe.principal")
        if not isinstance(viewer, Principal | Operator):
            raise Unauthorized("sign in with a token")
        found = View(request, context, viewer)
        if not found.may(*scopes):
            names = " or ".join(sorted({scope.value for scope in (*scopes, Scope.ADMIN)}))
            raise Forbidden(f"this needs a token of scope {names}; you signed in with one of scope {found.scope.value}")
        return found

    return view


UserView = Annotated[View, Depends(_seen_by(Scope.USER))]
AnyView = Annotated[View, Depends(_seen_by(Scope.USER, Scope.WORKER))]
EveryView = Annotated[View, Depends(_seen_by(*Scope))]
"""Also an operator's."""
ManagerView = Annotated[View, Depends(_seen_by(Scope.ADMIN, Scope.OPERATOR))]
