"""The HTTP client: one method per route, wire types in and out, errors of pitchpipe.errors.

What may be repeated is repeated (see connection.py). A lease is never acquired twice by a retry, since the first answer
may have been a grant.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pitchpipe.answers import KeptAnswer
from pitchpipe.connection import NOT_MODIFIED, Connection, body, parse, pauses, segment
from pitchpipe.errors import InvalidInput, NotFound, Overloaded, Unreachable
from pitchpipe.managing import ManagingCalls
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.context import ContendersRequest, ContendersResponse, InContext
from pitchpipe.wire.health import Health
from pitchpipe.wire.job import (
    Budget,
    EventKind,
    JobEvent,
    JobRequest,
    JobState,
    JobView,
    ModelFormat,
    ModelView,
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
from pitchpipe.wire.miss import IdleBudget, IdleBudgetRequest, MissReceipt, MissReport, MissView
from pitchpipe.wire.page import JobPage, MissPage, ModelPage, RecordPage, WorkerPage
from pitchpipe.wire.pin import PinRequest, PinResponse, ServedPin
from pitchpipe.wire.record import (
    ExplainRequest,
    ExplainResponse,
    LookupRequest,
    LookupResponse,
    RecordView,
    TuningRecord,
)
from pitchpipe.wire.savings import Savings
from pitchpipe.wire.target import Target
from pitchpipe.wire.upgrade import OutdatedList, UpgradeRequest

if TYPE_CHECKING:
    import httpx2

__all__ = ["Client"]


class Client(ManagingCalls):
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
        self.token = token = token or os.environ.get("PITCHPIPE_TOKEN")
        if not url:
            raise InvalidInput("no service URL: pass one or set PITCHPIPE_URL")
        self._connection = Connection(
            url.rstrip("/"), token, timeout_secs=timeout_secs, retry_secs=retry_secs, transport=transport
        )
        self.url = self._connection.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client cannot be used again."""
        self._connection.close()

    # --- models

    def upload_model(self, data: bytes | str | os.PathLike[str], name: str, format: ModelFormat | str) -> ModelView:
        """Uploads bytes, or streams the file at a path. The same bytes again give the same model."""
        params = {"name": name, "format": ModelFormat(format).value}
        headers = {"Content-Type": "application/octet-stream"}
        response = self._connection.call("POST", "/v1/models", params=params, headers=headers, body=partial(body, data))
        return parse(ModelView, response)

    def tell_comparison(self, model_id: str, comparison: Comparison) -> ModelView | None:
        """Tells what comparing the model with its framework came to. None where the service is too old to keep that."""
        path = f"/v1/models/{segment(model_id)}/comparison"
        try:
            return parse(ModelView, self._connection.call("PUT", path, json=comparison))
        except NotFound:
            return None

    def models(self) -> Iterator[ModelView]:
        """All models, newest first; pages are fetched as they are needed."""
        for page in self._connection.pages("/v1/models", ModelPage):
            yield from page.items

    def model(self, model_id: str) -> ModelView:
        return parse(ModelView, self._connection.call("GET", f"/v1/models/{segment(model_id)}"))

    # --- jobs

    def submit(self, request: JobRequest, *, idempotency_key: str | None = None) -> JobView:
        """Submits a job. A key is always sent, so a repeated call after a broken connection submits once."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return parse(JobView, self._connection.call("POST", "/v1/jobs", json=request, headers=headers))

    def jobs(self) -> Iterator[JobView]:
        """All jobs, newest first, without their tasks."""
        for page in self._connection.pages("/v1/jobs", JobPage):
            yield from page.items

    def job(self, job_id: str) -> JobView:
        return parse(JobView, self._connection.call("GET", f"/v1/jobs/{segment(job_id)}"))

    def cancel(self, job_id: str) -> JobView:
        return parse(JobView, self._connection.call("POST", f"/v1/jobs/{segment(job_id)}/cancel"))

    def pause(self, job_id: str) -> JobView:
        """Pauses a job: nothing of it is leased, and its clock stands, until `resume`. Raises Conflict for an ended one."""
        return parse(JobView, self._connection.call("POST", f"/v1/jobs/{segment(job_id)}/pause"))

    def resume(self, job_id: str) -> JobView:
        """Lets a paused job go on. Raises Conflict for one that ended."""
        return parse(JobView, self._connection.call("POST", f"/v1/jobs/{segment(job_id)}/resume"))

    def extend(self, job_id: str, budget: Budget) -> JobView:
        """Raises a job's budget to this one, which bounds no less than the one it has: `job(...).budget.plus(...)`.

        Idempotent. Raises Conflict for a job that spends no more trials, InvalidInput for a smaller budget.
        """
        return parse(JobView, self._connection.call("PUT", f"/v1/jobs/{segment(job_id)}/budget", json=budget))

    def events(self, job_id: str, after: int = 0) -> Iterator[JobEvent]:
        """The job's events from number `after` + 1 on, each once and in order, until the job has ended.

        A broken stream is taken up again where it broke; Unreachable when that fails for `retry_secs`.
        """
        seq = after
        silent_since = time.monotonic()
        while True:
            received = 0
            try:
                for event in self._connection.stream(f"/v1/jobs/{segment(job_id)}/events", JobEvent, after=seq):
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
                if time.monotonic() - silent_since > self._connection.retry_secs:
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
        view = self.job(job_id)
        on_view(view)
        for pause_secs in pauses(timeout_secs, poll_secs):
            if view.state.ended:
                break
            time.sleep(pause_secs)
            view = self.job(job_id)
            on_view(view)
        return view

    def job_schedules(self, job_id: str, target: Target | None = None) -> LookupResponse:
        """The answers for the job's workloads; `target` is needed when the job has several."""
        params = {} if target is None else {"target": target.key}
        return parse(
            LookupResponse, self._connection.call("GET", f"/v1/jobs/{segment(job_id)}/schedules", params=params)
        )

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
        timeout_secs = self._connection.timeout_secs + request.wait_secs
        response = self._connection.call("POST", "/v1/leases", json=request, timeout_secs=timeout_secs, repeat=False)
        return parse(LeaseResponse, response).grant

    def heartbeat(self, lease: str, fence: int) -> HeartbeatResponse:
        """Renews the lease; raises StaleLease when it is lost."""
        path = f"/v1/leases/{segment(lease)}/heartbeat"
        return parse(HeartbeatResponse, self._connection.call("POST", path, json=Heartbeat(fence=fence)))

    def report(self, lease: str, report: Report) -> ReportResponse:
        """Stores results; durable on return, and harmless to repeat."""
        return parse(ReportResponse, self._connection.call("POST", f"/v1/leases/{segment(lease)}/report", json=report))

    def workload(self, digest: str) -> WorkloadView:
        return parse(WorkloadView, self._connection.call("GET", f"/v1/workloads/{segment(digest)}"))

    # --- records and schedules

    def records(
        self, workload: str | None = None, target: Target | None = None, *, timed: bool | None = None
    ) -> Iterator[TuningRecord]:
        """Measured candidates, newest first; pages are fetched as they are needed. `timed=False` gives failures only."""
        params: dict[str, str] = {}
        if workload is not None:
            params["workload"] = workload
        if target is not None:
            params["target"] = target.key
        if timed is not None:
            params["timed"] = str(timed).lower()
        for page in self._connection.pages("/v1/records", RecordPage, params):
            yield from page.items

    def record(self, record_id: str) -> RecordView:
        """One record with the program that its trace applies to, and the name and the baseline of its task."""
        return parse(RecordView, self._connection.call("GET", f"/v1/records/{segment(record_id)}"))

    def lookup(self, request: LookupRequest, *, cache: Path | None = None) -> LookupResponse:
        """The served schedules of many workloads for one target.

        With a folder the answer is kept there, and sent again by the service only if it has changed since.
        """
        kept = None if cache is None else KeptAnswer(cache, self.url, request)
        known = None if kept is None else kept.read()
        headers = {} if known is None else {"If-None-Match": known[0]}
        response = self._connection.call("POST", "/v1/schedules/lookup", json=request, headers=headers)
        if known is not None and response.status == NOT_MODIFIED:
            return known[1]
        answer = parse(LookupResponse, response)
        if kept is not None and "etag" in response.headers:
            kept.write(response.headers["etag"], answer)
        return answer

    def earlier_lookup(self, request: LookupRequest, cache: Path) -> LookupResponse | None:
        """What the service answered to this look-up before, from the folder; it is not asked."""
        kept = KeptAnswer(cache, self.url, request).read()
        return None if kept is None else kept[1]

    def explain(self, request: ExplainRequest) -> ExplainResponse:
        """Why workloads of a look-up have no exact answer."""
        return parse(ExplainResponse, self._connection.call("POST", "/v1/schedules/explain", json=request))

    def pinned(self, request: PinRequest) -> PinResponse:
        """The traces of records that a lock file names."""
        return parse(PinResponse, self._connection.call("POST", "/v1/schedules/pinned", json=request))

    def pin_schedule(self, pin: ServedPin) -> ServedPin:
        """Keeps what is served, whatever is confirmed later, or lets it be replaced again."""
        return parse(ServedPin, self._connection.call("PUT", "/v1/schedules/pin", json=pin))

    def contenders(self, request: ContendersRequest) -> ContendersResponse:
        """The fastest schedules of some workloads: what may be tried inside a model."""
        return parse(ContendersResponse, self._connection.call("POST", "/v1/schedules/contenders", json=request))

    def put_in_context(self, report: InContext) -> InContext:
        """Serves what won inside a model to look-ups that name the contexts."""
        return parse(InContext, self._connection.call("PUT", "/v1/schedules/in-context", json=report))

    def savings(self, days: int = 7) -> Savings:
        """What served schedules saved the deployments that report their runs, day by day (UTC)."""
        return parse(Savings, self._connection.call("GET", "/v1/schedules/savings", params={"days": str(days)}))

    def outdated(self, target: Target | None = None, limit: int = 50) -> OutdatedList:
        """What is served from another toolchain, driver or device class than the workers have, the most valuable first."""
        params = {"limit": str(limit)} | ({} if target is None else {"target": target.key})
        return parse(OutdatedList, self._connection.call("GET", "/v1/schedules/outdated", params=params))

    def upgrade(self, request: UpgradeRequest, *, idempotency_key: str | None = None) -> JobView:
        """Submits a job that replays such workloads. A key is always sent, as with `submit`."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return parse(JobView, self._connection.call("POST", "/v1/schedules/upgrade", json=request, headers=headers))

    # --- misses

    def report_misses(self, report: MissReport, *, idempotency_key: str | None = None) -> MissReceipt:
        """Tells what ran, without a schedule or with a served one. A key is always sent, so a repeated call counts once."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return parse(MissReceipt, self._connection.call("POST", "/v1/misses", json=report, headers=headers))

    def misses(self, target: Target | None = None, limit: int = 50) -> tuple[MissView, ...]:
        """What deployments missed, the most valuable first."""
        params = {"limit": str(limit)} | ({} if target is None else {"target": target.key})
        return parse(MissPage, self._connection.call("GET", "/v1/misses", params=params)).items

    def idle_budget(self) -> IdleBudget:
        """What idle workers may spend on misses in a day."""
        return parse(IdleBudget, self._connection.call("GET", "/v1/projects/current/idle-budget"))

    def set_idle_budget(self, trials_per_day: int) -> IdleBudget:
        """0 is off."""
        request = IdleBudgetRequest(trials_per_day=trials_per_day)
        return parse(IdleBudget, self._connection.call("PUT", "/v1/projects/current/idle-budget", json=request))

    # --- workers

    def register_worker(self, registration: WorkerRegistration) -> WorkerView:
        """Registers a worker, or brings the one of this name back."""
        return parse(WorkerView, self._connection.call("POST", "/v1/workers", json=registration))

    def workers(self) -> list[WorkerView]:
        """All workers of the project, newest first."""
        return [worker for page in self._connection.pages("/v1/workers", WorkerPage) for worker in page.items]

    def worker(self, worker_id: str) -> WorkerView:
        return parse(WorkerView, self._connection.call("GET", f"/v1/workers/{segment(worker_id)}"))

    def set_worker_state(self, worker_id: str, state: WorkerState) -> WorkerView:
        """`draining` or `gone`."""
        request = WorkerStateRequest.model_validate({"state": state})
        return parse(WorkerView, self._connection.call("POST", f"/v1/workers/{segment(worker_id)}/state", json=request))

    # --- service

    def health(self) -> Health:
        """Raises Overloaded or Unreachable unless the service is ready for work."""
        return parse(Health, self._connection.call("GET", "/readyz"))
