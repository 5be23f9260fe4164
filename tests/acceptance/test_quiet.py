"""The host-wide rule of quiet, between real processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.fleet import until
from tests.patience import PATIENCE_SECS
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


def _compute_at_once(entered: Event) -> None:
    with suppress(quiet.Abandoned), quiet.computing(lambda: True):
        entered.set()


def _time_at_once(entered: Event) -> None:
    with suppress(quiet.Abandoned), quiet.timing(lambda: True):
        entered.set()


def _enters(body: Callable[[Event], None]) -> bool:
    """Whether another process finds the lock free, at its first look."""
    entered = SPAWN.Event()
    other = SPAWN.Process(target=body, args=(entered,))
    other.start()
    other.join()
    assert other.exitcode == 0
    return entered.is_set()


def test_nothing_is_timed_while_another_process_computes() -> None:
    entered, leave = SPAWN.Event(), SPAWN.Event()
    other = SPAWN.Process(target=_compute, args=(entered, leave))
    other.start()
    assert entered.wait(PATIENCE_SECS)
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
    assert entered.wait(PATIENCE_SECS)
    with quiet.computing(lambda: True):
        pass
    leave.set()
    other.join()


def test_who_waits_to_time_keeps_newcomers_from_computing() -> None:
    timed = SPAWN.Event()
    waiting = SPAWN.Process(target=_time, args=(timed,))
    with quiet.computing():
        waiting.start()
        until(quiet.awaited)
        assert not _enters(_compute_at_once)
        assert not timed.is_set()
    assert timed.wait(PATIENCE_SECS)
    waiting.join()


def test_a_process_that_dies_gives_the_lock_back() -> None:
    entered, leave = SPAWN.Event(), SPAWN.Event()
    other = SPAWN.Process(target=_compute, args=(entered, leave))
    other.start()
    assert entered.wait(PATIENCE_SECS)
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
        assert not _enters(_time_at_once)
    other.join()


def test_giving_way_outside_a_computation_takes_no_lock() -> None:
    quiet.give_way()
    assert _enters(_time_at_once)
