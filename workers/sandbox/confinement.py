"""What keeps a candidate's process in its cage: it dies with its parent, it has limits, and it may not start processes.

Linux only; called in the forked child before anything foreign runs there. The filters of tuner/syscalls.py complete it;
where the kernel offers none, limits and `kill_strays` remain.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends; exits at once if that has happened already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process, where `kill_strays` finds them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(*, memory_bytes: int, cpu_secs: float, file_bytes: int, writable_only: bool = False) -> None:
    """Lowers this process's limits irrevocably: memory beyond the present, processor time, size of files, no core dump.

    memory_bytes: of address space or, with `writable_only`, of private writable memory.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_DATA if writable_only else resource.RLIMIT_AS, used + memory_bytes)
    _lower(resource.RLIMIT_CPU, int(cpu_secs) + 1)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it: a flood of output would go on for ever.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def die_first() -> None:
    """Makes this process and its forks the first that the kernel kills when the host runs out of memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


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
