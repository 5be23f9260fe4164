"""Leases: time-bounded, renewable, fenced rights to measure candidates.

The database decides every race. A claim is one UPDATE over rows that no other claim can see (SKIP LOCKED; SQLite has
one writer). A report or a heartbeat is decided by one conditional UPDATE of the lease, with fence, state and the
database's clock in its WHERE; if it changes no row, nothing else is touched. The fence counter is one row, read and
raised in the same transaction as the grant, so fences of committed grants strictly increase.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Integer, Select, and_, bindparam, insert, or_, select, update
from sqlalchemy.orm import Session, aliased
from sqlalchemy.sql.dml import ReturningUpdate

from pitchpipe.errors import IdempotencyConflict, InvalidReport, InvalidTransition, NotFound, StaleLease
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.lease import (
    HeartbeatResponse,
    LeaseGrant,
    LeaseRequest,
    Purpose,
    Report,
    ReportResponse,
    WorkerState,
)
from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig
from service.db import now
from service.states import CandidateState, LeaseState
from service.store import jobs, workers
from service.store.batches import PRIORITY
from service.store.endings import Ending, body_digest
from service.store.values import get_target
from service.store.values import insert as upsert
from service.tables import Batch, CandidateRow, Counter, Job, Lease, LeaseResult, WorkerRow, spelled

_FENCE, _EXPIRED = "fence", "expired"
_EXPIRED_AT_ONCE = 64
"""Leases one `expire` call ends, so that its transaction stays short."""


def available(session: Session, project: str, worker: str) -> bool | None:
    """Whether `acquire` would find work, or a lease to take back, now; None for a worker that drains: it gets nothing.

    Only reads: for a long poll's waiting.
    """
    row = _worker(session, project, worker)
    if row.state is WorkerState.DRAINING:
        return None
    overdue = select(Lease.id).where(Lease.state == spelled(LeaseState.OPEN), Lease.expires_at <= now(session)).limit(1)
    queued = _queued(row, _offers(session, row))
    return session.scalar(queued) is not None or session.scalar(overdue) is not None


def acquire(session: Session, project: str, request: LeaseRequest, ttl_secs: float) -> LeaseGrant | None:
    """Up to `max_candidates` of one batch for the worker's target; None when there is nothing to do, or it drains.

    A CONFIRM batch is granted whole, since its times are compared with each other, and to a noisy worker only when no
    other would take it. A candidate whose lease was lost before is granted alone, so that it takes no other down.
    Raises NotFound for the worker, InvalidTransition once it is gone. Overdue leases are taken back first: work is
    offered again even while no coordinator runs.
    """
    state = workers.touch(session, project, request.worker)
    if state is WorkerState.GONE:
        raise InvalidTransition(f"worker {request.worker} is gone; it registers again before it leases")
    expire(session)
    worker = _worker(session, project, request.worker)
    if state is WorkerState.DRAINING:
        return None
    offers = _offers(session, worker)
    if session.scalar(_queued(worker, offers)) is None:
        return None
    lease = new_id("lea")
    claimed: list[CandidateRow] = []
    for purpose, idle in offers:
        claimed = claimed or _claim(session, project, worker.target_key, purpose, idle, lease, request.max_candidates)
    if not claimed:
        return None
    claimed.sort(key=lambda row: row.position)
    batch = session.get_one(Batch, claimed[0].batch)
    fence = session.execute(
        update(Counter).where(Counter.name == _FENCE).values(value=Counter.value + 1).returning(Counter.value)
    ).scalar_one()
    session.execute(
        insert(Lease).values(
            id=lease,
            fence=fence,
            project=project,
            worker=worker.id,
            batch=batch.id,
            job=batch.job,
            state=LeaseState.OPEN,
            expires_at=now(session) + ttl_secs,
            created_at=now(session),
        )
    )
    return LeaseGrant(
        lease=lease,
        fence=fence,
        ttl_secs=ttl_secs,
        purpose=Purpose.SEARCH if batch.purpose.charged else batch.purpose,
        workload=batch.workload,
        target=get_target(session, batch.target_key),
        config=MeasureConfig.model_validate(batch.config),
        candidates=tuple(Candidate(digest=c.digest, trace=c.trace, predicted=c.predicted) for c in claimed),
        incumbent_secs=batch.incumbent_secs,
        traceparent=jobs.traceparent(session, batch.job),
    )


def traceparent(session: Session, project: str, lease: str) -> str | None:
    """W3C trace context of the job that the lease measures for; None where there is none, or no such lease."""
    return session.scalar(select(Job.traceparent).join(Lease).where(Lease.project == project, Lease.id == lease))


def heartbeat(session: Session, project: str, lease: str, fence: int, ttl_secs: float) -> HeartbeatResponse:
    """Renews the lease. Raises NotFound, StaleLease."""
    row = _lease(session, project, lease)
    renewed = session.execute(
        update(Lease).where(*_held(session, row, fence)).values(expires_at=now(session) + ttl_secs).returning(Lease.id)
    ).scalar_one_or_none()
    if renewed is None:
        raise _stale(row, fence)
    workers.touch(session, project, row.worker)
    state, withdrawn = session.execute(
        select(Job.state, Batch.withdrawn).join_from(Batch, Job, Job.id == Batch.job).where(Batch.id == row.batch)
    ).one()
    return HeartbeatResponse(ttl_secs=ttl_secs, cancelled=state.ended or withdrawn)


def report(session: Session, project: str, lease: str, body: Report) -> ReportResponse:
    """Stores results as records and charges the budget, in one transaction; all of the report or nothing of it.

    While the lease is held, what it says of the worker's steadiness and seconds is stored too.

    Idempotent by (lease, fence, candidate), also after the lease has ended. Raises NotFound; StaleLease when it holds
    anything new and the lease is not held; IdempotencyConflict when a result differs from the stored one;
    InvalidReport for a candidate that the lease does not hold or that is there twice.
    """
    row = _lease(session, project, lease)
    if row.fence != body.fence:
        raise _stale(row, body.fence)
    results = {result.candidate: result for result in body.results}
    if len(results) != len(body.results):
        raise InvalidReport("a candidate is there twice")
    stored = dict(
        session.execute(
            select(LeaseResult.candidate, LeaseResult.body_digest).where(
                LeaseResult.lease == lease, LeaseResult.candidate.in_(results)
            )
        ).all()
    )
    for digest, known in stored.items():
        if body_digest(results[digest]) != known:
            raise IdempotencyConflict(f"lease {lease} reported another result of candidate {digest}")
    fresh = [result for digest, result in results.items() if digest not in stored]
    held = session.execute(
        # The condition decides; the assignment changes nothing, a report does not renew a lease.
        update(Lease).where(*_held(session, row, body.fence)).values(state=LeaseState.OPEN).returning(Lease.id)
    ).scalar_one_or_none()
    if held is None:
        if fresh or not stored:
            raise _stale(row, body.fence)
        return ReportResponse(accepted=0, duplicates=len(stored), lease_open=False)
    # The worker's row before the job's: an `acquire` of the same worker locks them in this order.
    workers.touch(session, project, row.worker, measured=len(fresh), seconds=body.seconds)
    if body.steadiness is not None:
        workers.steady(session, row.worker, body.steadiness)
    ending = Ending.begin(session, row)
    for result in fresh:
        ending.accept(result)
    if body.final:
        ending.give_back()
    still_open = not body.final and bool(ending.leased)
    ending.finish(LeaseState.OPEN if still_open else LeaseState.CLOSED)
    return ReportResponse(accepted=len(fresh), duplicates=len(stored), lease_open=still_open, cancelled=ending.unwanted)


def expire(session: Session) -> int:
    """Takes overdue leases back, by the database's clock; how many candidates were queued again.

    Safe to call from anywhere at any time: a lease that another call holds is skipped.
    """
    overdue = Lease.expires_at <= now(session)
    return _take_back(session, _open(session, overdue), "its lease expired")


def void(session: Session, worker: str) -> int:
    """Takes back what the worker holds; how many candidates were queued again.

    For one that registers: whatever held those leases under its name is not there any more. A job goes on at once, and
    not after their time to live.
    """
    return _take_back(session, _open(session, Lease.worker == worker), "its worker started anew")


def expired(session: Session) -> int:
    """How many leases `expire` and `void` have taken back since the database was made."""
    return session.scalar(select(Counter.value).where(Counter.name == _EXPIRED)) or 0


def _open(session: Session, which: ColumnElement[bool]) -> Sequence[Lease]:
    return session.scalars(
        select(Lease)
        .where(Lease.state == spelled(LeaseState.OPEN), which)
        # Jobs in one order: two calls never wait for each other's.
        .order_by(Lease.job, Lease.id)
        .limit(_EXPIRED_AT_ONCE)
        .with_for_update(skip_locked=True, key_share=True)
        .execution_options(populate_existing=True)
    ).all()


def _take_back(session: Session, rows: Sequence[Lease], why: str) -> int:
    queued = sum(_lose(session, row, why) for row in rows)
    if rows:
        # After the rows of all jobs: another call may hold one of those and wait for this one.
        session.execute(
            upsert(session, Counter)
            .values(name=_EXPIRED, value=len(rows))
            .on_conflict_do_update(index_elements=[Counter.name], set_={"value": Counter.value + len(rows)})
        )
    return queued


def _lose(session: Session, row: Lease, why: str) -> int:
    ending = Ending.begin(session, row)
    for candidate in list(ending.leased.values()):
        ending.lose(candidate, FailureKind.WORKER_LOST, why)
    ending.finish(LeaseState.EXPIRED)
    return ending.queued


def forgive(session: Session, ttl_secs: float) -> int:
    """Gives every open lease at least `ttl_secs` from now; how many. For a service that was down: time in which no
    heartbeat could arrive is not the workers' fault."""
    rows = session.execute(
        update(Lease)
        .where(Lease.state == spelled(LeaseState.OPEN), Lease.expires_at < now(session) + ttl_secs)
        .values(expires_at=now(session) + ttl_secs)
        .returning(Lease.id)
    )
    return len(rows.all())


