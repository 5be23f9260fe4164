"""Tuning a model for benchmarks/latency.py: with ours and with stock MetaSchedule, and how the latency fell meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from model_file import models_of
from peers.contestant import SEED
from peers.metaschedule import lean_path
from peers.stock_model import keep_whole_lines

import pitchpipe
from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.wire.job import EventKind, JobView, TaskView
from pitchpipe.wire.measure import Timed
from pitchpipe.wire.target import Target

MARGIN_SECS = 12.0
"""Of a model's seconds, what is left for export, service start and stop."""
LEAST_SECS = 10.0
"""Of search, however little that leaves."""
STEP = 0.005
"""A point of the series of latencies is kept if it is lower by this share."""
STOCK_SCRIPT = Path(__file__).parent / "peers" / "stock_model.py"


def tune_ours(name: str, models: Path, seconds: float, database: str, target: Target) -> dict[str, Any]:
    """What our tuning found, what it cost, and how the latency fell."""
    import torch

    torch.manual_seed(SEED)
    module, inputs = models_of(models)[name]()
    fresh = database.startswith("sqlite:///") and not Path(database.removeprefix("sqlite:///")).exists()
    started, began = time.monotonic(), datetime.now(UTC)
    with Embedded(database, target) as client:
        budget = max(LEAST_SECS, seconds - MARGIN_SECS)
        job = pitchpipe.submit(module, inputs, target=target, seconds=budget, client=client)
        view = client.wait(job.id)
        if view.state.value != "done":
            raise SystemExit(f"{name}: {view.state.value}: {view.error}")
        schedules = client.job_schedules(view.id, target)
        tuning_secs = time.monotonic() - started
        series = latencies(client, view, target, began)
    return {
        "target": target.key,
        "schedules": schedules.model_dump(mode="json", by_alias=True),
        "tuning_secs": tuning_secs,
        "trials": view.progress.trials,
        "failed_trials": view.progress.failed_trials,
        "reused_tasks": view.progress.reused_tasks,
        "database": "new" if fresh else "existing",
        "tuned_on": began.date().isoformat(),
        "series": series,
        "tasks": [task_row(task) for task in view.tasks],
    }


def task_row(task: TaskView) -> dict[str, Any]:
    """What result files say of a task."""
    return {
        "name": task.name,
        "kind": task.kind.value,
        "weight": task.weight,
        "flops": task.flops,
        "bytes": task.bytes,
        "trials": task.trials,
        "untuned_secs": task.untuned_secs,
        "secs": task.tuned_secs,
        "bound_secs": task.bound_secs,
    }


def latencies(client: Client, view: JobView, target: Target, began: datetime) -> list[tuple[float, float]]:
    """(seconds since `began`, sum over tasks of weight x best seconds so far); see above."""
    split = next(event.at for event in client.events(view.id) if event.kind is EventKind.TASKS)
    best: dict[str, float] = {}
    weights = {task.workload: task.weight for task in view.tasks}
    found: list[tuple[float, float, str]] = []
    for task in view.tasks:
        baseline, tuned = task.untuned_secs or 0.0, task.tuned_secs or 0.0
        best[task.workload] = tuned if task.trials == 0 else baseline
        if task.trials:
            for record in client.records(task.workload, target):
                if isinstance(record.result, Timed) and record.created_at >= began:
                    found.append(((record.created_at - began).total_seconds(), record.result.secs, task.workload))
    return falling((split - began).total_seconds(), best, weights, found)


def falling(
    start: float, best: dict[str, float], weights: dict[str, int], found: Sequence[tuple[float, float, str]]
) -> list[tuple[float, float]]:
    """The series that starts with `best` and falls as candidates are found: (when, seconds, workload) each."""
    now = dict(best)
    series = [(start, sum(weights[key] * secs for key, secs in now.items()))]
    for when, secs, workload in sorted(found):
        if secs < now[workload]:
            now[workload] = secs
            total = sum(weights[key] * each for key, each in now.items())
            if total < (1 - STEP) * series[-1][1]:
                series.append((when, total))
    return series


def tune_stock(name: str, models: Path, same: float, longer: float, folder: Path, target: Target) -> dict[str, Any]:
    """Tunes with stock MetaSchedule; a copy of its records after `same` seconds is put aside. Imports count."""
    work = folder / "stock_longer"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    started = time.monotonic()
    found: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat()}
    command = [str(STOCK_SCRIPT), str(models), name, target.key, str(work)]
    environment = {**os.environ, "TVM_NUM_THREADS": str(target.num_cores or 1), "PYTHONPATH": lean_path()}
    with (folder / "stock.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            for seconds, kept in ((same, "stock"), (longer, "stock_longer")):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, seconds - (time.monotonic() - started)))
                if process.returncode not in (None, 0):
                    # What it found before it crashed counts, as it would for its user.
                    found["crashed"] = (folder / "stock.log").read_text(errors="replace")[-500:]
                if kept == "stock":
                    shutil.rmtree(folder / kept, ignore_errors=True)
                    shutil.copytree(work, folder / kept)
                found[kept] = {
                    "secs": time.monotonic() - started,
                    "finished": process.returncode == 0,
                }
        finally:
            end(process)
    for kept in ("stock", "stock_longer"):
        found[kept]["trials"] = keep_whole_lines(folder / kept)
        write(folder / kept / "target.json", target.attributes())
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that we started, and all that it started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(path: Path, value: Any) -> None:
    """JSON that is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.rename(path)
