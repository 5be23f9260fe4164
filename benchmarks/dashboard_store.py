"""A PostgreSQL database as a service has it after some months: 200 jobs, their events, and a million records.

Jobs on one model share its workloads. What is few is stored as the service stores it; what is many is made by SQL,
consistent by construction.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from lookup_store import ASKING, DEVICE, TOOLCHAIN

from pitchpipe.wire.cost_model import TaskMarks
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat, Progress
from pitchpipe.wire.lease import WorkerRegistration
from pitchpipe.wire.measure import MEASURE_VERSION, CheckVerdict, Timed
from pitchpipe.wire.miss import MissCount, MissReport
from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.task import Task, Workload
from service.db import Database
from service.store import cost_models, job_tasks, jobs, misses, models, tokens, workers
from service.store.cost_models import NewVersion
from service.store.values import put_device, put_target, put_toolchain

JOBS, RUNNING = 200, 20
MODELS, TASKS = 25, 20
"""Models, and tasks of each; every job is on one of them."""
EVENTS = 400
"""Reported batches of a job."""
WORKERS, VERSIONS = 40, 100
"""Workers, and versions of the cost model."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Whose pages to ask for."""

    job: str
    """One that runs."""
    record: str
    worker: str
    cost_model: str


def digest(number: int) -> str:
    """Of a workload, by number."""
    return hashlib.sha256(f"dashboard {number}".encode()).hexdigest()


def fill(url: str, records: int) -> Filled:
    """Migrates the empty database and fills the project `default`."""
    database = Database(url)
    database.migrate()
    with database.transaction() as session:
        project = tokens.bootstrap(session, "default")
        target, device = put_target(session, ASKING), put_device(session, DEVICE)
        toolchain = put_toolchain(session, TOOLCHAIN)
        made = [
            models.create(
                session, project, name=f"model {n}", format=ModelFormat.ONNX, digest=digest(-1 - n), size_bytes=1000
            ).id
            for n in range(MODELS)
        ]
        levels = (MemoryLevel(name="memory", inside_bytes=1 << 26, bytes_per_sec=1e11),)
        roofline = Roofline(threads=2, flops_per_sec=1e11, levels=levels)
        registered = [
            workers.register(
                session,
                project,
                WorkerRegistration(
                    name=f"worker-{n}", device=DEVICE, target=ASKING, toolchain=TOOLCHAIN, roofline=roofline
                ),
            ).id
            for n in range(WORKERS)
        ]
        marks = [
            TaskMarks(
                workload=digest(at), candidates=64, pairwise=0.8, peak_1=0.9, peak_5=0.95, points=((0.5, 0.5),) * 64
            )
            for at in range(TASKS)
        ]
        for n in range(VERSIONS):
            new = NewVersion(digest=digest(n), samples=1000 * n, held_out=marks)
            version = cost_models.add(session, project, "llvm", new)
            cost_models.serve(session, project, "llvm", version, "not worse than the version before")
        (newest, *_), _ = cost_models.list_(session, project, None, None, 1)
    submitted = []
    for n in range(JOBS):
        tasks = [
            Task(
                workload=Workload(digest=digest(n % MODELS * TASKS + at), ir="{}"),
                target=ASKING,
                name=f"conv2d add {at}",
                weight=1 + at % 3,
                flops=1e8,
                bytes=1e6,
                group=f"g{at}",
            )
            for at in range(TASKS)
        ]
        with database.transaction() as session:
            request = JobRequest(model=made[n % MODELS], targets=(ASKING,), budget=Budget(trials=5000), seed=n)
            job = jobs.submit(session, project, request)[0].id
            jobs.transition(session, job, JobState.INGESTING)
            job_tasks.set_tasks(session, job, tasks)
            jobs.transition(session, job, JobState.TUNING)
            for task in tasks:
                told = {"untuned_secs": 2e-3, "bound_secs": 1e-4}
                job_tasks.update_task(session, job, task.workload.digest, ASKING, **told)
            jobs.update_progress(session, job, Progress(trials=5000, best_secs=2e-2, forecast_secs=1e-2), 600.0)
            if n < JOBS - RUNNING:
                jobs.transition(session, job, JobState.DONE)
        submitted.append(job)
    with database.transaction() as session:
        for first in range(MODELS):
            missed = tuple(MissCount(workload=digest(first * TASKS + at), runs=1 + at) for at in range(TASKS))
            misses.report(session, project, MissReport(target=ASKING, model=made[first], misses=missed))
    database.close()
    check = CheckVerdict(passed=True, max_abs_error=1e-6, tolerance=1e-3, input_sets=2)
    result = Timed(candidate="0" * 64, run_secs=(1e-3,) * 9, check=check, build_secs=0.2)
    values = {
        "project": project,
        "target": target,
        "device": device,
        "class": DEVICE.device_class,
        "toolchain": toolchain,
        "label": TOOLCHAIN.key,
        "timed": result.model_dump_json(),
        "records": records,
        "workloads": MODELS * TASKS,
        "events": EVENTS,
        "version": MEASURE_VERSION,
        "at": datetime.now(UTC).timestamp(),
        "progress": Progress(trials=1, best_secs=2e-2, forecast_secs=1e-2).model_dump_json(),
        "workers": registered,
    }
    with psycopg.connect(url) as connection:
        # The rows are consistent by construction; a trigger per row and key would take most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("CREATE TEMPORARY TABLE named (place integer, digest text)")
        with connection.cursor().copy("COPY named FROM STDIN") as copy:
            for number in range(MODELS * TASKS):
                copy.write_row((number, digest(number)))
        for statement in _STATEMENTS:
            connection.execute(statement, values)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return Filled(job=submitted[-1], record=f"rec_{records // 2:026d}", worker=registered[0], cost_model=newest.id)


