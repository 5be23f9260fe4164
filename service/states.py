"""State machines as data: which transition is allowed. No database, no clock.

model      unchecked -> valid | invalid          read by the coordinator's executor
           invalid -> unchecked                  uploaded again after a while

job        queued -> ingesting -> tuning -> confirming -> done
           any of these but done -> failed | cancelled
           tuning -> done: every task was reused, so there is nothing to confirm

worker     active -> draining -> gone
           active | draining -> lost            it stopped answering
           lost -> active | draining | gone     it answered after all
           draining | gone | lost -> active     it registered again

candidate  queued -> leased -> measured | failed          a result that is its own
                     leased -> queued                     the lease ended without one
                     leased -> quarantined                ... for the second time
           queued | leased -> cancelled                   the job ended first

lease      open -> closed        reported in full, or given back
           open -> expired       not renewed in time, by the database's clock
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from pitchpipe.errors import InvalidTransition
from pitchpipe.wire.job import JobState
from pitchpipe.wire.lease import WorkerState


class ModelState(StrEnum):
    """What is known of an uploaded model. See the drawing above."""

    UNCHECKED = "unchecked"
    """Nobody has read it yet."""
    VALID = "valid"
    """It was read; what came out is a blob of its own."""
    INVALID = "invalid"
    """It was refused. Kept out of sight, so that the same bytes get the same answer at once."""


class CandidateState(StrEnum):
    """Where a candidate is. See the drawing above."""

    QUEUED = "queued"
    """Waits for a worker."""
    LEASED = "leased"
    """A worker has the right to measure it."""
    MEASURED = "measured"
    """It has a time."""
    FAILED = "failed"
    """It has none, by its own fault."""
    QUARANTINED = "quarantined"
    """Two leases that held it ended without an answer: it is not tried again."""
    CANCELLED = "cancelled"
    """The job ended before it was measured."""

    @property
    def terminal(self) -> bool:
        return not CANDIDATE[self]


class LeaseState(StrEnum):
    """Where a lease is."""

    OPEN = "open"
    CLOSED = "closed"
    EXPIRED = "expired"


JOB: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.INGESTING, JobState.FAILED, JobState.CANCELLED}),
    JobState.INGESTING: frozenset({JobState.TUNING, JobState.FAILED, JobState.CANCELLED}),
    JobState.TUNING: frozenset({JobState.CONFIRMING, JobState.DONE, JobState.FAILED, JobState.CANCELLED}),
    JobState.CONFIRMING: frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED}),
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

WORKER: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.ACTIVE: frozenset({WorkerState.DRAINING, WorkerState.GONE, WorkerState.LOST}),
    WorkerState.DRAINING: frozenset({WorkerState.ACTIVE, WorkerState.GONE, WorkerState.LOST}),
    WorkerState.LOST: frozenset({WorkerState.ACTIVE, WorkerState.DRAINING, WorkerState.GONE}),
    WorkerState.GONE: frozenset({WorkerState.ACTIVE}),
}

CANDIDATE: Mapping[CandidateState, frozenset[CandidateState]] = {
    CandidateState.QUEUED: frozenset({CandidateState.LEASED, CandidateState.CANCELLED}),
    CandidateState.LEASED: frozenset(CandidateState) - {CandidateState.LEASED},
    CandidateState.MEASURED: frozenset(),
    CandidateState.FAILED: frozenset(),
    CandidateState.QUARANTINED: frozenset(),
    CandidateState.CANCELLED: frozenset(),
}

LEASE: Mapping[LeaseState, frozenset[LeaseState]] = {
    LeaseState.OPEN: frozenset({LeaseState.CLOSED, LeaseState.EXPIRED}),
    LeaseState.CLOSED: frozenset(),
    LeaseState.EXPIRED: frozenset(),
}

MAX_LOSSES = 2
"""A candidate whose lease was lost this often is quarantined: one loss may be the worker's bad luck."""

S = TypeVar("S", bound=StrEnum)


def check(allowed: Mapping[S, frozenset[S]], what: str, history: Iterable[S], to: S) -> None:
    """Raises InvalidTransition, telling the history, unless its last state may become `to`."""
    states = list(history)
    if to not in allowed[states[-1]]:
        told = " -> ".join(state.value for state in states)
        raise InvalidTransition(f"{what} went {told}; it cannot become {to.value}")


def job_transition(job: str, history: Iterable[JobState], to: JobState) -> None:
    """Raises InvalidTransition unless a job with this history, oldest first, may become `to`."""
    check(JOB, f"job {job}", history, to)


def worker_transition(worker: str, history: Iterable[WorkerState], to: WorkerState) -> None:
    """Raises InvalidTransition unless a worker with this history, oldest first, may become `to`."""
    check(WORKER, f"worker {worker}", history, to)
