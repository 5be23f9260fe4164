"""`pitchpipe tune` as a user runs it: the JSON contract, reuse, interruption, bad input. Real processes, SQLite."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compiler import models
from tests.patience import PATIENCE_SECS

FIRST, MORE = 6, 24
"""Trials of the first run, and of one that is interrupted twice, each time after some of its trials."""
KEYS = {
    "model",
    "target",
    "device",
    "tasks",
    "untuned_secs",
    "default_secs",
    "tuned_secs",
    "speedup",
    "peer",
    "peer_secs",
    "peer_speedup",
    "max_abs_error",
    "comparison",
    "trials",
    "failed_trials",
    "reused_tasks",
    "seconds",
}
TASK_KEYS = {"workload", "name", "weight", "flops", "bytes", "trials", "untuned_secs", "tuned_secs"} | {
    *("bound_secs", "flops_per_sec", "bytes_per_sec", "bound_share")
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    path.write_bytes(models.tiny_network().SerializeToString())
    return path


def command(model: Path, database: Path, *options: str) -> list[str]:
    url = f"sqlite:///{database}"
    return [sys.executable, "-m", "pitchpipe.cli.main", "tune", str(model), "--database", url, "--json", *options]


def run(model: Path, database: Path, *options: str) -> dict[str, object]:
    ended = subprocess.run(command(model, database, *options), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    return json.loads(ended.stdout)


def count(database: Path, what: str) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return connection.execute(f"select count(*) from {what}").fetchone()[0]


def records(database: Path) -> int:
    return count(database, "records")


def interrupt(model: Path, database: Path, how: signal.Signals, *options: str) -> None:
    """Runs until a few candidates more have been measured, then sends the signal."""
    enough = records(database) + 4
    process = subprocess.Popen(
        command(model, database, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    deadline = time.monotonic() + PATIENCE_SECS
    while records(database) < enough:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=PATIENCE_SECS)
    assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL)
    wait_until_nobody_serves(database)


@pytest.mark.long
def test_what_was_measured_once_is_reused_by_later_runs_and_by_those_after_an_interruption(model, tmp_path):
    database = tmp_path / "p.db"
    first = run(model, database, "--trials", str(FIRST), "--seed", "3")
    assert first.keys() >= KEYS
    assert all(task.keys() >= TASK_KEYS for task in first["tasks"])
    assert first["trials"] == FIRST == sum(task["trials"] for task in first["tasks"])
    assert first["reused_tasks"] == 0
    assert first["max_abs_error"] < 1e-3
    for build in ("default", "tuned"):
        told = first["comparison"][build]
        assert told["reference"].startswith("ONNX Runtime")
        assert told["input_sets"] == 3
        assert told["error"] <= told["tolerance"] == 1e-3
    assert first["speedup"] == pytest.approx(first["default_secs"] / first["tuned_secs"])
    assert first["peer"].startswith("ONNX Runtime")
    assert first["peer_speedup"] == pytest.approx(first["peer_secs"] / first["tuned_secs"])
    assert first["untuned_secs"] == pytest.approx(sum(t["weight"] * t["untuned_secs"] for t in first["tasks"]))
    assert all(task["tuned_secs"] <= task["untuned_secs"] for task in first["tasks"])

    again = run(model, database, "--trials", str(FIRST), "--seed", "3")
    assert again["trials"] == 0
    assert again["reused_tasks"] == len(again["tasks"])
    assert {t["workload"] for t in again["tasks"]} == {t["workload"] for t in first["tasks"]}
    reads_as_from_a_service(database, str(first["job"]), FIRST)

    jobs = count(database, "jobs")
    for how in (signal.SIGINT, signal.SIGKILL):
        interrupt(model, database, how, "--trials", str(MORE))
    more = run(model, database, "--trials", str(MORE))
    assert more["trials"] == MORE
    assert more["reused_tasks"] < len(more["tasks"])
    assert count(database, "jobs") == jobs + 1
    searched = "candidates where purpose = 'search'"
    distinct = f"(select distinct workload, digest from {searched})"
    assert count(database, searched) == count(database, distinct) == FIRST + MORE


def reads_as_from_a_service(database: Path, job: str, trials: int) -> None:
    command = [sys.executable, "-m", "pitchpipe.cli.main", "report", job, "--url", f"sqlite:///{database}", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (json.loads(ended.stdout)["job"], json.loads(ended.stdout)["trials"]) == (job, trials)


def wait_until_nobody_serves(database: Path) -> None:
    """The embedded processes end with their parent; the file's lock says when."""
    deadline = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < deadline:
        users = subprocess.run(["pgrep", "-f", str(database)], capture_output=True, text=True, check=False).stdout
        if not [pid for pid in users.split() if int(pid) != os.getpid()]:
            return
        time.sleep(0.2)
    raise AssertionError("an embedded process outlived its command")


def test_a_file_that_is_no_model_is_refused_with_its_cause(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x08\x07garbage")
    ended = subprocess.run(
        command(path, tmp_path / "p.db"), capture_output=True, text=True, check=False, timeout=PATIENCE_SECS
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1


def test_code_in_a_file_needs_trust(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"PK")
    ended = subprocess.run(
        command(path, tmp_path / "p.db"), capture_output=True, text=True, check=False, timeout=PATIENCE_SECS
    )
    assert ended.returncode == 2
    assert "--trust" in ended.stderr
