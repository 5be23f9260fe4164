"""The table of docs/performance.md that is of whole tuning jobs: as result_tables.py. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cells import number, percent, table, time

SHARES = ("ingest", "waiting", "compiling", "checking", "timing", "confirming")


def budgets(result: dict[str, Any]) -> Iterable[str]:
    """A row is a job."""
    yield from table(
        result["rows"],
        {
            "model": lambda row: row["model"],
            "budget": lambda row: f"{row['seconds']:.0f} s",
            "over it": lambda row: f"{row['overrun_secs']:.1f} s" + ("" if row["held"] else ", **not held**"),
            "trials a second": lambda row: number(row["trials_per_sec"]),
            "trials": lambda row: str(row["trials"]),
            "tasks confirmed": lambda row: f"{row['confirmed_tasks']} of {row['tasks']}",
            **{share: lambda row, share=share: percent(row[f"{share}_share"]) for share in SHARES},
            "sum of tasks": lambda row: time(row["best_secs"]),
            "forecasts, off by": lambda row: ", ".join(percent(error) for error in row["forecast_error"]) or "-",
        },
    )
