"""The HTTP client: one method per route, wire types in and out, errors of pitchpipe.errors.

What may be repeated is repeated: calls that are idempotent by nature or by key are retried on a broken connection and
on 503 for up to `retry_secs`, with the service's Retry-After obeyed. A lease is never acquired twice by a retry, since
the first answer may have been a grant.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from pitchpipe.errors import (
    InvalidInput,
    NotFound,
    Overloaded,
    PitchpipeError,
    Unreachable,
    from_problem,
)
from pitchpipe.wire.health import Health
from pitchpipe.wire.job import (
    EventKind,
    JobEvent,
    JobRequest,
    JobState,
    JobView,
    ModelFormat,
    ModelView,
    Scope,
    TokenCreated,
    TokenRequest,
    TokenView,
)
from pitchpipe.wire.lease import (
    Heartbeat,
    HeartbeatResponse,
    LeaseGrant,
    LeaseRequest,
    LeaseResponse,
    Report,
    ReportResponse,
    WorkerRegistration,
    WorkerState,
    WorkerStateRequest,
    WorkerView,
    WorkloadView,
)
from pitchpipe.wire.page import MAX_PAGE, JobPage, ModelPage, RecordPage, TokenPage, WorkerPage
from pitchpipe.wire.problem import PROBLEM_MEDIA_TYPE, Problem
from pitchpipe.wire.record import LookupRequest, LookupResponse, TuningRecord
from pitchpipe.wire.target import Target

__all__ = ["Client"]

_T = TypeVar("_T", bound=BaseModel)
_Body = bytes | IO[bytes]

FIRST_PAUSE_SECS, LAST_PAUSE_SECS = 0.1, 5.0
"""Between repetitions of a call, doubled each time: soon after a hiccup, and no burden on a service that restarts."""
EVENT_SILENCE_SECS = 45.0
"""The service sends a comment every 15 s; three missed ones mean a dead connection."""


class Client:
    """A connection pool to one service. Thread-safe; close it, or use it as a context manager.

    url, token: default to PITCHPIPE_URL and PITCHPIPE_TOKEN.
    timeout_secs: per connect and per silence on the connection, not per call.
    retry_secs: how long an idempotent call goes on trying; 0 never repeats.
    Every method raises errors of pitchpipe.errors only; Unreachable when the service does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_secs: float = 30.0,
        retry_secs: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        url = url or os.environ.get("PITCHPIPE_URL")
        token = token or os.environ.get("PITCHPIPE_TOKEN")
        if not url:
            raise InvalidInput("no service URL: pass one or set PITCHPIPE_URL")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._timeout_secs = timeout_secs
        self._retry_secs = retry_secs
        try:
            self._http = httpx2.Client(
                base_url=self.url, headers=headers, timeout=timeout_secs, transport=transport, follow_redirects=False
            )
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidInput(f"the service URL or the token is not valid: {error}") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client cannot be used again."""
        self._http.close()

    # --- models

    def upload_model(self, data: bytes | str | os.PathLike[str], name: str, format: ModelFormat | str) -> ModelView:
        """Uploads bytes, or streams the file at a path. The same bytes again give the same model."""
        params = {"name": name, "format": ModelFormat(format).value}

        @contextlib.contextmanager
        def body() -> Iterator[_Body]:
            if isinstance(data, bytes):
                yield data
            else:
                with Path(data).open("rb") as file:
                    yield file

        headers = {"Content-Type": "application/octet-stream"}
        response = self._call("POST", "/v1/models", params=params, headers=headers, body=body)
        return _parse(ModelView, response)

    def models(self) -> Iterator[ModelView]:
        """All models, newest first; pages are fetched as they are needed."""
        for page in self._pages("/v1/models", ModelPage):
            yield from page.items

    def model(self, model_id: str) -> ModelView:
        return _parse(ModelView, self._call("GET", f"/v1/models/{_part(model_id)}"))

    # --- jobs

    def submit(self, request: JobRequest, *, idempotency_key: str | None = None) -> JobView:
        """Submits a job. A key is always sent, so a repeated call after a broken connection submits once."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return _parse(JobView, self._call("POST", "/v1/jobs", json=request, headers=headers))

    def jobs(self) -> Iterator[JobView]:
        """All jobs, newest first, without their tasks."""
        for page in self._pages("/v1/jobs", JobPage):
            yield from page.items

    def job(self, job_id: str) -> JobView:
        return _parse(JobView, self._call("GET", f"/v1/jobs/{_part(job_id)}"))

    def cancel(self, job_id: str) -> JobView:
        return _parse(JobView, self._call("POST", f"/v1/jobs/{_part(job_id)}/cancel"))

    def events(self, job_id: str, after: int = 0) -> Iterator[JobEvent]:
        """The job's events from number `after` + 1 on, each once and in order, until the job has ended.

        A broken stream is taken up again where it broke; Unreachable when that fails for `retry_secs`.
        """
        seq = after
        silent_since = time.monotonic()
        while True:
            received = 0
            try:
                for event in self._stream(job_id, seq):
                    if event.seq <= seq:
                        continue
                    seq, received = event.seq, received + 1
                    yield event
                    if event.kind is EventKind.STATE and JobState(str(event.data["state"])).ended:
                        return
                if received == 0 and self.job(job_id).state.ended:
                    return
                silent_since = time.monotonic()
            except (Unreachable, Overloaded):
                if received:
                    silent_since = time.monotonic()
                if time.monotonic() - silent_since > self._retry_secs:
                    raise
            time.sleep(0.2)

    def wait(
        self,
        job_id: str,
        timeout_secs: float | None = None,
        *,
        on_view: Callable[[JobView], object] = lambda _: None,
        poll_secs: float = 1.0,
    ) -> JobView:
        """The job once it has ended, however it did, or as it is when the timeout passes; `on_view` sees every look."""
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        pause_secs = min(0.05, poll_secs)
        while True:
            view = self.job(job_id)
            on_view(view)
            left_secs = pause_secs if deadline is None else deadline - time.monotonic()
            if view.state.ended or left_secs <= 0:
                return view
            time.sleep(min(pause_secs, left_secs))
            pause_secs = min(pause_secs * 1.5, poll_secs)

    def job_schedules(self, job_id: str, target: Target | None = None) -> LookupResponse:
        """The answers for the job's workloads; `target` is needed when the job has several."""
        params = {} if target is None else {"target": target.key}
        return _parse(LookupResponse, self._call("GET", f"/v1/jobs/{_part(job_id)}/schedules", params=params))

    def fetch(self, model_or_job: str, target: Target | None = None) -> LookupResponse:
        """The schedules of a job, or of the newest job of a model that covers the target; done jobs first."""
        if not model_or_job.startswith("mdl_"):
            return self.job_schedules(model_or_job, target)
        fitting = [
            job
            for job in self.jobs()
            if job.model == model_or_job and (target is None or target.key in {t.key for t in job.targets})
        ]
        if not fitting:
            raise NotFound(f"no job has tuned model {model_or_job}" + (f" for {target.key}" if target else ""))
        best = next((job for job in fitting if job.state is JobState.DONE), fitting[0])
        return self.job_schedules(best.id, target)

    # --- leases

    def acquire(self, request: LeaseRequest) -> LeaseGrant | None:
        """Waits up to `wait_secs` for work. Never repeated: an answer that was lost may have been a grant."""
        timeout_secs = self._timeout_secs + request.wait_secs
        response = self._call("POST", "/v1/leases", json=request, timeout_secs=timeout_secs, repeat=False)
        return _parse(LeaseResponse, response).grant

    def heartbeat(self, lease: str, fence: int) -> HeartbeatResponse:
        """Renews the lease; raises StaleLease when it is lost."""
        path = f"/v1/leases/{_part(lease)}/heartbeat"
        return _parse(HeartbeatResponse, self._call("POST", path, json=Heartbeat(fence=fence)))

    def report(self, lease: str, report: Report) -> ReportResponse:
        """Stores results; durable on return, and harmless to repeat."""
        return _parse(ReportResponse, self._call("POST", f"/v1/leases/{_part(lease)}/report", json=report))

    def workload(self, digest: str) -> WorkloadView:
        return _parse(WorkloadView, self._call("GET", f"/v1/workloads/{_part(digest)}"))

    # --- records and schedules

    def records(self, workload: str | None = None, target: Target | None = None) -> Iterator[TuningRecord]:
        """Measured candidates, newest first."""
        params: dict[str, str] = {}
        if workload is not None:
            params["workload"] = workload
        if target is not None:
            params["target"] = target.key
        for page in self._pages("/v1/records", RecordPage, params):
            yield from page.items

    def lookup(self, request: LookupRequest) -> LookupResponse:
        """The served schedules of many workloads for one target."""
        return _parse(LookupResponse, self._call("POST", "/v1/schedules/lookup", json=request))

    # --- workers

    def register_worker(self, registration: WorkerRegistration) -> WorkerView:
        """Registers a worker, or brings the one of this name back."""
        return _parse(WorkerView, self._call("POST", "/v1/workers", json=registration))

    def workers(self) -> list[WorkerView]:
        """All workers of the project, newest first."""
        return [worker for page in self._pages("/v1/workers", WorkerPage) for worker in page.items]

    def worker(self, worker_id: str) -> WorkerView:
        return _parse(WorkerView, self._call("GET", f"/v1/workers/{_part(worker_id)}"))

    def set_worker_state(self, worker_id: str, state: WorkerState) -> WorkerView:
        """`draining` or `gone`."""
        request = WorkerStateRequest.model_validate({"state": state})
        return _parse(WorkerView, self._call("POST", f"/v1/workers/{_part(worker_id)}/state", json=request))

    # --- tokens

    def create_token(self, project: str, scope: Scope | str, label: str = "") -> TokenCreated:
        """The only time the token's text is seen. Not repeated: an answer that was lost leaves a token to revoke."""
        request = TokenRequest(project=project, scope=Scope(scope), label=label)
        return _parse(TokenCreated, self._call("POST", "/v1/tokens", json=request, repeat=False))

    def tokens(self) -> Iterator[TokenView]:
        for page in self._pages("/v1/tokens", TokenPage):
            yield from page.items

    def revoke_token(self, token_id: str) -> None:
        self._call("DELETE", f"/v1/tokens/{_part(token_id)}")

    # --- service

    def health(self) -> Health:
        """Raises Overloaded or Unreachable unless the service is ready for work."""
        return _parse(Health, self._call("GET", "/readyz"))

    # --- below here: how a call is made

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        json: BaseModel | None = None,
        headers: dict[str, str] | None = None,
        body: Callable[[], contextlib.AbstractContextManager[_Body]] | None = None,
        timeout_secs: float | None = None,
        repeat: bool = True,
    ) -> httpx2.Response:
        headers = dict(headers or {})
        if json is not None:
            content = json.model_dump_json(by_alias=True).encode()
            headers["Content-Type"] = "application/json"
            body = lambda: contextlib.nullcontext(content)  # noqa: E731 - one line, one use

        def once() -> httpx2.Response:
            with contextlib.nullcontext() if body is None else body() as content, _transport_errors(self.url):
                response = self._http.request(
                    method,
                    path,
                    params=params,
                    content=content,
                    headers=headers,
                    timeout=self._timeout_secs if timeout_secs is None else timeout_secs,
                )
            if not response.is_success:
                raise _error(response)
            return response

        return _repeated(once, self._retry_secs if repeat else 0.0)

    def _pages(self, path: str, kind: type[_T], params: dict[str, str] | None = None) -> Iterator[_T]:
        wanted = {**(params or {}), "limit": str(MAX_PAGE)}
        while True:
            page = _parse(kind, self._call("GET", path, params=wanted))
            yield page
            cursor: str | None = getattr(page, "next_cursor", None)
            if cursor is None:
                return
            wanted["cursor"] = cursor

    def _stream(self, job_id: str, seq: int) -> Iterator[JobEvent]:
        """One connection to the event stream; ends when the service closes it."""
        timeout = httpx2.Timeout(self._timeout_secs, read=EVENT_SILENCE_SECS)
        with (
            _transport_errors(self.url),
            self._http.sse(
                f"/v1/jobs/{_part(job_id)}/events", headers={"Last-Event-ID": str(seq)}, timeout=timeout
            ) as source,
        ):
            if not source.response.is_success:
                source.response.read()
                raise _error(source.response)
            for event in source:
                if event.data:
                    yield _validate(JobEvent, event.data)


