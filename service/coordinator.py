"""Moves every active job along: ingest, search, budget, cost model, confirmation. Imports no compiler.

One coordinator is active at a time (a row in the database says which); the others wait. All that a job needs is in the
database, so a coordinator that dies is replaced by one that goes on from there.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor

import structlog

from pitchpipe.errors import InvalidTransition, JobFailed, PitchpipeError
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import JobState
from service.blobs import Blobs
from service.db import Database
from service.job_run import JobRun
from service.model_checks import ModelChecks
from service.predictor import ProjectPredictor
from service.settings import Settings
from service.store import batches, coordination, jobs, leases, workers
from service.wake import Wake

log = structlog.get_logger()

TICK_SECS = 0.25
"""Longest wait between two looks at the database."""
MAX_FAULTS = 5
"""Steps of a job that may fail in a row, each rebuilt from the database, before the job is failed."""


class Coordinator:
    """Runs in a thread of the server when embedded, or as a process of its own."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        blobs: Blobs,
        wake: Wake,
        executor: Executor,
        reader: Executor | None = None,
    ) -> None:
        """`reader` runs the checks of uploaded models, by default in the executor; the coordinator ends both."""
        self.settings, self.database, self.blobs, self.wake, self.executor = settings, database, blobs, wake, executor
        self.reader = reader or executor
        self.checks = ModelChecks(database, blobs, wake, self.reader)
        self.holder = new_id("wrk")
        self._runs: dict[str, JobRun] = {}
        self._faults: dict[str, int] = {}
        self._predictors: dict[tuple[str, str], ProjectPredictor] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name="coordinator", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the present tick; the executor's children are ended without waiting for their steps."""
        self._stopping.set()
        self.wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        for executor in {self.executor, self.reader}:
            executor.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Ticks until stopped. A failing tick is logged and repeated: the database is the truth, memory is rebuilt."""
        while not self._stopping.is_set():
            try:
                self.tick()
            except Exception:
                log.exception("coordinator tick failed")
                self._runs.clear()
                self._stopping.wait(1.0)
            self.wake.wait(TICK_SECS)
        try:
            with self.database.transaction() as session:
                coordination.release(session, self.holder)
        except Exception:
            log.exception("the role could not be given back; the next coordinator waits until it is overdue")

    def tick(self) -> None:
        """One look at everything."""
        with self.database.transaction() as session:
            if not coordination.hold(session, self.holder, self.settings.coordinator_ttl_secs):
                self._runs.clear()
                self.checks.forget()
                return
            requeued = leases.expire(session)
            workers.lost(session, self.settings.worker_timeout_secs)
            active = jobs.active(session)
        if requeued:
            log.warning("leases expired", candidates_requeued=requeued)
            self.wake.notify()
        self.checks.step()
        for ended in self._runs.keys() - {job for _, job, _ in active}:
            del self._runs[ended]
        for project, job, _ in active:
            if job not in self._runs:
                self._runs[job] = JobRun(
                    project, job, self.database, self.blobs, self.wake, self.executor, self.predictor
                )
            self._step(job)

    def _step(self, job: str) -> None:
        """One job's step. Whatever it raises touches no other job; what it keeps raising ends it."""
        try:
            self._runs[job].step()
            self._faults.pop(job, None)
        except InvalidTransition:
            log.info("job ended elsewhere", job=job)
        except PitchpipeError as error:
            self._fail(job, error)
        except Exception as error:
            log.exception("step failed", job=job)
            del self._runs[job]
            self._faults[job] = self._faults.get(job, 0) + 1
            if self._faults[job] >= MAX_FAULTS:
                self._fail(job, JobFailed(f"{type(error).__name__}: {error}"))

    def predictor(self, project: str, target_kind: str) -> ProjectPredictor:
        """The cost model shared by a project's jobs on one target kind."""
        key = (project, target_kind)
        if key not in self._predictors:
            self._predictors[key] = ProjectPredictor(*key, self.database, self.blobs, self.wake, self.executor)
        return self._predictors[key]

    def _fail(self, job: str, error: PitchpipeError) -> None:
        log.warning("job failed", job=job, error=error.detail, code=error.code)
        with self.database.transaction() as session:
            batches.cancel_job(session, job)
            jobs.transition(session, job, JobState.FAILED, error=error.detail, error_code=error.code)
        self.wake.notify()
