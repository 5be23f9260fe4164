"""The tables. A column that SQL compares is a column; what SQL never looks into is one JSON document of a wire type.

    projects ── tokens, models ── jobs ── tasks, events
       │                           └── batches ── candidates ──(leases, lease_results)
       ├── workers ── leases            candidate ──> its record
       ├── workloads, records, best, settled, cost_models
    targets, devices, toolchains: values, stored once and pointed to by their digest
    counters: the fence · holders: which coordinator is active

Times are Unix seconds of the database's clock. `target_key` is the SHA-256 of `Target.key`: the key itself can be
longer than an index entry may be. Every row that a user can name carries its project.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnClause,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    TypeDecorator,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pitchpipe.wire.job import EventKind, JobState, ModelFormat, Scope
from pitchpipe.wire.lease import Purpose, WorkerState
from service.states import CandidateState, LeaseState, ModelState

Json = dict[str, Any]
"""A wire type's `model_dump(mode="json")`."""


class Line(TypeDecorator[str]):
    """Text that any input survives: PostgreSQL refuses NUL, so it becomes U+FFFD on both databases."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return value if value is None else value.replace("\x00", "\ufffd")


def _enum(kind: type[Any]) -> Enum:
    return Enum(kind, native_enum=False, length=16, values_callable=lambda e: [member.value for member in e])


Serial = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only when the column is an INTEGER."""


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the few rows that matter: as small as the work at hand, however long the history."""
    return Index(name, *columns, unique=unique, postgresql_where=text(where), sqlite_where=text(where))


def spelled(state: StrEnum) -> ColumnClause[str]:
    """The state written into the statement. A bound one would hide from a prepared statement which index fits."""
    return literal_column(f"'{state.value}'")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        str: Line(),
        float: Float(53),
        bytes: LargeBinary(),
        # none_as_null: an absent document is SQL's NULL, not JSON's.
        Json: JSON(none_as_null=True),
        Scope: _enum(Scope),
        ModelFormat: _enum(ModelFormat),
        ModelState: _enum(ModelState),
        JobState: _enum(JobState),
        EventKind: _enum(EventKind),
        Purpose: _enum(Purpose),
        WorkerState: _enum(WorkerState),
        CandidateState: _enum(CandidateState),
        LeaseState: _enum(LeaseState),
    }


class Project(Base):
    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[float]


class Token(Base):
    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), index=True)
    scope: Mapped[Scope]
    label: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the token; the token itself is nowhere."""
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]


class StoredTarget(Base):
    """A Target, stored once."""

    __tablename__ = "targets"
    key: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    body: Mapped[Json]


class StoredDevice(Base):
    """A DeviceFingerprint, stored once."""

    __tablename__ = "devices"
    key: Mapped[str] = mapped_column(primary_key=True)
    device_class: Mapped[str]
    body: Mapped[Json]


class StoredToolchain(Base):
    """A Toolchain, stored once; `label` is its one comparable line."""

    __tablename__ = "toolchains"
    key: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str]
    body: Mapped[Json]


class Model(Base):
    __tablename__ = "models"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str]
    format: Mapped[ModelFormat]
    digest: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float]
    state: Mapped[ModelState] = mapped_column(server_default=ModelState.UNCHECKED.value)
    ingested: Mapped[str | None]
    """Digest of the blob that jobs use: what reading the model gave. Set when it is valid."""
    error: Mapped[str | None]
    error_code: Mapped[str | None]
    """Why it is invalid."""
    checked_at: Mapped[float | None]
    __table_args__ = (
        UniqueConstraint("project", "digest", "format"),
        Index(None, "project", "id"),
        _partial("ix_models_unchecked", "project", "id", where="state = 'unchecked'"),
    )


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    model: Mapped[str] = mapped_column(ForeignKey("models.id"))
    request: Mapped[Json]
    """The JobRequest."""
    state: Mapped[JobState]
    error: Mapped[str | None]
    error_code: Mapped[str | None]
    progress: Mapped[Json]
    """The Progress, but for its trials, which are the two columns below."""
    trials: Mapped[int] = mapped_column(default=0)
    """SEARCH candidates that ended in a result: what the budget was charged."""
    failed_trials: Mapped[int] = mapped_column(default=0)
    spent_secs: Mapped[float] = mapped_column(default=0.0)
    last_event: Mapped[int] = mapped_column(default=0)
    """`seq` of the newest event."""
    idempotency_key: Mapped[str | None]
    request_digest: Mapped[str]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    __table_args__ = (
        UniqueConstraint("project", "idempotency_key"),
        Index(None, "project", "id"),
        _partial("ix_jobs_active", "id", where="finished_at IS NULL"),
    )


class JobEventRow(Base):
    __tablename__ = "events"
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[EventKind]
    data: Mapped[Json]
    at: Mapped[float]


