"""Work done in forks of this process, so that what crashes or hangs costs one piece of it.

A fork has what this process has read and imported, which a new process would take seconds for. It is confined as those are
that measure candidates: it computes and answers, and starts no program, opens no socket and writes no file. Each piece has
a fork of its own, so that what one does to its memory meets no other. The work runs in a thread of its own, because a
thread pool that this process may have started is not there in a fork.
"""

from __future__ import annotations

import gc
import os
import resource
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


def in_forks(
    work: Callable[[int], bytes], count: int, *, processes: int, limit_secs: float, confined: bool = True
) -> list[bytes | Lost]:
    """What `work(0)` to `work(count - 1)` return, each called in a fork of its own, for `limit_secs` at most.

    processes: forks at a time. confined: False for work that opens a device. One thread of this process may call it, while
    no other one forks.
    """
    found: list[bytes | Lost] = [Lost(reason="it was not begun", final=False)] * count
    waiting, forks, answered = deque(range(count)), list[_Fork](), list[_Fork]()
    try:
        while waiting or forks:
            while waiting and len(forks) < processes:
                forks.append(_Fork(work, waiting.popleft(), limit_secs, confined))
            left_secs = min(fork.until for fork in forks) - time.monotonic()
            ready = wait([fork.line for fork in forks], max(0.0, left_secs))
            for fork in list(forks):
                if fork.line in ready:
                    fork.receive()
                    answered.append(fork)
                    forks.remove(fork)
                elif fork.until <= time.monotonic():
                    found[fork.piece] = Lost(reason=f"it took longer than {limit_secs:g} s", final=False)
                    fork.end()
                    forks.remove(fork)
        for fork in answered:  # The kernel was freeing their memory while others worked.
            found[fork.piece] = fork.answer()
    finally:
        for fork in [*forks, *answered]:
            fork.end()
    return found


class _Fork:
    """A fork that does one piece of work, and the line on which it answers."""

    def __init__(self, work: Callable[[int], bytes], piece: int, limit_secs: float, confined: bool) -> None:
        parent, (reader, writer) = os.getpid(), os.pipe()
        self.piece, self.until = piece, time.monotonic() + limit_secs
        self._data: bytes | None = None
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _serve(Connection(writer, readable=False), lambda: work(piece), parent, confined)
        os.close(writer)
        self.line = Connection(reader, writable=False)

    def receive(self) -> None:
        """Takes what it has answered; nothing where it has ended before that."""
        with suppress(EOFError, OSError):
            self._data = self.line.recv_bytes()
        self.line.close()

    def answer(self) -> bytes | Lost:
        """What was received; ends it."""
        status = self.end(PATIENCE_SECS)
        if status == 0 and self._data is not None:
            return self._data
        return Lost(reason=f"the process that ran it {ending(status)}", final=status < 0 and status != -KILLED)

    def end(self, patience_secs: float = 0.0) -> int:
        """Ends it, unless it ends within so many seconds; its exit code, or the negative of the signal that ended it."""
        self.line.close()
        deadline = time.monotonic() + patience_secs
        while self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if not ended and time.monotonic() >= deadline:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, KILLED)
                ended, status = os.waitpid(self.pid, 0)
            if ended:
                self._status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.002)
        return self._status


def _serve(line: Connection, work: Callable[[], bytes], parent: int, confined: bool) -> None:
    """The fork: does its work, answers, and ends. Never returns."""
    answers: list[bytes] = []
    try:
        end_with_parent(parent)
        gc.disable()  # It ends before its garbage matters, and collecting writes to pages that it shares.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # Where memory runs out, it goes first.
        if confined:
            deny_system_calls()
        worker = threading.Thread(target=lambda: answers.append(work()), name="work")
        worker.start()
        worker.join()
        line.send_bytes(answers[0])
    except BaseException:  # noqa: BLE001 - nothing above to tell
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
