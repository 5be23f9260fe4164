"""What was found out: records, what is served, cost models."""

from __future__ import annotations

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pitchpipe.wire.cost_model import CostModelOrigin, CostModelState
from pitchpipe.wire.record import Origin
from service.tables.base import Base, Json, Serial, partial


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
        Index(None, "project", "workload", "target_key", "measure_version", "secs"),
        Index(None, "project", "target_kind", "seq"),
        # What a worker did last.
        Index(None, "project", "worker", "seq"),
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
    baseline_secs: Mapped[float | None]
    """None where the baseline ran out of time."""
    toolchain: Mapped[str]
    confirmed_at: Mapped[float]
    origin: Mapped[Origin] = mapped_column(server_default=Origin.TUNED.value)
    source: Mapped[str | None]
    """Digest of the workload from whose trace it was re-fitted, where it won before any search; else null."""
    worker: Mapped[str | None]
    """Id of the worker that measured the record."""
    driver: Mapped[str | None]
    """Of the device that confirmed it; None of a baseline that won before this was kept."""
    replayed_from: Mapped[Json | None]
    """The Earlier: under which other circumstances it was found first, where a replay confirmed it under these."""
    effort: Mapped[float] = mapped_column(server_default="0")
    """The largest effort (trials per task) that a finished job offered under these circumstances: less need not be
    spent again."""
    owed: Mapped[float] = mapped_column(server_default="0")
    """The effort of what was served before a replay that did not hold; 0 once a finished job has searched since."""
    pinned_at: Mapped[float | None]
    """When a user pinned it: nothing takes its place until it is unpinned. Null while it is not pinned."""
    __table_args__ = (
        ForeignKeyConstraint(["project", "record"], ["records.project", "records.id"]),
        # A look-up asks for some workloads on every target at once, and judges what it finds.
        Index(None, "project", "workload"),
    )


class InContextRow(Base):
    """A schedule of a workload that won inside models, in one context; see pitchpipe/wire/context.py."""

    __tablename__ = "in_context"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"), primary_key=True)
    workload: Mapped[str] = mapped_column(primary_key=True)
    measure_version: Mapped[int] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(primary_key=True)
    context: Mapped[str] = mapped_column(primary_key=True)
    """Digest of the Context."""
    record: Mapped[str] = mapped_column(primary_key=True)
    toolchain: Mapped[str]
    instead: Mapped[str]
    """Digest of the candidate that was served alone then: what wins alone later was not tried here. Empty once another
    record won in the context."""
    neighbours: Mapped[Json]
    """The Context."""
    model: Mapped[str]
    before_secs: Mapped[float]
    """Median seconds of a run of that model."""
    after_secs: Mapped[float]
    confirmed_at: Mapped[float]
    __table_args__ = (ForeignKeyConstraint(["project", "record"], ["records.project", "records.id"]),)


class CostModelRow(Base):
    """A version of the cost model of a project and kind of target. The blobs may be lost: see the predictor."""

    __tablename__ = "cost_models"
    id: Mapped[str] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_kind: Mapped[str]
    version: Mapped[int]
    digest: Mapped[str]
    """Of the blob that holds the trained model."""
    metrics: Mapped[Json]
    """On held-out tasks."""
    samples: Mapped[int]
    created_at: Mapped[float]
    origin: Mapped[CostModelOrigin] = mapped_column(server_default=CostModelOrigin.TRAINED.value)
    state: Mapped[CostModelState] = mapped_column(server_default=CostModelState.REPLACED.value)
    reason: Mapped[str | None]
    """Why it is in this state; None of versions from before that was told."""
    parent: Mapped[int | None]
    judge: Mapped[str | None]
    """Digest of the judge's blob."""
    seen: Mapped[int] = mapped_column(Serial, server_default="0")
    """`records.seq` of the newest record when it was trained: what is newer it was not trained on."""
    data: Mapped[Json | None]
    """The TrainingData."""
    shadow: Mapped[Json | None]
    """The Marks of `shadow_tasks`."""
    held_out_tasks: Mapped[Json | None]
    """TaskMarks, as {"tasks": [...]}."""
    shadow_tasks: Mapped[Json | None]
    __table_args__ = (
        UniqueConstraint("project", "target_kind", "version"),
        *(
            partial(f"uq_cost_models_{state}", "project", "target_kind", where=f"state = '{state}'", unique=True)
            for state in (CostModelState.SERVING.value, CostModelState.SHADOW.value)
        ),
    )


class CostModelChangeRow(Base):
    """A version began to serve. Versions are numbers here: the log outlives their rows."""

    __tablename__ = "cost_model_changes"
    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_kind: Mapped[str]
    version: Mapped[int]
    replaced: Mapped[int | None]
    rollback: Mapped[bool]
    reason: Mapped[str]
    by: Mapped[str | None]
    """Id of the token of who decided; None where the rule did."""
    at: Mapped[float]
    __table_args__ = (Index(None, "project", "target_kind", "id"),)
