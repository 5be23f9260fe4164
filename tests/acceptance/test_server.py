"""A server process: it listens, sheds, streams, hands work to the living only, and goes down when told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from pitchpipe.client import Client
from pitchpipe.errors import Overloaded, TooLarge, Unauthorized
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState
from pitchpipe.wire.lease import LeaseRequest, Purpose, WorkerRegistration
from pitchpipe.wire.measure import Candidate, MeasureConfig
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Task, Workload
from service.db import Database
from service.server import listen
from service.store import batches, job_tasks, jobs, tokens, workloads
from tests.patience import PATIENCE_SECS

TOKEN = "a-token-that-the-test-chose-by-itself"
TARGET = Target.parse({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})
WORKLOAD = Workload(digest=sha256(b"w"), ir="{}")
CANDIDATES = [Candidate.of(WORKLOAD.digest, f"[[{n}],[]]") for n in range(3)]
REGISTRATION = WorkerRegistration(
    name="w1",
    device=DeviceFingerprint(kind="cpu", model="m", cores=2, memory_bytes=1),
    target=TARGET,
    toolchain=Toolchain(tvm="0.27", tvm_ffi="0.1.14", codegen="llvm 19"),
)


@dataclass(frozen=True, kw_only=True)
class Running:
    process: subprocess.Popen[bytes]
    port: int
    database_url: str
    log: Path
    clients: list[Client] = field(default_factory=list)

    def client(self, **options: Any) -> Client:
        self.clients.append(Client(f"http://127.0.0.1:{self.port}", TOKEN, **{"retry_secs": 0, **options}))
        return self.clients[-1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECS)

    @contextmanager
    def store(self) -> Iterator[Any]:
        """A session on the server's own database, from outside; the server learns of it by polling."""
        database = Database(self.database_url)
        with database.transaction() as session:
            yield session
        database.close()

    def job(self) -> str:
        client = self.client()
        client.register_worker(REGISTRATION)
        model = client.upload_model(b"onnx", "m", "onnx")
        return client.submit(JobRequest(model=model.id, targets=(TARGET,), budget=Budget(trials=8))).id

    def queue_a_batch(self, job: str) -> None:
        task = Task(workload=WORKLOAD, target=TARGET, name="dense", weight=1, flops=1, bytes=1, group="g")
        with self.store() as session:
            project = tokens.bootstrap(session, "default")
            workloads.put(session, project, WORKLOAD)
            jobs.transition(session, job, JobState.INGESTING)
            job_tasks.set_tasks(session, job, [task])
            jobs.transition(session, job, JobState.TUNING)
            batches.issue(session, job, WORKLOAD.digest, TARGET, Purpose.SEARCH, CANDIDATES, MeasureConfig())


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[subprocess.Popen[bytes]] = []
    running: list[Running] = []

    def launch(*arguments: str, database_url: str = f"sqlite:///{tmp_path / 'p.db'}", **settings: object) -> Running:
        port_file, log = tmp_path / f"port{len(started)}", tmp_path / f"log{len(started)}"
        environment = {
            **os.environ,
            "PITCHPIPE_DATABASE_URL": database_url,
            "PITCHPIPE_BLOB_URL": (tmp_path / "blobs").as_uri(),
            "PITCHPIPE_BOOTSTRAP_TOKEN": TOKEN,
            "PITCHPIPE_MODEL_CHECK_SECS": "0",  # nobody is there to check models
            **{f"PITCHPIPE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "pitchpipe.cli.main", "server", "--port", "0", "--port-file", str(port_file)]
        with log.open("wb") as output:
            process = subprocess.Popen([*command, *arguments], env=environment, stdout=output, stderr=output)
        started.append(process)
        eventually(lambda: port_file.exists() or process.poll() is not None, "the server listens")
        assert process.poll() is None, log.read_text()
        port = int(port_file.read_text())
        running.append(Running(process=process, port=port, database_url=database_url, log=log))
        return running[-1]

    yield launch
    for server in running:
        for client in server.clients:
            client.close()
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_sigterm_ends_open_streams_and_long_polls_and_then_the_process(start: Callable[..., Running]) -> None:
    # The graceful timeout is longer than the test may take: what ends the process in time is the notice alone.
    server = start(graceful_shutdown_secs=600)
    job, client = server.job(), server.client()
    worker = client.register_worker(REGISTRATION)
    events = client.events(job)
    assert next(events).data["state"] == "queued"
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.acquire, LeaseRequest(worker=worker.id, wait_secs=60))
        eventually(lambda: 'running{kind="waiting"} 2.0' in metrics(server), "both requests wait")
        assert server.stop() == 0
        assert polling.result() is None
    events.close()
    assert "stopped" in server.log.read_text()


def metrics(server: Running) -> str:
    import httpx2

    return httpx2.get(f"http://127.0.0.1:{server.port}/metrics").text


@pytest.mark.long
def test_events_go_on_where_they_were_after_the_server_was_killed(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    first = start()
    job = first.job()
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        for event in client.events(job):
            seen.append(event.seq)
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first.stop(signal.SIGKILL)
    second = start("--port", str(port))
    client = second.client(retry_secs=PATIENCE_SECS)
    watching = threading.Thread(target=watch)
    watching.start()
    eventually(lambda: seen == [1], "the first event")
    second.stop(signal.SIGKILL)
    third = start("--port", str(port))
    with third.store() as session:
        jobs.transition(session, job, JobState.INGESTING)
    third.client().cancel(job)
    assert ended.wait(PATIENCE_SECS)
    watching.join()
    assert seen == [1, 2, 3]


@pytest.mark.long
def test_a_long_poll_gets_work_that_comes_meanwhile(start: Callable[..., Running]) -> None:
    server = start()
    job, client = server.job(), server.client()
    worker = client.register_worker(REGISTRATION)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(client.acquire, LeaseRequest(worker=worker.id, wait_secs=60))
        eventually(lambda: 'running{kind="waiting"} 1.0' in metrics(server), "the long poll waits")
        server.queue_a_batch(job)
        grant = polling.result(PATIENCE_SECS)
    assert grant is not None
    assert len(grant.candidates) == len(CANDIDATES)


@pytest.mark.long
def test_a_long_poll_whose_client_is_gone_takes_no_work(start: Callable[..., Running]) -> None:
    server = start()
    job, client = server.job(), server.client()
    worker = client.register_worker(REGISTRATION)
    body = LeaseRequest(worker=worker.id, wait_secs=60).model_dump_json().encode()
    head = f"POST /v1/leases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: 'running{kind="waiting"} 1.0' in metrics(server), "the long poll waits")
    eventually(lambda: 'running{kind="waiting"} 0.0' in metrics(server), "the server notices")
    server.queue_a_batch(job)
    grant = client.acquire(LeaseRequest(worker=worker.id, wait_secs=60))
    assert grant is not None
    assert len(grant.candidates) == len(CANDIDATES)


def test_answers_do_not_wait_for_the_clients_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_upload_with_a_wrong_token_or_over_the_cap_gets_its_answer_without_being_read(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    server = start(max_model_bytes=1 << 20)
    (tmp_path / "large").write_bytes(b"x" * (32 << 20))
    with Client(f"http://127.0.0.1:{server.port}", "wrong", retry_secs=0) as stranger, pytest.raises(Unauthorized):
        stranger.upload_model(tmp_path / "large", "m", "onnx")
    with server.client() as client:
        with pytest.raises(TooLarge):
            client.upload_model(tmp_path / "large", "m", "onnx")
        assert list(client.models()) == []


def test_more_than_it_can_do_is_shed_with_a_time_to_come_back_and_probes_still_answer(
    start: Callable[..., Running],
) -> None:
    server = start(max_requests=2, max_waiting=1, retry_after_secs=3)
    client = server.client()
    worker = client.register_worker(REGISTRATION)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    unfinished = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    try:
        for connection in unfinished:
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        eventually(lambda: 'running{kind="request"} 2.0' in metrics(server), "both requests are at work")
        with pytest.raises(Overloaded) as caught:
            list(client.jobs())
        assert caught.value.retry_after_secs == 3
        assert client.health().status == "ok"
        # Waiting requests are counted apart: two stuck uploads do not keep a worker from its lease.
        assert client.acquire(LeaseRequest(worker=worker.id, wait_secs=0)) is None
    finally:
        for connection in unfinished:
            connection.close()
    eventually(lambda: 'running{kind="request"} 0.0' in metrics(server), "the slots are free again")
    assert list(client.jobs()) == []


@pytest.mark.long
@pytest.mark.parametrize("rest", ["time.sleep(600)", "os._exit(0)"], ids=["killed later", "gone at once"])
def test_an_embedded_server_ends_with_its_parent(tmp_path: Path, rest: str) -> None:
    port_file = tmp_path / "port"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'pitchpipe.cli.main', 'server', '--embedded', '--port', '0',\n"
        f"    '--port-file', {str(port_file)!r}, '--parent', str(os.getpid())], start_new_session=True)\n"
        f"print(child.pid, flush=True)\n{rest}\n"
    )
    environment = {
        **os.environ,
        "PITCHPIPE_DATABASE_URL": f"sqlite:///{tmp_path / 'p.db'}",
        "PITCHPIPE_BLOB_URL": (tmp_path / "blobs").as_uri(),
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    if "sleep" in rest:
        eventually(port_file.exists, "the server listens")
        parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, f"{server} ends")


def test_a_port_that_is_taken_is_told_and_nothing_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = subprocess.run(
            [sys.executable, "-m", "pitchpipe.cli.main", "server", "--port", str(taken.getsockname()[1])],
            env={
                **os.environ,
                "PITCHPIPE_DATABASE_URL": f"sqlite:///{tmp_path / 'p.db'}",
                "PITCHPIPE_BLOB_URL": "memory:///",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECS,
            check=False,
        )
    assert result.returncode == 2
    assert "cannot listen" in result.stderr


def test_the_api_process_loads_no_compiler_and_no_learner() -> None:
    code = (
        "import sys\n"
        "from service.http.app import create_app\n"
        "from service.blobs import Blobs\n"
        "from service.db import Database\n"
        "from service.settings import Settings\n"
        "from service.wake import Wake\n"
        "import service.server, service.cli\n"
        "settings = Settings(database_url='sqlite:////tmp/pitchpipe-never-opened.db', blob_url='memory:///')\n"
        "create_app(settings, Database(settings.database_url), Blobs(settings.blob_url), Wake()).openapi()\n"
        "print(sorted({'tvm', 'torch', 'xgboost', 'onnx', 'numpy', 'tuner'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_commands_import_nothing_of_the_service_until_they_run() -> None:
    code = (
        "import sys, typer, service.cli\n"
        "service.cli.add_commands(typer.Typer())\n"
        "print(sorted({'fastapi', 'sqlalchemy', 'uvicorn', 'httpx2', 'pydantic_settings'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
