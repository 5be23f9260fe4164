"""One trace of a job: the client's submission, the service, the coordinator and a worker, each with what only it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from pitchpipe import telemetry
from pitchpipe.client import Client
from pitchpipe.wire.job import Budget, JobRequest, JobState, Scope, TokenRequest
from pitchpipe.wire.lease import LeaseGrant, LeaseRequest, Purpose, Report, WorkerRegistration
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, MeasureConfig, Measurement
from service.blobs import Blobs
from service.coordination.coordinator import Coordinator
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import models, tokens
from service.wake import Wake
from tests.database.test_coordinator import Steps
from tests.fleet import until
from tests.patience import PATIENCE_SECS
from tests.scene import DEVICE, TARGET, TOOLCHAIN, candidates, task, timed
from tests.unit.test_worker_daemon import FakeSandbox
from tuner.search.requests import Proposal
from workers.agent.daemon import Daemon
from workers.sandbox.messages import Batch, End, Phase
from workers.sandbox.phases import Spent
from workers.sandbox.sandbox import Sandbox

CALLER = f"00-{'a' * 32}-{'b' * 16}-01"
REGISTRATION = WorkerRegistration(name="w", device=DEVICE, target=TARGET, toolchain=TOOLCHAIN)


class Timing(FakeSandbox):
    """The baseline takes 20 ms in it, and every other candidate one."""

    def result(self, candidate: Candidate) -> Measurement:
        return timed(candidate.digest, 20e-3 if candidate.trace == BASELINE_TRACE else 1e-3)


class Service:
    """An app over SQLite and a coordinator whose steps the test answers. A context manager."""

    def __init__(self, database: Database) -> None:
        self.database, self.blobs, self.steps = database, Blobs("memory:///"), Steps()
        settings, wake = Settings(blob_url="memory:///", model_check_secs=0, poll_secs=0.01), Wake()
        self.http = TestClient(create_app(settings, database, self.blobs, wake))
        self.coordinator = Coordinator(settings, database, self.blobs, wake, self.steps)
        self.proposals = [Proposal(candidate=c, features=None) for c in candidates(0, 4)]

    def __enter__(self) -> Service:
        self.http.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.__exit__()

    def client(self, scope: Scope) -> Client:
        with self.database.transaction() as session:
            token = tokens.create(session, TokenRequest(project="a", scope=scope)).token
        return Client("http://testserver", token, transport=self.http._transport, retry_secs=0)

    def request(self, user: Client) -> JobRequest:
        """For a model that was read already."""
        model = user.upload_model(b"an onnx file", "net.onnx", "onnx").id
        with self.database.transaction() as session:
            models.accept(session, model, self.blobs.put(b"ingested"))
        return JobRequest(model=model, targets=(TARGET,), budget=Budget(trials=4))

    def tick(self) -> None:
        """Lets the coordinator act, and answers what it asked for."""
        self.coordinator.tick()
        for name, future in self.steps.given:
            if name == "split_ingested":
                future.set_result([task()])
            elif name == "propose":
                future.set_result(self.proposals)
                self.proposals = []
        self.steps.given.clear()


@pytest.fixture
def service(sqlite_database: Database) -> Iterator[Service]:
    with Service(sqlite_database) as opened:
        yield opened


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What this process records during the test, on whosever behalf."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # set_tracer_provider can be called once in a process
    return exporter


@contextmanager
def working(service: Service) -> Iterator[None]:
    """Meanwhile a worker works; at the end it leaves."""
    daemon = Daemon(service.client(Scope.WORKER), Timing(), REGISTRATION, tick_secs=0.02, wait_secs=0.05)
    worker = threading.Thread(target=daemon.run, daemon=True)
    worker.start()
    try:
        yield
    finally:
        daemon.stop()
        worker.join(PATIENCE_SECS)
    assert not worker.is_alive()


def granted(service: Service, submit: Callable[[Client], object]) -> tuple[Client, LeaseGrant]:
    """What a worker is granted of a job, once `submit` has submitted it as a user."""
    worker = service.client(Scope.WORKER)
    worker_id = worker.register_worker(REGISTRATION).id
    submit(service.client(Scope.USER))
    for _ in range(4):
        service.tick()
    grant = worker.acquire(LeaseRequest(worker=worker_id, wait_secs=0))
    assert grant is not None
    return worker, grant


def submitted_with(service: Service, headers: dict[str, str]) -> Callable[[Client], object]:
    """Submits by a request with these headers besides what it needs."""

    def submit(user: Client) -> None:
        body = service.request(user).model_dump_json(by_alias=True)
        needed = {"authorization": f"Bearer {user.token}", "content-type": "application/json"}
        assert service.http.post("/v1/jobs", content=body, headers=needed | headers).status_code == 201

    return submit


def test_a_job_is_one_trace_from_its_submission_to_what_is_served(
    service: Service, spans: InMemorySpanExporter
) -> None:
    user = service.client(Scope.USER)

    def ended() -> bool:
        service.tick()
        return user.job(job.id).state.ended

    with working(service):
        until(lambda: list(user.workers()))
        request = service.request(user)
        with telemetry.span("client"):
            job = user.submit(request)
        until(ended)
    assert user.job(job.id).state is JobState.DONE
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found}) == 1
    by_id = {span.context.span_id: span for span in found}

    def ancestors(span: ReadableSpan) -> list[str]:
        parent = None if span.parent is None else by_id.get(span.parent.span_id)
        return [span.name] if parent is None else [span.name, *ancestors(parent)]

    ways = {tuple(ancestors(span)) for span in found}
    submitted = ("submit", "POST /v1/jobs", "client")
    measured = ("measure", "lease", *submitted)
    assert ways >= {
        ("client",),
        *((name, *submitted) for name in ("split", "search", "lease", "confirm", "set_best")),
        measured,
        ("report", "POST /v1/leases/{lease_id}/report", "report", "lease", *submitted),
    }
    purposes = [span.attributes["pitchpipe.purpose"] for span in found if span.name == "measure" and span.attributes]
    assert sorted(purposes) == ["confirm", "search"]


def test_a_service_without_spans_of_its_own_hands_the_callers_trace_to_the_worker(service: Service) -> None:
    worker, grant = granted(service, submitted_with(service, {"traceparent": CALLER}))
    assert grant.traceparent == CALLER
    results = tuple(timed(candidate.digest) for candidate in grant.candidates)
    assert worker.report(grant.lease, Report(fence=grant.fence, results=results, final=True)).accepted == 4


@pytest.mark.parametrize("header", [None, "", "00-zz", CALLER.upper(), f"00-{'0' * 32}-{'b' * 16}-01"])
def test_a_caller_without_a_valid_trace_has_none(service: Service, header: str | None) -> None:
    _, grant = granted(service, submitted_with(service, {} if header is None else {"traceparent": header}))
    assert grant.traceparent is None


def test_a_report_continues_the_trace_of_its_job_where_the_worker_sends_none(
    service: Service, spans: InMemorySpanExporter
) -> None:
    worker, grant = granted(service, lambda user: user.submit(service.request(user)))
    worker.report(grant.lease, Report(fence=grant.fence, results=(), final=True))
    (submitted,) = [span for span in spans.get_finished_spans() if span.name == "submit"]
    (reported,) = [span for span in spans.get_finished_spans() if span.name == "report"]
    assert submitted.parent is None
    assert reported.parent is not None
    assert reported.parent.span_id == submitted.context.span_id


def test_the_parts_of_a_batch_are_spans_of_its_measurement(spans: InMemorySpanExporter) -> None:
    told = [
        Phase(name="build", began=1.0, ended=3.0, wait_secs=0.5),
        Phase(name="check and time", began=3.0, ended=4.5, check_secs=0.25),
        Phase(name="build, check and time", began=5.0, ended=6.0, check_secs=0.5),
        Phase(name="check", began=6.0, ended=6.5, wait_secs=7.0),
        End(),
    ]
    channel, spent = SimpleNamespace(send=lambda batch: None, receive=lambda secs: told.pop(0)), Spent()
    batch = Batch(candidates=(), config=MeasureConfig(), purpose=Purpose.SEARCH, incumbent_secs=None, usual_secs=None)
    with telemetry.span("measure"):
        of_worker = cast(Any, SimpleNamespace(_spent=spent))
        assert list(Sandbox._results(of_worker, cast(Any, SimpleNamespace(channel=channel)), batch, bool)) == []
    *parts, measure = spans.get_finished_spans()
    assert [(span.name, (span.start_time or 0) / 1e9, (span.end_time or 0) / 1e9) for span in parts] == [
        ("wait", 1.0, 1.5),
        ("build", 1.5, 3.0),
        ("check", 3.0, 3.25),
        ("time", 3.25, 4.5),
        ("build, check and time", 5.0, 6.0),
        ("wait", 6.0, 6.5),
        ("check", 6.5, 6.5),
    ]
    assert {span.parent and span.parent.span_id for span in parts} == {measure.context.span_id}
    found = spent.seconds
    assert (found.build_secs, found.check_secs, found.time_secs, found.wait_secs) == (1.5, 0.75, 1.75, 1.0)
