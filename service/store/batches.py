"""Batches of candidates: issued by the coordinator, measured under leases, observed when all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, exists, func, select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidTransition, NotFound
from pitchpipe.wire.lease import Purpose, WorkerState
from pitchpipe.wire.measure import MEASURE_VERSION, Candidate, MeasureConfig
from pitchpipe.wire.target import Target
from service.db import clock
from service.states import CandidateState
from service.store.values import get_device, get_target, get_toolchain, insert, measurement, put_target, target_digest
from service.tables import Base, Batch, CandidateRow, Job, JobTask, Lease, Record, WorkerRow, spelled

if TYPE_CHECKING:
    from tuner.tuning.confirm import MeasuredBatch

_OPEN = (CandidateState.QUEUED, CandidateState.LEASED)
_CHARGED = [purpose for purpose in Purpose if purpose.charged]
PRIORITY = {
    (Purpose.CONFIRM, False): 0,
    (Purpose.SEARCH, False): 1,
    (Purpose.CONFIRM, True): 2,
    (Purpose.SEARCH, True): 3,
}
"""(purpose, whether the job is idle tuning) -> priority, lower is first. Confirming runs come first, because they end jobs.
Jobs that no user waits for come last, so users' candidates are leased before theirs. A REPLAY has the priority of a
SEARCH."""


@dataclass(frozen=True, kw_only=True)
class FinishedBatch:
    """A batch whose candidates have all ended: its number, and what was measured."""

    batch: int
    measured: MeasuredBatch


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A batch with candidates that have not ended; `candidates` = queued + leased of them."""

    batch: int
    workload: str
    target: Target
    purpose: Purpose
    candidates: int
    queued: int
    leased: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of a job's candidates by state; issued = queued + leased + terminal."""

    issued: int
    queued: int
    leased: int
    terminal: int


def held(priority: int) -> int:
    """The priority under which a candidate of this one waits while its job is paused, and the other way round. No claim
    asks for such a one, so that pausing costs a claim nothing."""
    return -1 - priority


def hold(session: Session, job: str, *, paused: bool) -> None:
    """Keeps the job's candidates that have not ended from being leased, or lets them be. Those that are leased now are
    queued under the same priority, should their lease be lost."""
    row = CandidateRow
    session.execute(
        update(row)
        .where(row.job == job, row.state.in_(_OPEN), row.priority >= 0 if paused else row.priority < 0)
        .values(priority=-1 - row.priority)
    )


def issue(
    session: Session,
    job: str,
    workload: str,
    target: Target,
    purpose: Purpose,
    candidates: Sequence[Candidate],
    config: MeasureConfig,
    incumbent_secs: float | None = None,
    features: Mapping[str, bytes] | None = None,
    sources: Mapping[str, str] | None = None,
) -> int:
    """Queues candidates as one batch and returns how many were new; without a new one there is no batch.

    A SEARCH candidate that this project already issued for the workload, target and measure version is skipped; a REPLAY
    candidate never is, since it was measured under other circumstances.

    features: candidate digest -> packed features, stored with the record. sources: candidate digest -> digest of the
    workload from whose trace it was re-fitted. Raises NotFound, and InvalidTransition when the job has ended.
    """
    found = session.execute(
        select(Job.project, Job.state, Job.origin, Job.paused_at).where(Job.id == job).with_for_update(key_share=True)
    ).one_or_none()
    if found is None:
        raise NotFound(f"no job {job}")
    if found.state.ended:
        raise InvalidTransition(f"job {job} is {found.state.value}: nothing more is measured for it")
    if not candidates:
        return 0
    priority = PRIORITY[Purpose.SEARCH if purpose.charged else purpose, found.origin.idle]
    batch = Batch(
        project=found.project,
        job=job,
        workload=workload,
        target_key=put_target(session, target),
        purpose=purpose,
        config=config.model_dump(mode="json"),
        incumbent_secs=incumbent_secs,
        created_at=clock(session),
    )
    session.add(batch)
    session.flush()
    new = session.scalars(
        insert(session, CandidateRow).on_conflict_do_nothing().returning(CandidateRow.digest),
        [
            {
                "batch": batch.id,
                "project": found.project,
                "job": job,
                "workload": workload,
                "target_key": batch.target_key,
                "measure_version": config.version,
                "purpose": purpose,
                "priority": priority if found.paused_at is None else held(priority),
                "position": position,
                "digest": candidate.digest,
                "trace": candidate.trace,
                "predicted": candidate.predicted,
                "features": (features or {}).get(candidate.digest),
                "source": (sources or {}).get(candidate.digest),
                "state": CandidateState.QUEUED,
                "losses": 0,
            }
            for position, candidate in enumerate(candidates)
        ],
    ).all()
    if not new:
        session.delete(batch)
        session.flush()
    return len(new)


