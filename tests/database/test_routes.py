"""The routes over a real SQLite store, in process: what each answers, and what bad input gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pitchpipe.client import Client
from pitchpipe.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    InvalidModel,
    InvalidTarget,
    InvalidTransition,
    NoDevice,
    NotFound,
    StaleLease,
    TooLarge,
    Unauthorized,
)
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelView, Scope, TokenRequest
from pitchpipe.wire.lease import (
    LeaseRequest,
    Purpose,
    Report,
    WorkerRegistration,
    WorkerSeconds,
    WorkerState,
    WorkerView,
)
from pitchpipe.wire.measure import (
    Candidate,
    CheckVerdict,
    Failed,
    FailureKind,
    MeasureConfig,
    SampleRule,
    Stop,
    Timed,
)
from pitchpipe.wire.record import LookupRequest, RecordView, Tier
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Task, Workload
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.http.auth import Authenticator
from service.settings import Settings
from service.store import batches, events, job_tasks, jobs, records, tokens, workloads
from service.wake import Wake
from tests.scene import best, record, roofline, steadiness

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})
OTHER = Target.parse({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
WORKLOAD = Workload(digest=sha256(b"a workload"), ir="{}")
CANDIDATES = [Candidate.of(WORKLOAD.digest, json.dumps([[["Fuse", n]], []])) for n in range(4)]
VERDICT = CheckVerdict(passed=True, max_abs_error=0, tolerance=1e-3, input_sets=1)
REGISTRATION = WorkerRegistration(
    name="w1",
    device=DeviceFingerprint(kind="cpu", model="m", cores=2, memory_bytes=1),
    target=TARGET,
    toolchain=Toolchain(tvm="0.27", tvm_ffi="0.1.14", codegen="llvm 19"),
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One app, with a token of each scope for project `a`, of each for project `b`, and an operator's."""

    http: TestClient
    database: Database
    settings: Settings
    tokens: dict[str, str]

    def client(self, who: str) -> Client:
        return Client("http://testserver", self.tokens.get(who, who), transport=self.http._transport, retry_secs=0)

    def job(self, state: JobState = JobState.QUEUED) -> str:
        """A job of project `a`, whose target is served by worker w1."""
        self.client("worker").register_worker(REGISTRATION)
        view = self.client("user").submit(request_for(self.model()))
        if state is not JobState.QUEUED:
            path = [JobState.INGESTING, JobState.TUNING, JobState.CONFIRMING, JobState.DONE]
            with self.database.transaction() as session:
                for step in path[: path.index(state) + 1]:
                    jobs.transition(session, view.id, step)
        return view.id

    def model(self) -> ModelView:
        return self.client("user").upload_model(b"an onnx file", "resnet", "onnx")

    def batch(self) -> str:
        """A tuning job with one batch of four queued candidates."""
        job = self.job(JobState.INGESTING)
        task = Task(workload=WORKLOAD, target=TARGET, name="dense", weight=1, flops=1, bytes=1, group="g")
        with self.database.transaction() as session:
            project = tokens.bootstrap(session, "a")
            workloads.put(session, project, WORKLOAD)
            job_tasks.set_tasks(session, job, [task])
            jobs.transition(session, job, JobState.TUNING)
            batches.issue(session, job, WORKLOAD.digest, TARGET, Purpose.SEARCH, CANDIDATES, MeasureConfig())
        return job

    def worker(self) -> WorkerView:
        return self.client("worker").register_worker(REGISTRATION)


