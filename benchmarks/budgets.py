"""Whether budgets in seconds hold, and where their seconds go.

    python benchmarks/budgets.py --json > benchmarks/results/budgets.json

Every model of benchmarks/models.py is tuned from nothing with each budget, one job after another, by an embedded service:
what `pitchpipe tune` runs, without the comparison with the framework before it and the build after it. A row is a job:

    overrun_secs      from its start to `done`, over the budget; a budget is held where that is at most 5 %, or 3 s
    trials_per_sec    over the whole job
    share of ...      its seconds, by what the database says of each lease:
        ingest        until the model was split
        waiting       no lease is measured: the first searches, and whatever else workers wait for
        confirming    leases of confirming runs
        compiling     of leases of trials the seconds that LLVM took, over the cores
        timing        of these the seconds that the samples took
        checking      the rest of these: reference outputs of new workloads, checks, warming up, starting processes
    forecast_error    the forecast of the model's latency after a quarter, a half and three quarters of the seconds over what
                      came, minus 1; the job's own sum over tasks both times. `forecast_held`: how many of these lay within
                      their interval

A worker has its next lease before it ends one; a lease counts from the end of the one before.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from environment import environment, models_parser, names_chosen, show
from model_file import models_of
from peers.contestant import SEED

import pitchpipe
from pitchpipe.embedded import Embedded
from pitchpipe.wire.target import Target
from workers.device import detect_target

BUDGETS = (10.0, 60.0, 300.0)
"""Seconds of a job."""
QUICK_BUDGETS = (10.0,)
HELD_SHARE, HELD_SECS = 0.05, 3.0
"""A budget is held where a job takes no more over it than this share, or these seconds."""
STAGES = ("ingest", "waiting", "compiling", "checking", "timing", "confirming")
MOMENTS = (0.25, 0.5, 0.75)
"""Of the budget, when a forecast is read."""

_LEASES = """
    SELECT l.id, l.worker, l.created_at, c.purpose, r.created_at, r.result
    FROM candidates c JOIN leases l ON l.id = c.lease JOIN records r ON r.id = c.record
    WHERE c.job = ? ORDER BY l.created_at
"""


def tune(model: Any, inputs: Any, seconds: float, target: Target) -> dict[str, Any]:
    """One job, from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pitchpipe.db"
        with Embedded(f"sqlite:///{path}", target) as client:
            job = pitchpipe.submit(model, inputs, target=target, seconds=seconds, client=client, compare=False)
            view = client.wait(job.id)
        if view.state.value != "done":
            raise SystemExit(f"{view.state.value}: {view.error}")
        with closing(sqlite3.connect(path)) as database:
            return told(database, job.id, seconds, target.num_cores or 1)


def told(database: sqlite3.Connection, job: str, seconds: float, cores: int) -> dict[str, Any]:
    """What the database says of a job that has ended."""
    started, finished, trials = database.execute(
        "SELECT started_at, finished_at, trials FROM jobs WHERE id = ?", (job,)
    ).fetchone()
    events = [
        (kind, at - started, json.loads(data))
        for kind, at, data in database.execute("SELECT kind, at, data FROM events WHERE job = ? ORDER BY seq", (job,))
    ]
    split = next(at for kind, at, _ in events if kind == "tasks")
    progress = [(at, data) for kind, at, data in events if kind == "progress"]
    secs = finished - started
    spent = stages(database.execute(_LEASES, (job,)).fetchall(), cores)
    spent |= {"ingest": split, "waiting": max(0.0, secs - split - sum(spent.values()))}
    tasks, confirmed = database.execute(
        "SELECT count(*), count(tuned_secs) FROM tasks WHERE job = ?", (job,)
    ).fetchone()
    final = progress[-1][1]["best_secs"] if progress else None
    errors, held = forecasts(progress, seconds, final)
    return {
        "seconds": seconds,
        "job_secs": secs,
        "overrun_secs": secs - seconds,
        "held": secs - seconds <= max(HELD_SECS, HELD_SHARE * seconds),
        "tasks": tasks,
        "confirmed_tasks": confirmed,
        "trials": trials,
        "trials_per_sec": trials / secs,
        **{f"{stage}_share": spent.get(stage, 0.0) / secs for stage in STAGES},
        "best_secs": final,
        "forecast_error": errors,
        "forecast_held": held,
    }