def finished(session: Session, job: str) -> list[FinishedBatch]:
    """Batches that are not observed yet and have no queued or leased candidate, oldest first.

    A batch names its task by the position in `job_tasks.tasks`. Cancelled candidates have no result and are left out.
    """
    rows = session.execute(
        select(Batch, JobTask.position)
        .join(
            JobTask,
            (JobTask.job == Batch.job)
            & (JobTask.workload == Batch.workload)
            & (JobTask.target_key == Batch.target_key),
        )
        .where(
            Batch.job == job,
            ~Batch.observed,
            ~exists().where(CandidateRow.batch == Batch.id, CandidateRow.state.in_(_OPEN)),
        )
        .order_by(Batch.id)
    )
    return [FinishedBatch(batch=batch.id, measured=_measured(session, batch, task)) for batch, task in rows]


def observed(session: Session, batches: Iterable[int]) -> None:
    """Marks batches as observed by the coordinator: `finished` no longer returns them."""
    session.execute(update(Batch).where(Batch.id.in_(list(batches))).values(observed=True))


def open_(session: Session, job: str) -> list[OpenBatch]:
    """Batches that still have queued or leased candidates, oldest first."""
    states = (CandidateRow.state == CandidateState.QUEUED, CandidateRow.state == CandidateState.LEASED)
    queued, leased = (func.count().filter(state).label(name) for state, name in zip(states, "ql", strict=True))
    rows = session.execute(
        select(Batch, queued, leased)
        .join(CandidateRow, CandidateRow.batch == Batch.id)
        .where(Batch.job == job, ~Batch.observed)
        .group_by(Batch.id)
        .having(queued + leased > 0)
        .order_by(Batch.id)
    )
    return [
        OpenBatch(
            batch=batch.id,
            workload=batch.workload,
            target=get_target(session, batch.target_key),
            purpose=batch.purpose,
            candidates=q + n,
            queued=q,
            leased=n,
        )
        for batch, q, n in rows
    ]


def charged_early(session: Session, job: str) -> dict[tuple[str, str], int]:
    """(workload, Target.key) -> number of candidates that are charged to the job while their batch is not observed yet.

    A restarted coordinator would count them twice, in the job's trials and again when the batch ends; it subtracts them.
    """
    rows = session.execute(
        select(Batch.workload, Batch.target_key, func.count())
        .join(CandidateRow, CandidateRow.batch == Batch.id)
        .where(Batch.job == job, ~Batch.observed, Batch.purpose.in_(_CHARGED), CandidateRow.record.is_not(None))
        .group_by(Batch.workload, Batch.target_key)
    )
    return {(workload, get_target(session, key).key): count for workload, key, count in rows}


def purposes(session: Session, job: str) -> dict[tuple[str, str], set[tuple[Purpose, bool]]]:
    """(workload, Target.key) -> the (purpose, whether observed) of the batches that the job issued."""
    rows = session.execute(
        select(Batch.workload, Batch.target_key, Batch.purpose, Batch.observed).where(Batch.job == job).distinct()
    )
    found: dict[tuple[str, str], set[tuple[Purpose, bool]]] = {}
    for row in rows:
        key = row.workload, get_target(session, row.target_key).key
        found.setdefault(key, set()).add((row.purpose, row.observed))
    return found


def cancel_job(session: Session, job: str) -> int:
    """Cancels the job's queued candidates and returns how many. Leased ones may still be reported; those that are not are
    cancelled when their lease ends."""
    rows = session.execute(
        update(CandidateRow)
        .where(CandidateRow.job == job, CandidateRow.state == CandidateState.QUEUED)
        .values(state=CandidateState.CANCELLED)
        .returning(CandidateRow.id)
    )
    return len(rows.all())


def withdraw(session: Session, job: str, purposes: Sequence[Purpose]) -> int:
    """Cancels the job's queued candidates for these purposes and returns how many. Of trials, those that workers measure are
    not wanted any more either: the workers are told so, and what they hand back is cancelled. Confirming runs go on."""
    # A lease that ends meanwhile would queue its candidates again.
    session.execute(select(Job.id).where(Job.id == job).with_for_update(key_share=True))
    trials = [purpose for purpose in purposes if purpose.charged]
    session.execute(
        update(Batch)
        .where(Batch.job == job, Batch.observed.is_(False), Batch.purpose.in_(trials))
        .values(withdrawn=True)
    )
    rows = session.execute(
        update(CandidateRow)
        .where(
            CandidateRow.job == job,
            CandidateRow.state == CandidateState.QUEUED,
            CandidateRow.purpose.in_(purposes),
        )
        .values(state=CandidateState.CANCELLED)
        .returning(CandidateRow.id)
    )
    return len(rows.all())


