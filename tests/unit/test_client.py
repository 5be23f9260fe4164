"""The client against a scripted service: what it sends, what it repeats, and which error comes out."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from pitchpipe.client import Client
from pitchpipe.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    Overloaded,
    PitchpipeError,
    StaleLease,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest
from pitchpipe.wire.lease import LeaseRequest, Report
from pitchpipe.wire.record import LookupRequest
from pitchpipe.wire.target import Target

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})
AT = "2026-01-01T00:00:00Z"
MODEL = {"id": "mdl_1", "name": "m", "format": "onnx", "digest": "0" * 64, "size_bytes": 3, "created_at": AT}
REQUEST = JobRequest(model="mdl_1", targets=(TARGET,), budget=Budget(trials=8))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are noted, not made; the clock moves by them."""
    made: list[float] = []
    clock = SimpleNamespace(sleep=made.append, monotonic=lambda: sum(made))
    for module in ("client", "connection"):
        monkeypatch.setattr(f"pitchpipe.{module}.time", clock)
    return made


def job(state: str = "queued", **more: object) -> dict[str, object]:
    found = {
        "id": "job_1",
        "model": "mdl_1",
        "model_name": "m",
        "targets": [TARGET.attributes()],
        "budget": {"trials": 8},
        "seed": 0,
        "state": state,
        "progress": {},
        "created_at": AT,
    }
    return found | more


def problem(status: int, code: str, detail: str = "why", **headers: str) -> httpx2.Response:
    body = {"type": f"urn:pitchpipe:problem:{code}", "title": "t", "status": status, "detail": detail, "code": code}
    return httpx2.Response(
        status, content=json.dumps(body), headers={"content-type": "application/problem+json", **headers}
    )


class Script:
    """Answers requests in order; a callable answers from the request, an exception is raised."""

    def __init__(self, *answers: httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    def client(self, **options: float) -> Client:
        return Client("http://service", "secret", transport=httpx2.MockTransport(self), **options)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "not-found", NotFound),
        (409, "stale-lease", StaleLease),
        (409, "idempotency-conflict", IdempotencyConflict),
        (413, "too-large", TooLarge),
        (422, "invalid-input", InvalidInput),
        (418, "a-kind-of-a-newer-service", InvalidInput),
        (500, "internal", PitchpipeError),
    ],
)
def test_a_problem_becomes_the_error_it_stands_for(status: int, code: str, kind: type[PitchpipeError]) -> None:
    script = Script(problem(status, code, "the cause"))
    with script.client() as client, pytest.raises(kind) as caught:
        client.job("job_1")
    assert type(caught.value) is kind
    assert caught.value.detail == "the cause"
    assert len(script.requests) == 1


def test_a_kept_answer_is_sent_again_only_when_it_changed(tmp_path: Path) -> None:
    request = LookupRequest(target=TARGET, workloads=(sha256(b"w"),))

    def answer(reason: str, tag: str) -> httpx2.Response:
        body = {"answers": [{"workload": sha256(b"w"), "tier": "none", "reason": reason}]}
        return httpx2.Response(200, json=body, headers={"etag": tag})

    def ask(*scripted: httpx2.Response | Exception) -> tuple[str, str | None]:
        """The reason in the answer, and the tag that was sent."""
        script = Script(*scripted)
        with script.client(retry_secs=0) as client:
            reason = client.lookup(request, cache=tmp_path).answers[0].reason
        return reason, script.requests[-1].headers.get("if-none-match")

    assert ask(answer("first", '"1"')) == ("first", None)
    assert ask(httpx2.Response(304)) == ("first", '"1"')
    assert ask(answer("second", '"2"')) == ("second", '"1"')
    assert ask(httpx2.Response(304)) == ("second", '"2"')
    (kept,) = (tmp_path / "lookups").iterdir()
    for damaged in ("", '"2"', '"2"\n{"answers": [', "\u2028\n{}"):
        kept.write_text(damaged)
        assert ask(answer("anew", '"3"')) == ("anew", None)
    with pytest.raises(Unreachable):
        ask(httpx2.ConnectError("away"))
    assert ask(httpx2.Response(304)) == ("anew", '"3"')
    other = tmp_path / "a file"
    other.write_text("")
    script = Script(answer("kept nowhere", '"4"'))
    with script.client() as client:
        assert client.lookup(request, cache=other).answers[0].reason == "kept nowhere"


def test_the_token_is_sent_with_every_call() -> None:
    script = Script(httpx2.Response(200, json=job()))
    with script.client() as client:
        client.job("job_1")
    assert script.requests[0].headers["authorization"] == "Bearer secret"