def request_for(model: ModelView, *targets: Target, trials: int = 8) -> JobRequest:
    return JobRequest(model=model.id, targets=targets or (TARGET,), budget=Budget(trials=trials))


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("routes") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def make_service(tmp_path: Path, migrated: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(**options: Any) -> Service:
        path = tmp_path / f"{len(made)}.db"
        path.write_bytes(migrated.read_bytes())
        database = Database(f"sqlite:///{path}")
        # Nobody is there to check models: uploads do not wait for it, unless a test says so.
        quick = {"poll_secs": 0.01, "model_check_secs": 0}
        settings = Settings(database_url=f"sqlite:///{path}", blob_url="memory:///", **quick | options)
        app = create_app(settings, database, Blobs(settings.blob_url), Wake())
        scopes: dict[str, tuple[str | None, Scope]]
        scopes = {"user": ("a", Scope.USER), "worker": ("a", Scope.WORKER), "admin": ("a", Scope.ADMIN)}
        scopes |= {"stranger": ("b", Scope.USER), "strange worker": ("b", Scope.WORKER)}
        scopes |= {"strange admin": ("b", Scope.ADMIN), "operator": (None, Scope.OPERATOR)}
        with database.transaction() as session:
            texts = {
                who: tokens.create(session, TokenRequest(project=project, scope=scope)).token
                for who, (project, scope) in scopes.items()
            }
        made.append(Service(http=TestClient(app), database=database, settings=settings, tokens=texts))
        return made[-1]

    yield make
    for service in made:
        service.http.close()
        service.database.close()


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service()


def timed(candidate: Candidate, secs: float = 1e-3) -> Timed:
    return Timed(candidate=candidate.digest, run_secs=(secs,), check=VERDICT, build_secs=0.1)


# --- tokens and scopes


def test_a_missing_a_wrong_and_a_revoked_token_are_unauthorized(service: Service) -> None:
    answer = service.http.get("/v1/jobs")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    with pytest.raises(Unauthorized):
        list(service.client("no such token").jobs())
    admin = service.client("admin")
    made = admin.create_token("a", "user")
    assert list(service.client(made.token).jobs()) == []
    admin.revoke_token(made.id)
    with pytest.raises(Unauthorized):
        list(service.client(made.token).jobs())


def test_a_scope_does_not_reach_further_than_it_says(service: Service) -> None:
    with pytest.raises(Forbidden, match="scope admin"):
        service.client("user").create_token("a", "admin")
    with pytest.raises(Forbidden):
        service.client("user").acquire(LeaseRequest(worker=new_id("wrk")))
    with pytest.raises(Forbidden):
        service.client("worker").submit(request_for(service.model()))
    assert list(service.client("admin").jobs()) == []


def test_a_new_token_is_shown_once_and_listed_without_its_text(service: Service) -> None:
    admin = service.client("admin")
    made = admin.create_token("a", "user", "for ci")
    listed = {view.id: view for view in admin.tokens()}
    assert listed[made.id].label == "for ci"
    assert (
        made.token
        not in service.http.get("/v1/tokens", headers={"authorization": f"Bearer {service.tokens['admin']}"}).text
    )


def test_an_admin_manages_the_tokens_of_its_own_project_only(service: Service) -> None:
    admin, other = service.client("admin"), service.client("strange admin")
    (theirs,) = [view for view in other.tokens() if view.scope is Scope.USER]
    assert {view.project for view in admin.tokens()} == {"a"}
    assert {view.project for view in other.tokens()} == {"b"}
    for scope in ("user", "worker", "admin"):
        assert admin.create_token("a", scope).project == "a"
        for project in ("b", "new"):
            with pytest.raises(NotFound, match=f"no project is called '{project}'"):
                admin.create_token(project, scope)
    with pytest.raises(NotFound, match=theirs.id):
        admin.revoke_token(theirs.id)
    assert list(service.client("stranger").jobs()) == []
    with service.database.reading() as session, pytest.raises(NotFound):
        tokens.project_named(session, "new")


def test_an_admin_makes_sees_and_revokes_no_operator(service: Service) -> None:
    admin, operator = service.client("admin"), service.client("operator")
    (own,) = [view for view in operator.tokens() if view.scope is Scope.OPERATOR]
    before = len(list(operator.tokens()))
    for project in ("a", "b", None):
        with pytest.raises(Forbidden, match="made by an operator"):
            admin.create_token(project, "operator")
    with pytest.raises(InvalidInput, match="needs one"):
        admin.create_token(None, "admin")
    assert own.id not in {view.id for view in admin.tokens()}
    with pytest.raises(NotFound):
        admin.revoke_token(own.id)
    assert len(list(operator.tokens())) == before


def test_an_operator_manages_the_tokens_of_all_projects(service: Service) -> None:
    operator = service.client("operator")
    assert {view.project for view in operator.tokens()} == {None, "a", "b"}
    made = operator.create_token("new", "admin")
    assert service.client(made.token).create_token("new", "user").project == "new"
    operator.revoke_token(made.id)
    with pytest.raises(Unauthorized):
        list(service.client(made.token).tokens())
    second = operator.create_token(None, "operator")
    assert second.project is None
    operator.revoke_token(second.id)
    with pytest.raises(Unauthorized):
        list(service.client(second.token).tokens())
    with pytest.raises(InvalidInput, match="no project"):
        operator.create_token("a", "operator")


def test_every_route_of_a_project_is_closed_to_an_operator_and_those_of_tokens_to_users_and_workers(
    service: Service,
) -> None:
    for path, operations in service.http.app.openapi()["paths"].items():  # type: ignore[attr-defined]
        of_everybody = path == "/v1/sessions/links"  # Whoever holds a token may look at what it may see.
        for method in operations if path.startswith("/v1/") and not of_everybody else ():
            managed = path.startswith("/v1/tokens")
            for who in ("user", "worker") if managed else ("operator",):
                headers = {"authorization": f"Bearer {service.tokens[who]}"}
                answer = service.http.request(method, path, headers=headers)
                assert answer.status_code == 403, (who, method, path, answer.text)
    body = LookupRequest(target=TARGET, workloads=(WORKLOAD.digest,)).model_dump_json(by_alias=True, exclude_none=True)
    headers = {"authorization": f"Bearer {service.tokens['operator']}", "content-type": "application/json"}
    assert service.http.post("/v1/schedules/lookup", content=body, headers=headers).status_code == 403


def test_a_revoked_manager_that_a_server_still_remembers_makes_and_revokes_nothing(
    make_service: Callable[..., Service],
) -> None:
    service = make_service(token_cache_secs=3600)
    for who in ("admin", "operator"):
        manager = service.client(who)
        mine, user = list(manager.tokens()), service.client("user")
        (own,) = [view.id for view in mine if view.scope is Scope(who) and view.project != "b"]
        (victim,) = [view.id for view in mine if view.scope is Scope.USER and view.project == "a"]
        with service.database.transaction() as session:  # As another server does it.
            tokens.revoke(session, own)
        assert len(list(manager.tokens())) == len(mine), "it is remembered"
        with pytest.raises(Unauthorized):
            manager.create_token("a", "admin")
        with pytest.raises(Unauthorized):
            manager.revoke_token(victim)
        assert list(user.jobs()) == []


# --- models


def test_an_uploaded_model_is_stored_once(service: Service) -> None:
    first, second = service.model(), service.model()
    assert first == second
    assert first.digest == sha256(b"an onnx file")
    assert [view.id for view in service.client("user").models()] == [first.id]
    assert service.client("user").model(first.id) == first


def test_an_upload_over_the_cap_is_refused_whether_or_not_it_says_so(make_service: Callable[..., Service]) -> None:
    service = make_service(max_model_bytes=2048)
    client = service.client("user")
    with pytest.raises(TooLarge, match="2048"):
        client.upload_model(b"x" * 2049, "m", "onnx")
    headers = {"authorization": f"Bearer {service.tokens['user']}", "content-type": "application/octet-stream"}
    chunked = service.http.post("/v1/models?name=m&format=onnx", headers=headers, content=iter([b"x" * 1024] * 3))
    assert "content-length" not in chunked.request.headers
    assert (chunked.status_code, chunked.json()["code"]) == (413, "too-large")
    assert list(client.models()) == []
    assert client.upload_model(b"x" * 2048, "m", "onnx").size_bytes == 2048


def test_a_format_that_is_code_and_an_empty_body_are_refused(service: Service) -> None:
    client = service.client("user")
    for kind in ("tvmscript", "pt2", "torchscript", "stablehlo", "tflite"):
        with pytest.raises(InvalidModel, match="SDK"):
            client.upload_model(b"x", "m", kind)
    with pytest.raises(InvalidModel, match="empty"):
        client.upload_model(b"", "m", "onnx")


def test_a_wrong_token_is_refused_before_the_body_is_read(service: Service) -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/models",
        "query_string": b"name=m&format=onnx",
        "headers": [(b"authorization", b"Bearer wrong")],
    }
    asyncio.run(service.http.app(scope, receive, send))
    assert sent[0]["status"] == 401
    scope = {**scope, "path": "/v1/jobs", "headers": [(b"authorization", b"Bearer wrong")]}
    sent.clear()
    asyncio.run(service.http.app(scope, receive, send))
    assert sent[0]["status"] == 401