def _offers(session: Session, worker: WorkerRow) -> list[tuple[Purpose, bool]]:
    """(purpose, idle) that the worker may be offered, in that order. A noisy one confirms nothing while another could:
    the intervals of confirming runs decide what is served."""
    noisy = worker.noisy and workers.quieter(session, worker.project, worker.target_key)
    return [offer for offer in sorted(PRIORITY, key=PRIORITY.__getitem__) if not noisy or offer[0] is Purpose.SEARCH]


def _queued(worker: WorkerRow, offers: Sequence[tuple[Purpose, bool]]) -> Select[int]:
    return (
        select(CandidateRow.id)
        .where(
            CandidateRow.project == worker.project,
            CandidateRow.target_key == worker.target_key,
            CandidateRow.priority.in_([PRIORITY[offer] for offer in offers]),
            CandidateRow.state == spelled(CandidateState.QUEUED),
        )
        .limit(1)
    )


def _claim(
    session: Session, project: str, target_key: str, purpose: Purpose, idle: bool, lease: str, limit: int
) -> list[CandidateRow]:
    """The claim, in one statement: the first queued candidate nobody is claiming, and more of its batch with it."""
    known: dict[str, str | int] = {
        "of_project": project,
        "of_target": target_key,
        "of_priority": PRIORITY[purpose, idle],
        "of_lease": lease,
    }
    if purpose is Purpose.SEARCH:
        known["at_most"] = limit
    return list(session.scalars(_CLAIMS[purpose], known))