def test_an_idempotent_call_is_repeated_after_a_broken_connection_and_a_503() -> None:
    script = Script(
        httpx2.ConnectError("refused"),
        httpx2.ReadError("reset"),
        problem(503, "overloaded", **{"retry-after": "1"}),
        httpx2.Response(200, json=job()),
    )
    with script.client() as client:
        assert client.job("job_1").id == "job_1"
    assert len(script.requests) == 4


def test_the_service_says_how_long_to_wait_and_the_client_obeys(pauses: list[float]) -> None:
    script = Script(problem(503, "overloaded", **{"retry-after": "7"}), httpx2.Response(200, json=job()))
    with script.client() as client:
        client.job("job_1")
    assert pauses == [7]


def test_repetitions_grow_apart_and_end_within_their_limit(
    pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(*[httpx2.ConnectError("refused")] * 100)
    with script.client(retry_secs=20) as client, pytest.raises(Unreachable, match="refused"):
        client.job("job_1")
    assert sum(pauses) <= 20
    assert max(pauses) > 10 * pauses[0]
    assert len(script.requests) == len(pauses) + 1 < 20
    assert capsys.readouterr().out == ""


def test_every_repetition_of_a_submit_carries_the_same_key() -> None:
    script = Script(httpx2.ReadError("reset"), httpx2.Response(201, json=job()))
    with script.client() as client:
        client.submit(REQUEST)
    first, second = (request.headers["idempotency-key"] for request in script.requests)
    assert first == second
    script.answers = [httpx2.Response(201, json=job())]
    with script.client() as client:
        client.submit(REQUEST)
    assert script.requests[-1].headers["idempotency-key"] != first


def test_a_lease_is_never_acquired_twice() -> None:
    for failure in (httpx2.ReadError("reset"), httpx2.ConnectError("refused")):
        script = Script(failure)
        with script.client() as client, pytest.raises(Unreachable):
            client.acquire(LeaseRequest(worker="wrk_1"))
        assert len(script.requests) == 1


def test_no_work_within_the_wait_is_none() -> None:
    script = Script(httpx2.Response(200, json={"grant": None}))
    with script.client() as client:
        assert client.acquire(LeaseRequest(worker="wrk_1", wait_secs=5)) is None
    assert script.requests[0].extensions["timeout"]["read"] > 5


def test_without_retries_the_first_failure_is_the_answer() -> None:
    script = Script(problem(503, "overloaded", **{"retry-after": "7"}))
    with script.client(retry_secs=0) as client, pytest.raises(Overloaded) as caught:
        client.health()
    assert caught.value.retry_after_secs == 7


def test_a_refusal_is_not_repeated() -> None:
    script = Script(problem(409, "stale-lease"))
    with script.client() as client, pytest.raises(StaleLease):
        client.report("lea_1", Report(fence=1, results=(), final=True))
    assert len(script.requests) == 1


def test_a_service_that_speaks_no_problem_json_still_gives_an_error_by_status() -> None:
    script = Script(httpx2.Response(404, content=b"<html>nginx</html>"))
    with script.client() as client, pytest.raises(NotFound, match="HTTP 404"):
        client.job("job_1")


def test_an_answer_that_is_not_the_wire_type_is_an_error_of_ours() -> None:
    script = Script(httpx2.Response(200, json={"id": 1}))
    with script.client() as client, pytest.raises(PitchpipeError, match="JobView"):
        client.job("job_1")


def test_members_of_a_newer_service_are_ignored() -> None:
    script = Script(httpx2.Response(200, json=job(colour="blue")))
    with script.client() as client:
        assert client.job("job_1").state == "queued"


@pytest.mark.parametrize("identifier", ["", "../tokens", "job_1?x=1", "job_1/cancel", "jöb"])
def test_an_identifier_cannot_reach_another_route(identifier: str) -> None:
    with Script().client() as client, pytest.raises(InvalidInput, match="identifier"):
        client.job(identifier)


def test_an_upload_streams_the_file_again_when_it_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x" * 100_000)
    script = Script(httpx2.WriteError("reset"), httpx2.Response(201, json=MODEL))
    with script.client() as client:
        client.upload_model(tmp_path / "m.onnx", "m", "onnx")
    assert [len(request.content) for request in script.requests] == [100_000, 100_000]
    assert script.requests[1].headers["content-length"] == "100000"
    assert dict(script.requests[1].url.params) == {"name": "m", "format": "onnx"}


def test_an_empty_body_of_bytes_is_sent_as_one() -> None:
    script = Script(problem(400, "invalid-model", "the body is empty"))
    with script.client() as client, pytest.raises(InvalidInput, match="empty"):
        client.upload_model(b"", "m", "onnx")


def test_lists_follow_the_cursor_to_the_end() -> None:
    script = Script(
        httpx2.Response(200, json={"items": [MODEL], "next_cursor": "c1"}),
        httpx2.Response(200, json={"items": [MODEL], "next_cursor": None}),
    )
    with script.client() as client:
        assert len(list(client.models())) == 2
    assert "cursor" not in script.requests[0].url.params
    assert script.requests[1].url.params["cursor"] == "c1"


def stream(*events: tuple[int, str, dict[str, object]], broken: bool = False) -> httpx2.Response:
    def chunks() -> object:
        yield b": ping\n\n"
        for seq, kind, data in events:
            body = json.dumps({"seq": seq, "kind": kind, "data": data, "at": AT})
            yield f"event: {kind}\ndata: {body}\nid: {seq}\n\n".encode()
        if broken:
            raise httpx2.ReadError("reset")

    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=chunks())