@contextlib.contextmanager
def _transport_errors(url: str) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        raise Unreachable(f"{url} did not answer in time: {type(error).__name__}") from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        raise Unreachable(f"{url} cannot be reached: {error}") from error
    except httpx2.InvalidURL as error:
        raise InvalidInput(f"{url} is not a URL: {error}") from error


def _repeated(once: Callable[[], httpx2.Response], limit_secs: float) -> httpx2.Response:
    """Repeats while the service is away or busy. Not stamina: it announces retries on stdout, which is for data."""
    deadline = time.monotonic() + limit_secs
    pause_secs = FIRST_PAUSE_SECS
    while True:
        try:
            return once()
        except (Unreachable, Overloaded) as error:
            # The jitter keeps a fleet that was shed together from coming back together.
            asked_secs = 0.0 if error.retry_after_secs is None else error.retry_after_secs
            wait_secs = max(asked_secs, pause_secs * random.uniform(0.5, 1.0))
            if time.monotonic() + wait_secs > deadline:
                raise
        time.sleep(wait_secs)
        pause_secs = min(2 * pause_secs, LAST_PAUSE_SECS)


def _error(response: httpx2.Response) -> PitchpipeError:
    retry_after = response.headers.get("retry-after", "")
    retry_after_secs = float(retry_after) if retry_after.isdecimal() else None
    code, detail = "", f"{response.request.method} {response.request.url.path}: HTTP {response.status_code}"
    if response.headers.get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
        # A newer service may send members that this version does not know; only what is needed is read.
        with contextlib.suppress(ValidationError):
            problem = Problem.model_validate_json(response.content, extra="ignore")
            code, detail = problem.code, problem.detail
    return from_problem(response.status_code, code, detail, retry_after_secs)


def _parse(kind: type[_T], response: httpx2.Response) -> _T:
    return _validate(kind, response.content)


def _validate(kind: type[_T], text: bytes | str) -> _T:
    try:
        # A newer service may add members; an older client goes on without them.
        return kind.model_validate_json(text, extra="ignore")
    except ValidationError as error:
        raise PitchpipeError(f"the service answered with something that is no {kind.__name__}: {error}") from error


def _part(value: str) -> str:
    """An identifier as one path segment, so that no identifier can reach another route."""
    if not value or not value.replace("_", "").isalnum() or not value.isascii():
        raise InvalidInput(f"{value[:64]!r} is not an identifier")
    return value
