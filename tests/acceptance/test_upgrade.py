"""After an upgrade of the toolchain: `pitchpipe schedules upgrade`, killed and taken up again, and what `tune` does by itself.

Real processes, SQLite. The upgrade is one of the data: what is stored is said to be of an older TVM, as it would be after
a newer one was installed.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.embedded import Embedded
from pitchpipe.sdk import submit
from pitchpipe.upgrade import Upgrade
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.job import JobState
from pitchpipe.wire.record import LookupRequest, Tier
from pitchpipe.wire.target import Target
from pitchpipe.wire.upgrade import REPLAYED
from tests.acceptance.test_tune import count, run, wait_until_nobody_serves
from tests.compiler import models
from tests.patience import PATIENCE_SECS

OLDER = "0.26.0"
TRIALS = 8
REPLAYS = "candidates WHERE purpose = 'replay'"
SEARCHED = "candidates WHERE purpose = 'search'"


def two_products(path: Path) -> Path:
    """A model of two tasks."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w", (96, 64)), ("v", (64, 128)))}
    nodes = [models.node("MatMul", ["x", "w"], ["m"]), models.node("MatMul", ["m", "v"], ["y"])]
    path.write_bytes(models.model(nodes, {"x": [32, 96]}, ["y"], weights).SerializeToString())
    return path


def age(database: Path) -> str:
    """All that is stored was found with an older TVM; that toolchain's line."""
    with sqlite3.connect(database) as connection:
        (body,) = connection.execute("SELECT body FROM toolchains ORDER BY key = 'older'").fetchone()
        older = json.loads(body) | {"tvm": OLDER}
        label = f"tvm {older['tvm']}, ffi {older['tvm_ffi']}, {older['codegen']}"
        connection.execute("INSERT OR IGNORE INTO toolchains VALUES ('older', ?, ?)", (label, json.dumps(older)))
        for table in ("records", "workers"):
            connection.execute(f"UPDATE {table} SET toolchain_key = 'older'")
        connection.execute("UPDATE best SET toolchain = ?, replayed_from = NULL", (label,))
    return label


def upgrade(database: Path) -> list[str]:
    options = ["--database", f"sqlite:///{database}", "--json", "--tune-trials", "0"]
    return [sys.executable, "-m", "pitchpipe.cli.main", "schedules", "upgrade", *options]


def stale(database: Path, label: str) -> int:
    return count(database, f"best WHERE toolchain = '{label}'")


@pytest.mark.long
def test_an_upgrade_that_is_killed_goes_on_with_what_is_left_and_tune_replays_what_it_needs(
    tmp_path: Path, this_target: Target
) -> None:
    model, database = two_products(tmp_path / "two.onnx"), tmp_path / "p.db"
    with Embedded(f"sqlite:///{database}", this_target) as client, client:
        job = client.wait(submit(model, target=this_target, trials=TRIALS, client=client).id)
        assert job.state is JobState.DONE, job.error
    wait_until_nobody_serves(database)

    older = age(database)
    assert stale(database, older) == 2
    process = subprocess.Popen(upgrade(database), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_SECS
    while count(database, f"{REPLAYS} AND record IS NOT NULL") == 0:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECS)
    wait_until_nobody_serves(database)
    jobs = count(database, "jobs")

    ended = subprocess.run(upgrade(database), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert count(database, "jobs") == jobs, "the job that was interrupted went on"
    assert stale(database, older) == 0
    assert count(database, REPLAYS) == count(database, f"(SELECT DISTINCT workload, digest FROM {REPLAYS})")
    assert len(report["rows"]) == 2 == sum(report["summary"].values())
    assert report["summary"]["not_reached"] == 0
    assert all(row["toolchain_before"] == older for row in report["rows"])
    assert all(row["secs_before"] and row["secs_after"] for row in report["rows"])
    assert report["trials"] == sum(row["trials"] for row in report["rows"]) == count(database, REPLAYS)
    assert count(database, SEARCHED) == TRIALS, "an upgrade without trials to tune searches for nothing"

    age(database)
    replayed = count(database, REPLAYS)
    tuned = run(model, database, "--trials", str(TRIALS), "--seed", "3")
    assert (tuned["reused_tasks"], tuned["replayed_tasks"]) == (0, 2)
    assert tuned["tuned_secs"]
    replays = count(database, REPLAYS) - replayed
    assert 0 < replays <= 2 * REPLAYED
    assert tuned["trials"] == replays + count(database, SEARCHED) - TRIALS <= TRIALS
    assert stale(database, older) == 0
    tasks: list[Any] = tuned["tasks"]  # type: ignore[assignment]
    assert {task["replay"] for task in tasks} <= {"kept", "changed", "lost"}

    with Embedded(f"sqlite:///{database}", this_target) as client, client:
        workloads = tuple(task["workload"] for task in tasks)
        asked = {
            "device_class": client.workers()[0].device.device_class,
            "toolchain": client.workers()[0].toolchain.key,
        }
        answers = client.lookup(LookupRequest(target=this_target, workloads=workloads, **asked)).answers
        nothing = Upgrade(client, trials=0).run()
    for answer, task in zip(answers, tasks, strict=True):
        assert answer.tier is Tier.EXACT
        assert answer.best is not None
        first = f"records WHERE workload = '{answer.workload}' AND toolchain_key = 'older'"
        assert count(database, first), "what was found first is still known"
        candidate = candidate_digest(answer.workload, answer.best.trace)
        if answer.best.record is not None and count(database, f"{first} AND candidate = '{candidate}'"):
            # Else the search that followed the replay found a faster one.
            assert answer.best.replayed_from is not None
            assert answer.best.replayed_from.toolchain == older != answer.best.toolchain
            assert f"replayed from {older}" in answer.reason
            assert task["replayed_from"]["toolchain"] == older
    assert (nothing["left"], nothing["rows"], nothing["trials"]) == (0, [], 0)
