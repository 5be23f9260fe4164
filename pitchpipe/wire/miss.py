"""What deployments ran, with served schedules and without, and what is done about misses while workers have nothing else to
do."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from pitchpipe.wire._base import Digest, Instant, Seconds, Wire
from pitchpipe.wire.target import Target

MAX_REPORTED = 1024
"""Workloads of one report that were missed, and that were served: a large model has some hundred."""
HALF_LIFE_SECS = 7 * 86400.0
"""A second that a deployment spent this long ago counts half."""


class MissCount(Wire):
    """A workload that was missed (see Tier.is_miss), and how often it ran since the last report."""

    workload: Digest
    runs: int = Field(ge=1, le=10**12)
    default_secs: Seconds | None = Field(
        default=None, description="what one run takes now; absent where it was not measured"
    )


class ServedCount(Wire):
    """A workload that ran a schedule which a look-up served, and how often since the last report. The seconds are those of
    the answer, so that they are of the schedule that ran, whatever is served meanwhile."""

    workload: Digest
    runs: int = Field(ge=1, le=10**12)
    record: str = Field(pattern=r"^rec_[0-9a-z]{26}$", description="of the schedule; it is for the report's target")
    secs: Seconds = Field(description="median of the schedule in its confirming run")
    baseline_secs: Seconds | None = Field(
        default=None, description="median of the baseline in the same run; absent where it ran out of time"
    )


class MissReport(Wire):
    """What a deployment missed, and which served schedules it ran."""

    target: Target
    model: str | None = Field(
        default=None, description="an uploaded model that has these workloads; without it only known ones are counted"
    )
    misses: tuple[MissCount, ...] = Field(default=(), max_length=MAX_REPORTED)
    served: tuple[ServedCount, ...] = Field(default=(), max_length=MAX_REPORTED)


class MissReceipt(Wire):
    """What became of a report of misses."""

    counted: int = Field(ge=0, description="workloads counted by this report, now or when it first came")
    unknown: tuple[Digest, ...] = Field(
        default=(),
        description="misses that were not counted: upload a model that has them, and name it in another report",
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
    """A workload that deployments ran without a schedule."""

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
    """What idle workers may spend on misses, and what they were granted today."""

    spent_today: int = Field(ge=0, description="trials granted to jobs since the day began")
