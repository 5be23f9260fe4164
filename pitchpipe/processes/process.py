"""Children as whoever started them sees them: forks of the fork server, which tells of them over a line, or processes of
one's own."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from pitchpipe.processes.lifeline import KILL_SECS

FORK, FORK_WITH_TORCH, KILL = b"f", b"t", b"k"
"""What is sent to the fork server: a request, with descriptors, and the wish that a child be killed, on its line."""
NUMBER = struct.Struct("=i")
"""What comes back on a child's line: its process id, or minus an errno; later its return code."""


class Process(ABC):
    """A child. Its methods may be called from any thread, but for `close`."""

    pid: int
    returncode: int | None = None
    """Minus the signal's number where a signal ended it; None until it is known to have ended."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable once it has ended."""

    @abstractmethod
    def wait(self, secs: float | None = None) -> bool:
        """Waits for at most `secs`, None for ever; whether it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Kills it with its group, and waits until it is gone. Nothing once it has ended."""

    @abstractmethod
    def close(self) -> None:
        """`kill`, and gives the descriptors back. Idempotent."""


class Forked(Process):
    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self._line, self._lock = pid, line, threading.Lock()

    def fileno(self) -> int:
        return self._line.fileno()

    def wait(self, secs: float | None = None) -> bool:
        if self.returncode is None and readable(self._line, secs):
            with self._lock:
                if self.returncode is None:
                    self.returncode = number(self._line)
                    if self.returncode is None:  # The server is gone, and the child with it.
                        self.returncode = -signal.SIGKILL
        return self.returncode is not None

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(OSError):
                self._line.send(KILL)
            self.wait(KILL_SECS)

    def close(self) -> None:
        if self._line.fileno() >= 0:
            self.kill()
            self._line.close()


class Executed(Process):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self._process = process.pid, process
        self._ended = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1

    def fileno(self) -> int:
        return self._ended

    def wait(self, secs: float | None = None) -> bool:
        """It is not reaped where that can be helped, so that its group still bears its number."""
        if self._process.returncode is None and self._ended < 0:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(secs)
        elif self._process.returncode is None and readable(self._ended, secs):
            self.kill()
        self.returncode = self._process.returncode
        return self.returncode is not None

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECS)
        self.returncode = self._process.returncode

    def close(self) -> None:
        self.kill()
        if self._ended >= 0:
            os.close(self._ended)
            self._ended = -1


def readable(descriptor: int | socket.socket, secs: float | None) -> bool:
    """Whether it is within so many seconds; None waits for ever."""
    polled = select.poll()
    polled.register(descriptor, select.POLLIN)
    return bool(polled.poll(None if secs is None else 1000 * max(secs, 0.0)))


def number(line: socket.socket) -> int | None:
    """The next number; None when the fork server is gone."""
    for _ in range(
        2
    ):  # A server that closed the line before it read all of it is told of once, before what it has sent.
        with suppress(OSError):
            data = line.recv(NUMBER.size)
            return int(NUMBER.unpack(data)[0]) if data else None
    return None
