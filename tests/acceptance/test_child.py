"""A client's step in a child of its own: its limits, its end, and nothing left of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from pitchpipe.errors import InvalidModel, StepDied, StepTimeout
from pitchpipe.processes import child
from pitchpipe.processes.child import run_step
from pitchpipe.wire.limits import STEP_LIMITS
from tests.patience import PATIENCE_SECS

STEPS = """
import os, pathlib, subprocess, sys, time
from dataclasses import replace
from pitchpipe.errors import InvalidModel
from pitchpipe.processes import child

if "TEST_MEMORY_BYTES" in os.environ:
    child.OTHER_CLIENT_STEPS = replace(child.OTHER_CLIENT_STEPS, memory_bytes=int(os.environ["TEST_MEMORY_BYTES"]))

def _descendant(path):
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(path).write_text(str(started.pid))

def answer(model, arrays, *, number):
    return {"number": number, "bytes": len(model)}

def refuse(model, arrays):
    raise InvalidModel("the cause")

def fail(model, arrays):
    raise ValueError("the reason")

def die(model, arrays, *, number):
    os.kill(os.getpid(), number)

def leave(model, arrays, *, path):
    _descendant(path)
    os._exit(7)

def hang(model, arrays, *, path):
    _descendant(path)
    time.sleep(600)

def finish(model, arrays, *, path):
    _descendant(path)
    return "done"

def eat(model, arrays):
    return len([bytearray(64 << 20) for _ in range(1000)])
"""
NAMES = ("answer", "refuse", "fail", "die", "leave", "hang", "finish", "eat")


@pytest.fixture(autouse=True)
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package beside ours, whose entry points the child finds as it finds ours."""
    found = tmp_path / "teststeps-1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: teststeps\nVersion: 1.0\n")
    lines = "".join(f"test_{name} = teststeps:{name}\n" for name in NAMES)
    (found / "entry_points.txt").write_text(f"[pitchpipe.steps]\n{lines}")
    (tmp_path / "teststeps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)


def until_gone(process: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while Path(f"/proc/{process}").exists() and "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text():
        assert time.monotonic() < deadline, "a descendant outlived its step"
        time.sleep(0.05)


def test_a_step_answers_and_its_errors_arrive_as_what_they_are() -> None:
    assert run_step("test_answer", b"model", number=3) == {"number": 3, "bytes": 5}
    with pytest.raises(InvalidModel, match="the cause"):
        run_step("test_refuse")
    with pytest.raises(StepDied, match=r"(?s)test_fail died: its child exited with code 1.*the reason"):
        run_step("test_fail")


def test_what_is_done_meanwhile_is_done_while_the_child_works_and_its_error_ends_the_child(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < deadline, "the child did not begin meanwhile"
            time.sleep(0.02)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_step("test_hang", meanwhile=interrupt, path=str(path))
    until_gone(int(path.read_text()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_child_that_dies_is_told_of_with_its_signal(number: signal.Signals) -> None:
    with pytest.raises(StepDied, match=f"test_die died: its child was ended by {number.name}"):
        run_step("test_die", number=int(number))


@pytest.mark.long
def test_a_step_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pytest.raises(StepTimeout, match="test_hang took longer than 3 s"):
        run_step("test_hang", timeout_secs=3.0, path=str(path))
    if path.exists():  # not where the machine was too busy for the step to begin
        until_gone(int(path.read_text()))


@pytest.mark.parametrize("name", ["leave", "finish"])
def test_nothing_that_a_step_started_outlives_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pid"
    if name == "leave":
        with pytest.raises(StepDied, match="exited with code 7"):
            run_step("test_leave", path=str(path))
    else:
        assert run_step("test_finish", path=str(path)) == "done"
    until_gone(int(path.read_text()))


def test_a_step_that_eats_memory_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MEMORY_BYTES", str(256 << 20))
    with pytest.raises(StepDied, match="needed more memory"):
        run_step("test_eat")


def test_every_step_that_clients_run_has_limits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build", "describe_toolchain", "evaluate", "identify"):
        assert child._limits(name) is STEP_LIMITS[name]
