"""A small world for tests of the store: a project with a job on one task, and workers that serve its target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime

from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from pitchpipe.wire.lease import (
    LeaseGrant,
    LeaseRequest,
    Purpose,
    Report,
    ReportResponse,
    Steadiness,
    WorkerRegistration,
)
from pitchpipe.wire.measure import Candidate, CheckVerdict, Failed, FailureKind, MeasureConfig, Measurement, Timed
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Task, Workload
from service.db import Database
from service.store import batches, job_tasks, jobs, leases, models, tokens, workers

TARGET = Target(kind="llvm", mcpu="skylake-avx512", num_cores=2)
OTHER_TARGET = Target(kind="cuda", arch="sm_90")
DEVICE = DeviceFingerprint(kind="cpu", model="Test CPU", cores=2, memory_bytes=1 << 30)
OTHER_DEVICE = DeviceFingerprint(kind="cpu", model="Another CPU", cores=2, memory_bytes=1 << 30)
TOOLCHAIN = Toolchain(tvm="0.27", tvm_ffi="0.1", codegen="llvm 20")
WORKLOAD = Workload(digest=sha256(b"workload"), ir="{}")
TTL_SECS = 1000.0
_NAMES = (f"project-{n}" for n in itertools.count(1))


def candidates(start: int, stop: int, workload: str = WORKLOAD.digest) -> list[Candidate]:
    """Candidates number `start` to `stop`, the same ones every time."""
    return [Candidate.of(workload, f"[[],[{n}]]") for n in range(start, stop)]


def timed(digest: str, secs: float = 1e-3) -> Timed:
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=1)
    return Timed(candidate=digest, run_secs=(secs, secs, secs), check=check, build_secs=0.5)


def failed(digest: str, kind: FailureKind = FailureKind.BUILD_ERROR) -> Failed:
    return Failed(candidate=digest, kind=kind, detail="a test says so")


def steadiness(*, noisy: bool) -> Steadiness:
    secs = 1.3e-3 if noisy else 1e-3
    return Steadiness(reference_secs=secs, usual_secs=1e-3, ratio=secs / 1e-3, noisy=noisy, beats=5, repeated=0)


def roofline(flops_per_sec: float = 1e9) -> Roofline:
    levels = (MemoryLevel(name="memory", inside_bytes=1 << 20, bytes_per_sec=1e9),)
    return Roofline(threads=64, flops_per_sec=flops_per_sec, levels=levels)


def record(
    candidate: Candidate,
    result: Measurement | None = None,
    *,
    workload: str = WORKLOAD.digest,
    target: Target = TARGET,
    device: DeviceFingerprint = DEVICE,
    toolchain: Toolchain = TOOLCHAIN,
) -> TuningRecord:
    """A record of a candidate, timed unless `result` says otherwise."""
    return TuningRecord(
        id=new_id("rec"),
        workload=workload,
        target=target,
        trace=candidate.trace,
        result=result or timed(candidate.digest),
        device=device,
        toolchain=toolchain,
        worker="test",
        created_at=datetime.now(UTC),
    )


def best(of: TuningRecord, *, secs: float = 1e-3, baseline_secs: float | None = 2e-3) -> Best:
    """A confirmation of a record."""
    return Best(
        record=of.id,
        trace=of.trace,
        secs=secs,
        secs_low=secs,
        secs_high=secs,
        baseline_secs=baseline_secs,
        device_class=of.device.device_class,
        toolchain=of.toolchain.key,
        confirmed_at=datetime.now(UTC),
    )


class Scene:
    """One project with a tuning job and a worker. Every method is a transaction of its own."""

    def __init__(self, database: Database, *, trials: int = 1000) -> None:
        self.database = database
        self.name = next(_NAMES)
        with database.transaction() as session:
            self.project = tokens.bootstrap(session, self.name)
            model = models.create(
                session,
                self.project,
                name="model.onnx",
                format=ModelFormat.ONNX,
                digest=sha256(self.name.encode()),
                size_bytes=5,
            )
        self.model = model.id
        self.job = self.submit(trials)
        self.worker = self.register("worker-a")

    def submit(self, trials: int = 1000, tasks: Sequence[Task] | None = None) -> str:
        """A job in the state tuning."""
        request = JobRequest(model=self.model, targets=(TARGET,), budget=Budget(trials=trials))
        with self.database.transaction() as session:
            job = jobs.submit(session, self.project, request)[0].id
            jobs.transition(session, job, JobState.INGESTING)
            job_tasks.set_tasks(session, job, tasks or [task()])
            jobs.transition(session, job, JobState.TUNING)
        return job

    def register(
        self,
        name: str,
        *,
        target: Target = TARGET,
        device: DeviceFingerprint = DEVICE,
        toolchain: Toolchain = TOOLCHAIN,
        roofline: Roofline | None = None,
    ) -> str:
        registration = WorkerRegistration(
            name=name, device=device, target=target, toolchain=toolchain, roofline=roofline
        )
        with self.database.transaction() as session:
            worker = workers.register(session, self.project, registration).id
            leases.void(session, worker)
        return worker

    def issue(
        self,
        proposed: Sequence[Candidate],
        purpose: Purpose = Purpose.SEARCH,
        *,
        job: str | None = None,
        features: dict[str, bytes] | None = None,
    ) -> int:
        with self.database.transaction() as session:
            return batches.issue(
                session, job or self.job, WORKLOAD.digest, TARGET, purpose, proposed, MeasureConfig(), None, features
            )

    def acquire(self, n: int = 16, *, worker: str | None = None, ttl_secs: float = TTL_SECS) -> LeaseGrant | None:
        request = LeaseRequest(worker=worker or self.worker, max_candidates=n)
        with self.database.transaction() as session:
            return leases.acquire(session, self.project, request, ttl_secs)

    def granted(self, n: int = 16, *, worker: str | None = None, ttl_secs: float = TTL_SECS) -> LeaseGrant:
        grant = self.acquire(n, worker=worker, ttl_secs=ttl_secs)
        assert grant is not None
        return grant

    def report(
        self,
        grant: LeaseGrant,
        results: Sequence[Measurement],
        *,
        final: bool = False,
        fence: int | None = None,
        noisy: bool | None = None,
    ) -> ReportResponse:
        body = Report(
            fence=grant.fence if fence is None else fence,
            results=tuple(results),
            final=final,
            steadiness=None if noisy is None else steadiness(noisy=noisy),
        )
        with self.database.transaction() as session:
            return leases.report(session, self.project, grant.lease, body)

    def expire(self) -> int:
        with self.database.transaction() as session:
            return leases.expire(session)

    def pass_time(self, secs: float = TTL_SECS + 1) -> None:
        """Moves the database's clock on, as far as leases are concerned."""
        self.database.clock_offset_secs += secs

    def counts(self, job: str | None = None) -> batches.Counts:
        with self.database.reading() as session:
            found = batches.counts(session, job or self.job)
        assert found.issued == found.queued + found.leased + found.terminal
        return found

    def trials(self, job: str | None = None) -> tuple[int, int]:
        """(trials, failed trials) that the job was charged."""
        with self.database.reading() as session:
            progress = jobs.get(session, self.project, job or self.job).progress
        return progress.trials, progress.failed_trials


def task(workload: Workload = WORKLOAD, target: Target = TARGET) -> Task:
    return Task(workload=workload, target=target, name="matmul", weight=1, flops=math.pi, bytes=64.0, group="g")
