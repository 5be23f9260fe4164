"""The host-wide rule of quiet: while a candidate is timed, no process of ours computes.

Two lock files, both taken with flock, so that the kernel releases the locks of a process that dies:

    room   a readers-writer lock: shared by everything that computes (searches, builds, reference programs), exclusive to
           the process that times
    gate   taken on the way into the room. A process that waits to time holds it meanwhile, so that a stream of overlapping
           computations cannot starve a timing

Hold either lock for short phases: some builds, then the timing of what was built; a longer computation calls `give_way`.
Only one thread of a process may use this module; inside `computing()` it may enter `computing()` again, at no cost. All
processes that name the same lock exclude each other: the path is the environment variable PITCHPIPE_QUIET_LOCK, or one file
per user in the temporary directory.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = "PITCHPIPE_QUIET_LOCK"
_POLL_SECS = 1e-3
_held: list[int] = []
"""Descriptors of the locks that this process holds: two on the way into the room, else at most one."""
_tell: Callable[[bool], None] | None = None
"""Called with True when a wait for a lock begins and with False when it is over."""


class Abandoned(Exception):
    """The caller gave up waiting for the lock."""


def lock_path() -> Path:
    """The room's lock file; the gate's is beside it."""
    return Path(os.environ.get(ENVIRONMENT) or Path(tempfile.gettempdir()) / f"pitchpipe-quiet-{os.getuid()}.lock")


def tell_waits(tell: Callable[[bool], None]) -> None:
    """From now on `tell(True)` is called when this process begins to wait for the lock, `tell(False)` when it has it."""
    global _tell
    _tell = tell


def create_files() -> None:
    """Makes the lock's files, for processes that may read files and create none."""
    for suffix in ("", ".gate"):
        os.close(_open(f"{lock_path()}{suffix}"))


@contextmanager
def computing(abandoned: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Waits until nothing is timed, and lets no timing begin inside. Raises Abandoned once `abandoned`, polled while it
    waits, returns true."""
    if _held:
        yield
        return
    with _locked(".gate", fcntl.LOCK_SH, abandoned):
        _acquire("", fcntl.LOCK_SH, abandoned)
    try:
        yield
    finally:
        while _held:  # Not the descriptor from above: `give_way` may have taken the lock anew.
            _release(_held[-1])


def give_way() -> None:
    """Inside `computing`: lets a timing that waits go first. For long computations, every few hundredths of a second.

    Nothing of the caller's process may compute during the call. Without a lock held, and without anybody waiting, it
    costs microseconds.
    """
    if len(_held) != 1:
        return
    _release(_held[0])
    with _locked(".gate", fcntl.LOCK_SH, _never):
        _acquire("", fcntl.LOCK_SH, _never)


def _never() -> bool:
    return False


@contextmanager
def timing(abandoned: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Waits until nothing of ours computes or is timed, and lets neither begin inside. Raises Abandoned as `computing`
    does, and RuntimeError inside `computing`, where it would wait for itself."""
    if _held:
        raise RuntimeError("timing inside computing would wait for itself")
    with _locked(".gate", fcntl.LOCK_EX, abandoned):
        room = _acquire("", fcntl.LOCK_EX, abandoned)
    try:
        yield
    finally:
        _release(room)


def awaited() -> bool:
    """Whether a process waits to time. A long computation then lets it, by leaving `computing` and entering it again."""
    descriptor = _open(f"{lock_path()}.gate")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _locked(suffix: str, mode: int, abandoned: Callable[[], bool]) -> Iterator[None]:
    descriptor = _acquire(suffix, mode, abandoned)
    try:
        yield
    finally:
        _release(descriptor)


def _acquire(suffix: str, mode: int, abandoned: Callable[[], bool]) -> int:
    path = lock_path()
    descriptor = _open(f"{path}{suffix}")
    waits = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if abandoned():
                    raise Abandoned(f"gave up waiting for {path}{suffix}") from None
                if not waits and _tell is not None:
                    _tell(True)
                waits = True
                time.sleep(_POLL_SECS)
    except BaseException:
        os.close(descriptor)
        raise
    _held.append(descriptor)
    if waits and _tell is not None:
        _tell(False)
    return descriptor


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # In a process that may write no file: a lock needs no more.


def _release(descriptor: int) -> None:
    _held.remove(descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # Closing is not enough: a fork that was stopped at once has a copy.
    os.close(descriptor)
