"""What served schedules saved the programs that ran them, by day."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from pitchpipe.wire._base import Wire

MAX_DAYS = 366
"""Days of one answer."""


class Saved(Wire):
    """Sums over runs that deployments reported. A run of a schedule saves what the confirming run of that schedule says."""

    runs: int = Field(ge=0, description="of workloads that ran a served schedule")
    baseline_saved_secs: float = Field(
        description="seconds that they would have taken longer with the baseline, which is the unscheduled program, or the "
        "default schedule on a GPU; a run whose baseline ran out of time adds nothing"
    )
    default_runs: int = Field(ge=0, description="those of the runs whose workload has a default schedule with a time")
    default_saved_secs: float = Field(
        description="seconds that these would have taken longer with default schedules, which need no trial; negative "
        "where those were faster"
    )


class SavedDay(Saved):
    """What served schedules saved in one day."""

    day: date = Field(description="UTC, by the database's clock, in which the runs were reported")


class Savings(Wire):
    """One entry for each day up to today, the oldest first."""

    days: tuple[SavedDay, ...] = Field(min_length=1)

    def last(self, days: int) -> Saved:
        """Sums over the last days, today included."""
        told = self.days[-days:]
        return Saved(
            runs=sum(day.runs for day in told),
            baseline_saved_secs=sum(day.baseline_saved_secs for day in told),
            default_runs=sum(day.default_runs for day in told),
            default_saved_secs=sum(day.default_saved_secs for day in told),
        )