def counts(session: Session, job: str) -> Counts:
    """The job's candidates, counted by state."""
    rows = session.execute(
        select(CandidateRow.state, func.count()).where(CandidateRow.job == job).group_by(CandidateRow.state)
    )
    by_state = dict(rows.all())
    queued, leased = (by_state.get(state, 0) for state in _OPEN)
    issued = sum(by_state.values())
    return Counts(issued=issued, queued=queued, leased=leased, terminal=issued - queued - leased)


def unserved(session: Session, job: str) -> int:
    """The job's queued candidates that no worker of the project may lease: none of their target is active. Those of a paused
    job wait for something else and do not count."""
    row = CandidateRow
    served = exists().where(
        WorkerRow.project == row.project,
        WorkerRow.target_key == row.target_key,
        WorkerRow.state == spelled(WorkerState.ACTIVE),
    )
    return session.scalars(
        select(func.count())
        .select_from(row)
        .where(row.job == job, row.state == spelled(CandidateState.QUEUED), row.priority >= 0, ~served)
    ).one()


def seen(
    session: Session, project: str, workload: str, target: Target, measure_version: int = MEASURE_VERSION
) -> frozenset[str]:
    """Digests of the candidates that a search must not propose again: those it issued, and those of every record."""
    key = target_digest(target)
    issued = select(CandidateRow.digest).where(
        CandidateRow.project == project,
        CandidateRow.workload == workload,
        CandidateRow.target_key == key,
        CandidateRow.measure_version == measure_version,
        CandidateRow.purpose == Purpose.SEARCH,
        CandidateRow.state != CandidateState.CANCELLED,
    )
    recorded = select(Record.candidate).where(
        Record.project == project,
        Record.workload == workload,
        Record.target_key == key,
        Record.measure_version == measure_version,
    )
    return frozenset(session.scalars(issued.union(recorded)))


def source(session: Session, project: str, workload: str, target: Target, candidate: str) -> str | None:
    """Digest of the workload from whose trace the candidate was re-fitted; None for a candidate that was not."""
    return session.scalar(
        select(CandidateRow.source).where(
            CandidateRow.project == project,
            CandidateRow.workload == workload,
            CandidateRow.target_key == target_digest(target),
            CandidateRow.measure_version == MEASURE_VERSION,
            CandidateRow.digest == candidate,
            CandidateRow.purpose == spelled(Purpose.SEARCH),
            CandidateRow.state != spelled(CandidateState.CANCELLED),
        )
    )


def _measured(session: Session, batch: Batch, task: int) -> MeasuredBatch:
    # The API's processes never come here, and load nothing of the tuner.
    from tuner.tuning.confirm import MeasuredBatch

    rows = session.execute(_with_records(batch.id, CandidateRow, Record)).all()
    timed = [record for _, record in rows if record.secs is not None]
    lease = session.get(Lease, rows[-1][0].lease) if rows else None
    issued = select(func.count()).select_from(CandidateRow).where(CandidateRow.batch == batch.id)
    device = get_device(session, timed[0].device_key) if timed else None
    return MeasuredBatch(
        task=task,
        purpose=batch.purpose,
        candidates=tuple(Candidate(digest=c.digest, trace=c.trace, predicted=c.predicted) for c, _ in rows),
        results=tuple(measurement(record) for _, record in rows),
        records=tuple(record.id for _, record in rows),
        whole=len({candidate.lease for candidate, _ in rows}) == 1,
        device_class=device.device_class if device is not None else None,
        driver=device.driver if device is not None else None,
        toolchain=get_toolchain(session, timed[0].toolchain_key).key if timed else None,
        withdrawn=session.scalars(issued).one() - len(rows),
        worker=lease.worker if lease is not None else None,
        granted_at=lease.created_at if lease is not None else None,
        ended_at=max((record.created_at for _, record in rows), default=None),
    )


def _with_records(batch: int, *what: type[Base]) -> Select[*tuple[Any, ...]]:
    """Candidates of the batch that have a record, with it, in the order they were issued."""
    return (
        select(*what)
        .select_from(CandidateRow)
        .join(Record, (Record.project == CandidateRow.project) & (Record.id == CandidateRow.record))
        .where(CandidateRow.batch == batch)
        .order_by(CandidateRow.position)
        .execution_options(populate_existing=True)
    )
