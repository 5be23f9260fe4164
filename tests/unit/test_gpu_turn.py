"""Turns on a GPU that several processes of a host share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.measure.gpu_turn import GpuTurn, turn_on


@pytest.fixture(autouse=True)
def own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))


@pytest.fixture
def two() -> Iterator[tuple[GpuTurn, GpuTurn]]:
    with GpuTurn("a") as one, GpuTurn("a") as other:
        yield one, other


def test_one_process_at_a_time_has_the_turn(two: tuple[GpuTurn, GpuTurn]) -> None:
    one, other = two
    assert one.take()
    assert one.take(), "taking what is held changes nothing"
    assert not other.take()
    one.give_back()
    assert other.take()


def test_whoever_waits_goes_first(two: tuple[GpuTurn, GpuTurn]) -> None:
    one, other = two
    assert one.take()
    assert not other.take()
    one.give_back()
    assert not one.take(), "the other one has asked before"
    assert other.take()
    other.give_back()
    assert one.take()


def test_giving_back_while_waiting_ends_the_waiting(two: tuple[GpuTurn, GpuTurn]) -> None:
    one, other = two
    assert one.take()
    assert not other.take()
    other.give_back()
    one.give_back()
    assert one.take()


def test_gpus_have_turns_of_their_own(two: tuple[GpuTurn, GpuTurn]) -> None:
    with GpuTurn("b") as elsewhere:
        assert two[0].take()
        assert elsewhere.take()


def test_a_process_that_dies_gives_back(two: tuple[GpuTurn, GpuTurn]) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if GpuTurn("a").take() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert two[0].take()


def test_a_turn_is_waited_for_and_given_back(two: tuple[GpuTurn, GpuTurn]) -> None:
    one, other = two
    assert one.take()
    asking, taken = threading.Event(), list[bool]()

    def wait() -> None:
        asking.set()
        with turn_on("a"):
            taken.append(other.take())

    waiting = threading.Thread(target=wait)
    waiting.start()
    asking.wait()
    one.give_back()
    waiting.join()
    assert taken == [False]
    assert other.take()
