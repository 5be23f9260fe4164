"""What a confined child may and may not do. Each case runs in a process of its own: a nursery reaps all its children."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pitchpipe.errors import InvalidModel
from pitchpipe.processes.descendants import become_subreaper, children
from pitchpipe.wire.job import ModelFormat
from tuner.ingest import ingest_bytes
from workers.sandbox.messages import Broken, FromChild, ReferenceComputed, encode
from workers.sandbox.nursery import Ended, Limits, Line, Nursery

SPAWN = multiprocessing.get_context("spawn")
DONE = ReferenceComputed(finite=True)
LIMITS = Limits(memory_bytes=1 << 30, cpu_secs=10)
FREE = Limits(memory_bytes=1 << 30, cpu_secs=10, confined=False)
_LIBC = ctypes.CDLL(None, use_errno=True)


def _write_a_file() -> None:
    Path("/tmp/pitchpipe-escaped").write_text("x")


def _open_a_socket() -> None:
    socket.socket()


def _open_a_udp_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _signal_the_parent() -> None:
    os.kill(os.getppid(), 0)


def _limit_the_parent() -> None:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (4, 4))


def _take_the_processor() -> None:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _leave_shared_memory() -> None:
    _checked(_LIBC.shmget(0, 1 << 20, 0o1600))  # IPC_CREAT, for its user


def _leave_a_queue() -> None:
    _checked(_LIBC.msgget(0, 0o1600))


def _outlive_the_parent() -> None:
    _checked(_LIBC.prctl(1, 0, 0, 0, 0))  # PR_SET_PDEATHSIG


def _change_its_user() -> None:
    os.setuid(os.getuid())


def _leave_its_session() -> None:
    os.setsid()


def _checked(answer: int) -> None:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


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


def _be_the_first_to_go() -> None:
    assert Path("/proc/self/oom_score_adj").read_text().strip() == "1000"


def _use_two_gigabytes() -> None:
    bytearray(2 << 30)


def _spin() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _report_for_ever() -> None:
    descriptors = _open_descriptors()
    while True:
        for descriptor in descriptors:
            with suppress(OSError):
                os.write(descriptor, b"y" * 1000)


def _forge_a_report() -> None:
    for descriptor in _open_descriptors():
        for text in (encode(DONE), b"0" * 16 + b" " + encode(DONE), b"7", b""):
            with suppress(OSError):
                os.write(descriptor, text + b"\n")


def _say_nonsense() -> None:
    """As foreign code that has found the seal in the child's memory."""
    line: Line = sys._getframe(1).f_locals["line"]
    nonsense = b'{"message": "sample", "secs": 1, "candidate": "x"}'
    for text in (encode(ReferenceComputed(finite=False)), nonsense, encode(DONE)):
        os.write(line._writer, line._seal.encode() + b" " + text + b"\n")
    time.sleep(1000)


def _close_its_report_and_wait() -> None:
    for descriptor in _open_descriptors():
        os.close(descriptor)
    time.sleep(1000)


def _open_descriptors() -> list[int]:
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [descriptor for descriptor in found if descriptor > 2 and os.path.exists(f"/proc/self/fd/{descriptor}")]


def _multiply() -> None:
    """Seven forks in a row by whoever is there: 128 processes, all of which try to get away and stay."""
    for _ in range(7):
        os.fork()
        with suppress(OSError):
            os.setsid()
    time.sleep(1000)


def _outcome(act: Callable[[], None], deadline_secs: float, limits: Limits, answer: Connection) -> None:
    """In a process of its own: runs `act` in a child of a nursery; sends what was reported, how it ended, how often the
    nursery woke up for it, and which processes were left."""

    def body(line: Line) -> None:
        try:
            act()
        except OSError as error:
            line.send(Broken(reason=type(error).__name__))
        except MemoryError:
            line.send(Broken(reason="MemoryError"))
        else:
            line.send(DONE)

    become_subreaper()
    nursery = Nursery()
    nursery.spawn(body, limits, deadline_secs=deadline_secs)
    told: list[FromChild] = []
    rounds = 0
    while True:
        rounds += 1
        for _, event in nursery.events(1.0):
            if isinstance(event, Ended):
                answer.send((told, event, rounds, children()))
                return
            told.append(event)


def outcome(
    act: Callable[[], None], deadline_secs: float = 20.0, limits: Limits = LIMITS
) -> tuple[list[FromChild], Ended, int, list[int]]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_outcome, args=(act, deadline_secs, limits, theirs))
    process.start()
    try:
        assert ours.poll(60)
        return ours.recv()  # type: ignore[no-any-return]
    finally:
        process.join()