def test_a_comparison_told_with_a_model_is_shown_with_it_and_its_jobs(service: Service) -> None:
    job, client = service.job(), service.client("user")
    model = client.job(job).model
    assert client.job(job).comparison is None
    told = Comparison(reference="PyTorch 2.13.0", input_sets=3, error=1e-7, tolerance=1e-3)
    view = client.tell_comparison(model, told)
    assert view is not None
    assert view.comparison == told == client.job(job).comparison
    assert {view.comparison for view in (*client.models(), *client.jobs())} == {told}
    assert client.tell_comparison("mdl_" + "0" * 20, told) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": ""},
        {"reason": "x" * 501},
        {"reference": "x" * 101, "input_sets": 1, "error": 0, "tolerance": 0},
        {"reference": "x", "input_sets": 1, "error": "Infinity", "tolerance": 0},
        {"reference": "x", "input_sets": 10**9, "error": 0, "tolerance": 0},
        {"reason": "x", "extra": 1},
    ],
)
def test_a_comparison_that_says_neither_is_refused(service: Service, body: dict[str, Any]) -> None:
    model = service.client("user").job(service.job()).model
    headers = {"Authorization": f"Bearer {service.tokens['user']}"}
    assert service.http.put(f"/v1/models/{model}/comparison", json=body, headers=headers).status_code in (400, 422)


