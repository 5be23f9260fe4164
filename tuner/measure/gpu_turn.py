"""Which process times on a GPU: one at a time on this host, and one that waits goes before the present holder's next turn.

There are two lock files per GPU, as in tuner/measure/quiet.py: the turn itself, and a gate that the process which waits for
the turn holds. Both are taken with flock, so the kernel releases the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from tuner.measure.quiet import lock_path

_ASK_SECS = 0.01


@contextmanager
def turn_on(uuid: str) -> Iterator[None]:
    """The turn on one GPU, waited for: for a process that has nothing else to do meanwhile."""
    with GpuTurn(uuid) as turn:
        while not turn.take():
            time.sleep(_ASK_SECS)
        yield


class GpuTurn:
    """The turn on one GPU. Its methods never block: a caller that did not get the turn asks again later."""

    def __init__(self, uuid: str) -> None:
        path = f"{lock_path()}.gpu-{uuid}"
        self._turn = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._gate = os.open(f"{path}.gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting = self._held = False

    def take(self) -> bool:
        """Asks for the turn; whether this process has it now. Who goes on asking gets it after the present holder's turn."""
        if not self._held:
            self._waiting = self._waiting or _locked(self._gate)
            if self._waiting and _locked(self._turn):
                self._held, self._waiting = True, False
                fcntl.flock(self._gate, fcntl.LOCK_UN)
        return self._held

    def give_back(self) -> None:
        """Ends the turn, or the wait for it."""
        for descriptor in (self._turn, self._gate):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._waiting = self._held = False

    def close(self) -> None:
        """Gives the turn back and closes the files; idempotent."""
        for descriptor in (self._turn, self._gate):
            if descriptor >= 0:
                os.close(descriptor)
        self._turn = self._gate = -1

    def __enter__(self) -> GpuTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
