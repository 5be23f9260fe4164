"""Uploaded models get their verdict from the coordinator: stored, told to whoever waits, remembered, and forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pitchpipe.client import Client
from pitchpipe.errors import InvalidModel, NotFound, StepTimeout, TooLarge, UnsupportedOperator
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest, ModelFormat, ModelView, Scope, TokenRequest
from service.blobs import Blobs
from service.coordination.coordinator import Coordinator
from service.coordination.model_checks import MAX_CRASHES, ModelChecks
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import jobs, models, tokens
from service.wake import Wake
from tests.scene import TARGET

Answer = bytes | Exception


class Reader(Executor):
    """An executor whose steps end when the test says so, with what the test says."""

    def __init__(self) -> None:
        self.given: list[tuple[bytes, Future[Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.given.append((args[0], future))
        return future

    def answer(self, answer: Answer) -> bytes:
        """Ends the oldest step; returns the model it was given."""
        data, future = self.given.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return data


class Uploads:
    """Projects that upload, and the checks."""

    def __init__(self, database: Database) -> None:
        self.database, self.blobs, self.wake, self.reader = database, Blobs("memory:///"), Wake(), Reader()
        self.checks = self.coordinator()
        with database.transaction() as session:
            self.project, self.other = (tokens.bootstrap(session, name) for name in ("a", "b"))

    def coordinator(self) -> ModelChecks:
        return ModelChecks(self.database, self.blobs, self.wake, self.reader)

    def upload(self, data: bytes = b"model", project: str | None = None) -> ModelView:
        digest = self.blobs.put(data)
        options: dict[str, Any] = {"name": "m", "format": ModelFormat.ONNX, "digest": digest, "size_bytes": len(data)}
        with self.database.transaction() as session:
            return models.create(session, project or self.project, **options)

    def get(self, model: str) -> ModelView:
        with self.database.reading() as session:
            return models.get(session, self.project, model)

    def ingested(self, model: str) -> str | None:
        with self.database.reading() as session:
            return models.ingested(session, self.project, model)

    def listed(self) -> list[str]:
        with self.database.reading() as session:
            return [view.id for view in models.list_(session, self.project)[0]]

    def judge(self, answer: Answer) -> bytes:
        """One look that hands out what is unchecked, the answer to the oldest, one look that stores it."""
        self.checks.step()
        data = self.reader.answer(answer)
        self.checks.step()
        return data


@pytest.fixture
def uploads(database: Database) -> Uploads:
    return Uploads(database)


def test_a_model_that_was_read_is_checked_and_what_came_out_is_kept(uploads: Uploads) -> None:
    model = uploads.upload()
    assert not model.checked
    assert uploads.ingested(model.id) is None
    assert uploads.judge(b"ingested") == b"model"
    assert uploads.get(model.id).checked
    assert uploads.upload().checked
    blob = uploads.ingested(model.id)
    assert blob is not None
    assert uploads.blobs.get(blob) == b"ingested"
    assert uploads.reader.given == []


def test_a_refused_model_is_out_of_sight_and_whoever_asks_is_told_why(uploads: Uploads) -> None:
    model = uploads.upload()
    uploads.judge(UnsupportedOperator("operator Teleport (node 'n')"))
    for ask in (lambda: uploads.get(model.id), lambda: uploads.ingested(model.id), uploads.upload):
        with pytest.raises(UnsupportedOperator, match="Teleport"):
            ask()
    request = JobRequest(model=model.id, targets=(TARGET,), budget=Budget(trials=1))
    with pytest.raises(UnsupportedOperator), uploads.database.transaction() as session:
        jobs.submit(session, uploads.project, request)
    assert uploads.listed() == []
    with pytest.raises(NotFound), uploads.database.reading() as session:
        models.get(session, uploads.other, model.id)


def test_a_refusal_is_remembered_for_a_while_only(uploads: Uploads) -> None:
    first = uploads.upload(b"slow")
    uploads.judge(TooLarge("it took too long"))
    with pytest.raises(TooLarge):
        uploads.upload(b"slow")
    uploads.database.clock_offset_secs += models.REFUSAL_SECS + 1
    again = uploads.upload(b"slow")
    assert (again.id, again.checked) == (first.id, False)
    uploads.judge(b"ingested")
    assert uploads.get(first.id).checked
    uploads.upload(b"bad")
    uploads.judge(InvalidModel("bad"))
    uploads.database.clock_offset_secs += models.REFUSAL_SECS + 1
    uploads.upload(b"worse")
    uploads.judge(InvalidModel("worse"))
    with uploads.database.engine.connect() as connection:
        count = connection.exec_driver_sql("SELECT count(*) FROM models WHERE state = 'invalid'").scalar_one()
    assert count == 1, "the older refusal is gone"


def test_a_refused_model_that_a_job_points_to_stays_for_the_job(uploads: Uploads) -> None:
    model = uploads.upload(b"bad")
    request = JobRequest(model=model.id, targets=(TARGET,), budget=Budget(trials=1))
    with uploads.database.transaction() as session:
        job, _ = jobs.submit(session, uploads.project, request)
    uploads.judge(InvalidModel("bad"))
    uploads.database.clock_offset_secs += models.REFUSAL_SECS + 1
    uploads.upload(b"worse")
    uploads.judge(InvalidModel("worse"))
    with uploads.database.reading() as session:
        assert jobs.get(session, uploads.project, job.id).model_name == "m"


def test_a_child_that_dies_is_no_verdict_until_it_dies_of_the_same_model_again_and_again(uploads: Uploads) -> None:
    model = uploads.upload()
    for _ in range(MAX_CRASHES - 1):
        uploads.judge(RuntimeError("the child was killed"))
        assert not uploads.get(model.id).checked
    uploads.judge(RuntimeError("the child was killed"))
    with pytest.raises(InvalidModel, match=f"crashed {MAX_CRASHES} times"):
        uploads.get(model.id)


def test_a_reading_that_took_its_whole_time_is_a_refusal_at_once(uploads: Uploads) -> None:
    model = uploads.upload()
    uploads.judge(StepTimeout("the step check_model took longer than 60 s"))
    with pytest.raises(InvalidModel, match="60 s"):
        uploads.get(model.id)


def test_lost_bytes_are_a_refusal_that_says_so(uploads: Uploads) -> None:
    with uploads.database.transaction() as session:
        of = {"name": "m", "format": ModelFormat.ONNX, "digest": sha256(b"never stored"), "size_bytes": 1}
        model = models.create(session, uploads.project, **of)  # type: ignore[arg-type]
    uploads.checks.step()
    with pytest.raises(InvalidModel, match="lost"):
        uploads.get(model.id)


def test_another_coordinator_reads_what_the_first_one_left(uploads: Uploads) -> None:
    model = uploads.upload()
    uploads.checks.step()
    (_, abandoned) = uploads.reader.given.pop()
    uploads.checks.forget()
    assert abandoned.cancelled()
    uploads.checks = uploads.coordinator()
    uploads.judge(b"ingested")
    assert uploads.get(model.id).checked


def test_the_first_verdict_stays(uploads: Uploads) -> None:
    model = uploads.upload()
    late = uploads.coordinator()
    late.step()
    uploads.checks.step()
    uploads.reader.answer(b"ingested")
    uploads.reader.answer(InvalidModel("too late"))
    late.step()
    uploads.checks.step()
    assert uploads.get(model.id).checked


def test_one_projects_many_uploads_do_not_keep_anothers_waiting(uploads: Uploads) -> None:
    for n in range(6):
        uploads.upload(b"%d" % n)
    uploads.upload(b"other", uploads.other)
    uploads.checks.step()
    assert [data for data, _ in uploads.reader.given] == [b"0", b"other", b"1", b"2"]


# --- jobs


def test_a_job_waits_until_its_model_was_read_and_splits_what_came_out(uploads: Uploads) -> None:
    job, coordinator = submitted(uploads)
    coordinator.tick()
    coordinator.tick()
    assert state(uploads, job) == ("ingesting", None)
    assert uploads.reader.answer(b"ingested") == b"model"
    coordinator.tick()
    assert [data for data, _ in uploads.reader.given] == [b"ingested"]
    coordinator.tick()
    assert len(uploads.reader.given) == 1


def test_a_job_on_a_model_that_is_refused_fails_with_the_cause(uploads: Uploads) -> None:
    job, coordinator = submitted(uploads)
    coordinator.tick()
    uploads.reader.answer(UnsupportedOperator("operator Teleport (node 'n')"))
    coordinator.tick()
    assert state(uploads, job) == ("failed", "unsupported-operator")


def submitted(uploads: Uploads) -> tuple[str, Coordinator]:
    request = JobRequest(model=uploads.upload().id, targets=(TARGET,), budget=Budget(trials=1))
    with uploads.database.transaction() as session:
        job, _ = jobs.submit(session, uploads.project, request)
    settings = Settings(blob_url="memory:///")
    return job.id, Coordinator(settings, uploads.database, uploads.blobs, uploads.wake, uploads.reader)


def state(uploads: Uploads, job: str) -> tuple[str, str | None]:
    with uploads.database.reading() as session:
        view = jobs.get(session, uploads.project, job)
    return view.state.value, view.error_code


# --- over HTTP


class Checker(threading.Thread):
    """Ticks like a coordinator, answering every model with what the test says."""

    def __init__(self, database: Database, blobs: Blobs, wake: Wake, answer: Answer) -> None:
        super().__init__(daemon=True)
        self.reader, self.wake, self.answer, self.ended = Reader(), wake, answer, threading.Event()
        self.checks = ModelChecks(database, blobs, wake, self.reader)

    def run(self) -> None:
        while not self.ended.is_set():
            self.checks.step()
            while self.reader.given:
                self.reader.answer(self.answer)
            self.wake.wait(0.01)


@pytest.fixture
def serve(sqlite_url: str, tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    database = Database(sqlite_url)
    ended: list[Checker] = []

    def make(answer: Answer | None, **options: Any) -> TestClient:
        settings = Settings(database_url=sqlite_url, blob_url="memory:///", **options)
        wake, blobs = Wake(), Blobs("memory:///")
        if answer is not None:
            ended.append(Checker(database, blobs, wake, answer))
            ended[-1].start()
        with database.transaction() as session:
            token = tokens.create(session, TokenRequest(project="a", scope=Scope.USER)).token
        return TestClient(create_app(settings, database, blobs, wake), headers={"authorization": f"Bearer {token}"})

    yield make
    for checker in ended:
        checker.ended.set()
        checker.join()
    database.close()


def upload(http: TestClient) -> Any:
    return http.post("/v1/models?name=m&format=onnx", content=b"model")


def test_an_upload_waits_for_its_verdict(serve: Callable[..., TestClient]) -> None:
    answer = upload(serve(b"ingested", poll_secs=10, model_check_secs=100))
    assert (answer.status_code, answer.json()["checked"]) == (201, True)


def test_an_upload_that_is_refused_gets_the_cause_and_leaves_nothing(serve: Callable[..., TestClient]) -> None:
    http = serve(TooLarge("the graph has too many nodes"), poll_secs=10, model_check_secs=100)
    for answer in (upload(http), upload(http)):
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.json()["code"], answer.json()["detail"]) == ("too-large", "the graph has too many nodes")
    assert http.get("/v1/models").json()["items"] == []


def test_an_upload_that_nobody_reads_is_accepted_for_later(serve: Callable[..., TestClient]) -> None:
    http = serve(None, poll_secs=0.01, model_check_secs=0.02)
    answer = upload(http)
    assert (answer.status_code, answer.json()["checked"]) == (202, False)
    assert http.get(f"/v1/models/{answer.json()['id']}").json() == answer.json()
    assert [item["checked"] for item in http.get("/v1/models").json()["items"]] == [False]
    client = Client("http://testserver", http.headers["authorization"].split()[1], transport=http._transport)
    assert client.upload_model(b"model", "m", "onnx").id == answer.json()["id"]


def test_uploads_that_wait_keep_no_request_from_its_work(serve: Callable[..., TestClient]) -> None:
    http = serve(None, poll_secs=0.01, model_check_secs=100, max_requests=1)
    waiting = threading.Thread(target=upload, args=(http,))
    waiting.start()
    try:
        while 'running{kind="waiting"} 1.0' not in (page := http.get("/metrics").text):
            assert waiting.is_alive()
        assert 'running{kind="request"} 0.0' in page
        assert http.get("/v1/models").status_code == 200
    finally:
        http.app.state.context.wake.close()  # type: ignore[attr-defined]
        waiting.join()
    assert 'running{kind="waiting"} 0.0' in http.get("/metrics").text