# --- jobs


def test_a_job_is_submitted_shown_listed_and_cancelled(service: Service) -> None:
    job = service.job()
    client = service.client("user")
    assert client.job(job).model_name == "resnet"
    assert [view.id for view in client.jobs()] == [job]
    assert client.cancel(job).state is JobState.CANCELLED
    assert client.cancel(job).state is JobState.CANCELLED


def test_a_job_is_paused_and_resumed_until_it_has_ended(service: Service) -> None:
    client = service.client("user")
    job = service.job(JobState.TUNING)
    assert client.pause(job).paused
    assert client.job(job).paused
    assert not client.resume(job).paused
    client.cancel(job)
    with pytest.raises(InvalidTransition):
        client.pause(job)


def test_a_job_is_extended_while_it_searches_and_never_shortened(service: Service) -> None:
    client = service.client("user")
    job = service.job(JobState.TUNING)
    budget = client.job(job).budget
    assert budget.trials is not None
    for _ in range(2):
        view = client.extend(job, budget.plus(trials=50))
        assert view.budget.trials == budget.trials + 50
    with pytest.raises(InvalidInput, match="never lowered"):
        client.extend(job, budget)
    with pytest.raises(InvalidInput, match="never lowered"):
        client.extend(job, Budget(trials=budget.trials + 100, seconds=60))
    with service.database.transaction() as session:
        told = events.after(session, tokens.bootstrap(session, "a"), job, 0)
    assert [event.data["budget"]["trials"] for event in told if "budget" in event.data] == [budget.trials + 50]
    for state in (JobState.CONFIRMING, JobState.DONE):
        with pytest.raises(InvalidTransition, match=f"{state.value} and spends no more"):
            client.extend(service.job(state), budget.plus(trials=1))


def test_a_done_job_cannot_be_cancelled(service: Service) -> None:
    with pytest.raises(InvalidTransition, match="queued -> ingesting"):
        service.client("user").cancel(service.job(JobState.DONE))


def test_the_same_key_submits_once_and_another_body_is_a_conflict(service: Service) -> None:
    service.worker()
    client, model = service.client("user"), service.model()
    first = client.submit(request_for(model), idempotency_key="k1")
    assert client.submit(request_for(model), idempotency_key="k1").id == first.id
    with pytest.raises(IdempotencyConflict):
        client.submit(request_for(model, trials=9), idempotency_key="k1")
    assert len(list(client.jobs())) == 1
    # What was accepted stays accepted, also when the fleet has changed in between.
    service.client("worker").set_worker_state(service.worker().id, WorkerState.GONE)
    assert client.submit(request_for(model), idempotency_key="k1").id == first.id


def test_a_target_this_fleet_has_no_device_for_is_a_conflict_that_names_it(service: Service) -> None:
    client, model = service.client("user"), service.model()
    with pytest.raises(NoDevice, match="znver3"):
        client.submit(request_for(model), idempotency_key="k")
    worker = service.worker()
    with pytest.raises(NoDevice, match="haswell"):
        client.submit(request_for(model, TARGET, OTHER), idempotency_key="k")
    assert list(client.jobs()) == []
    assert client.submit(request_for(model), idempotency_key="k").state is JobState.QUEUED
    service.client("worker").set_worker_state(worker.id, WorkerState.DRAINING)
    with pytest.raises(NoDevice):
        client.submit(request_for(model))


def test_a_target_without_what_its_kind_needs_is_refused(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.tokens['user']}"}
    incomplete = {"kind": "llvm", "mcpu": "znver3"}
    job = request_for(service.model()).model_dump(mode="json", by_alias=True) | {"targets": [incomplete]}
    for path, body in (("/v1/jobs", job), ("/v1/schedules/lookup", {"target": incomplete, "workloads": ["a" * 64]})):
        answer = service.http.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, InvalidTarget().code), answer.text
        assert "needs mcpu and num-cores" in answer.json()["detail"]


