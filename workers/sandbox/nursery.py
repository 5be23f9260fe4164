"""Forked children with deadlines: starting them, their messages, their ends, and cleaning up after them.

A child is a fork of this process that runs one function and exits. It has a process group of its own, a pipe to
report through (lines), one to be told through (a byte and a number), and a bounded memory file for whatever it
prints. One thread, and no other children than those that were there before it: the nursery reaps everything else that
it did not fork, too (orphaned grandchildren).
"""

from __future__ import annotations

import gc
import math
import os
import secrets
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pitchpipe.processes.descendants import children, kill_strays
from pitchpipe.wire._base import Wire
from tuner.syscalls import deny_leaving, deny_system_calls
from workers.sandbox.confinement import die_first, die_with_parent, limit
from workers.sandbox.messages import FROM_CHILD, FromChild, complaint, decode, encode

MAX_OUTPUT_BYTES = 1 << 20
"""Bytes that a child may print; more kill it."""
_TOLD = struct.Struct("=cd")
_CPU_CLOCK = 2
"""With a process id complemented above its three bits, Linux's number of that process's clock (clock_getcpuclockid)."""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Compilers' libraries handle these by looking up names for a stack, which takes seconds."""
_TAIL_BYTES = 1500
_COMPLAINT_CHARS = 500
_MAX_REPORT_BYTES = 1 << 20
"""Bytes that a child may send altogether; most of them are samples."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one child."""

    memory_bytes: int
    """Memory beyond what the parent has when it forks."""
    cpu_secs: float
    reserves: bool = False
    """Whether the child reserves much address space, as CUDA's driver does: then only writable memory is limited."""
    confined: bool = True
    """Whether it may start no program and write no file. In any case it cannot leave its process group."""
    file_bytes: int = MAX_OUTPUT_BYTES


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    timed_out: bool
    misreport: str
    """What was wrong with the report that it was killed for; empty if nothing."""
    output: str
    """The end of what it printed."""

    def __str__(self) -> str:
        if self.timed_out:
            how = "exceeded its time limit and was killed"
        elif self.misreport:
            how = f"sent {self.misreport} and was killed"
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
    """The child's side of its pipes, which the forked function gets.

    Every report carries a seal, a random number that only this child and its parent know. Foreign code in the child can
    write into the pipe, but without the seal its reports are refused. It could find the seal in the child's memory, so this
    is no security boundary: that is the allow-list of what may be compiled.
    """

    def __init__(self, reader: int, writer: int, seal: str) -> None:
        self._reader, self._writer, self._seal = reader, writer, seal

    def send(self, report: Wire) -> None:
        """Reports to the parent, one of FROM_CHILD (workers/sandbox/messages.py)."""
        data = self._seal.encode() + b" " + encode(report) + b"\n"
        while data:
            data = data[os.write(self._writer, data) :]

    def wait(self) -> tuple[bytes, float]:
        """Blocks until the parent sends a (byte, number); exits when the parent is gone."""
        told = os.read(self._reader, _TOLD.size)
        if len(told) < _TOLD.size:
            os._exit(0)
        byte, number = _TOLD.unpack(told)
        return byte, number


@dataclass(kw_only=True, eq=False)
class Child:
    """The parent's side of a child."""

    pid: int
    pidfd: int
    reader: int
    writer: int
    output: int
    seal: str
    started: float
    deadline: float | None = None
    """Time on the monotonic clock at which it is killed; None for never."""
    left_secs: float | None = None
    """Seconds that were left until the deadline when the child was frozen."""
    received: bytearray = field(default_factory=bytearray)
    received_bytes: int = 0
    silent: bool = False
    """Whether it has closed its end of the pipe; it may still run."""
    ended: bool = False
    """Whether its process is reaped and its descriptors are closed; the numbers may have been reused since."""

    def tell(self, byte: bytes, number: float = math.nan) -> None:
        """Thaws the child and sends it (byte, number). Nothing happens to one that is dead; its end is among the events."""
        if self.ended:
            return
        self.thaw()
        with suppress(OSError):
            os.write(self.writer, _TOLD.pack(byte, number))

    def computed_secs(self) -> float:
        """Processor seconds of all its threads so far; 0 once it has ended."""
        with suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)
        return 0.0

    def kill(self) -> None:
        """Kills the child and its process group without waiting; its end is among the events."""
        if self.ended:
            return
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stops the child and its deadline until it is thawed, because idle threads of TVM's pool spin for milliseconds."""
        if self.ended:
            return
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGSTOP)
        if self.deadline is not None:
            self.left_secs, self.deadline = self.deadline - time.monotonic(), None

    def thaw(self) -> None:
        """Continues the child and its deadline."""
        if self.ended:
            return
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGCONT)
        if self.left_secs is not None:
            self.deadline, self.left_secs = time.monotonic() + self.left_secs, None


