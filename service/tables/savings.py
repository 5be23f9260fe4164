"""What served schedules saved."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base


class SavedRow(Base):
    """All that deployments of a project reported in one day; see Saved in pitchpipe/wire/savings.py."""

    __tablename__ = "savings"
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True)
    """Days since 1970-01-01, UTC."""
    runs: Mapped[int] = mapped_column(BigInteger)
    baseline_saved_secs: Mapped[float]
    default_runs: Mapped[int] = mapped_column(BigInteger)
    default_saved_secs: Mapped[float]