def test_another_projects_ids_are_not_found(service: Service) -> None:
    job, model = service.batch(), service.model()
    stranger, strange_worker = service.client("stranger"), service.client("strange worker")
    worker = service.worker()
    for call in (
        lambda: stranger.job(job),
        lambda: stranger.cancel(job),
        lambda: stranger.pause(job),
        lambda: stranger.resume(job),
        lambda: stranger.extend(job, Budget(trials=10_000)),
        lambda: stranger.job_schedules(job),
        lambda: list(stranger.events(job)),
        lambda: stranger.model(model.id),
        lambda: stranger.submit(request_for(model)),
        lambda: stranger.worker(worker.id),
        lambda: stranger.workload(WORKLOAD.digest),
        lambda: strange_worker.acquire(LeaseRequest(worker=worker.id, wait_secs=0)),
        lambda: strange_worker.set_worker_state(worker.id, WorkerState.GONE),
    ):
        with pytest.raises(NotFound):
            call()
    assert list(stranger.jobs()) == list(stranger.models()) == stranger.workers() == []


def test_pages_are_bounded_and_their_cursors_checked(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.tokens['user']}"}
    assert service.http.get("/v1/jobs?limit=201", headers=headers).status_code in (400, 422)
    assert service.http.get("/v1/jobs?limit=0", headers=headers).status_code in (400, 422)
    assert service.http.get("/v1/jobs?cursor=nonsense", headers=headers).status_code == 400
    service.worker()
    client, model = service.client("user"), service.model()
    made = [client.submit(request_for(model)).id for _ in range(5)]
    page = service.http.get("/v1/jobs?limit=3", headers=headers).json()
    rest = service.http.get(f"/v1/jobs?limit=3&cursor={page['next_cursor']}", headers=headers).json()
    assert [item["id"] for item in page["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None


# --- events


def test_events_stream_to_the_end_of_the_job_and_resume_after_the_last_seen(service: Service) -> None:
    job = service.job(JobState.DONE)
    client = service.client("user")
    events = list(client.events(job))
    assert [event.data["state"] for event in events] == ["queued", "ingesting", "tuning", "confirming", "done"]
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.seq for event in client.events(job, after=3)] == [4, 5]
    assert list(client.events(job, after=5)) == []
    headers = {"authorization": f"Bearer {service.tokens['user']}"}
    raw = service.http.get(f"/v1/jobs/{job}/events?after=4", headers=headers)
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert "event: state\n" in raw.text
    assert "\nid: 5\n" in raw.text
    assert service.http.get(f"/v1/jobs/{job}/events", headers=headers | {"last-event-id": "x"}).status_code == 422


# --- leases


def test_a_batch_is_leased_renewed_and_reported(service: Service) -> None:
    job, worker, client = service.batch(), service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=0))
    assert grant is not None
    assert {candidate.digest for candidate in grant.candidates} == {candidate.digest for candidate in CANDIDATES}
    assert client.workload(grant.workload).ir == WORKLOAD.ir
    beat = client.heartbeat(grant.lease, grant.fence)
    assert (beat.ttl_secs, beat.cancelled) == (service.settings.lease_ttl_secs, False)
    failed = Failed(candidate=CANDIDATES[1].digest, kind=FailureKind.BUILD_ERROR, detail="x")
    report = Report(fence=grant.fence, results=(timed(CANDIDATES[0]), failed), final=False)
    answer = client.report(grant.lease, report)
    assert (answer.accepted, answer.duplicates, answer.lease_open) == (2, 0, True)
    again = client.report(grant.lease, report)
    assert (again.accepted, again.duplicates) == (0, 2)
    with pytest.raises(IdempotencyConflict):
        client.report(grant.lease, Report(fence=grant.fence, results=(timed(CANDIDATES[0], 2e-3),), final=False))
    user = service.client("user")
    assert len(list(user.records(workload=WORKLOAD.digest, target=TARGET))) == 2
    assert list(user.records(target=OTHER)) == []
    assert [record.result for record in user.records(timed=False)] == [failed]
    (good,) = user.records(timed=True)
    assert user.record(good.id) == RecordView(record=good, ir=WORKLOAD.ir, name="dense")
    for who, record_id in (("stranger", good.id), ("user", new_id("rec"))):
        with pytest.raises(NotFound):
            service.client(who).record(record_id)
    assert (user.job(job).tasks[0].trials, user.job(job).tasks[0].failed_trials) == (2, 1)