@pytest.mark.parametrize("act", [_start_a_thread, _read_a_file])
def test_threads_and_reading_are_free(act: Callable[[], None]) -> None:
    told, ended, _, _ = outcome(act)
    assert told == [DONE]
    assert ended.exit_code == 0


@pytest.mark.parametrize(
    "act",
    [
        _write_a_file,
        _open_a_socket,
        _open_a_udp_socket,
        _signal_the_parent,
        _limit_the_parent,
        _take_the_processor,
        _leave_shared_memory,
        _leave_a_queue,
        _outlive_the_parent,
        _change_its_user,
        _leave_its_session,
    ],
)
def test_what_reaches_beyond_the_process_is_refused(act: Callable[[], None]) -> None:
    told, _, _, _ = outcome(act)
    assert told == [Broken(reason="PermissionError")]


@pytest.mark.parametrize("act", [_fork, _start_a_program])
def test_starting_a_process_is_fatal(act: Callable[[], None]) -> None:
    told, ended, _, _ = outcome(act)
    assert told == []
    assert ended.signal == signal.SIGSYS


def test_memory_over_the_limit_is_refused() -> None:
    told, _, _, _ = outcome(_use_two_gigabytes)
    assert told == [Broken(reason="MemoryError")]


@pytest.mark.parametrize("act", [_spin, _stop])
def test_a_child_that_ignores_signals_or_is_stopped_ends_at_its_deadline(act: Callable[[], None]) -> None:
    _, ended, _, _ = outcome(act, deadline_secs=0.5)
    assert ended.timed_out
    assert ended.signal == signal.SIGKILL


def test_a_child_that_reports_for_ever_is_ended() -> None:
    _, ended, _, _ = outcome(_report_for_ever)
    assert ended.misreport == "an endless report"


def test_a_report_that_the_child_itself_did_not_write_is_refused() -> None:
    told, ended, _, _ = outcome(_forge_a_report)
    assert told == []
    assert ended.misreport == "a report that is not its own"


def test_a_child_whose_report_makes_no_sense_is_ended_and_what_it_says_after_it_is_not_heard() -> None:
    told, ended, _, _ = outcome(_say_nonsense)
    assert told == [ReferenceComputed(finite=False)]
    assert ended.signal == signal.SIGKILL
    assert ended.misreport == "a report that makes no sense (sample.candidate: Extra inputs are not permitted)"
    assert ended.misreport in str(ended)


def test_a_child_that_closes_its_report_is_waited_for_without_spinning() -> None:
    _, ended, rounds, _ = outcome(_close_its_report_and_wait, deadline_secs=1.5)
    assert ended.timed_out
    assert rounds <= 5


def test_a_free_child_that_multiplies_is_ended_with_all_its_forks() -> None:
    _, ended, _, left = outcome(_multiply, deadline_secs=2.0, limits=FREE)
    assert ended.timed_out
    assert left == []


def test_where_memory_runs_out_a_child_goes_first() -> None:
    told, _, _, _ = outcome(_be_the_first_to_go)
    assert told == [DONE]


def _tell_the_dead(answer: Connection) -> None:
    nursery = Nursery()
    first = nursery.spawn(lambda line: line.send(DONE), LIMITS, deadline_secs=20)
    while not first.ended:
        nursery.events(1.0)

    def wait(line: Line) -> None:
        line.wait()
        line.send(DONE)

    second = nursery.spawn(wait, LIMITS, deadline_secs=1.0)
    assert second.writer == first.writer, "the numbers of closed descriptors are used again"
    first.tell(b"x")
    first.freeze()
    told: list[object] = []
    while not second.ended:
        told += [event for _, event in nursery.events(1.0) if not isinstance(event, Ended)]
    answer.send(told)


def test_what_is_told_to_a_dead_child_reaches_no_other() -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_tell_the_dead, args=(theirs,))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == []
    process.join()


def _orphan(answer: Connection) -> None:
    become_subreaper()
    nursery = Nursery()

    def body(line: Line) -> None:
        if os.fork() == 0:
            time.sleep(1000)
        line.send(DONE)

    nursery.spawn(body, FREE, deadline_secs=20)
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


TRUSTED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, __import__("socket").socket({family}, {kind}).fileno()), "float32")):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y
"""


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_the_child_that_reads_a_model_opens_no_socket(kind: socket.SocketKind) -> None:
    text = TRUSTED.format(family=int(socket.AF_INET), kind=int(kind))
    with pytest.raises(InvalidModel, match="not permitted"):
        ingest_bytes(text.encode(), ModelFormat.TVMSCRIPT, trusted=True)
