"""Children, forked or executed: what they are given and what they are not, and that nothing of them outlives its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pitchpipe.processes import launch as launching
from pitchpipe.processes.launch import launch, run
from pitchpipe.processes.process import Executed, Forked, Process
from tests.patience import PATIENCE_SECS

SECRET = "a word that is nobody else's business"
BODIES = """
import json, os, subprocess, sys, time
from pathlib import Path

def tell(number, *arguments):
    os.write(number, json.dumps({
        "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path,
        "tvm": "tvm" in sys.modules, "torch": "torch" in sys.modules, "parent": os.getppid(), "niceness": os.nice(0),
        "open": [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
        "number": number, "leads": os.getpid() == os.getpgrp() == os.getsid(0),
    }).encode())

def tell_through_another(number):
    from pitchpipe.processes.launch import launch
    child = launch("bodies:tell", descriptors=[number])
    child.wait()
    child.close()

def leave(path, ending):
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    Path(path).write_text(str(left.pid))
    exec(ending)

def fail():
    print("said")
    raise ValueError("the reason")
"""


@pytest.fixture(autouse=True)
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions for children, in a module that only this process's path leads to."""
    (tmp_path / "bodies.py").write_text(BODIES)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(params=[Forked, Executed])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Process]:
    """Children of both kinds do the same."""
    monkeypatch.setattr(launching, "FORKS", request.param is Forked)
    found: type[Process] = request.param
    return found


@pytest.fixture
def process() -> Iterator[Process]:
    """A child that waits to be ended."""
    made = launch("time:sleep", 600)
    yield made
    made.close()


def told(function: str = "bodies:tell", *arguments: Any, **given: Any) -> dict[str, Any]:
    """What a child says of itself."""
    reading, writing = os.pipe()
    child = launch(function, *arguments, descriptors=[writing], **given)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = json.loads(answer.read())
    assert child.wait(PATIENCE_SECS)
    assert child.returncode == 0
    child.close()
    return found


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until_gone(*pids: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECS
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, "a process outlived its time"
        time.sleep(0.05)


def written(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE_SECS
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text())


def test_a_child_has_what_it_is_given_and_no_more(kind: type[Process], tmp_path: Path) -> None:
    with open(os.devnull) as kept_from_it:
        os.set_inheritable(kept_from_it.fileno(), True)
        found = told("bodies:tell", 3, {"a": [1]}, environment={"A": SECRET}, folder=tmp_path)
    assert found["arguments"] == [3, {"a": [1]}]
    assert found["environment"].pop("TVM_NUM_THREADS")
    assert found["environment"].pop("TVM_BIND_THREADS")
    found["environment"].pop("LC_CTYPE", None)  # Python sets it when it is started without a locale.
    assert found["environment"] == {"A": SECRET}
    assert found["folder"] == str(tmp_path)
    assert found["path"][0] == str(tmp_path)
    assert found["open"] == sorted([0, 1, 2, found["number"]])
    assert found["leads"]
    assert found["niceness"] == os.nice(0)


def test_an_isolated_child_imports_from_nowhere_else(kind: type[Process]) -> None:
    ended = run("bodies:tell", timeout_secs=PATIENCE_SECS)
    assert b"missing 1 required" in ended.stderr, "the module is found"
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"):
        child = launch("bodies:tell", descriptors=[writing], stderr=subprocess.DEVNULL, isolated=True)
        assert child.wait(PATIENCE_SECS)
    assert child.returncode == 1
    child.close()


def test_an_error_ends_a_child_with_its_traceback(kind: type[Process]) -> None:
    ended = run("bodies:fail", timeout_secs=PATIENCE_SECS)
    assert (ended.returncode, ended.stdout) == (1, b"said\n")
    assert ended.stderr.endswith(b"ValueError: the reason\n")
    with pytest.raises(TimeoutError, match=r"time:sleep took longer than 0\.5 s"):
        run("time:sleep", 600, timeout_secs=0.5)


@pytest.mark.parametrize("ending", ["os._exit(7)", "os.kill(os.getpid(), 11)", "pass", "time.sleep(600)"])
def test_nothing_that_a_child_started_outlives_it(tmp_path: Path, ending: str) -> None:
    child = launch("bodies:leave", str(tmp_path / "pid"), ending)
    left = written(tmp_path / "pid")
    assert child.wait(0.0 if "sleep" in ending else PATIENCE_SECS) is ("sleep" not in ending)
    child.close()
    assert child.returncode == {"os._exit(7)": 7, "os.kill(os.getpid(), 11)": -11, "pass": 0}.get(ending, -9)
    until_gone(child.pid, left)


def test_forks_share_a_compiler_and_its_one_import() -> None:
    first, second = told(), told()
    assert first["tvm"]
    assert second["tvm"]
    assert first["parent"] == second["parent"]
    assert psutil.Process(first["parent"]).num_threads() == 1


@pytest.mark.long
def test_a_server_imports_pytorch_for_the_first_child_that_needs_it() -> None:
    pytest.importorskip("torch")
    launching._drop(launching._current())
    before, after = told(), told(with_torch=True)
    assert (before["torch"], after["torch"]) == (False, True)
    assert before["parent"] == after["parent"]
    assert psutil.Process(after["parent"]).num_threads() == 1


def test_a_fork_asks_the_same_server() -> None:
    assert told("bodies:tell_through_another", launches=True)["parent"] == told()["parent"]


def test_what_one_child_is_told_is_not_in_the_process_that_the_next_one_is_a_fork_of() -> None:
    server = told("bodies:tell", SECRET, environment={"A": SECRET, "PATH": os.defpath})["parent"]
    assert told(environment={})["parent"] == server
    assert set(psutil.Process(server).environ()) <= {"PATH", "OPENBLAS_NUM_THREADS", *launching._PASSED_ON} | {
        name for name in os.environ if name.startswith("LC_")
    }
    with open(f"/proc/{server}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{server}/maps").read_text().splitlines():
            addresses, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(number, 16) for number in addresses.split("-"))
                memory.seek(begin)
                assert SECRET.encode() not in memory.read(end - begin)


def test_children_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    program = """
import os, sys, threading, time
from pitchpipe.processes.launch import launch
launched = []
thread = threading.Thread(target=lambda: launched.append(launch("time:sleep", 600)))
thread.start()
thread.join()
print(launched[0].pid, flush=True)
if os.fork() == 0:
    time.sleep(600)
print(os.getpid(), flush=True)
time.sleep(600)
"""
    asking = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert asking.stdout is not None
    child = int(asking.stdout.readline())
    asking.stdout.readline()
    server = psutil.Process(child).ppid()
    assert not gone(child), "it outlives the thread that asked for it"
    asking.kill()
    asking.wait()
    until_gone(child, server)  # although a fork of the process that asked holds every line open
    os.killpg(asking.pid, signal.SIGKILL)
    asking.stdout.close()


def test_a_server_that_dies_ends_its_children_and_the_next_child_has_another(process: Process) -> None:
    server = psutil.Process(process.pid).parent()
    assert server is not None
    server.kill()
    assert process.wait(PATIENCE_SECS)
    assert process.returncode == -signal.SIGKILL
    until_gone(process.pid)
    assert told()["parent"] != server.pid


def test_a_fork_of_this_process_starts_a_server_of_its_own() -> None:
    ours = told()["parent"]
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, str(told()["parent"]).encode())
            launching._close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        theirs = int(answer.read())
    os.waitpid(pid, 0)
    assert theirs != ours
    until_gone(theirs)
    assert told()["parent"] == ours
