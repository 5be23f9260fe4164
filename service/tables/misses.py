"""What deployments missed."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from pitchpipe.wire.miss import MissStage
from service.tables.base import Base, partial


class Miss(Base):
    """A workload that deployments ran without a schedule: all their reports in one row."""

    __tablename__ = "misses"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(ForeignKey("targets.key"), primary_key=True)
    workload: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    """Id of an uploaded model that has it. Not a key: a model that was refused is forgotten."""
    rank: Mapped[float]
    """Orders by value at any time without being touched; see store/misses.py."""
    runs: Mapped[int] = mapped_column(BigInteger)
    default_secs: Mapped[float | None]
    stage: Mapped[MissStage]
    job: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    reported_at: Mapped[float]
    __table_args__ = (
        Index(None, "project", "rank"),
        partial(
            "ix_misses_due",
            *("project", "target_key", "stage", "rank"),
            where="stage IN ('waiting', 'transferred')",
        ),
        partial("ix_misses_at_work", "job", where="stage IN ('transferring', 'tuning')"),
    )


class MissReportRow(Base):
    """The memory that makes reports idempotent, for a day."""

    __tablename__ = "miss_reports"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    body_digest: Mapped[str]
    counted: Mapped[int]
    unknown: Mapped[str]
    """Digests, joined by commas."""
    at: Mapped[float]
    __table_args__ = (Index(None, "project", "at"),)
