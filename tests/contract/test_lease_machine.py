"""The promises about leases, checked after every step of random histories, on both databases.

The clock is the database's, moved by an offset, so that leases expire without waiting. Steps of 400 and 1100 s against a
time to live of 1000 s never come near the moment of expiry, whatever the machine's speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from pitchpipe.errors import IdempotencyConflict, InvalidReport, PitchpipeError, StaleLease
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.lease import LeaseGrant, Purpose
from pitchpipe.wire.measure import FailureKind, Measurement
from service.db import Database
from service.states import CANDIDATE, LEASE, MAX_LOSSES, CandidateState, LeaseState
from service.store import batches, jobs, leases, records
from service.tables import CandidateRow, Job, JobTask, Lease, LeaseResult, Record, WorkerRow
from tests.scene import TARGET, TTL_SECS, WORKLOAD, Scene, candidates, failed, timed

FINAL_FAILURES = [FailureKind.BUILD_ERROR, FailureKind.RUN_TIMEOUT, FailureKind.WRONG_OUTPUT]
RETRYABLE = [FailureKind.DEVICE_ERROR, FailureKind.WORKER_LOST]
OUTCOMES = st.sampled_from([None, None, None, *FINAL_FAILURES, *RETRYABLE])
"""None: it gets a time."""


@dataclass
class Held:
    """What the model knows of a lease."""

    grant: LeaseGrant
    worker: str
    expires_at: float
    open: bool = True
    crashed: bool = False
    unreported: set[str] = field(default_factory=set)
    sent: dict[str, Measurement] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """Everything of the project that a lease can change."""

    candidates: dict[int, tuple[object, ...]]
    leases: dict[str, tuple[object, ...]]
    lease_results: frozenset[tuple[object, ...]]
    trials: dict[str, tuple[object, ...]]
    task_trials: dict[str, tuple[object, ...]]
    results: dict[str, list[object]]
    """Stored results by candidate digest."""
    noisy: dict[str, bool | None]
    """By worker."""
    rows: tuple[CandidateRow, ...] = field(compare=False)

    def having(self, state: CandidateState) -> list[CandidateRow]:
        return [row for row in self.rows if row.state is state]


class LeaseMachine(RuleBasedStateMachine):
    database: Database

    @initialize()
    def begin(self) -> None:
        self.scene = Scene(self.database)
        self.workers = [self.scene.worker, self.scene.register("worker-b")]
        self.jobs = [self.scene.job]
        self.held: list[Held] = []
        self.issued = 0
        self.last_fence = 0
        self.acknowledged: list[Measurement] = []
        self.losses: Counter[str] = Counter()
        """By candidate digest: leases that ended without a result that is its own."""
        self.stored = self._read()
        self.issue(5, False, Purpose.SEARCH)
        self.claim(0, 3)
        # One worker is noisy and one has not told, so that histories begin where the two are treated differently.
        self.scene.report(self.held[0].grant, [], noisy=True)
        self.stored = self._read()

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            with self.database.transaction() as session:
                jobs.cancel(session, self.scene.project, self.jobs[-1])
            self.scene.pass_time()
            self.scene.expire()

    # What happens

    @rule(n=st.integers(1, 6), again=st.booleans(), purpose=st.sampled_from([Purpose.SEARCH] * 4 + [Purpose.CONFIRM]))
    def issue(self, n: int, again: bool, purpose: Purpose) -> None:
        """New candidates, and sometimes one that was issued before."""
        proposed = candidates(self.issued, self.issued + n)
        if again and purpose is Purpose.SEARCH:
            searched = {
                row.digest
                for row in self.stored.rows
                if row.purpose is Purpose.SEARCH and row.state is not CandidateState.CANCELLED
            }
            proposed = [c for c in candidates(0, self.issued) if c.digest in searched][:1] + proposed
        assert self.scene.issue(proposed, purpose, job=self.jobs[-1]) == n
        self.issued += n

    @rule(worker=st.integers(0, 1), n=st.integers(1, 8))
    def claim(self, worker: int, n: int) -> None:
        self._close_overdue()
        grant = self.scene.acquire(n, worker=self.workers[worker])
        now = self._read()
        # Only a noisy worker beside one that is not is kept from confirming.
        withheld = now.noisy[self.workers[worker]] is True and not all(now.noisy.values())
        if grant is None:
            for queued in (self.stored.having(CandidateState.QUEUED), now.having(CandidateState.QUEUED)):
                left = [row for row in queued if not (withheld and row.purpose is Purpose.CONFIRM)]
                assert not left, "there was work, and it was not given out"
            return
        assert grant.fence > self.last_fence
        self.last_fence = grant.fence
        digests = {candidate.digest for candidate in grant.candidates}
        assert len(digests) == len(grant.candidates)
        for other in self.held:
            assert not (other.open and digests & other.unreported), "two leases hold one candidate"
        rows = [row for row in now.having(CandidateState.LEASED) if row.lease == grant.lease]
        assert {row.digest for row in rows} == digests
        assert len({row.batch for row in rows}) == 1
        if grant.purpose is Purpose.CONFIRM:
            assert not withheld
            assert not [row for row in now.having(CandidateState.QUEUED) if row.batch == rows[0].batch]
        else:
            assert len(rows) <= n
            assert len(rows) == 1 or not any(row.losses for row in rows)
        expires_at = self.database.clock_offset_secs + TTL_SECS
        self.held.append(Held(grant=grant, worker=self.workers[worker], expires_at=expires_at, unreported=digests))

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self._alive()))
        with self.database.transaction() as session:
            try:
                answer = leases.heartbeat(session, self.scene.project, held.grant.lease, held.grant.fence, TTL_SECS)
            except StaleLease:
                assert not self._holds(held)
                return
        assert self._holds(held)
        assert answer.cancelled == (self.stored.leases[held.grant.lease][2] != self.jobs[-1])
        held.expires_at = self.database.clock_offset_secs + TTL_SECS

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), final=st.booleans())
    def report_some(self, data: st.DataObject, final: bool) -> None:
        """Some of a lease's candidates, or none; the lease may be long gone."""
        held = data.draw(st.sampled_from(self._alive()))
        left = sorted(held.unreported)
        self._report(data, held, left[: data.draw(st.integers(0, len(left)))], final=final)

    @precondition(lambda self: self._alive(self._holds))
    @rule(data=st.data(), final=st.booleans())
    def report_the_rest(self, data: st.DataObject, final: bool) -> None:
        held = data.draw(st.sampled_from(self._alive(self._holds)))
        self._report(data, held, sorted(held.unreported), final=final)

    @precondition(lambda self: self._alive(lambda held: bool(held.sent)))
    @rule(data=st.data(), final=st.booleans(), noisy=st.booleans())
    def report_again(self, data: st.DataObject, final: bool, noisy: bool) -> None:
        """The answer to a report was lost; the worker sends it again, perhaps long after."""
        held = data.draw(st.sampled_from(self._alive(lambda held: bool(held.sent))))
        answer = self.scene.report(held.grant, list(held.sent.values()), final=final, noisy=noisy)
        assert (answer.accepted, answer.duplicates) == (0, len(held.sent))
        if self._holds(held) and final:
            held.open = False
        elif self._holds(held):
            assert self._read() == replace(self.stored, noisy={**self.stored.noisy, held.worker: noisy})
        else:
            assert self._read() == self.stored
        assert answer.lease_open == self._holds(held)

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), off=st.sampled_from([-1, 1, 2**70]), final=st.booleans())
    def report_with_another_fence(self, data: st.DataObject, off: int, final: bool) -> None:
        held = data.draw(st.sampled_from(self._alive()))
        results = [*held.sent.values(), *(timed(digest) for digest in sorted(held.unreported))]
        if held.grant.fence + off >= 1:
            self._refused(StaleLease, held, results, final=final, fence=held.grant.fence + off)

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), final=st.booleans())
    def report_wrongly(self, data: st.DataObject, final: bool) -> None:
        """The same key with another body, or a candidate that was never leased; with something new each time."""
        held = data.draw(st.sampled_from(self._alive(lambda held: bool(held.sent)) or self._alive()))
        new = [timed(digest) for digest in sorted(held.unreported)]
        if held.sent:
            other = timed(data.draw(st.sampled_from(sorted(held.sent))), 0.125)
            self._refused(IdempotencyConflict, held, [other, *new], final=final)
        by = InvalidReport if self._holds(held) else StaleLease
        self._refused(by, held, [*new, timed(sha256(b"never issued"))], final=final)

    @rule(secs=st.sampled_from([400.0, 1100.0]))
    def time_passes(self, secs: float) -> None:
        self.scene.pass_time(secs)

    @precondition(lambda self: self._alive(self._holds))
    @rule(data=st.data(), final=st.booleans())
    def a_worker_pauses_and_reports_late(self, data: st.DataObject, final: bool) -> None:
        """Whether or not anyone has looked at the lease since it became overdue."""
        held = data.draw(st.sampled_from(self._alive(self._holds)))
        self.scene.pass_time()
        new = [timed(digest) for digest in sorted(held.unreported)]
        self._refused(StaleLease, held, [*held.sent.values(), *new], final=final)

    @rule(secs=st.sampled_from([0.0, 1100.0]))
    def expire(self, secs: float) -> None:
        """What an overdue lease still held is offered again, unless it was lost twice or its job has ended."""
        self.scene.pass_time(secs)
        overdue = self._close_overdue()
        again = self.scene.expire()
        offered = 0
        for row in self._read().rows:
            if row.digest not in overdue.get(row.lease or "", ()):
                continue
            expected = CandidateState.QUEUED if row.job == self.jobs[-1] else CandidateState.CANCELLED
            assert row.state in (expected, CandidateState.QUARANTINED)
            offered += row.state is CandidateState.QUEUED
        assert offered == again

    @precondition(lambda self: self._alive())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A worker forgets a lease; it never speaks of it again."""
        data.draw(st.sampled_from(self._alive())).crashed = True

    @rule(worker=st.integers(0, 1))
    def start_anew(self, worker: int) -> None:
        """A worker's process is another one: what it held, in time or not, is offered again without a wait."""
        name = ("worker-a", "worker-b")[worker]
        assert self.scene.register(name) == self.workers[worker]
        for held in self.held:
            if held.open and held.worker == self.workers[worker]:
                held.open, held.crashed = False, True
                self.losses.update(held.unreported)
        assert not [row for row in self._read().having(CandidateState.LEASED) if row.lease in self._leases_of(worker)]

    def _leases_of(self, worker: int) -> set[str]:
        return {held.grant.lease for held in self.held if held.worker == self.workers[worker]}

    @precondition(lambda self: len(self.jobs) < 3)
    @rule()
    def cancel(self) -> None:
        """The job is cancelled and another one begins on the same task."""
        with self.database.transaction() as session:
            jobs.cancel(session, self.scene.project, self.jobs[-1])
        assert not self._read().having(CandidateState.QUEUED)
        self.jobs.append(self.scene.submit())

    # What must hold after every step

    @invariant()
    def promises(self) -> None:
        if not hasattr(self, "scene"):
            return
        before, self.stored = self.stored, self._read()
        self._nothing_vanishes_and_what_has_ended_never_changes(before)
        self._issued_is_queued_plus_leased_plus_terminal()
        self._leased_means_an_open_lease()
        self._lost_twice_is_quarantined()
        self._each_search_result_is_charged_once()
        self._fences_are_unique_and_the_newest_is_the_last_granted()
        self._acknowledged_results_are_records()

    def _nothing_vanishes_and_what_has_ended_never_changes(self, before: Stored) -> None:
        assert self.stored.candidates.keys() >= before.candidates.keys()
        for row in before.rows:
            if row.state.terminal:
                assert self.stored.candidates[row.id] == before.candidates[row.id]
        for lease, (state, *_) in before.leases.items():
            assert isinstance(state, LeaseState)
            now = self.stored.leases[lease][0]
            assert now is state or now in LEASE[state]
        for digest, results in before.results.items():
            assert self.stored.results[digest][: len(results)] == results

    def _issued_is_queued_plus_leased_plus_terminal(self) -> None:
        for row in self.stored.rows:
            assert row.state in CANDIDATE
            assert (row.record is None) == (not row.state.terminal or row.state is CandidateState.CANCELLED)
        with self.database.reading() as session:
            counts = [batches.counts(session, job) for job in self.jobs]
        assert all(c.issued == c.queued + c.leased + c.terminal for c in counts)
        assert sum(c.issued for c in counts) == len(self.stored.rows)
        assert sum(c.terminal for c in counts) == sum(row.state.terminal for row in self.stored.rows)

    def _leased_means_an_open_lease(self) -> None:
        for row in self.stored.having(CandidateState.LEASED):
            assert row.lease is not None
            assert self.stored.leases[row.lease][0] is LeaseState.OPEN
        for held in self.held:
            if self._holds(held):
                leased = self.stored.having(CandidateState.LEASED)
                assert {r.digest for r in leased if r.lease == held.grant.lease} == held.unreported

    def _lost_twice_is_quarantined(self) -> None:
        for row in self.stored.rows:
            assert row.losses == self.losses[row.digest]
            assert (row.losses >= MAX_LOSSES) == (row.state is CandidateState.QUARANTINED)

    def _each_search_result_is_charged_once(self) -> None:
        for job in self.jobs:
            ended = [r for r in self.stored.rows if r.job == job and r.purpose is Purpose.SEARCH and r.record]
            charge = (len(ended), sum(row.state is not CandidateState.MEASURED for row in ended))
            assert self.stored.trials[job] == charge
            assert self.stored.task_trials[job] == charge

    def _fences_are_unique_and_the_newest_is_the_last_granted(self) -> None:
        fences = [fence for _, fence, *_ in self.stored.leases.values()]
        assert len(set(fences)) == len(fences)
        assert max(fences, default=self.last_fence) == self.last_fence

    def _acknowledged_results_are_records(self) -> None:
        for result in self.acknowledged:
            assert self.stored.results[result.candidate].count(result.model_dump(mode="json")) >= 1
        recorded = sum(row.record is not None for row in self.stored.rows)
        assert sum(len(results) for results in self.stored.results.values()) == recorded

    # The model

    def _alive(self, that: Callable[[Held], bool] = lambda held: True) -> list[Held]:
        return [held for held in self.held if not held.crashed and that(held)]

    def _holds(self, held: Held) -> bool:
        return held.open and held.expires_at > self.database.clock_offset_secs

    def _close_overdue(self) -> dict[str, set[str]]:
        """Closes overdue leases in the model; what they still held, by lease."""
        overdue = [held for held in self.held if held.open and not self._holds(held)]
        for held in overdue:
            held.open = False
            self.losses.update(held.unreported)
        return {held.grant.lease: held.unreported for held in overdue}

    def _report(self, data: st.DataObject, held: Held, digests: list[str], *, final: bool) -> None:
        results = [self._result(data, digest) for digest in digests]
        noisy = data.draw(st.sampled_from([None, True, False]))
        try:
            answer = self.scene.report(held.grant, results, final=final, noisy=noisy)
        except StaleLease:
            assert not self._holds(held)
            assert self._read() == self.stored
            return
        assert self._holds(held)
        assert (answer.accepted, answer.duplicates) == (len(results), 0)
        assert noisy is None or self._read().noisy[held.worker] is noisy
        for result in results:
            held.unreported.discard(result.candidate)
            held.sent[result.candidate] = result
            if result.outcome == "failed" and result.kind.retryable:
                self.losses[result.candidate] += 1
            else:
                self.acknowledged.append(result)
        held.open = not final and bool(held.unreported)
        assert answer.lease_open == held.open

    def _result(self, data: st.DataObject, digest: str) -> Measurement:
        kind = data.draw(OUTCOMES)
        return timed(digest) if kind is None else failed(digest, kind)

    def _refused(
        self,
        by: type[PitchpipeError],
        held: Held,
        results: list[Measurement],
        *,
        final: bool,
        fence: int | None = None,
    ) -> None:
        with pytest.raises(by):
            self.scene.report(held.grant, results, final=final, fence=fence, noisy=not self.stored.noisy[held.worker])
        assert self._read() == self.stored

    def _read(self) -> Stored:
        project = self.scene.project
        with self.database.reading() as session:
            rows = session.scalars(
                select(CandidateRow).where(CandidateRow.project == project).order_by(CandidateRow.id)
            ).all()
            of_project = select(Lease.id, Lease.state, Lease.fence, Lease.job, Lease.expires_at)
            results = select(LeaseResult.lease, LeaseResult.candidate, LeaseResult.body_digest)
            tasks = select(JobTask.job, JobTask.trials, JobTask.failed_trials)
            found: dict[str, list[object]] = {}
            for candidate, result in session.execute(
                select(Record.candidate, Record.result).where(Record.project == project).order_by(Record.seq)
            ):
                found.setdefault(candidate, []).append(result)
            return Stored(
                candidates={r.id: (r.state, r.losses, r.lease, r.record) for r in rows},
                leases={k: tuple(v) for k, *v in session.execute(of_project.where(Lease.project == project))},
                lease_results=frozenset(
                    tuple(row)
                    for row in session.execute(
                        results.join(Lease, Lease.id == LeaseResult.lease).where(Lease.project == project)
                    )
                ),
                trials={
                    k: tuple(v)
                    for k, *v in session.execute(
                        select(Job.id, Job.trials, Job.failed_trials).where(Job.project == project)
                    )
                },
                task_trials={k: tuple(v) for k, *v in session.execute(tasks.where(JobTask.project == project))},
                results=found,
                noisy=dict(
                    session.execute(select(WorkerRow.id, WorkerRow.noisy).where(WorkerRow.project == project)).all()
                ),
                rows=tuple(rows),
            )


def test_leases_keep_their_promises_through_any_history(database: Database) -> None:
    machine = type("Machine", (LeaseMachine,), {"database": database})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_an_acknowledged_result_can_be_listed(database: Database) -> None:
    scene = Scene(database)
    scene.issue(candidates(0, 3))
    grant = scene.granted()
    scene.report(grant, [timed(c.digest) for c in grant.candidates])
    with database.reading() as session:
        found = records.for_task(session, scene.project, WORKLOAD.digest, TARGET)
    assert [record.result for record in found] == [timed(c.digest) for c in candidates(0, 3)]
