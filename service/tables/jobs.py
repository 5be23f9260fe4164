"""What users ask for: projects, tokens, models, jobs and their tasks; and the values that rows point to."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pitchpipe.wire.job import EventKind, JobOrigin, JobState, ModelFormat, Replay, Scope
from service.states import ModelState
from service.tables.base import Base, Json, partial


class Project(Base):
    """Whom rows belong to."""

    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[float]
    generation: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Grows whenever what is served changes; microseconds, so that no state after a restored backup has an old one."""

    idle_trials: Mapped[int] = mapped_column(server_default="0")
    """Trials of a day that tuning misses may take; the next two say how many were granted, and on which day."""
    idle_spent: Mapped[int] = mapped_column(server_default="0")
    idle_day: Mapped[int] = mapped_column(server_default="0")
    """Days since 1970-01-01, UTC."""


class Token(Base):
    """A token, by its digest."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    """Null of an operator, whose token is of no project, and of nobody else."""
    scope: Mapped[Scope]
    label: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the token; the token itself is nowhere."""
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
    __table_args__ = (CheckConstraint("(project IS NULL) = (scope = 'operator')", name="ck_tokens_project"),)


class BrowserSession(Base):
    """A session of the dashboard, or a link that opens one: what a token was exchanged for. Ends with its token."""

    __tablename__ = "sessions"
    id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(ForeignKey("tokens.id"), index=True)
    digest: Mapped[str] = mapped_column(unique=True)
    """SHA-256 of the cookie, or of the link's code."""
    once: Mapped[bool] = mapped_column(default=False)
    """Whether the row is a link, which opens a session once, and no session itself."""
    created_at: Mapped[float]
    expires_at: Mapped[float] = mapped_column(index=True)


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
    device_class: Mapped[str] = mapped_column(index=True)
    body: Mapped[Json]


class StoredToolchain(Base):
    """A Toolchain, stored once; `label` is its one comparable line."""

    __tablename__ = "toolchains"
    key: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str]
    body: Mapped[Json]


class Model(Base):
    """A model that was uploaded: once for each project, digest and format."""

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
    comparison: Mapped[Json | None] = mapped_column(JSON(none_as_null=True))
    """The Comparison with its framework, as a client told it; null where none did."""
    __table_args__ = (
        UniqueConstraint("project", "digest", "format"),
        Index(None, "project", "id"),
        partial("ix_models_unchecked", "project", "id", where="state = 'unchecked'"),
    )


class Job(Base):
    """A job; its tasks, events, batches and candidates are rows of other tables."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    model: Mapped[str] = mapped_column(ForeignKey("models.id"))
    request: Mapped[Json]
    """The JobRequest."""
    state: Mapped[JobState]
    origin: Mapped[JobOrigin] = mapped_column(server_default=JobOrigin.USER.value)
    only: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Digests: the model's other workloads are no tasks of this job."""
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
    paused_at: Mapped[float | None]
    """Since when it is paused; null while it is not."""
    traceparent: Mapped[str | None]
    """W3C trace context of its submission, which its spans continue; null where that was in no trace."""
    __table_args__ = (
        UniqueConstraint("project", "idempotency_key"),
        Index(None, "project", "id"),
        partial("ix_jobs_active", "id", where="finished_at IS NULL"),
    )


class JobEventRow(Base):
    """An entry of a job's event stream."""

    __tablename__ = "events"
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[EventKind]
    data: Mapped[Json]
    at: Mapped[float]


class StoredWorkload(Base):
    """A workload of a project, by its digest."""

    __tablename__ = "workloads"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    ir: Mapped[str]
    schema_version: Mapped[int]
    created_at: Mapped[float]
    signature: Mapped[Json | None]
    """The Signature, where whoever split the model told it; the next two are of it."""
    anchor: Mapped[str | None]
    size: Mapped[float | None]
    """Logarithm to base 2 of the FLOPs: neighbours in the index have about the same shape."""
    __table_args__ = (Index(None, "project", "anchor", "size"),)


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
    bound_secs: Mapped[float | None]
    """What the rooflines of the active workers said when it was last asked."""
    device_class: Mapped[str | None]
    """Class of the device on which the job confirmed what it serves for the task."""
    replay: Mapped[Replay | None]
    """None where nothing was found under other circumstances than those of the job's workers."""
    earlier: Mapped[Json | None]
    """The Best that was served under other circumstances when the job began."""
    earlier_effort: Mapped[float | None]
    """The effort that it had been tuned with."""
    __table_args__ = (
        ForeignKeyConstraint(["project", "workload"], ["workloads.project", "workloads.digest"]),
        # Which model has a workload that was missed.
        Index(None, "project", "workload"),
    )
