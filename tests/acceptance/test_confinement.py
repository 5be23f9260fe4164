"""What a confined child may and may not do. Each case runs in a process of its own: a nursery reaps all its children."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from workers.confinement import become_subreaper, children
from workers.nursery import Ended, Limits, Line, Nursery

SPAWN = multiprocessing.get_context("spawn")
LIMITS = Limits(memory_bytes=1 << 30, cpu_secs=10)


def _write_a_file() -> None:
    Path("/tmp/pitchpipe-escaped").write_text("x")


def _open_a_socket() -> None:
    socket.socket()


def _signal_the_parent() -> None:
    os.kill(os.getppid(), 0)


def _start_a_program() -> None:
    subprocess.run(["true"], check=True)


def _fork() -> None:
    os.fork()


def _start_a_thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def _read_a_file() -> None:
    Path("/proc/self/status").read_text()


def _use_two_gigabytes() -> None:
    bytearray(2 << 30)


def _spin() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def _report_for_ever(line: Line) -> None:
    while True:
        line.send(x="y" * 1000)


def _outcome(act: Callable[[], None], deadline_secs: float, answer: Connection) -> None:
    """In a process of its own: runs `act` in a child of a nursery; sends what was reported and how it ended."""

    def body(line: Line) -> None:
        try:
            act(line) if act is _report_for_ever else act()  # type: ignore[call-arg]
        except OSError as error:
            line.send(refused=type(error).__name__)
        except MemoryError:
            line.send(refused="MemoryError")
        else:
            line.send(done=True)

    become_subreaper()
    nursery = Nursery()
    nursery.spawn(body, LIMITS, deadline_secs=deadline_secs)
    told: dict[str, object] = {}
    while True:
        for _, event in nursery.events(1.0):
            if isinstance(event, Ended):
                answer.send((told, event))
                return
            told |= event


def outcome(act: Callable[[], None], deadline_secs: float = 20.0) -> tuple[dict[str, object], Ended]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_outcome, args=(act, deadline_secs, theirs))
    process.start()
    try:
        assert ours.poll(60)
        return ours.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


@pytest.mark.parametrize("act", [_start_a_thread, _read_a_file])
def test_threads_and_reading_are_free(act: Callable[[], None]) -> None:
    told, ended = outcome(act)
    assert told == {"done": True}
    assert ended.exit_code == 0


@pytest.mark.parametrize("act", [_write_a_file, _open_a_socket, _signal_the_parent])
def test_writing_files_sockets_and_signals_to_others_are_refused(act: Callable[[], None]) -> None:
    told, _ = outcome(act)
    assert told == {"refused": "PermissionError"}


@pytest.mark.parametrize("act", [_fork, _start_a_program])
def test_starting_a_process_is_fatal(act: Callable[[], None]) -> None:
    told, ended = outcome(act)
    assert told == {}
    assert ended.signal == signal.SIGSYS


def test_memory_over_the_limit_is_refused() -> None:
    told, _ = outcome(_use_two_gigabytes)
    assert told == {"refused": "MemoryError"}


def test_a_child_that_ignores_signals_ends_at_its_deadline() -> None:
    _, ended = outcome(_spin, deadline_secs=0.5)
    assert ended.timed_out
    assert ended.signal == signal.SIGKILL


def test_a_child_that_reports_for_ever_is_ended() -> None:
    _, ended = outcome(_report_for_ever)
    assert ended.flooded


def _orphan(answer: Connection) -> None:
    become_subreaper()
    nursery = Nursery()

    def body(line: Line) -> None:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        line.send(done=True)

    nursery.spawn(body, Limits(memory_bytes=1 << 30, cpu_secs=10, confined=False), deadline_secs=20)
    while not any(isinstance(event, Ended) for _, event in nursery.events(1.0)):
        pass
    answer.send(children())


def test_what_a_child_leaves_behind_is_ended_with_it() -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_orphan, args=(theirs,))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == []
    process.join()
