"""What deployments missed, and what is done about it while workers have nothing else to do."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from pitchpipe.wire._base import Digest, Instant, Seconds, Wire
from pitchpipe.wire.target import Target

MAX_REPORTED = 1024
"""Workloads of one report: a large model has some hundred."""
HALF_LIFE_SECS = 7 * 86400.0
"""A second that a deployment spent this long ago counts half."""


class MissCount(Wire):
    """A workload that was missed (see Tier.is_miss), and how often it ran since the last report."""

    workload: Digest
    runs: int = Field(ge=1, le=10**12)
    default_secs: Seconds | None = Field(
        default=None, description="what one run takes now; absent where it was not measured"
    )


class MissReport(Wire):
    """What a deployment missed."""

    target: Target
    model: str | None = Field(
        default=None, description="an uploaded model that has these workloads; without it only known ones are counted"
    )
    misses: tuple[MissCount, ...] = Field(min_length=1, max_length=MAX_REPORTED)


class MissReceipt(Wire):
    counted: int = Field(ge=0, description="workloads counted by this report, now or when it first came")
    unknown: tuple[Digest, ...] = Field(
        default=(), description="not counted: upload a model that has them, and name it in another report"
    )


class MissStage(StrEnum):
    """Lifecycle: waiting -> transferring -> transferred -> tuning -> tuned; a job that fails or is cancelled -> refused.

    A refused one waits again when it is reported with another model.
    """

    WAITING = "waiting"
    TRANSFERRING = "transferring"
    """A job tries what similar workloads' schedules become here."""
    TRANSFERRED = "transferred"
    """That was confirmed or refuted; a search comes next."""
    TUNING = "tuning"
    """A job searches."""
    TUNED = "tuned"
    """No more is done."""
    REFUSED = "refused"
    """Its job failed or was cancelled."""


class MissView(Wire):
    workload: Digest
    target: Target
    model: str = Field(description="the uploaded model that has it")
    value_secs: float = Field(
        ge=0, description="seconds that deployments spent on it since it was missed; after a week they count half"
    )
    runs: int = Field(ge=0, description="all that were ever reported")
    default_secs: Seconds | None = Field(default=None, description="of one run, as it was last told")
    stage: MissStage
    job: str | None = Field(default=None, description="the newest job on it")
    reported_at: Instant = Field(description="last")


class IdleBudgetRequest(Wire):
    """Trials per day (UTC, by the database's clock) that idle workers may spend on misses; 0 is off."""

    trials_per_day: int = Field(ge=0, le=10_000_000)


class IdleBudget(IdleBudgetRequest):
    spent_today: int = Field(ge=0, description="trials granted to jobs since the day began")