_STATEMENTS = (
    # One in ten failed. Traces of candidates are 1 to 10 KB.
    """
    INSERT INTO records (project, id, workload, target_key, target_kind, candidate, trace, secs, failure, result,
                         device_key, toolchain_key, measure_version, worker, created_at, schema_version)
    SELECT %(project)s, 'rec_' || lpad(n::text, 26, '0'), named.digest, %(target)s, 'llvm',
           md5(n::text) || md5('candidate' || n), '[[],[' || repeat('[1,2,3],', 300) || n || ']]',
           CASE WHEN n %% 10 > 0 THEN 1e-3 + n %% 997 * 1e-6 END, CASE WHEN n %% 10 = 0 THEN 'build_error' END,
           CASE WHEN n %% 10 > 0 THEN %(timed)s::json
                ELSE json_build_object('outcome', 'failed', 'candidate', repeat('0', 64), 'kind', 'build_error',
                                       'detail', 'it does not build: ' || n %% 50) END,
           %(device)s, %(toolchain)s, %(version)s, (%(workers)s::text[])[1 + n %% 40], %(at)s - %(records)s + n, 1
    FROM generate_series(0, %(records)s - 1) AS n JOIN named ON named.place = n %% %(workloads)s
    """,
    """
    INSERT INTO best (project, target_key, workload, measure_version, device_class, record, trace, secs, secs_low,
                      secs_high, baseline_secs, toolchain, confirmed_at, worker)
    SELECT %(project)s, %(target)s, digest, %(version)s, %(class)s, 'rec_' || lpad((place + %(workloads)s)::text, 26, '0'),
           '[[],[]]', 1e-3, 0.99e-3, 1.01e-3, 2e-3, %(label)s, %(at)s, NULL
    FROM named WHERE place %% 10 > 0
    """,
    """
    INSERT INTO events (job, seq, kind, data, at)
    SELECT jobs.id, jobs.last_event + n, 'progress', %(progress)s::json, %(at)s + n
    FROM jobs, generate_series(1, %(events)s) AS n
    """,
    "UPDATE jobs SET last_event = last_event + %(events)s",
)
