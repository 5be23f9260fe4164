"""The whole chain on PostgreSQL: a server, a coordinator, two workers; one worker and the server are killed mid-job.

Every process is real and every promise is read from the database afterwards.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from pitchpipe.client import Client
from pitchpipe.errors import PitchpipeError
from pitchpipe.processes.plugins import step
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from tests.compiler import models

TRIALS = 16


class Fleet:
    """Processes on one PostgreSQL database."""

    def __init__(self, folder: Path, database: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.token = secrets.token_urlsafe(32)
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
        self.environment = {
            **os.environ,
            "PITCHPIPE_DATABASE_URL": database,
            "PITCHPIPE_BLOB_URL": (folder / "blobs").as_uri(),
            "PITCHPIPE_BOOTSTRAP_TOKEN": self.token,
            "PITCHPIPE_TOKEN": self.token,
            "PITCHPIPE_QUIET_LOCK": str(folder / "quiet.lock"),
            "PITCHPIPE_LEASE_TTL_SECS": "4",
            "PITCHPIPE_CACHE_DIR": str(folder / "cache"),
        }
        self.client = Client(f"http://127.0.0.1:{self.port}", self.token)

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{arguments[0]}-{len(self.processes)}.log", "wb") as log:
            command = [sys.executable, "-m", "pitchpipe.cli.main", *arguments]
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def server(self) -> subprocess.Popen[bytes]:
        process = self.spawn("server", "--host", "127.0.0.1", "--port", str(self.port))
        self.until(self.ready, "the server answers")
        return process

    def ready(self) -> bool:
        try:
            list(self.client.models())
        except PitchpipeError:
            return False
        return True

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        return self.spawn("worker", "--url", f"http://127.0.0.1:{self.port}", "--name", name, "--max-candidates", "4")

    def one(self, query: str, **values: object) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(query), values).scalar_one())

    def until(self, condition: Callable[[], bool], what: str, secs: float = 120) -> None:
        deadline = time.monotonic() + secs
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen; {self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")
        )

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.engine.dispose()
        self.client.close()


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str) -> Iterator[Fleet]:
    running = Fleet(tmp_path, postgres_url)
    try:
        yield running
    finally:
        running.stop()


def test_a_job_ends_with_every_promise_kept_although_a_worker_and_the_server_were_killed(fleet: Fleet) -> None:
    server = fleet.server()
    fleet.spawn("coordinator")
    doomed, _ = fleet.worker("doomed"), fleet.worker("survivor")
    fleet.until(lambda: len(fleet.client.workers()) == 2, "both workers register")

    stripped = step("strip_onnx")(models.tiny_network().SerializeToString())
    model = fleet.client.upload_model(stripped.data, name="small", format=ModelFormat.ONNX)
    target = step("detect_target")("auto")
    job = fleet.client.submit(JobRequest(model=model.id, targets=(target,), budget=Budget(trials=TRIALS), seed=1))

    leased = (
        "select count(*) from leases l join workers w on w.id = l.worker where w.name = 'doomed' and l.state = 'open'"
    )
    fleet.until(lambda: fleet.one(leased) > 0, "the doomed worker holds a lease")
    doomed.kill()
    doomed.wait()
    fleet.until(lambda: fleet.one("select count(*) from records") >= 8, "records arrive")
    acknowledged = {record.id for record in fleet.client.records()}
    server.kill()
    server.wait()
    fleet.server()

    view = fleet.client.wait(job.id, timeout_secs=400)
    assert view.state is JobState.DONE, f"{view.state} {view.error} {fleet.logs()}"
    assert view.progress.trials == TRIALS
    assert acknowledged <= {record.id for record in fleet.client.records()}

    searched = "select count(*) from candidates where purpose = 'search'"
    assert fleet.one(searched) == TRIALS
    assert fleet.one(f"{searched} and state in ('queued', 'leased')") == 0
    assert fleet.one("select count(distinct workload || digest) from candidates where purpose = 'search'") == TRIALS
    assert fleet.one("select count(*) from candidates where state in ('queued', 'leased')") == 0
    assert sum(task.trials for task in view.tasks) == TRIALS

    answers = fleet.client.job_schedules(job.id, target).answers
    assert len(answers) == len(view.tasks)
    for answer in answers:
        assert answer.best is not None
        assert answer.best.baseline_secs is not None
        assert answer.best.secs <= answer.best.baseline_secs