class Nursery:
    """The children of this process: starts them, reads their reports and reaps them."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._elders = set(children())

    def spawn(
        self,
        body: Callable[[Line], None],
        limits: Limits,
        *,
        deadline_secs: float,
        first: Callable[[], None] = lambda: None,
    ) -> Child:
        """Forks a child that runs `body` and exits.

        first: called in the child before it is confined, to start what it may not start any more afterwards. What it starts
        has the child's limits and cannot leave its process group.
        """
        parent = os.getpid()
        to_parent, to_child = os.pipe(), os.pipe()
        output = os.memfd_create("output", os.MFD_CLOEXEC)
        seal = secrets.token_hex(8)
        pid = os.fork()
        if pid == 0:
            line = Line(to_child[0], to_parent[1], seal)
            self._run(body, limits, parent, line, output, {to_child[0], to_parent[1]}, first)
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
            seal=seal,
            started=time.monotonic(),
            deadline=time.monotonic() + deadline_secs,
        )
        self._children.append(child)
        return child

    def _run(
        self,
        body: Callable[[Line], None],
        limits: Limits,
        parent: int,
        line: Line,
        output: int,
        keep: set[int],
        first: Callable[[], None],
    ) -> None:
        """Runs `body` in the fork, confined. Never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(parent)
            gc.disable()  # It ends before its garbage matters, and collecting writes to pages it shares.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, *_CRASHES):
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
            die_first()
            deny_leaving()
            first()
            if limits.confined:
                deny_system_calls()
            body(line)
            code = 0
        except BaseException:  # noqa: BLE001 - the child has no caller; what went wrong goes to its output
            with suppress(BaseException):
                os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def events(self, timeout_secs: float, extra: int | None = None) -> list[tuple[Child, FromChild | Ended]]:
        """Waits at most `timeout_secs` for reports, ends and deadlines; returns early when `extra` is readable.

        A child's reports come before its end, which is its last event. A child that sends a report without its seal, or one
        that is no report, is ended: its reports before that are returned, those after it are not read.
        """
        now = time.monotonic()
        deadlines = [child.deadline for child in self._children if child.deadline is not None]
        wait = max(0.0, min([timeout_secs, *(deadline - now for deadline in deadlines)]))
        poll = select.poll()
        by_descriptor: dict[int, Child] = {}
        for child in self._children:
            for descriptor in (child.pidfd,) if child.silent else (child.pidfd, child.reader):
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = child
        if extra is not None:
            poll.register(extra, select.POLLIN)
        ready = {by_descriptor[fd].pid for fd, _ in poll.poll(wait * 1000) if fd in by_descriptor}
        found: list[tuple[Child, FromChild | Ended]] = []
        now = time.monotonic()
        for child in list(self._children):
            late = child.deadline is not None and now >= child.deadline
            over = late or self._exited(child)
            if not over and child.pid not in ready:
                continue
            reports, misreport = self._read(child)
            found += [(child, report) for report in reports]
            if over or misreport:
                timed_out = late and not self._exited(child)
                found.append((child, self.end(child, timed_out=timed_out, misreport=misreport)))
        return found

    @staticmethod
    def _exited(child: Child) -> bool:
        ready, _, _ = select.select([child.pidfd], [], [], 0)
        return bool(ready)

    @staticmethod
    def _read(child: Child) -> tuple[list[FromChild], str]:
        """(complete reports, what is wrong with what followed them; empty if nothing is)."""
        while not child.silent and select.select([child.reader], [], [], 0)[0]:
            data = os.read(child.reader, 1 << 16)
            if not data:
                child.silent = True
            child.received += data
            child.received_bytes += len(data)
            if child.received_bytes > _MAX_REPORT_BYTES:
                return [], "an endless report"
        *lines, rest = bytes(child.received).split(b"\n")
        child.received = bytearray(rest)
        reports: list[FromChild] = []
        for line in lines:
            seal, _, text = line.partition(b" ")
            if seal != child.seal.encode():
                return reports, "a report that is not its own"
            try:
                reports.append(decode(text, FROM_CHILD))
            except ValueError as error:
                return reports, f"a report that makes no sense ({complaint(error)[:_COMPLAINT_CHARS]})"
        return reports, ""

    def end(self, child: Child, *, timed_out: bool = False, misreport: str = "") -> Ended:
        """Kills the child and its descendants, reaps them, and returns how it ended."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        child.ended = True
        self._children.remove(child)
        kill_strays(self._elders | {other.pid for other in self._children})
        code = os.waitstatus_to_exitcode(status)
        size = os.fstat(child.output).st_size
        output = os.pread(child.output, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace").strip()
        for descriptor in (child.pidfd, child.reader, child.writer, child.output):
            os.close(descriptor)
        return Ended(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            timed_out=timed_out,
            misreport=misreport,
            output=output,
        )

    def end_all(self, children: Iterable[Child]) -> None:
        """Ends these children. All are killed before the first is reaped, so that the kernel frees their memory in
        parallel."""
        children = [child for child in children if not child.ended]
        for child in children:
            child.kill()
        for child in children:
            self.end(child)

    def close(self) -> None:
        """Ends every child."""
        self.end_all(self._children)
