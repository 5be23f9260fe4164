"""Many threads at once, on both databases: every candidate is measured exactly once, and nobody sees a lock."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from pitchpipe.errors import PitchpipeError, StaleLease
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import Budget, EventKind, JobRequest, JobState, ModelFormat
from pitchpipe.wire.lease import Purpose
from service.db import Database
from service.store import batches, events, jobs, models, records, tokens
from service.tables import Lease
from tests.scene import TARGET, WORKLOAD, Scene, candidates, failed, timed

THREADS = 8


def test_contending_workers_measure_every_candidate_exactly_once(database: Database) -> None:
    scene = Scene(database)
    for n in range(10):
        scene.issue(candidates(40 * n, 40 * n + 40))
    workers = [scene.register(f"worker-{n}") for n in range(THREADS)]
    granted: list[list[str]] = [[] for _ in workers]
    fences: list[list[int]] = [[] for _ in workers]
    ready = threading.Barrier(THREADS)

    def work(n: int) -> None:
        ready.wait()
        while (grant := scene.acquire(7, worker=workers[n])) is not None:
            fences[n].append(grant.fence)
            digests = [c.digest for c in grant.candidates]
            if len(digests) == 7 and len(fences[n]) % 5 == 0:
                scene.report(grant, [], final=True)
                continue
            granted[n] += digests
            results = [failed(d) if int(d, 16) % 5 == 0 else timed(d) for d in digests]
            assert scene.report(grant, results[:3]).accepted == len(results[:3])
            scene.report(grant, results, final=True)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert Counter(digest for each in granted for digest in each) == Counter(c.digest for c in candidates(0, 400))
    assert scene.counts() == batches.Counts(issued=400, queued=0, leased=0, terminal=400)
    assert scene.trials() == (400, sum(int(c.digest, 16) % 5 == 0 for c in candidates(0, 400)))
    with database.reading() as session:
        assert len(records.for_task(session, scene.project, WORKLOAD.digest, TARGET)) == 400
        stored = session.scalars(select(Lease.fence).where(Lease.project == scene.project)).all()
    assert sorted(stored) == sorted(fence for each in fences for fence in each)
    assert all(each == sorted(each) for each in fences), "each thread sees fences rise"


def test_a_confirming_batch_is_never_split_among_contending_workers(database: Database) -> None:
    scene = Scene(database)
    workers = [scene.register(f"worker-{n}") for n in range(THREADS)]
    for n in range(12):
        scene.issue(candidates(4 * n, 4 * n + 4), Purpose.CONFIRM)
    ready = threading.Barrier(THREADS)

    def work(n: int) -> list[int]:
        ready.wait()
        sizes = []
        while (grant := scene.acquire(1, worker=workers[n])) is not None:
            sizes.append(len(grant.candidates))
            scene.report(grant, [timed(c.digest) for c in grant.candidates])
        return sizes

    with ThreadPoolExecutor(THREADS) as pool:
        sizes = [size for each in pool.map(work, range(THREADS)) for size in each]
    # A worker that finds every batch being claimed may leave early; what is claimed is claimed whole.
    assert set(sizes) == {4}
    with database.reading() as session:
        assert all(batch.measured.whole for batch in batches.finished(session, scene.job))


def test_one_report_sent_by_many_threads_is_stored_and_charged_once(database: Database) -> None:
    scene = Scene(database)
    scene.issue(candidates(0, 10))
    grant = scene.granted()
    results = [timed(c.digest) for c in grant.candidates]
    ready = threading.Barrier(THREADS)

    def send(_: int) -> int:
        ready.wait()
        return scene.report(grant, results, final=True).accepted

    with ThreadPoolExecutor(THREADS) as pool:
        assert sorted(pool.map(send, range(THREADS))) == [0] * (THREADS - 1) + [10]
    assert scene.trials() == (10, 0)


def test_expiry_and_a_late_report_race_and_one_of_them_wins(database: Database) -> None:
    scene = Scene(database)
    for n in range(10):
        scene.issue(candidates(n, n + 1))
        grant = scene.granted(ttl_secs=100.0)
        ready = threading.Barrier(2)

        def report(grant=grant, ready=ready) -> bool:  # type: ignore[no-untyped-def]
            ready.wait()
            try:
                return scene.report(grant, [timed(grant.candidates[0].digest)]).accepted == 1
            except StaleLease:
                return False

        def expire(ready=ready) -> int:  # type: ignore[no-untyped-def]
            ready.wait()
            scene.pass_time(101)
            return scene.expire()

        with ThreadPoolExecutor(2) as pool:
            reported, requeued = pool.submit(report), pool.submit(expire)
        assert not (reported.result() and requeued.result())
        if not reported.result():
            # An expiry that met the report's lock has passed it by; the next one takes the lease.
            assert requeued.result() + scene.expire() == 1
            again = scene.granted()
            scene.report(again, [timed(again.candidates[0].digest)])
    assert scene.trials() == (10, 0)


@pytest.mark.long
def test_everything_at_once_ends_without_deadlock(database: Database) -> None:
    """Claims, reports, expiry, cancellations and new jobs: whatever waits for whatever, all of it ends."""
    scene = Scene(database)
    names = [f"worker-{n}" for n in range(4)]
    workers = [scene.register(name) for name in names]
    numbers = iter(range(10_000))
    stop = threading.Event()

    def measure(n: int) -> None:
        while not stop.is_set():
            grant = scene.acquire(5, worker=workers[n])
            if grant is None:
                stop.wait(0.005)
                continue
            try:
                scene.report(grant, [timed(c.digest) for c in grant.candidates[:3]], final=n % 2 == 0)
            except StaleLease:
                continue

    def coordinate() -> None:
        while not stop.is_set():
            scene.pass_time(300)
            scene.expire()
            stop.wait(0.01)

    def submit() -> None:
        for _ in range(8):
            job = scene.submit()
            start = next(numbers) * 20
            for part in range(2):
                scene.issue(candidates(start + 10 * part, start + 10 * part + 10), job=job)
            with database.transaction() as session:
                events.append(session, job, EventKind.PROGRESS, {})
                jobs.transition(session, job, JobState.CANCELLED)

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(measure, n) for n in range(4)] + [pool.submit(coordinate)]
        submitting = [pool.submit(submit) for _ in range(2)]
        try:
            for each in submitting:
                each.result()
        finally:
            stop.set()
        for one in running:
            one.result()
    with database.reading() as session:
        for job in [view.id for view in jobs.list_(session, scene.project, limit=100)[0]]:
            counts = batches.counts(session, job)
            assert counts.issued == counts.queued + counts.leased + counts.terminal
            progress = jobs.get(session, scene.project, job).progress
            assert progress.trials <= counts.terminal
        found = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
        total = sum(
            jobs.get(session, scene.project, view.id).progress.trials for view in jobs.list_(session, scene.project)[0]
        )
    assert total == len(found)


def test_the_same_submission_from_many_threads_is_one_job(database: Database) -> None:
    with database.transaction() as session:
        project = tokens.bootstrap(session, "many")
        model = models.create(session, project, name="m", format=ModelFormat.ONNX, digest=sha256(b"m"), size_bytes=1).id
    request = JobRequest(model=model, targets=(TARGET,), budget=Budget(trials=1))
    ready = threading.Barrier(THREADS)

    def submit(_: int) -> tuple[str, bool]:
        ready.wait()
        with database.transaction() as session:
            view, new = jobs.submit(session, project, request, "one key")
            return view.id, new

    with ThreadPoolExecutor(THREADS) as pool:
        made = list(pool.map(submit, range(THREADS)))
    assert len({job for job, _ in made}) == 1
    assert sum(new for _, new in made) == 1


def test_two_jobs_proposing_the_same_candidates_at_once_issue_each_once(database: Database) -> None:
    scene = Scene(database)
    owners = [scene.submit() for _ in range(4)]
    ready = threading.Barrier(4)

    def issue(job: str) -> int:
        ready.wait()
        return scene.issue(candidates(0, 50), job=job)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(issue, owners)) == 50


def test_errors_of_ours_pass_through_a_transaction_unchanged(database: Database) -> None:
    with pytest.raises(PitchpipeError, match="mine"), database.transaction():
        raise PitchpipeError("mine")
