"""What a process started and what those started in turn, found and ended. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, where `kill_strays` finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Process ids of this process's children, zombies included."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == me:
                        found.append(int(entry.name))
        return found


def kill_strays(known: set[int], patience_secs: float = 5.0) -> int:
    """Kills and reaps every child of this process that is not in `known`, and their children, which become children of this
    process. Returns how many.

    Needs `become_subreaper`. Only one thread of this process may reap.
    """
    killed, deadline = 0, time.monotonic() + patience_secs
    while strays := [pid for pid in children() if pid not in known]:
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
                killed += 1
        if time.monotonic() > deadline:
            break
    return killed