def _claim_of(purpose: Purpose) -> ReturningUpdate[CandidateRow]:
    row, earlier, other = aliased(CandidateRow), aliased(CandidateRow), aliased(CandidateRow)
    first = (
        select(row.id, row.batch, row.losses)
        .where(
            row.project == bindparam("of_project"),
            row.target_key == bindparam("of_target"),
            row.priority == bindparam("of_priority"),
            row.state == spelled(CandidateState.QUEUED),
        )
        .order_by(row.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if purpose is Purpose.CONFIRM:
        # Only through its first queued candidate can a batch be entered, so that two claims never share it.
        first = first.where(
            ~select(earlier.id)
            .where(earlier.batch == row.batch, earlier.id < row.id, earlier.state == spelled(CandidateState.QUEUED))
            .exists()
        )
    entry = first.cte("entry")
    picked = (
        select(other.id)
        .join(entry, entry.c.batch == other.batch)
        .where(other.state == spelled(CandidateState.QUEUED))
        .order_by(other.id)
        .with_for_update(skip_locked=True, of=other)
    )
    if purpose is Purpose.SEARCH:
        together = or_(other.id == entry.c.id, and_(entry.c.losses == 0, other.losses == 0))
        picked = picked.where(together).limit(bindparam("at_most", type_=Integer))
    return (
        update(CandidateRow)
        .where(CandidateRow.id.in_(select(picked.cte("picked").c.id)))
        .values(state=CandidateState.LEASED, lease=bindparam("of_lease"))
        .returning(CandidateRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )


_CLAIMS = {purpose: _claim_of(purpose) for purpose in Purpose}
"""Built once: putting one together takes longer than running it."""


def _held(session: Session, row: Lease, fence: int) -> tuple[ColumnElement[bool], ...]:
    return (
        Lease.id == row.id,
        Lease.fence == min(fence, 2**63 - 1),
        Lease.state == spelled(LeaseState.OPEN),
        Lease.expires_at > now(session),
    )


def _lease(session: Session, project: str, lease: str) -> Lease:
    """Locks the lease: two reports of it come one after the other."""
    row = session.execute(
        select(Lease)
        .where(Lease.project == project, Lease.id == lease)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no lease {lease}")
    return row


def _worker(session: Session, project: str, worker: str) -> WorkerRow:
    row = session.execute(
        select(WorkerRow)
        .where(WorkerRow.project == project, WorkerRow.id == worker)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"no worker {worker}")
    return row


def _stale(row: Lease, fence: int) -> StaleLease:
    if fence != row.fence:
        return StaleLease(f"lease {row.id} has fence {row.fence}, not {str(fence)[:20]}")
    return StaleLease(f"lease {row.id} is {'overdue' if row.state is LeaseState.OPEN else row.state.value}")
