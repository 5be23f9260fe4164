"""The host-wide rule of quiet, between real processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tuner.measure import quiet

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(quiet.ENVIRONMENT, str(tmp_path / "lock"))
    yield
    assert quiet._held == []


def _compute(entered: Event, leave: Event) -> None:
    with quiet.computing():
        entered.set()
        leave.wait()


def _time(entered: Event) -> None:
    with quiet.timing():
        entered.set()


def test_nothing_is_timed_while_another_process_computes() -> None:
    entered, leave = SPAWN.Event(), SPAWN.Event()
    other = SPAWN.Process(target=_compute, args=(entered, leave))
    other.start()
    assert entered.wait(30)
    with pytest.raises(quiet.Abandoned), quiet.timing(lambda: True):
        pass
    leave.set()
    with quiet.timing():
        pass
    other.join()


def test_two_processes_compute_at_once() -> None:
    entered, leave = SPAWN.Event(), SPAWN.Event()
    other = SPAWN.Process(target=_compute, args=(entered, leave))
    other.start()
    assert entered.wait(30)
    with quiet.computing(lambda: True):
        pass
    leave.set()
    other.join()


def test_who_waits_to_time_keeps_newcomers_from_computing() -> None:
    timed = SPAWN.Event()
    waiting = SPAWN.Process(target=_time, args=(timed,))
    with quiet.computing():
        waiting.start()
        gate = f"{quiet.lock_path()}.gate"
        while not _is_shut(gate):
            time.sleep(0.01)
        newcomer = os.fork()
        if newcomer == 0:
            quiet.forget_inherited()
            try:
                with quiet.computing(lambda: True):
                    os._exit(1)
            except quiet.Abandoned:
                os._exit(0)
        _, status = os.waitpid(newcomer, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not timed.is_set()
    assert timed.wait(30)
    waiting.join()


def _is_shut(gate: str) -> bool:
    import fcntl

    with open(gate, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_process_that_dies_gives_the_lock_back() -> None:
    entered, leave = SPAWN.Event(), SPAWN.Event()
    other = SPAWN.Process(target=_compute, args=(entered, leave))
    other.start()
    assert entered.wait(30)
    other.kill()
    other.join()
    with quiet.timing():
        pass


def test_computing_inside_computing_is_free_and_timing_inside_it_an_error() -> None:
    with quiet.computing():
        with quiet.computing():
            pass
        with pytest.raises(RuntimeError), quiet.timing():
            pass


def test_a_long_computation_that_gives_way_is_interrupted_by_a_timing() -> None:
    timed = SPAWN.Event()
    other = SPAWN.Process(target=_time, args=(timed,))
    with quiet.computing():
        other.start()
        while not timed.is_set():
            quiet.give_way()
        with pytest.raises(quiet.Abandoned):
            _time_in_a_fork_at_once()
    other.join()


def _time_in_a_fork_at_once() -> None:
    """Raises Abandoned when another process would have to wait before it times."""
    pid = os.fork()
    if pid == 0:
        quiet.forget_inherited()
        try:
            with quiet.timing(lambda: True):
                os._exit(0)
        except quiet.Abandoned:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise quiet.Abandoned


def test_giving_way_outside_a_computation_takes_no_lock() -> None:
    quiet.give_way()
    _time_in_a_fork_at_once()
