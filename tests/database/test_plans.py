"""The statements of the hot paths find their rows by an index: none reads a growing table from end to end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import EventKind
from pitchpipe.wire.miss import MissCount, MissReport, ServedCount
from pitchpipe.wire.record import ExplainRequest, LookupRequest, Tier
from pitchpipe.wire.task import Signature, SignedWorkload
from service.db import Database
from service.store import (
    batches,
    donors,
    events,
    explanations,
    job_tasks,
    jobs,
    leases,
    listing,
    listings,
    lookups,
    misses,
    pace,
    records,
    samples,
    savings,
    tokens,
    trials,
    workloads,
)
from tests.scene import DEVICE, TARGET, WORKLOAD, Scene, best, candidates, record, timed

GROWING = {
    *("candidates", "records", "best", "leases", "lease_results", "events", "batches", "tasks", "workloads"),
    *("tokens", "jobs", "workers", "misses", "miss_reports", "savings"),
}


@contextmanager
def statements(database: Database) -> Iterator[list[tuple[str, object]]]:
    found: list[tuple[str, object]] = []

    def note(_connection: Connection, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        found.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def test_no_hot_path_scans_a_growing_table(sqlite_database: Database) -> None:
    scene = Scene(sqlite_database)
    scene.issue(candidates(0, 20))
    scene.register("worker-b")
    with statements(sqlite_database) as found:
        grant = scene.granted(8)
        scene.report(grant, [timed(c.digest) for c in grant.candidates[:4]], noisy=True)
        scene.report(grant, [timed(c.digest) for c in grant.candidates[:6]], final=True)
        scene.granted(20)
        scene.pass_time()
        scene.expire()
        with sqlite_database.transaction() as session:
            leases.available(session, scene.project, scene.worker)
            batches.finished(session, scene.job)
            batches.open_(session, scene.job)
            batches.counts(session, scene.job)
            batches.unserved(session, scene.job)
            batches.seen(session, scene.project, WORKLOAD.digest, TARGET)
            samples.newest(session, scene.project, "llvm", 100)
            made = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
            records.fastest(session, scene.project, WORKLOAD.digest, TARGET, 3)
            trials.fastest(session, scene.project, WORKLOAD.digest, TARGET, 3)
            pace.of_worker(session, scene.project, scene.worker)
            listing.read(session, listings.tasks(scene.project, scene.job), listing.Asked())
            records.set_best(session, scene.project, WORKLOAD.digest, TARGET, best(made[0]))
            asked = LookupRequest(target=TARGET, workloads=(WORKLOAD.digest, *(c.digest for c in candidates(0, 5))))
            lookups.lookup(session, scene.project, asked)
            wider = TARGET.model_copy(update={"mcpu": "znver5"})
            answer = lookups.lookup(session, scene.project, asked.model_copy(update={"target": wider})).answers[0]
            assert answer.tier is Tier.COMPATIBLE_ISA, "the trace of another target is read by a statement of its own"
            lookups.generation(session, scene.project)
            signed = SignedWorkload(
                workload=WORKLOAD.digest, operators="", anchor="SSR products", extents=(), arguments=(), flops=1.0
            )
            explanations.explain(session, scene.project, ExplainRequest(**dict(asked), signatures=(signed,)))
            records.add_effort(session, scene.project, WORKLOAD.digest, TARGET, DEVICE.device_class, 1.0)
            records.efforts(session, scene.project, [WORKLOAD.digest], TARGET)
            records.list_(session, scene.project)
            events.append(session, scene.job, EventKind.PROGRESS, {})
            events.after(session, scene.project, scene.job, 1)
            jobs.get(session, scene.project, scene.job)
            jobs.active(session)
            job_tasks.tasks(session, scene.job)
            jobs.waited_for(session, scene.project)
            jobs.cancel(session, scene.project, scene.job)
            signature = Signature(operators="o", anchor="SSR products", extents=(8,), arguments=(), flops=8.0)
            workloads.put(session, scene.project, WORKLOAD, signature)
            donors.known(session, scene.project, WORKLOAD.digest, TARGET)
            ran = ServedCount(workload=WORKLOAD.digest, runs=1, record=made[0].id, secs=1e-3, baseline_secs=2e-3)
            missed = MissReport(target=TARGET, misses=(MissCount(workload=WORKLOAD.digest, runs=1),), served=(ran,))
            misses.set_budget(session, scene.project, 1000)
            misses.report(session, scene.project, missed, "key")
            savings.by_day(session, scene.project, 30)
            misses.list_(session, scene.project)
            misses.due(session)
            misses.take(session, scene.project, TARGET)
            misses.at_work(session)
            misses.close_ended(session)
            tokens.bootstrap(session, "another")
    plans: dict[str, list[str]] = {}
    with sqlite_database.reading() as session:
        for statement, parameters in found:
            if statement.split()[0] in ("SELECT", "UPDATE", "WITH", "DELETE"):
                many = isinstance(parameters, list)
                plan = session.connection().exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters
                )
                plans[statement] = [row[3] for row in plan]
    assert len(plans) > 30
    for statement, steps in plans.items():
        for step in steps:
            scanned = re.match(r"SCAN (\w+)(?! USING .*INDEX)", step)
            assert not (scanned and scanned[1] in GROWING), f"{step}: {statement}"


def test_a_look_up_is_one_statement_that_finds_its_rows_by_an_index(postgres_database: Database) -> None:
    scene = Scene(postgres_database)
    with postgres_database.transaction() as session:
        digests = [sha256(str(number).encode()) for number in range(100)]
        made = [record(candidates(0, 1, digest)[0], workload=digest) for digest in digests]
        records.add(session, scene.project, made)
        for each in made:
            records.set_best(session, scene.project, each.workload, TARGET, best(each))
    asked = LookupRequest(target=TARGET, workloads=tuple(each.workload for each in made[:30]))
    with postgres_database.reading() as session:
        lookups.lookup(session, scene.project, asked)  # targets and devices are remembered from now on
        with statements(postgres_database) as found:
            lookups.lookup(session, scene.project, asked)
        ((statement, parameters),) = found
        session.connection().exec_driver_sql("SET LOCAL enable_seqscan = off")
        session.connection().exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        plan = "\n".join(row[0] for row in session.connection().exec_driver_sql(f"EXPLAIN {statement}", parameters))
    # Either index will do that leads to the workloads; PostgreSQL 18 skips the column between in the primary key's.
    assert re.search(r"(ix_best_project_workload|pk_best) on best.*\n.*Index Cond: .*workload\)::text = ANY", plan), (
        plan
    )
