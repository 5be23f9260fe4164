"""Errors as RFC 9457 problem documents: the one place where an exception becomes a response."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pitchpipe.errors import InvalidInput, InvalidTarget, NotFound, PitchpipeError, TooLarge
from pitchpipe.wire.problem import PROBLEM_MEDIA_TYPE, TYPE_PREFIX, FieldProblem, Problem
from pitchpipe.wire.target import INCOMPLETE_TARGET

DESCRIPTIONS = {
    400: "What was sent is not valid; `code` and `detail` say why",
    401: "No valid token",
    403: "The token's scope does not allow this",
    404: "Absent, or another project's",
    405: "The path knows other methods",
    408: "The body stopped coming",
    409: "The present state does not allow this; `code` says which conflict",
    413: "The body is over its cap",
    422: "The request is malformed; `errors` names the fields",
    500: "Unexpected; the log knows `instance`",
    503: "Shed before any work was done, or not ready; see Retry-After",
}
COMMON = (401, 403, 422, 500, 503)
"""What any authenticated route may answer."""
BODY = (400, 408, 413)
"""What a route with a body may answer besides."""
_MAX_FIELDS = 20
"""A hostile body can be wrong in a million places; the first few are enough to act on."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: the problems it may answer with, besides COMMON."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": DESCRIPTIONS[status], "content": content} for status in sorted({*statuses, *COMMON})
    }


def response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The document as a response."""
    body = problem.model_dump_json(exclude_none=True, exclude_defaults=False)
    return Response(body, status_code=problem.status, media_type=PROBLEM_MEDIA_TYPE, headers=dict(headers or {}))


def of_error(error: PitchpipeError, instance: str | None = None) -> Response:
    """The response to an error raised on purpose."""
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_secs is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_secs)))
    problem = Problem(
        type=TYPE_PREFIX + error.code,
        title=error.title,
        status=error.status,
        detail=error.detail,
        code=error.code,
        instance=instance,
    )
    return response(problem, headers)


def unexpected(instance: str) -> Response:
    """The response to an exception nobody meant to raise: tells nothing but where to look."""
    return response(
        Problem(
            type=TYPE_PREFIX + "internal",
            title="The service failed",
            status=500,
            detail="An unexpected error; the service's log has it under the instance given here.",
            code="internal",
            instance=instance,
        )
    )


def register(app: FastAPI) -> None:
    """Adds the handlers of every error a route can raise."""
    app.add_exception_handler(PitchpipeError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_malformed)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def _instance(request: Request) -> str | None:
    found = request.scope.get("pitchpipe.instance")
    return found if isinstance(found, str) else None


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PitchpipeError)
    return of_error(error, _instance(request))


async def _on_malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = _causes(error)
    # Only places and messages are told: an echo of the input could be huge, secret, or not JSON at all (NaN).
    fields = tuple(
        FieldProblem(
            field=".".join(str(part)[:128] for part in found["loc"])[:512],
            message=str(found["msg"]).removeprefix("Value error, ")[:512],
        )
        for found in errors[:_MAX_FIELDS]
    )
    detail = "; ".join(f"{field.field}: {field.message}" for field in fields[:3])
    if len(errors) > 3:
        detail += f"; and {len(errors) - 3} more"
    # A rule of our own that no schema can say is broken: the payload is well formed and still not valid.
    kinds = {found["type"] for found in errors}
    status = 400 if kinds <= {"value_error", INCOMPLETE_TARGET} else 422
    refusal = InvalidTarget if kinds == {INCOMPLETE_TARGET} else InvalidInput
    return _malformed(detail, fields, _instance(request), status, refusal)


def _causes(error: RequestValidationError) -> list[Any]:
    """The errors but those that follow from an incomplete target: a list of nothing else is said to be too short, too."""
    found = list(error.errors())
    incomplete = [cause["loc"] for cause in found if cause["type"] == INCOMPLETE_TARGET]
    return [
        each
        for each in found
        if all(each["loc"] == loc or each["loc"] != loc[: len(each["loc"])] for loc in incomplete)
    ]


def _malformed(
    detail: str,
    fields: tuple[FieldProblem, ...],
    instance: str | None,
    status: int = 422,
    refusal: type[InvalidInput] = InvalidInput,
) -> Response:
    code = refusal().code
    return response(
        Problem(
            type=TYPE_PREFIX + code,
            title=refusal.title,
            status=status,
            detail=detail,
            code=code,
            instance=instance,
            errors=fields,
        )
    )


async def of_http(request: Request, error: Exception) -> Response:
    """The response to what FastAPI and Starlette raise by themselves, and to a body refused half-way."""
    assert isinstance(error, HTTPException)
    instance = _instance(request)
    if error.status_code == 413:
        return of_error(TooLarge(str(error.detail)), instance)
    if error.status_code == 400:
        # The only 400 of the framework: a body that is not even text.
        return _malformed("the body cannot be read: it is not JSON in UTF-8", (), instance)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request)) or headers.get("Allow", "")
    names = {404: NotFound("").code, 405: "method-not-allowed", 408: "request-timeout"}
    code = names.get(error.status_code, "http")
    problem = Problem(
        type=TYPE_PREFIX + code,
        title=str(error.detail),
        status=error.status_code,
        detail=f"{request.method} {request.url.path[:256]}: {error.detail}",
        code=code,
        instance=instance,
    )
    return response(problem, headers)


def _methods(request: Request) -> list[str]:
    """Every method of the path: the framework tells those of the first route it met."""
    for template, operations in request.app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), request.url.path):
            return sorted(method.upper() for method in operations)
    return []


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    # Nobody reads this; it only keeps a broken upload out of the log of unexpected errors.
    return of_error(InvalidInput("the connection closed before the whole body had arrived"))
