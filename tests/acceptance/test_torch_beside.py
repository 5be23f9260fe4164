"""torch.compile never waits for a build longer than its deadline: real children, a cold cache, orders of events and no clock."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from pitchpipe import torch_backend  # noqa: E402
from pitchpipe.processes import launch  # noqa: E402
from pitchpipe.torch_backend import paired_benchmark  # noqa: E402

PATIENCE_SECS = 900.0
"""For a build on a machine that is busy with something else."""
POLL_SECS = 0.2
"""Between calls: a program that did nothing else would take the processor from its builds."""
BRIEF = {"on_miss": "default", "deadline": 0.0}
"""Every trial is late: what makes progress does so a piece at a time."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, no local database, a cold cache; a compiled side never loses for being slow."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PITCHPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    monkeypatch.setattr(paired_benchmark, "MARGIN", float("inf"))
    monkeypatch.setattr(paired_benchmark, "BUDGET_SECS", 0.0)
    torch.manual_seed(0)
    torch_backend.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    torch_backend.recompile()


def hurry() -> None:
    """Gives the builds the priority of the suite's other processes, where that is allowed: beside these they took minutes."""
    for build in launch.running():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, build.pid, 0)


def small() -> Any:
    """A child takes longer to start than the deadline: nothing could be built within it."""
    return nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32))


@pytest.mark.timeout(1000)
def test_calls_run_eagerly_until_the_build_is_there_and_compiled_afterwards() -> None:
    model, x = small().eval(), torch.randn(4, 32)
    compiled = torch.compile(model, backend="pitchpipe", options=BRIEF)
    with torch.no_grad():
        expected = model(x)
        first = compiled(x)
        (report,) = torch_backend.reports()
        (bucket,) = report.buckets
        assert not bucket.built, "the first call returned before the build was there"
        assert torch.equal(first, expected), "and what ran was the program as it is"
        assert (report.runs, report.eager_calls) == ("undecided", 1)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        until = time.monotonic() + PATIENCE_SECS
        while report.runs == "undecided":
            assert close(compiled(x), expected)
            assert time.monotonic() < until, report
            hurry()
            time.sleep(POLL_SECS)
        assert bucket.built
        assert report.runs == "pitchpipe", report
        calls = report.eager_calls
        assert close(compiled(x), expected)
        assert report.eager_calls == calls
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "Dynamo captures nothing again"


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_training_step_begins_eagerly_and_goes_on_compiled() -> None:
    model, x = small().train(), torch.randn(4, 32)
    compiled = torch.compile(model, backend="pitchpipe", options=BRIEF)

    def step(run: Any) -> list[Any]:
        model.zero_grad()
        run(x).square().sum().backward()
        return [one.grad.clone() for one in model.parameters()]

    expected = step(model)
    for mine, other in zip(step(compiled), expected, strict=True):
        assert torch.equal(mine, other)
    (report,) = torch_backend.reports()
    assert not report.buckets[0].built
    until = time.monotonic() + PATIENCE_SECS
    while report.runs == "undecided":
        found = step(compiled)
        assert time.monotonic() < until, report
        hurry()
        time.sleep(POLL_SECS)
    assert report.runs == "pitchpipe", report
    assert {graph.kind for graph in report.graphs} == {"forward", "backward"}
    for found in (step(compiled), step(compiled)):
        for mine, other in zip(found, expected, strict=True):
            assert torch.allclose(mine, other, rtol=1e-3, atol=1e-4)


def test_threads_that_call_at_once_all_get_the_result() -> None:
    model, x = small().eval(), torch.randn(4, 32)
    compiled = torch.compile(model, backend="pitchpipe", options=BRIEF)
    found: list[Any] = []

    def call() -> None:
        with torch.no_grad():
            for _ in range(20):
                found.append(compiled(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        expected = model(x)
    assert len(found) == 80
    assert all(close(one, expected) for one in found)


_PROGRAM = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(32, 32), nn.GELU()).eval()
x = torch.randn(4, 32)
compiled = torch.compile(model, backend="pitchpipe", options={"on_miss": "default", "deadline": 0.01})
with torch.no_grad():
    assert torch.equal(compiled(x), model(x))
import pitchpipe.torch_backend as backend
from pitchpipe.processes.launch import running
import time
while not running():
    time.sleep(0.01)
print(*(child.pid for child in running()), flush=True)
"""


@pytest.mark.long
def test_a_program_that_ends_leaves_no_child_and_no_file(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    children = [int(word) for word in ended.stdout.split()]
    assert children
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)], timeout=60)
    assert not alive, gone
    assert not list(scratch.glob("pitchpipe-step-*"))
    assert tempfile.gettempdir() != str(scratch)


def close(a: Any, b: Any) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5))