def test_a_stale_fence_is_a_conflict_and_changes_nothing(service: Service) -> None:
    service.batch()
    worker, client = service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=0))
    assert grant is not None
    service.database.clock_offset_secs = 3600
    with pytest.raises(StaleLease):
        client.heartbeat(grant.lease, grant.fence)
    with pytest.raises(StaleLease):
        client.report(grant.lease, Report(fence=grant.fence, results=(timed(CANDIDATES[0]),), final=True))
    assert list(service.client("user").records()) == []


@pytest.mark.parametrize("time", ["0", "-1", "NaN", "1e300", "Infinity", "1e999", '"fast"', "null"])
def test_a_time_that_is_no_time_is_refused_by_the_name_of_its_field(service: Service, time: str) -> None:
    service.batch()
    worker, client = service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=0))
    assert grant is not None
    good = Report(fence=grant.fence, results=(timed(CANDIDATES[0], 0.125),), final=True).model_dump_json()
    assert good.count("0.125") == 1
    answer = service.http.post(
        f"/v1/leases/{grant.lease}/report",
        content=good.replace("0.125", time),
        headers={"authorization": f"Bearer {service.tokens['worker']}", "content-type": "application/json"},
    )
    problem = answer.json()
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "run_secs" in problem["errors"][0]["field"]
    assert "run_secs" in problem["detail"]
    assert list(service.client("user").records()) == []
    assert client.heartbeat(grant.lease, grant.fence).ttl_secs > 0


def test_a_candidate_the_lease_does_not_hold_fails_the_whole_report(service: Service) -> None:
    service.batch()
    worker, client = service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=0))
    assert grant is not None
    stray = Candidate.of(WORKLOAD.digest, "[[9],[]]")
    with pytest.raises(InvalidInput, match=stray.digest):
        client.report(grant.lease, Report(fence=grant.fence, results=(timed(CANDIDATES[0]), timed(stray)), final=True))
    assert list(service.client("user").records()) == []


def test_no_work_within_the_wait_is_an_empty_grant_and_an_unknown_worker_is_not_found(service: Service) -> None:
    worker, client = service.worker(), service.client("worker")
    assert client.acquire(LeaseRequest(worker=worker.id, wait_secs=0.05)) is None
    with pytest.raises(NotFound):
        client.acquire(LeaseRequest(worker=new_id("wrk"), wait_secs=0))


def test_what_a_worker_tells_of_a_timing_and_of_itself_can_be_read(service: Service) -> None:
    service.batch()
    worker, client = service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=0))
    assert grant is not None
    told = Timed(
        candidate=grant.candidates[0].digest,
        run_secs=(2e-3, 3e-3, 4e-3),
        check=VERDICT,
        build_secs=0.5,
        load=0.25,
        secs_low=2e-3,
        secs_high=4e-3,
        rule=SampleRule(stop=Stop.PRECISE, calls=7, flushed=True),
        clock_hz=1.98e9,
        reference_ratio=1.25,
    )
    seconds = WorkerSeconds(total_secs=60.0, build_secs=20.0, check_secs=0.5, time_secs=30.0)
    client.report(
        grant.lease,
        Report(fence=grant.fence, results=(told,), final=True, steadiness=steadiness(noisy=True), seconds=seconds),
    )
    (found,) = service.client("user").records()
    assert (found.result, found.worker, found.toolchain) == (told, worker.id, REGISTRATION.toolchain)
    assert client.worker(worker.id).seconds == seconds
    assert client.worker(worker.id).steadiness == steadiness(noisy=True)
    assert [each.steadiness for each in client.workers()] == [steadiness(noisy=True)]
    shown = service.http.get("/metrics").text
    assert 'pitchpipe_workers{steadiness="noisy"} 1.0' in shown
    assert 'pitchpipe_workers{steadiness="unknown"} 0.0' in shown
    client.register_worker(REGISTRATION.model_copy(update={"roofline": roofline()}))
    assert [each.roofline for each in client.workers()] == [roofline()]


# --- schedules


def test_a_look_up_answers_every_workload_and_says_why_it_has_none(service: Service) -> None:
    other = sha256(b"another")
    answers = service.client("user").lookup(LookupRequest(target=TARGET, workloads=(WORKLOAD.digest, other))).answers
    assert [(answer.workload, answer.tier) for answer in answers] == [(WORKLOAD.digest, Tier.NONE), (other, Tier.NONE)]
    assert all(answer.reason for answer in answers)


