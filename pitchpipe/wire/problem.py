"""What an error looks like on the wire: RFC 9457 problem details."""

from __future__ import annotations

from pydantic import Field

from pitchpipe.wire._base import Wire

PROBLEM_MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:pitchpipe:problem:"


class FieldProblem(Wire):
    """One field of the request that is not acceptable."""

    field: str = Field(description="where: parts joined by dots, from `body`, `query`, `path` or `header` on")
    message: str


class Problem(Wire):
    """A problem document, as RFC 9457 has it."""

    type: str = Field(description="urn:pitchpipe:problem:<code>")
    title: str = Field(description="the same for every problem of this type")
    status: int = Field(ge=400, lt=600)
    detail: str = Field(description="what was wrong with this request")
    code: str = Field(description="kebab-case name of the error; see pitchpipe/errors.py")
    instance: str | None = Field(default=None, description="urn:pitchpipe:request:<id>, as the service logged it")
    errors: tuple[FieldProblem, ...] = Field(default=(), description="the fields, when the request was malformed")
