"""Work done in forks of this process, so that what crashes or hangs costs one piece of it.

A fork has what this process has read and imported, which a new process would take seconds for. It is confined as those are
that measure candidates: it computes and answers, and starts no program, opens no socket and writes no file. Its work runs
in a thread of its own, because a thread pool that this process may have started is not there in a fork.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from pitchpipe.processes.lifeline import end_with_parent, ending
from tuner.syscalls import deny_system_calls

PATIENCE_SECS = 10.0
"""What a fork that has closed its line gets to be gone, so that how it ended is known."""
KILLED = 9
"""The signal that the kernel sends where memory has run out, and this module past the time."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A piece of work whose fork ended before it."""

    reason: str
    final: bool
    """Whether it would end again: it crashed. Time or memory may have been short for other reasons."""


def in_forks(work: Callable[[int], bytes], count: int, *, processes: int, limit_secs: float) -> list[bytes | Lost]:
    """What `work(0)` to `work(count - 1)` return, called in at most so many forks at a time, each for at most `limit_secs`.

    A fork does one piece after another; what one of them changes in memory, the next may find changed. One thread of this
    process may call it, while no other one forks.
    """
    found: list[bytes | Lost] = [Lost(reason="it was not begun", final=False)] * count
    waiting, forks = deque(range(count)), list[_Fork]()
    try:
        while waiting or forks:
            while waiting and len(forks) < processes:
                forks.append(_Fork(work, forks))
                forks[-1].give(waiting.popleft(), limit_secs)
            ready = wait([fork.line for fork in forks], max(0.0, min(fork.until for fork in forks) - time.monotonic()))
            for fork in list(forks):
                if fork.line not in ready and fork.until > time.monotonic():
                    continue
                found[fork.piece] = answer = fork.answer(limit_secs)
                if isinstance(answer, bytes) and waiting:
                    fork.give(waiting.popleft(), limit_secs)
                else:
                    fork.end()
                    forks.remove(fork)
    finally:
        for fork in forks:
            fork.end()
    return found


class _Fork:
    """A fork and the line to it."""

    def __init__(self, work: Callable[[int], bytes], siblings: list[_Fork]) -> None:
        parent = os.getpid()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            for sibling in siblings:
                sibling.line.close()
            _serve(Connection(theirs.detach()), work, parent)
        theirs.close()
        self.line: Connection = Connection(ours.detach())
        self.piece, self.until = -1, math.inf
        self._status: int | None = None

    def give(self, piece: int, limit_secs: float) -> None:
        self.piece, self.until = piece, time.monotonic() + limit_secs
        with suppress(OSError):  # Its end is noticed when its answer is asked for.
            self.line.send_bytes(piece.to_bytes(4, "little"))

    def answer(self, limit_secs: float) -> bytes | Lost:
        """Once it has sent something, has ended, or had its time."""
        if not self.line.poll():
            return Lost(reason=f"it took longer than {limit_secs:g} s", final=False)
        try:
            return self.line.recv_bytes()
        except (EOFError, OSError):
            status = self.end(PATIENCE_SECS)
            return Lost(reason=f"the process that ran it {ending(status)}", final=status != -KILLED)

    def end(self, patience_secs: float = 0.0) -> int:
        """Ends it, unless it ends within so many seconds; its exit code, or the negative of the signal that ended it."""
        if self._status is None:
            self.line.close()
            reaped, status = _reaped(self.pid, patience_secs)
            if not reaped:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, KILLED)
                _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status


def _reaped(pid: int, patience_secs: float) -> tuple[bool, int]:
    """Whether it has ended within so many seconds, and how."""
    deadline = time.monotonic() + patience_secs
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() >= deadline:
            return bool(ended), status
        time.sleep(0.005)


def _serve(line: Connection, work: Callable[[int], bytes], parent: int) -> None:
    """The fork: one piece after another until the line closes. Never returns."""

    def pieces() -> None:
        with suppress(EOFError, OSError):
            while True:
                line.send_bytes(work(int.from_bytes(line.recv_bytes(), "little")))

    try:
        end_with_parent(parent)
        gc.disable()  # It ends before its garbage matters, and collecting writes to pages that it shares.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # Where memory runs out, it goes first.
        deny_system_calls()
        worker = threading.Thread(target=pieces, name="work")
        worker.start()
        worker.join()
    except BaseException:  # noqa: BLE001 - nothing above to tell
        traceback.print_exc()
    finally:
        os._exit(0)
