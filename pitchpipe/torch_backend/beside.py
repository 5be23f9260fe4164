"""Work that goes on beside a program, and how much of the program's own time may be taken for it.

What is slow runs in daemon threads, which mostly wait for children; the children end with them (child.py). A program that
ends does not wait for either, but for the moment in which such a thread is inside native code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from pitchpipe.processes.launch import running

AT_ONCE = 2
"""Threads that work at a time, in one process: each keeps about one core busy."""
REPAID = 0.5
"""Seconds that are repaid in a second: however much there is to try, a program has half of its time for itself."""
LAST_SECS = 10.0
"""Longest wait, when the process ends, for a thread inside native code, and for those whose children were ended."""

_turns = threading.BoundedSemaphore(AT_ONCE)
_native = threading.RLock()
_closing = threading.Event()
_tasks: set[Task] = set()


class Task:
    """A call that is made beside the program. Thread-safe. A fork of the process has no part in it: see `lost`."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        """The call raises nothing. It begins when fewer than AT_ONCE others work."""
        self._call, self._owner = call, os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pitchpipe-{name}", daemon=True)
        _tasks.add(self)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def lost(self) -> bool:
        """Whether it goes on in the process that this one was forked from, and will never be done here."""
        return not self.done and os.getpid() != self._owner

    def wait(self, secs: float) -> bool:
        """Whether it is done within so many seconds."""
        return self._ended.wait(min(secs, threading.TIMEOUT_MAX))

    def _run(self) -> None:
        try:
            with _turns:
                if not _closing.is_set():
                    self._call()
        except SystemExit:
            pass  # the process ends, see in_native_code
        finally:
            self._ended.set()
            _tasks.discard(self)


def process_ends() -> bool:
    """Whether what fails now may fail for that reason alone: children have been ended."""
    return _closing.is_set()


@contextlib.contextmanager
def in_native_code() -> Iterator[None]:
    """Around what a thread of ours does in libraries that must not be stopped half-way, one thread at a time.

    Ends the thread once the process ends.
    """
    with _native:
        if _closing.is_set():
            raise SystemExit
        yield


@atexit.register
def _close() -> None:
    """The children's threads clean up after them, so they are waited for."""
    _closing.set()
    if _native.acquire(timeout=LAST_SECS):
        _native.release()  # whoever comes next ends
    waiting = [task for task in list(_tasks) if task._owner == os.getpid() and task._thread.is_alive()]
    if waiting:
        for child in running():
            child.kill()
        until = time.monotonic() + LAST_SECS
        for task in waiting:
            task._thread.join(max(until - time.monotonic(), 0.0))


class Allowance:
    """What may be taken of a process's time: `deadline_secs` at first, and later as much as was repaid by then.

    Thread-safe. Whatever makes a call of the program wait (a build, a look-up, a trial of both sides) is spent here. What
    is waited for builds and look-ups is `deadline_secs` at most in the whole life of the process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._debt_secs, self._waited_secs, self._at = clock, 0.0, 0.0, clock()
        self._lock = threading.Lock()

    def left_secs(self, deadline_secs: float) -> float:
        """What may be spent now; 0 or less: nothing."""
        with self._lock:
            self._repay()
            return deadline_secs - self._debt_secs

    def spend(self, secs: float) -> None:
        with self._lock:
            self._repay()
            self._debt_secs += secs

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Around what makes the program wait."""
        before = self._clock()
        try:
            yield
        finally:
            self.spend(self._clock() - before)

    def wait_for(self, task: Task, deadline_secs: float) -> bool:
        """Whether the task is done, waiting for it as long as all waiting of this process together is in the deadline."""
        if task.done:
            return True
        before = self._clock()
        try:
            return task.wait(max(min(deadline_secs - self._waited_secs, self.left_secs(deadline_secs)), 0.0))
        finally:
            with self._lock:
                self._waited_secs += self._clock() - before

    def forgive(self) -> None:
        """Forgets what was spent and what was waited for: all of the deadline may be spent again."""
        with self._lock:
            self._debt_secs = self._waited_secs = 0.0

    def _repay(self) -> None:
        now = self._clock()
        self._debt_secs = max(self._debt_secs - REPAID * (now - self._at), 0.0)
        self._at = now


allowance = Allowance()
"""Of this process."""
