"""A connection pool to one service: a call with its repetitions, pages, event streams, and errors of pitchpipe.errors.

A call that may be repeated is repeated on a broken connection and on 503, with the service's Retry-After obeyed. An
answer is read up to a cap: what is at the other end may be anything.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from pitchpipe import telemetry
from pitchpipe.errors import InvalidInput, Overloaded, PitchpipeError, Unreachable, from_problem
from pitchpipe.wire.page import MAX_PAGE
from pitchpipe.wire.problem import PROBLEM_MEDIA_TYPE, Problem

_JITTER = random.Random()
"""Of our own: whoever seeds `random` draws what he expects, whichever thread of ours waits meanwhile."""
_T = TypeVar("_T", bound=BaseModel)
Body = bytes | IO[bytes]

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.1, 5.0
"""Between repetitions of a call, doubled each time: soon after a hiccup, and no burden on a service that restarts."""
NOT_MODIFIED = 304
EVENT_SILENCE_SECS = 45.0
"""The service sends a comment every 15 s; three missed ones mean a dead connection."""
MAX_ANSWER_BYTES = 64 << 20
"""Of one answer, unpacked. The largest look-up, 4,096 traces of some 4 kB, is a quarter of it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response that was read to its end. Names of `headers` are in lower case."""

    request: str
    """Method and path, for messages."""
    status: int
    headers: Mapping[str, str]
    content: bytes


def pauses(timeout_secs: float | None, poll_secs: float) -> Iterator[float]:
    """Seconds to wait between looks, longer and longer up to `poll_secs`, until the timeout has passed."""
    deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
    pause_secs = min(0.05, poll_secs)
    while (left_secs := pause_secs if deadline is None else deadline - time.monotonic()) > 0:
        yield min(pause_secs, left_secs)
        pause_secs = min(pause_secs * 1.5, poll_secs)


@contextlib.contextmanager
def body(data: bytes | str | os.PathLike[str]) -> Iterator[Body]:
    """Bytes as they are, or the open file at a path."""
    if isinstance(data, bytes):
        yield data
    else:
        with Path(data).open("rb") as file:
            yield file


class Connection:
    """Thread-safe; close it after the last call. Raises errors of pitchpipe.errors only.

    timeout_secs: per connect and per silence on the connection, not per call.
    retry_secs: how long a call that may be repeated goes on trying; 0 never repeats.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_secs: float,
        retry_secs: float,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url, self.timeout_secs, self.retry_secs = url, timeout_secs, retry_secs
        try:
            self.http = httpx2.Client(
                base_url=url, headers=headers, timeout=timeout_secs, transport=transport, follow_redirects=False
            )
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidInput(f"the service URL or the token is not valid: {error}") from error

    def close(self) -> None:
        """Closes the pool; no call can be made again."""
        self.http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        json: BaseModel | None = None,
        headers: dict[str, str] | None = None,
        body: Callable[[], contextlib.AbstractContextManager[Body]] | None = None,
        timeout_secs: float | None = None,
        repeat: bool = True,
    ) -> Answer:
        """A successful answer, or 304 to a call with If-None-Match.

        `body` is opened anew for each attempt; with `repeat` false there is only one.
        """
        headers = dict(headers or {})
        if (parent := telemetry.traceparent()) is not None:
            headers[telemetry.HEADER] = parent
        if json is not None:
            content = json.model_dump_json(by_alias=True).encode()
            headers["Content-Type"] = "application/json"
            body = lambda: contextlib.nullcontext(content)  # noqa: E731 - one line, one use

        def once() -> Answer:
            with (
                contextlib.nullcontext() if body is None else body() as content,
                _transport_errors(self.url),
                self.http.stream(
                    method,
                    path,
                    params=params,
                    content=content,
                    headers=headers,
                    timeout=self.timeout_secs if timeout_secs is None else timeout_secs,
                ) as response,
            ):
                answer = _read(response)
            if not response.is_success and response.status_code != NOT_MODIFIED:
                raise _error(answer)
            return answer

        return _repeated(once, self.retry_secs if repeat else 0.0)

    def pages(self, path: str, kind: type[_T], params: dict[str, str] | None = None) -> Iterator[_T]:
        """Pages of a list, fetched as they are needed."""
        wanted = {**(params or {}), "limit": str(MAX_PAGE)}
        while True:
            page = parse(kind, self.call("GET", path, params=wanted))
            yield page
            cursor: str | None = getattr(page, "next_cursor", None)
            if cursor is None:
                return
            wanted["cursor"] = cursor

    def stream(self, path: str, kind: type[_T], *, after: int) -> Iterator[_T]:
        """Server-sent events after the one of that number, on one connection; ends when the service closes it."""
        timeout = httpx2.Timeout(self.timeout_secs, read=EVENT_SILENCE_SECS)
        with (
            _transport_errors(self.url),
            self.http.sse(path, headers={"Last-Event-ID": str(after)}, timeout=timeout) as source,
        ):
            if not source.response.is_success:
                raise _error(_read(source.response))
            for event in source:
                if event.data:
                    yield _validate(kind, event.data)