def test_an_unchanged_answer_is_a_304_until_something_is_served(service: Service, tmp_path: Path) -> None:
    asked = LookupRequest(target=TARGET, workloads=(WORKLOAD.digest,))
    headers = {"authorization": f"Bearer {service.tokens['user']}", "content-type": "application/json"}

    def ask(known: str | None = None) -> tuple[int, str, int]:
        more = {} if known is None else {"if-none-match": known}
        body = asked.model_dump_json(by_alias=True)
        answer = service.http.post("/v1/schedules/lookup", content=body, headers=headers | more)
        return answer.status_code, answer.headers["etag"], len(answer.content)

    status, tag, length = ask()
    assert (status, length > 0) == (200, True)
    assert ask(tag) == (304, tag, 0)
    assert ask(f'"another", W/{tag}') == (304, tag, 0)
    assert ask('"another"')[0] == 200
    user = service.client("user")
    assert user.lookup(asked, cache=tmp_path) == user.lookup(asked, cache=tmp_path) == user.lookup(asked)
    service.batch()
    made = record(CANDIDATES[0], workload=WORKLOAD.digest, target=TARGET)
    with service.database.transaction() as session:
        project = jobs.active(session)[0][0]
        records.add(session, project, [made])
        records.set_best(session, project, WORKLOAD.digest, TARGET, best(made))
    changed = ask(tag)
    assert (changed[0], changed[1] != tag) == (200, True)
    assert [answer.tier for answer in user.lookup(asked, cache=tmp_path).answers] == [Tier.SAME_ARCH]


def test_a_look_up_is_the_same_by_the_short_way_and_by_the_frameworks(service: Service) -> None:
    asked = LookupRequest(target=TARGET, workloads=(WORKLOAD.digest,)).model_dump_json(by_alias=True, exclude_none=True)
    user = {"authorization": f"Bearer {service.tokens['user']}", "content-type": "application/json"}

    def post(content: Any, headers: dict[str, str] = user) -> tuple[int, str | None, Any]:
        answer = service.http.post("/v1/schedules/lookup", content=content, headers=headers)
        return answer.status_code, answer.headers.get("etag"), answer.json()

    short = post(asked)
    assert short[0] == 200
    assert short == post(iter([asked[:20].encode(), asked[20:].encode()])), "a body in parts"
    assert short == post(asked, user | {"content-type": "application/json; charset=utf-8"})
    assert post(asked, user | {"if-none-match": "x" * 5000})[0] == 422
    assert post(asked, user | {"authorization": f"Bearer {service.tokens['worker']}"})[0] == 403
    assert post("{")[0] == 422
    assert post(asked.replace('"target"', '"tarjet"'))[2]["errors"][0]["field"] == "body.target"
    incomplete = post(json.dumps({**json.loads(asked), "target": {"kind": "llvm"}}))
    assert (incomplete[0], incomplete[2]["code"]) == (400, "invalid-target")
    counted = 'pitchpipe_requests_total{method="POST",route="/v1/schedules/lookup",status="200"} 3.0'
    shown = service.http.get("/metrics").text
    assert counted in shown
    assert 'pitchpipe_lookup_answers_total{tier="none"} 3.0' in shown


def test_a_token_is_renewed_by_one_request_while_the_others_go_on(service: Service) -> None:
    now = 0.0
    authenticator = Authenticator(service.database, cache_secs=10.0, clock=lambda: now)
    header = f"Bearer {service.tokens['user']}"
    assert authenticator.remembered(header) is None
    principal = authenticator.authenticate(header)
    assert authenticator.remembered(header) == principal
    now = 6.0
    assert [authenticator.remembered(header) for _ in range(3)] == [None, principal, principal]
    authenticator.authenticate(header)
    now = 10.5
    assert authenticator.remembered(header) == principal, "the renewal counts from its own time"
    now = 16.5
    assert authenticator.remembered(header) is None


def test_a_jobs_schedules_are_the_answers_for_its_workloads(service: Service) -> None:
    user, job = service.client("user"), service.batch()
    assert [answer.workload for answer in user.job_schedules(job).answers] == [WORKLOAD.digest]
    assert user.job_schedules(job, OTHER).answers == ()
    assert user.job_schedules(service.job()).answers == ()
    headers = {"authorization": f"Bearer {service.tokens['user']}"}
    bad = service.http.get(f"/v1/jobs/{job}/schedules", params={"target": "{"}, headers=headers)
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid-target")


# --- what bad input gets


