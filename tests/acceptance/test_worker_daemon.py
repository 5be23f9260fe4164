"""Real workers (their processes, sandbox and TVM) on a real server over SQLite, with batches issued through the store."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.measure import Candidate, MeasureConfig
from pitchpipe.wire.task import Task, Workload
from service.db import Database
from service.store import batches, jobs, models, tokens, workers
from service.tables import CandidateRow

PATIENCE_SECS = 90.0
TTL_SECS = 3.0


class Fleet:
    """A server process, the database it works on, and the workers started so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(32)
        database = f"sqlite:///{folder / 'pitchpipe.db'}"
        self.environment = {
            **os.environ,
            "PITCHPIPE_BOOTSTRAP_TOKEN": self.token,
            "PITCHPIPE_DATABASE_URL": database,
            "PITCHPIPE_BLOB_URL": (folder / "blobs").as_uri(),
            "PITCHPIPE_LEASE_TTL_SECS": str(TTL_SECS),
            "PITCHPIPE_QUIET_LOCK": str(folder / "quiet.lock"),
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        port_file = folder / "port"
        self.spawn("server", "--port", "0", "--port-file", str(port_file))
        until(port_file.exists)
        self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        self.environment |= {"PITCHPIPE_URL": self.url, "PITCHPIPE_TOKEN": self.token}
        del self.environment["PITCHPIPE_BOOTSTRAP_TOKEN"]
        self.database = Database(database)
        with self.database.transaction() as session:
            self.project = tokens.bootstrap(session, "default")

    def spawn(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}-{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pitchpipe.cli", *arguments], env=self.environment | environment, stderr=log
            )
        self.processes.append(process)
        return process

    def worker(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.spawn("worker", "--name", name, *arguments)

    def submit(self, workload: Workload, candidates: list[Candidate]) -> str:
        """A job in the state tuning with one batch of candidates."""
        from tests.compiler.programs import TARGET

        with self.database.transaction() as session:
            model = models.create(
                session, self.project, name="m", format=ModelFormat.ONNX, digest=sha256(b"m"), size_bytes=1
            )
            request = JobRequest(model=model.id, targets=(TARGET,), budget=Budget(trials=1000))
            job = jobs.submit(session, self.project, request)[0].id
            jobs.transition(session, job, JobState.INGESTING)
            task = Task(workload=workload, target=TARGET, name="dense", weight=1, flops=1, bytes=1, group="g")
            jobs.set_tasks(session, job, [task])
            jobs.transition(session, job, JobState.TUNING)
            batches.issue(
                session, job, workload.digest, TARGET, Purpose.SEARCH, candidates, MeasureConfig(), None, None
            )
        return job

    def cancel(self, job: str) -> None:
        with self.database.transaction() as session:
            jobs.cancel(session, self.project, job)

    def counts(self, job: str) -> batches.Counts:
        with self.database.reading() as session:
            return batches.counts(session, job)

    def rows(self, job: str) -> list[CandidateRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(CandidateRow).where(CandidateRow.job == job)))

    def trials(self, job: str) -> int:
        with self.database.reading() as session:
            return jobs.get(session, self.project, job).progress.trials

    def state(self, name: str) -> WorkerState | None:
        with self.database.reading() as session:
            found = {view.name: view.state for view in workers.list_(session, self.project)[0]}
        return found.get(name)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.database.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    opened = Fleet(tmp_path_factory.mktemp("fleet"))
    yield opened
    opened.close()


def make_batch(rows: int, count: int) -> tuple[Workload, list[Candidate]]:
    """A small matrix product and candidates that the search proposes for it."""
    from tests.compiler.programs import TARGET, dense
    from tuner.search import propose
    from tuner.steps import ProposeRequest

    workload = dense(rows, 128, 96)
    request = ProposeRequest(
        workload=workload, target=TARGET, measured=(), seen=frozenset(), model=None, n=count, seed=0
    )
    return workload, [proposal.candidate for proposal in propose(request)]


def test_a_terminated_worker_reports_what_it_measured_and_hands_back_the_rest(fleet: Fleet) -> None:
    workload, candidates = make_batch(64, 64)
    job = fleet.submit(workload, candidates)
    worker = fleet.worker("drained", "--max-candidates", "64")
    until(lambda: fleet.counts(job).terminal >= 3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECS) == 0
    counts = fleet.counts(job)
    assert counts.leased == 0
    assert counts.queued + counts.terminal == len(candidates)
    assert counts.queued > 0, "it was meant to be interrupted"
    assert {row.losses for row in fleet.rows(job)} == {0}
    assert fleet.trials(job) == counts.terminal
    assert fleet.state("drained") is WorkerState.GONE
    fleet.cancel(job)


def test_a_killed_worker_leaves_no_process_and_another_worker_measures_the_rest_once(fleet: Fleet) -> None:
    workload, candidates = make_batch(48, 20)
    job = fleet.submit(workload, candidates)
    first = fleet.worker("killed")
    until(lambda: 0 < fleet.counts(job).terminal < len(candidates))
    below = psutil.Process(first.pid).children(recursive=True)
    assert below
    first.kill()
    first.wait()
    fleet.worker("heir")
    until(lambda: fleet.counts(job).terminal == len(candidates))
    assert fleet.trials(job) == len(candidates)
    losses = {row.losses for row in fleet.rows(job)}
    assert losses == {0, 1}
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in below))


def test_a_worker_drains_when_the_process_that_started_it_is_killed(fleet: Fleet) -> None:
    program = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-m', 'pitchpipe.cli', 'worker', '--name', 'orphan', '--die-with-parent']); "
        "time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=fleet.environment)
    try:
        until(lambda: fleet.state("orphan") is WorkerState.ACTIVE)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: fleet.state("orphan") is WorkerState.GONE)


def test_a_worker_with_a_wrong_token_ends_with_4(fleet: Fleet) -> None:
    worker = fleet.spawn("worker", "--name", "stranger", PITCHPIPE_TOKEN=secrets.token_urlsafe(32))
    assert worker.wait(PATIENCE_SECS) == 4
    assert fleet.state("stranger") is None