@contextlib.contextmanager
def _transport_errors(url: str) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        raise Unreachable(f"{url} did not answer in time: {type(error).__name__}") from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        raise Unreachable(f"{url} cannot be reached: {error}") from error
    except httpx2.DecodingError as error:
        raise PitchpipeError(f"{url} sent an answer that cannot be unpacked: {error}") from error
    except httpx2.InvalidURL as error:
        raise InvalidInput(f"{url} is not a URL: {error}") from error


def _read(response: httpx2.Response) -> Answer:
    """Raises PitchpipeError for more than MAX_ANSWER_BYTES."""
    request = f"{response.request.method} {response.request.url.path}"
    parts, size_bytes = [], 0
    for part in response.iter_bytes():
        size_bytes += len(part)
        if size_bytes > MAX_ANSWER_BYTES:
            raise PitchpipeError(f"{request}: the answer has more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(request=request, status=response.status_code, headers=headers, content=b"".join(parts))


def _repeated(once: Callable[[], Answer], limit_secs: float) -> Answer:
    """Repeats while the service is away or busy. Not stamina: it announces retries on stdout, which is for data."""
    deadline = time.monotonic() + limit_secs
    pause_secs = FIRST_PAUSE_SECS
    while True:
        try:
            return once()
        except (Unreachable, Overloaded) as error:
            # The jitter keeps a fleet that was shed together from coming back together.
            asked_secs = 0.0 if error.retry_after_secs is None else error.retry_after_secs
            wait_secs = max(asked_secs, pause_secs * _JITTER.uniform(0.5, 1.0))
            if time.monotonic() + wait_secs > deadline:
                raise
        time.sleep(wait_secs)
        pause_secs = min(2 * pause_secs, LAST_PAUSE_SECS)


def _error(response: Answer) -> PitchpipeError:
    retry_after = response.headers.get("retry-after", "")
    retry_after_secs = float(retry_after) if retry_after.isdecimal() else None
    code, detail = "", f"{response.request}: HTTP {response.status}"
    if response.headers.get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
        # A newer service may send members that this version does not know; only what is needed is read.
        with contextlib.suppress(ValidationError):
            problem = Problem.model_validate_json(response.content, extra="ignore")
            code, detail = problem.code, problem.detail
    return from_problem(response.status, code, detail, retry_after_secs)


def parse(kind: type[_T], response: Answer) -> _T:
    """The wire type that an answer holds; members that this version does not know are left out."""
    return _validate(kind, response.content)


def _validate(kind: type[_T], text: bytes | str) -> _T:
    try:
        # A newer service may add members; an older client goes on without them.
        return kind.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        raise PitchpipeError(f"the service answered with something that is no {kind.__name__}: {error}") from error


def segment(value: str) -> str:
    """An identifier as one path segment, so that no identifier can reach another route."""
    if not value or not value.replace("_", "").isalnum() or not value.isascii():
        raise InvalidInput(f"{value[:64]!r} is not an identifier")
    return value
