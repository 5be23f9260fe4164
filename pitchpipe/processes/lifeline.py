"""Children that do not outlive who started them, however that one ends, and whose own children do not outlive them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
POLL_SECS = 0.5
KILL_SECS = 5.0
"""What a killed process gets to be gone."""


def end_with_parent(parent: int) -> None:
    """For a child whose parent's starting *thread* waits for it: the kernel kills it with that thread.

    It works while native code holds the interpreter, which a watching thread would not. Where there is no such call the
    child watches by itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    else:
        watch_parent(parent, lambda: os._exit(1))


def watch_parent(parent: int, orphaned: Callable[[], object]) -> None:
    """Calls `orphaned` from a thread once the parent is gone, whichever of its threads started this process.

    `parent` is the number that the parent told, so that one which died before this is called is missed, too.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECS)
        orphaned()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def ending(status: int | None) -> str:
    """How a process ended, from its return code."""
    if status is None:
        return "does not end"
    if status >= 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    cause = {"SIGSYS": " (a system call that it may not make)", "SIGKILL": " (memory may have run out on the host)"}
    return f"was ended by {name}{cause.get(name, '')}"