def test_a_broken_event_stream_is_taken_up_where_it_broke() -> None:
    script = Script(
        stream((1, "state", {"state": "queued"}), (2, "tasks", {"tasks": 3}), broken=True),
        httpx2.ConnectError("refused"),
        problem(503, "overloaded"),
        stream((2, "tasks", {"tasks": 3}), (3, "progress", {})),
        stream((4, "state", {"state": "done"})),
    )
    with script.client() as client:
        assert [event.seq for event in client.events("job_1")] == [1, 2, 3, 4]
    assert [request.headers["last-event-id"] for request in script.requests] == ["0", "2", "2", "2", "3"]


def test_the_events_of_a_job_that_ended_before_end_too() -> None:
    script = Script(stream(), httpx2.Response(200, json=job("done")))
    with script.client() as client:
        assert list(client.events("job_1", after=9)) == []


def test_a_stream_that_cannot_be_had_again_is_given_up() -> None:
    script = Script(stream((1, "progress", {}), broken=True), httpx2.ConnectError("refused"))
    with script.client(retry_secs=0) as client, pytest.raises(Unreachable):
        list(client.events("job_1"))


def test_the_stream_of_an_absent_job_is_not_found() -> None:
    script = Script(problem(404, "not-found"))
    with script.client() as client, pytest.raises(NotFound):
        list(client.events("job_1"))


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_waiting_gives_the_job_as_it_ended_and_shows_every_look(end: str) -> None:
    script = Script(httpx2.Response(200, json=job("tuning")), httpx2.Response(200, json=job(end, error="why")))
    seen: list[str] = []
    with script.client() as client:
        view = client.wait("job_1", poll_secs=0.001, on_view=lambda view: seen.append(view.state.value))
    assert (view.state, view.error) == (end, "why")
    assert seen == ["tuning", end]


def test_waiting_no_longer_than_the_timeout_gives_the_job_as_it_is() -> None:
    script = Script(httpx2.Response(200, json=job("tuning")))
    with script.client() as client:
        assert client.wait("job_1", timeout_secs=0).state == "tuning"


def test_fetching_a_model_asks_its_newest_done_job() -> None:
    listed = [job("tuning", id="job_3"), job("done", id="job_2"), job("done", id="job_1")]
    script = Script(httpx2.Response(200, json={"items": listed}), httpx2.Response(200, json={"answers": []}))
    with script.client() as client:
        client.fetch("mdl_1", TARGET)
    assert script.requests[1].url.path == "/v1/jobs/job_2/schedules"
    assert Target.parse(script.requests[1].url.params["target"]) == TARGET


def test_fetching_a_model_that_was_never_tuned_is_not_found() -> None:
    script = Script(httpx2.Response(200, json={"items": []}))
    with script.client() as client, pytest.raises(NotFound, match="no job"):
        client.fetch("mdl_1", TARGET)


def test_the_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    with pytest.raises(InvalidInput, match="PITCHPIPE_URL"):
        Client()
    monkeypatch.setenv("PITCHPIPE_URL", "http://service/")
    with Client() as client:
        assert client.url == "http://service"


def test_digests_go_into_paths_as_they_are() -> None:
    digest = sha256(b"x")
    script = Script(httpx2.Response(200, json={"digest": digest, "ir": "{}"}))
    with script.client() as client:
        assert client.workload(digest).ir == "{}"
    assert script.requests[0].url.path == f"/v1/workloads/{digest}"
