"""A server process, the database it works on, and real worker processes; batches are issued through the store."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import select

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload
from service.db import Database
from service.store import batches, job_tasks, jobs, models, tokens, workers
from service.tables import CandidateRow
from tests.patience import PATIENCE_SECS


class Fleet:
    """A context manager that keeps its files in `folder`; leaving it kills every process it started."""

    def __init__(self, folder: Path, *, ttl_secs: float = 30.0) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(32)
        database = f"sqlite:///{folder / 'pitchpipe.db'}"
        self.environment = {
            **os.environ,
            "PITCHPIPE_BOOTSTRAP_TOKEN": self.token,
            "PITCHPIPE_DATABASE_URL": database,
            "PITCHPIPE_BLOB_URL": (folder / "blobs").as_uri(),
            "PITCHPIPE_LEASE_TTL_SECS": str(ttl_secs),
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

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spawn(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a command of `pitchpipe`; what it logs is in the folder."""
        with (self.folder / f"{len(self.processes)}-{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pitchpipe.cli.main", *arguments],
                env=self.environment | environment,
                cwd=cwd,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def worker(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.spawn("worker", "--name", name, *arguments)

    def submit(
        self, workload: Workload, target: Target, candidates: Sequence[Candidate], config: MeasureConfig | None = None
    ) -> str:
        """A job in the state tuning with one batch of candidates."""
        with self.database.transaction() as session:
            model = models.create(
                session, self.project, name="m", format=ModelFormat.ONNX, digest=sha256(b"m"), size_bytes=1
            )
            request = JobRequest(model=model.id, targets=(target,), budget=Budget(trials=1000))
            job = jobs.submit(session, self.project, request)[0].id
            jobs.transition(session, job, JobState.INGESTING)
            task = Task(workload=workload, target=target, name="task", weight=1, flops=1, bytes=1, group="g")
            job_tasks.set_tasks(session, job, [task])
            jobs.transition(session, job, JobState.TUNING)
            config = config or MeasureConfig()
            batches.issue(session, job, workload.digest, target, Purpose.SEARCH, candidates, config, None, None)
        return job

    def results(self, job: str) -> dict[str, Measurement]:
        """Of a job whose candidates have all ended, by candidate."""
        with self.database.reading() as session:
            (batch,) = batches.finished(session, job)
        measured = batch.measured
        return {one.digest: result for one, result in zip(measured.candidates, measured.results, strict=True)}

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
    """Waits for it; AssertionError after PATIENCE_SECS."""
    deadline = time.monotonic() + PATIENCE_SECS
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)
