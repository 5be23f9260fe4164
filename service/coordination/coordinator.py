"""The coordinator: it steps every active job through ingest, search and confirmation, and makes jobs of misses while workers
are idle. Imports no compiler.

One coordinator is active at a time (a row in the database says which); the others wait. The state of a job is in the
database, so when a coordinator dies another one continues from there.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Executor

import structlog

from pitchpipe.errors import InvalidTransition, JobFailed, Overloaded, PitchpipeError, Unreachable
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import JobState
from service.blobs import Blobs
from service.coordination.idle import IdleTuning
from service.coordination.job_run import BudgetRaised, JobRun
from service.coordination.model_checks import ModelChecks
from service.coordination.predictor import ProjectPredictor
from service.db import Database
from service.settings import Settings
from service.store import coordination, jobs, leases, workers
from service.wake import Wake
from tuner.execution.engine import on_behalf

log = structlog.get_logger()

TICK_SECS = 0.25
"""Longest wait between two ticks where other processes write to the same database, whose notices do not arrive here ..."""
ALONE_TICK_SECS = 1.0
"""... and where none does, so that a notice tells of everything but time: a lease that runs out, a budget that is spent."""
RENEW_SECS = 1.0
"""Time between two renewals of the role, and two looks for leases and workers that are overdue."""
MAX_FAULTS = 5
"""Steps of a job that may raise in a row, each of a run rebuilt from the database, before the job is failed."""


class Coordinator:
    """The coordinator, in a thread of the embedded server or a process of its own."""

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
        self._tick_secs = ALONE_TICK_SECS if database.is_sqlite else TICK_SECS
        self._renewed_at = -math.inf
        self.idle = IdleTuning(database, wake, self.holder)
        self._runs: dict[str, JobRun] = {}
        self._faults: dict[str, int] = {}
        self._predictors: dict[tuple[str, str], ProjectPredictor] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name="coordinator", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the present tick; the executors' children are ended without waiting for their steps."""
        self._stopping.set()
        self.wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        for executor in {self.executor, self.reader}:
            executor.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Ticks until stopped. A tick that raises is logged and repeated, with the jobs' runs rebuilt from the database."""
        while not self._stopping.is_set():
            seen = self.wake.generation
            try:
                self.tick()
            except Exception:
                log.exception("coordinator tick failed")
                self._forget()
                self._stopping.wait(1.0)
            self.wake.wait(self._tick_secs, since=seen)
        try:
            with self.database.transaction() as session:
                coordination.release(session, self.holder)
        except Exception:
            log.exception("the role could not be given back; the next coordinator waits until it is overdue")

    def tick(self) -> None:
        """Renews the role, expires leases, and steps the checks of models, every running job and idle tuning once."""
        if not self._renewed():
            self._forget()
            self._predictors.clear()
            self.checks.forget()
            return
        with self.database.reading() as session:
            running = jobs.running(session)
        try:
            self.checks.step()
        except Exception:
            log.exception("checking models failed")  # a blob store or an engine that is away stops no job
        try:
            # A job that is paused is one that another coordinator has left: resumed, it is rebuilt from the database.
            for job in (self._runs.keys() | self._faults.keys()) - {job for _, job in running}:
                if job in self._runs:
                    self._runs[job].store_clock()
                self._drop(job)
                self._faults.pop(job, None)
            for project, job in running:
                if job not in self._runs:
                    executor = on_behalf(self.executor, project, job)
                    self._runs[job] = JobRun(
                        project, job, self.database, self.blobs, self.wake, executor, self.predictor, self.holder
                    )
                self._step(job)
            self._look_for_idle_workers()
        except coordination.RoleLost:
            log.warning("another coordinator took over", holder=self.holder)
            self._forget()
        self._tend_predictors({project for project, _ in running})

    def _renewed(self) -> bool:
        """Whether this coordinator has the role; once every RENEW_SECS renews it and ends what is overdue."""
        if time.monotonic() - self._renewed_at < RENEW_SECS:
            return True
        with self.database.transaction() as session:
            if not coordination.hold(session, self.holder, self.settings.coordinator_ttl_secs):
                return False
            requeued = leases.expire(session)
            workers.lost(session, self.settings.worker_timeout_secs)
        self._renewed_at = time.monotonic()
        if requeued:
            log.warning("leases expired", candidates_requeued=requeued)
            self.wake.notify()
        return True

    def _look_for_idle_workers(self) -> None:
        try:
            self.idle.step()
        except coordination.RoleLost:
            raise
        except Exception:
            log.exception("looking for idle workers failed")  # No user's job waits for it.

    def _step(self, job: str) -> None:
        """Steps one job. An error affects no other job; MAX_FAULTS unexpected ones in a row fail this one."""
        try:
            self._runs[job].step()
            self._faults.pop(job, None)
        except coordination.RoleLost:
            raise
        except BudgetRaised:
            self._runs[job].store_clock()
            self._drop(job)
            self.wake.notify()
        except InvalidTransition:
            log.info("job ended elsewhere", job=job)
            self._drop(job)
        except (Overloaded, Unreachable) as error:
            # The database or the engine is unavailable for now, which is no job's fault.
            log.warning("step postponed", job=job, error=error.detail)
            self._drop(job)
        except PitchpipeError as error:
            self._fail(job, error)
        except Exception as error:
            log.exception("step failed", job=job)
            self._drop(job)
            self._faults[job] = self._faults.get(job, 0) + 1
            if self._faults[job] >= MAX_FAULTS:
                self._fail(job, JobFailed(f"{type(error).__name__}: {error}"))

    def predictor(self, project: str, target_kind: str) -> ProjectPredictor:
        """The cost model shared by a project's jobs on one target kind."""
        key = (project, target_kind)
        if key not in self._predictors:
            executor = on_behalf(self.executor, project)
            self._predictors[key] = ProjectPredictor(*key, self.database, self.blobs, self.wake, executor)
        return self._predictors[key]

    def _tend_predictors(self, projects: set[str]) -> None:
        """Stores and judges cost models that finished training, also for jobs that ended meanwhile, and drops the predictors
        of projects without an active job."""
        for key, predictor in list(self._predictors.items()):
            predictor.step()
            if key[0] not in projects and not predictor.busy:
                del self._predictors[key]

    def _forget(self) -> None:
        """Drops all runs of jobs, because they may be outdated: the next steps rebuild them from the database."""
        self._renewed_at = -math.inf
        for job in list(self._runs):
            self._drop(job)

    def _drop(self, job: str) -> None:
        if (run := self._runs.pop(job, None)) is not None:
            run.abandon()

    def _fail(self, job: str, error: PitchpipeError) -> None:
        self._drop(job)
        try:
            with self.database.transaction() as session:
                jobs.transition(session, job, JobState.FAILED, error=error.detail, error_code=error.code)
        except InvalidTransition:
            log.info("job ended elsewhere", job=job)
            return
        log.warning("job failed", job=job, error=error.detail, code=error.code)
        self.wake.notify()