class StoredWorkload(Base):
    __tablename__ = "workloads"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    ir: Mapped[str]
    schema_version: Mapped[int]
    created_at: Mapped[float]


class JobTask(Base):
    """A task of a job. `body` is the Task without workload and target, which are stored once."""

    __tablename__ = "tasks"
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    workload: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"), primary_key=True)
    project: Mapped[str]
    position: Mapped[int]
    body: Mapped[Json]
    trials: Mapped[int] = mapped_column(default=0)
    failed_trials: Mapped[int] = mapped_column(default=0)
    reused: Mapped[bool] = mapped_column(default=False)
    untuned_secs: Mapped[float | None]
    tuned_secs: Mapped[float | None]
    __table_args__ = (ForeignKeyConstraint(["project", "workload"], ["workloads.project", "workloads.digest"]),)


class WorkerRow(Base):
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
    created_at: Mapped[float]
    last_seen_at: Mapped[float]
    __table_args__ = (UniqueConstraint("project", "name"),)


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
    """Lower is leased first."""
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
    __table_args__ = (
        UniqueConstraint("batch", "digest"),
        # What was proposed once is never proposed again, unless it was cancelled unmeasured.
        _partial(
            "uq_candidates_search",
            *("project", "workload", "target_key", "measure_version", "digest"),
            where="purpose = 'search' AND state <> 'cancelled'",
            unique=True,
        ),
        _partial("ix_candidates_queue", "project", "target_key", "priority", "id", where="state = 'queued'"),
        Index(None, "job", "state"),
        Index(None, "lease"),
    )


class Lease(Base):
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
    __table_args__ = (_partial("ix_leases_open", "expires_at", where="state = 'open'"),)


class LeaseResult(Base):
    """What a lease reported of a candidate: the memory that makes reports idempotent."""

    __tablename__ = "lease_results"
    lease: Mapped[str] = mapped_column(ForeignKey("leases.id"), primary_key=True)
    candidate: Mapped[str] = mapped_column(primary_key=True)
    """The candidate's digest."""
    body_digest: Mapped[str]


class Record(Base):
    """A TuningRecord. `secs` is the median of its samples, absent exactly when it failed."""

    __tablename__ = "records"
    seq: Mapped[int] = mapped_column(Serial, primary_key=True)
    """Order of arrival."""
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    id: Mapped[str]
    workload: Mapped[str]
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"))
    target_kind: Mapped[str]
    candidate: Mapped[str]
    """Digest of the candidate."""
    trace: Mapped[str]
    secs: Mapped[float | None]
    failure: Mapped[str | None]
    result: Mapped[Json]
    """The Measurement."""
    features: Mapped[bytes | None]
    device_key: Mapped[str] = mapped_column(ForeignKey("devices.key"))
    toolchain_key: Mapped[str] = mapped_column(ForeignKey("toolchains.key"))
    measure_version: Mapped[int]
    worker: Mapped[str]
    created_at: Mapped[float]
    schema_version: Mapped[int]
    __table_args__ = (
        UniqueConstraint("project", "id"),
        Index(None, "project", "workload", "target_key", "measure_version"),
        Index(None, "project", "target_kind", "seq"),
    )


class BestRow(Base):
    """The served record of a (workload, target), one per device class."""

    __tablename__ = "best"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"), primary_key=True)
    workload: Mapped[str] = mapped_column(primary_key=True)
    measure_version: Mapped[int] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(primary_key=True)
    record: Mapped[str | None]
    trace: Mapped[str]
    secs: Mapped[float]
    secs_low: Mapped[float]
    secs_high: Mapped[float]
    baseline_secs: Mapped[float]
    toolchain: Mapped[str]
    confirmed_at: Mapped[float]
    __table_args__ = (ForeignKeyConstraint(["project", "record"], ["records.project", "records.id"]),)


class Settled(Base):
    """The largest effort (trials per task) that a finished job offered a task: less need not be spent again."""

    __tablename__ = "settled"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"), primary_key=True)
    workload: Mapped[str] = mapped_column(primary_key=True)
    measure_version: Mapped[int] = mapped_column(primary_key=True)
    effort: Mapped[float]


class CostModelRow(Base):
    __tablename__ = "cost_models"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_kind: Mapped[str]
    version: Mapped[int]
    digest: Mapped[str]
    """Of the blob."""
    metrics: Mapped[Json]
    samples: Mapped[int]
    created_at: Mapped[float]
    __table_args__ = (UniqueConstraint("project", "target_kind", "version"),)


class Counter(Base):
    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class Holder(Base):
    """Who holds a role that only one process may have, until when."""

    __tablename__ = "holders"
    role: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    expires_at: Mapped[float]
