"""The end of a lease: its candidates get a result, or are queued again, quarantined or cancelled.

All changes (candidates, records, charged trials, the lease) are written in the caller's transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pitchpipe.errors import InvalidReport
from pitchpipe.wire.ids import json_digest, new_id
from pitchpipe.wire.measure import Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.record import TuningRecord
from service.db import clock, instant
from service.states import MAX_LOSSES, CandidateState, LeaseState
from service.store import records
from service.store.values import get_device, get_target, get_toolchain
from service.tables import Batch, CandidateRow, Job, JobTask, Lease, LeaseResult, WorkerRow


def body_digest(result: Measurement) -> str:
    """Digest by which a repeated report is recognised. Fields without a value do not count, so it is the same for a service
    that knows more fields."""
    return json_digest(result.model_dump(mode="json", exclude_none=True))


@dataclass(kw_only=True)
class Ending:
    """Ends the candidates of one lease. It locks the job's row, so that the job is not cancelled and the batch not
    withdrawn meanwhile."""

    session: Session
    lease: Lease
    unwanted: bool
    """Whether what has no result is cancelled, not queued again: the job has ended, or the batch was withdrawn."""
    leased: dict[str, CandidateRow]
    """Candidate digest -> candidate that has not ended."""
    queued: int = 0
    _records: list[TuningRecord] = field(default_factory=list)
    _features: dict[str, bytes] = field(default_factory=dict)
    _at: float = 0.0
    _worker: WorkerRow | None = None

    @classmethod
    def begin(cls, session: Session, lease: Lease) -> Ending:
        state = session.execute(
            select(Job.state).where(Job.id == lease.job).with_for_update(key_share=True)
        ).scalar_one()
        withdrawn = session.execute(select(Batch.withdrawn).where(Batch.id == lease.batch)).scalar_one()
        held = session.scalars(
            select(CandidateRow)
            .where(CandidateRow.lease == lease.id, CandidateRow.state == CandidateState.LEASED)
            .order_by(CandidateRow.position)
            .execution_options(populate_existing=True)
        )
        leased = {candidate.digest: candidate for candidate in held}
        unwanted = state.ended or withdrawn
        return cls(session=session, lease=lease, unwanted=unwanted, leased=leased, _at=clock(session))

    def accept(self, result: Measurement) -> None:
        """Takes a result that the worker reports. Raises InvalidReport for a candidate that the lease does not hold."""
        candidate = self.leased.get(result.candidate)
        if candidate is None:
            raise InvalidReport(f"lease {self.lease.id} holds no candidate {result.candidate}")
        self.session.add(LeaseResult(lease=self.lease.id, candidate=result.candidate, body_digest=body_digest(result)))
        if isinstance(result, Failed) and result.kind.retryable:
            self.lose(candidate, result.kind, result.detail)
        else:
            self._end(
                candidate, CandidateState.MEASURED if isinstance(result, Timed) else CandidateState.FAILED, result
            )

    def lose(self, candidate: CandidateRow, kind: FailureKind, detail: str) -> None:
        """Ends a candidate for which the lease gave no result of its own: it is queued again, or quarantined after
        MAX_LOSSES such leases."""
        candidate.losses += 1
        if candidate.losses < MAX_LOSSES:
            self._requeue(candidate)
            return
        told = f"quarantined: {candidate.losses} leases that held it ended without its result; the last: {detail}"
        self._end(
            candidate, CandidateState.QUARANTINED, Failed(candidate=candidate.digest, kind=kind, detail=told[:4096])
        )

    def give_back(self) -> None:
        """Queues all candidates again that the worker hands back unmeasured, without counting a loss."""
        for candidate in list(self.leased.values()):
            self._requeue(candidate)

    def finish(self, state: LeaseState) -> None:
        """Writes the records, charges their trials to job and task, and sets the lease's state."""
        self.session.flush()
        self.session.execute(update(Lease).where(Lease.id == self.lease.id).values(state=state))
        records.add(self.session, self.lease.project, self._records, self._features)
        if not self._records:
            return
        batch = self.session.get_one(Batch, self.lease.batch)
        if not batch.purpose.charged:
            return
        n, failed = len(self._records), sum(isinstance(record.result, Failed) for record in self._records)
        self.session.execute(
            update(Job)
            .where(Job.id == batch.job)
            .values(trials=Job.trials + n, failed_trials=Job.failed_trials + failed)
        )
        self.session.execute(
            update(JobTask)
            .where(JobTask.job == batch.job, JobTask.workload == batch.workload, JobTask.target_key == batch.target_key)
            .values(trials=JobTask.trials + n, failed_trials=JobTask.failed_trials + failed)
        )

    def _requeue(self, candidate: CandidateRow) -> None:
        del self.leased[candidate.digest]
        if self.unwanted:
            candidate.state = CandidateState.CANCELLED
        else:
            candidate.state = CandidateState.QUEUED
            self.queued += 1

    def _end(self, candidate: CandidateRow, state: CandidateState, result: Measurement) -> None:
        del self.leased[candidate.digest]
        if self._worker is None:
            self._worker = self.session.get_one(WorkerRow, self.lease.worker)
        worker = self._worker
        record = TuningRecord(
            id=new_id("rec"),
            workload=candidate.workload,
            target=get_target(self.session, candidate.target_key),
            trace=candidate.trace,
            result=result,
            device=get_device(self.session, worker.device_key),
            toolchain=get_toolchain(self.session, worker.toolchain_key),
            measure_version=candidate.measure_version,
            worker=worker.id,
            created_at=instant(self._at),
        )
        self._records.append(record)
        if candidate.features is not None:
            self._features[candidate.digest] = candidate.features
        candidate.state, candidate.record, candidate.features = state, record.id, None
