"""Who measures what: workers, batches of candidates, leases, and the roles and counters that order them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from pitchpipe.wire.lease import Purpose, WorkerState
from service.states import CandidateState, LeaseState
from service.tables.base import Base, Json, Serial, partial


class WorkerRow(Base):
    """A worker, by its name in the project."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str]
    state: Mapped[WorkerState]
    history: Mapped[list[Any]] = mapped_column(JSON)
    """[state, Unix seconds] of the newest transitions, oldest first."""
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"))
    toolchain_key: Mapped[str] = mapped_column(ForeignKey("toolchains.key"))
    trials: Mapped[int] = mapped_column(default=0)
    steadiness: Mapped[Json | None]
    """The Steadiness that it last reported since it registered."""
    noisy: Mapped[bool | None]
    """Its `noisy`, in a column that claims of confirming runs ask for."""
    seconds: Mapped[Json | None]
    """The WorkerSeconds that it last reported since it registered."""
    roofline: Mapped[Json | None]
    """The Roofline of its device for its target."""
    created_at: Mapped[float]
    last_seen_at: Mapped[float]
    __table_args__ = (
        UniqueConstraint("project", "name"),
        partial("ix_workers_active", "project", "target_key", where="state = 'active'"),
    )


class Batch(Base):
    """Candidates of one task, issued together."""

    __tablename__ = "batches"
    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    workload: Mapped[str]
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"))
    purpose: Mapped[Purpose]
    config: Mapped[Json]
    """The MeasureConfig."""
    incumbent_secs: Mapped[float | None]
    observed: Mapped[bool] = mapped_column(default=False)
    """The coordinator has seen its results."""
    withdrawn: Mapped[bool] = mapped_column(server_default=false())
    """The coordinator wants no more of its results: workers that measure it are told to stop."""
    created_at: Mapped[float]
    __table_args__ = (
        ForeignKeyConstraint(["project", "workload"], ["workloads.project", "workloads.digest"]),
        # Not a partial index: `NOT observed` is spelled differently by the two databases, and would not be matched.
        Index(None, "job", "observed", "id"),
    )


class CandidateRow(Base):
    """A candidate of a batch; its state machine is drawn in states.py."""

    __tablename__ = "candidates"
    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    batch: Mapped[int] = mapped_column(ForeignKey("batches.id"))
    project: Mapped[str]
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    workload: Mapped[str]
    target_key: Mapped[str]
    measure_version: Mapped[int]
    purpose: Mapped[Purpose]
    priority: Mapped[int]
    """Lower is leased first. Below zero nothing is: its job is paused; see `held` in service/store/batches.py."""
    position: Mapped[int]
    """Place in the batch as it was issued; a CONFIRM batch starts with the baseline."""
    digest: Mapped[str]
    trace: Mapped[str]
    predicted: Mapped[float | None]
    features: Mapped[bytes | None]
    state: Mapped[CandidateState]
    losses: Mapped[int] = mapped_column(default=0)
    """Leases that ended without an answer that is its own fault."""
    lease: Mapped[str | None] = mapped_column(ForeignKey("leases.id", deferrable=True, initially="DEFERRED"))
    """The newest lease that held it."""
    record: Mapped[str | None]
    """Id of the record that ended it."""
    source: Mapped[str | None]
    """Digest of the workload from whose trace it was re-fitted; null of a candidate that was not."""
    __table_args__ = (
        UniqueConstraint("batch", "digest"),
        # What was proposed once is never proposed again, unless it was cancelled unmeasured.
        partial(
            "uq_candidates_search",
            *("project", "workload", "target_key", "measure_version", "digest"),
            where="purpose = 'search' AND state <> 'cancelled'",
            unique=True,
        ),
        partial("ix_candidates_queue", "project", "target_key", "priority", "id", where="state = 'queued'"),
        Index(None, "job", "state"),
        Index(None, "lease"),
    )


class Lease(Base):
    """The right of one worker to measure candidates of one batch."""

    __tablename__ = "leases"
    id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger, unique=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    worker: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    batch: Mapped[int] = mapped_column(ForeignKey("batches.id"))
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    state: Mapped[LeaseState]
    expires_at: Mapped[float]
    created_at: Mapped[float]
    __table_args__ = (partial("ix_leases_open", "expires_at", where="state = 'open'"),)


class LeaseResult(Base):
    """What a lease reported of a candidate: the memory that makes reports idempotent."""

    __tablename__ = "lease_results"
    lease: Mapped[str] = mapped_column(ForeignKey("leases.id"), primary_key=True)
    candidate: Mapped[str] = mapped_column(primary_key=True)
    """The candidate's digest."""
    body_digest: Mapped[str]


class Counter(Base):
    """A number that only grows: the fence, leases taken back."""

    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class Holder(Base):
    """Who holds a role that only one process may have, until when."""

    __tablename__ = "holders"
    role: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    expires_at: Mapped[float]
