"""What was found out: records, what is served, cost models."""

from __future__ import annotations

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from pitchpipe.wire.record import Origin
from service.tables.base import Base, Json, Serial


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
    """Digest of the workload whose trace was re-fitted, of one that was transferred."""
    worker: Mapped[str | None]
    """Id of the worker that measured the record."""
    driver: Mapped[str | None]
    """Of the device that confirmed it; None of a baseline that won before this was kept."""
    replayed_from: Mapped[Json | None]
    """The Earlier, of one that was found under other circumstances and replayed."""
    effort: Mapped[float] = mapped_column(server_default="0")
    """The largest effort (trials per task) that a finished job offered under these circumstances: less need not be
    spent again."""
    owed: Mapped[float] = mapped_column(server_default="0")
    """The effort of what was served before a replay that did not hold; 0 once a finished job has searched since."""
    pinned_at: Mapped[float | None]
    """Of one that a user pinned: nothing takes its place until it is unpinned."""
    __table_args__ = (
        ForeignKeyConstraint(["project", "record"], ["records.project", "records.id"]),
        # A look-up asks for some workloads on every target at once, and judges what it finds.
        Index(None, "project", "workload"),
    )


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
