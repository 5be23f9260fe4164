"""Whose turn it is to time on a GPU: one process at a time on this host, and those that wait go first.

Two lock files per GPU, as in tuner/measure/quiet.py: the turn itself, and a gate that whoever waits for the turn keeps
shut. Taken with flock, so that a process that dies gives back what it held.
"""

from __future__ import annotations

import fcntl
import os
from types import TracebackType

from tuner.measure.quiet import lock_path


class GpuTurn:
    """Of one GPU. Never blocks: a caller that has other things to do asks again."""

    def __init__(self, uuid: str) -> None:
        path = f"{lock_path()}.gpu-{uuid}"
        self._turn = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._gate = os.open(f"{path}.gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting = self._held = False

    def take(self) -> bool:
        """Whether the turn is this process's now. Asked again until it is, it is so after the present holder's turn."""
        if not self._held:
            self._waiting = self._waiting or _locked(self._gate)
            if self._waiting and _locked(self._turn):
                self._held, self._waiting = True, False
                fcntl.flock(self._gate, fcntl.LOCK_UN)
        return self._held

    def give_back(self) -> None:
        """Ends the turn, or the waiting for it."""
        for descriptor in (self._turn, self._gate):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._waiting = self._held = False

    def close(self) -> None:
        """Gives back; idempotent."""
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