def test_malformed_bodies_are_named_by_field_and_never_echoed(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.tokens['user']}", "content-type": "application/json"}
    for body, field in (
        ("{", "body"),
        ("[]", "body"),
        ("{}", "body.model"),
        ('{"model": "mdl_1", "targets": [], "budget": {"trials": 1}}', "body.targets"),
        ('{"model": "mdl_1", "targets": [{"kind": "opencl"}], "budget": {"trials": 1}}', "body.targets.0.kind"),
        ('{"model": "mdl_1", "targets": [{"kind": "llvm"}], "budget": {}, "secret": "hunter2"}', "body"),
    ):
        answer = service.http.post("/v1/jobs", content=body, headers=headers)
        assert answer.status_code == 422, body
        assert any(found["field"].startswith(field) for found in answer.json()["errors"]), answer.text
        assert "hunter2" not in answer.text


def test_a_json_body_over_the_cap_is_too_large(make_service: Callable[..., Service]) -> None:
    service = make_service(max_body_bytes=2048)
    headers = {"authorization": f"Bearer {service.tokens['user']}", "content-type": "application/json"}
    for content in (b" " * 2049, iter([b" " * 1500] * 2)):
        answer = service.http.post("/v1/jobs", content=content, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


def test_a_body_that_stops_coming_gives_its_slot_back(make_service: Callable[..., Service]) -> None:
    service = make_service(body_silence_secs=0.01, max_requests=1)
    sent: list[Any] = []
    chunks = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        return chunks.pop() if chunks else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [
        (b"authorization", f"Bearer {service.tokens['user']}".encode()),
        (b"content-type", b"application/json"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "query_string": b"", "headers": headers}
    asyncio.run(service.http.app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "request-timeout"
    assert list(service.client("user").jobs()) == []


def test_unknown_paths_and_methods_are_problems_too(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.tokens['user']}"}
    absent = service.http.get("/v1/nothing", headers=headers)
    assert (absent.status_code, absent.json()["code"]) == (404, "not-found")
    method = service.http.put("/v1/jobs", headers=headers)
    assert (method.status_code, method.json()["code"]) == (405, "method-not-allowed")
    assert method.headers["allow"]
    assert service.http.get("/nowhere").headers["content-type"] == "application/problem+json"


def test_an_unexpected_error_tells_nothing_but_where_to_look(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(jobs, "list_", broken)
    answer = service.http.get("/v1/jobs", headers={"authorization": f"Bearer {service.tokens['user']}"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "hunter2" not in answer.text
    output = capsys.readouterr()
    assert answer.json()["instance"] in output.out + output.err


# --- probes, metrics, overload


def test_probes_tell_alive_from_ready(service: Service, tmp_path: Path) -> None:
    assert service.http.get("/healthz").json()["status"] == "ok"
    assert service.client("user").health().status == "ok"
    empty = Database(f"sqlite:///{tmp_path / 'unmigrated.db'}")
    app = create_app(service.settings, empty, Blobs("memory:///"), Wake())
    with TestClient(app) as http:
        assert http.get("/healthz").status_code == 200
        ready = http.get("/readyz")
        assert ready.status_code == 503
        assert "db upgrade" in ready.json()["detail"]
    empty.close()


def test_metrics_count_requests_by_route_and_show_the_queue(service: Service) -> None:
    service.batch()
    worker, client = service.worker(), service.client("worker")
    grant = client.acquire(LeaseRequest(worker=worker.id, max_candidates=3, wait_secs=0))
    assert grant is not None
    client.report(grant.lease, Report(fence=grant.fence, results=(timed(grant.candidates[0]),), final=False))
    service.http.request("BREW", "/nowhere")
    page = service.http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    for line in (
        'pitchpipe_requests_total{method="POST",route="/v1/leases/{lease_id}/report",status="200"} 1.0',
        'pitchpipe_candidates{state="queued"} 1.0',
        'pitchpipe_candidates{state="leased"} 2.0',
        'pitchpipe_candidates{state="terminal"} 1.0',
        'pitchpipe_jobs{state="tuning"} 1.0',
        "pitchpipe_leases_total 1.0",
        "pitchpipe_leases_expired_total 0.0",
        "pitchpipe_candidates_unserved 0.0",
        "pitchpipe_database_up 1.0",
        'pitchpipe_requests_total{method="other",route="unmatched",status="404"} 1.0',
        'pitchpipe_results_total{outcome="timed"} 1.0',
    ):
        assert line in page.text, page.text
    assert "pitchpipe_request_duration_seconds_bucket" in page.text


def test_metrics_survive_a_database_that_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.database, "reading", lambda: (_ for _ in ()).throw(NotFound("away")))
    shown = service.http.get("/metrics").text
    assert "pitchpipe_requests_running" in shown
    assert "pitchpipe_database_up 0.0" in shown