def stages(leases: Sequence[tuple[str, str, float, str, float, str]], cores: int) -> dict[str, float]:
    """Seconds by stage of the leases: (lease, worker, granted, purpose, reported, result) of each candidate."""
    spent = dict.fromkeys(("compiling", "checking", "timing", "confirming"), 0.0)
    busy_until: dict[str, float] = {}
    for lease in dict.fromkeys(row[0] for row in leases):
        rows = [row for row in leases if row[0] == lease]
        _, worker, granted, purpose, *_ = rows[0]
        ended = max(row[4] for row in rows)
        secs = max(0.0, ended - max(granted, busy_until.get(worker, granted)))
        busy_until[worker] = max(ended, busy_until.get(worker, ended))
        if purpose == "confirm":
            spent["confirming"] += secs
            continue
        results = [json.loads(row[5]) for row in rows]
        timed = [result for result in results if result["outcome"] == "timed"]
        compiling = min(secs, sum(result["build_secs"] for result in timed) / cores)
        timing = min(secs - compiling, sum(sum(each["run_secs"]) * each["rule"]["calls"] for each in timed))
        spent["compiling"] += compiling
        spent["timing"] += timing
        spent["checking"] += secs - compiling - timing
    return spent


def forecasts(
    progress: Sequence[tuple[float, dict[str, Any]]], seconds: float, final: float | None
) -> tuple[list[float], int]:
    """(errors of the forecasts at MOMENTS, how many were within their interval); no more than the job had made."""
    errors, held = list[float](), 0
    for moment in MOMENTS:
        made = [data for at, data in progress if at <= moment * seconds and data.get("forecast_secs") is not None]
        if made and final is not None:
            last = made[-1]
            errors.append(last["forecast_secs"] / final - 1)
            held += last["forecast_low_secs"] <= final <= last["forecast_high_secs"]
    return errors, held


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all jobs."""
    errors = [abs(error) for row in rows for error in row["forecast_error"]]
    return {
        "held": sum(row["held"] for row in rows),
        "jobs": len(rows),
        "worst_overrun_secs": max(row["overrun_secs"] for row in rows),
        "worst_overrun_share": max(row["overrun_secs"] / row["seconds"] for row in rows),
        "worst_confirming_share": max(row["confirming_share"] for row in rows),
        "least_trials_per_sec": min(row["trials_per_sec"] for row in rows),
        "forecasts": len(errors),
        "forecasts_within_20_percent": sum(error <= 0.2 for error in errors),
        "forecasts_in_interval": sum(row["forecast_held"] for row in rows),
        "median_forecast_error": statistics.median(errors) if errors else None,
    }


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help="names of models, with commas between; default: all")
    arguments.add_argument("--budgets", help="seconds, with commas between; default: 10,60,300")
    options = arguments.parse_args()
    import torch

    builders = models_of(options.models)
    names = names_chosen(arguments, options, builders)
    budgets: tuple[float, ...] = QUICK_BUDGETS if options.quick else BUDGETS
    if options.budgets:
        budgets = tuple(float(each) for each in options.budgets.split(","))
    target = detect_target("llvm")
    made = environment(seconds=list(budgets))
    rows = []
    for name in names:
        torch.manual_seed(SEED)
        model, inputs = builders[name]()
        for seconds in budgets:
            rows.append({"model": name, **tune(model, inputs, seconds, target)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    show({"environment": made, "rows": rows, "summary": summary(rows)}, options.json)


if __name__ == "__main__":
    main()
