"""Forked children with deadlines: their messages, their ends, and nothing left of them.

A child is a fork of this process that runs one function and exits. It has a process group of its own, a pipe to
report through (JSON lines), one to be told through (single bytes), and a bounded memory file for whatever it
prints. One thread, no other children: the nursery reaps everything that it did not fork, too (orphaned
grandchildren).
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from workers.confinement import deny_system_calls, die_with_parent, kill_strays, limit

MAX_OUTPUT_BYTES = 1 << 20
"""What a child may print; more kills it."""
_TAIL_BYTES = 1500
_MAX_REPORT_BYTES = 1 << 20
"""What a child may send in all; its samples are the most of it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one child."""

    memory_bytes: int
    """Beyond what the parent had."""
    cpu_secs: float
    reserves: bool = False
    """Whether it reserves address space without using it, as CUDA's driver does: only writable memory counts then."""
    confined: bool = True
    file_bytes: int = MAX_OUTPUT_BYTES


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    timed_out: bool
    flooded: bool
    """It sent more than a report can hold."""
    output: str
    """The end of what it printed."""

    def __str__(self) -> str:
        if self.timed_out:
            how = "exceeded its time limit and was killed"
        elif self.flooded:
            how = "sent an endless report and was killed"
        elif self.signal is not None:
            how = f"was ended by {_signal_name(self.signal)}"
        else:
            how = f"exited with code {self.exit_code} without a report"
        return f"{how}: {self.output}" if self.output else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Line:
    """The child's side: what the forked function talks through."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def send(self, **message: object) -> None:
        """Reports to the parent."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._writer, data) :]

    def wait(self) -> bytes:
        """Blocks until the parent sends a byte; exits when the parent is gone."""
        told = os.read(self._reader, 1)
        if not told:
            os._exit(0)
        return told


@dataclass(kw_only=True, eq=False)
class Child:
    """The parent's side."""

    pid: int
    pidfd: int
    reader: int
    writer: int
    output: int
    started: float
    deadline: float | None = None
    """On the monotonic clock; None is unlimited."""
    received: bytearray = field(default_factory=bytearray)
    received_bytes: int = 0
    note: dict[str, Any] = field(default_factory=dict)
    """Free for the owner."""

    def tell(self, byte: bytes) -> None:
        """Sends one byte, and thaws; a child that is dead already is met at its end."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGCONT)
            os.write(self.writer, byte)

    def freeze(self) -> None:
        """Stops all its threads until it is told something: idle threads of TVM's pool spin for milliseconds."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGSTOP)


class Nursery:
    """All children of this process."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def spawn(self, body: Callable[[Line], None], limits: Limits, *, deadline_secs: float) -> Child:
        """Forks a child that runs `body` and exits."""
        parent = os.getpid()
        to_parent, to_child = os.pipe(), os.pipe()
        output = os.memfd_create("output", os.MFD_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._run(body, limits, parent, Line(to_child[0], to_parent[1]), output, {to_child[0], to_parent[1]})
        os.close(to_parent[1])
        os.close(to_child[0])
        with suppress(OSError):
            os.setpgid(pid, pid)  # The child does it too: whoever is first.
        child = Child(
            pid=pid,
            pidfd=os.pidfd_open(pid),
            reader=to_parent[0],
            writer=to_child[1],
            output=output,
            started=time.monotonic(),
            deadline=time.monotonic() + deadline_secs,
        )
        self._children.append(child)
        return child

    def _run(
        self, body: Callable[[Line], None], limits: Limits, parent: int, line: Line, output: int, keep: set[int]
    ) -> None:
        """Never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(parent)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
                if descriptor > 2 and descriptor not in keep:
                    with suppress(OSError):
                        os.close(descriptor)
            limit(
                memory_bytes=limits.memory_bytes,
                cpu_secs=limits.cpu_secs,
                file_bytes=limits.file_bytes,
                writable_only=limits.reserves,
            )
            if limits.confined:
                deny_system_calls()
            body(line)
            code = 0
        except BaseException:  # noqa: BLE001 - the child has no caller; what went wrong goes to its output
            with suppress(BaseException):
                os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def events(self, timeout_secs: float, extra: int | None = None) -> list[tuple[Child, dict[str, Any] | Ended]]:
        """Waits for messages, ends and deadlines, at most that long; also returns early when `extra` is readable.

        A child's messages come before its end; after its end it is gone.
        """
        now = time.monotonic()
        deadlines = [child.deadline for child in self._children if child.deadline is not None]
        wait = max(0.0, min([timeout_secs, *(deadline - now for deadline in deadlines)]))
        poll = select.poll()
        by_descriptor: dict[int, Child] = {}
        for child in self._children:
            for descriptor in (child.reader, child.pidfd):
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = child
        if extra is not None:
            poll.register(extra, select.POLLIN)
        ready = {by_descriptor[fd].pid for fd, _ in poll.poll(wait * 1000) if fd in by_descriptor}
        found: list[tuple[Child, dict[str, Any] | Ended]] = []
        now = time.monotonic()
        for child in list(self._children):
            flooded = False
            if child.pid in ready:
                messages, flooded = self._read(child)
                found += [(child, message) for message in messages]
            late = child.deadline is not None and now >= child.deadline
            if late or flooded or self._exited(child):
                messages, _ = ([], None) if flooded else self._read(child)
                found += [(child, message) for message in messages]
                found.append((child, self.end(child, timed_out=late and not self._exited(child), flooded=flooded)))
        return found

    @staticmethod
    def _exited(child: Child) -> bool:
        ready, _, _ = select.select([child.pidfd], [], [], 0)
        return bool(ready)

    @staticmethod
    def _read(child: Child) -> tuple[list[dict[str, Any]], bool]:
        """Complete messages, and whether the child sends what is no message."""
        while select.select([child.reader], [], [], 0)[0]:
            data = os.read(child.reader, 1 << 16)
            if not data:
                break
            child.received += data
            child.received_bytes += len(data)
            if child.received_bytes > _MAX_REPORT_BYTES:
                return [], True
        *lines, rest = bytes(child.received).split(b"\n")
        child.received = bytearray(rest)
        messages: list[dict[str, Any]] = []
        for text in lines:
            try:
                message = json.loads(text)
            except ValueError:
                return messages, True
            if not isinstance(message, dict):
                return messages, True
            messages.append(message)
        return messages, False

    def end(self, child: Child, *, timed_out: bool = False, flooded: bool = False) -> Ended:
        """Kills the child and all it started, reaps them, and tells how it ended."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        self._children.remove(child)
        kill_strays({other.pid for other in self._children})
        code = os.waitstatus_to_exitcode(status)
        size = os.fstat(child.output).st_size
        output = os.pread(child.output, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace").strip()
        for descriptor in (child.pidfd, child.reader, child.writer, child.output):
            os.close(descriptor)
        return Ended(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            timed_out=timed_out,
            flooded=flooded,
            output=output,
        )

    def close(self) -> None:
        """Ends every child."""
        for child in list(self._children):
            self.end(child)
