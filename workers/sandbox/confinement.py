"""What keeps a candidate's process in its cage: it dies with its parent, it has limits, and it may not start processes.

Linux only; called in the forked child before anything foreign runs there. The filters of tuner/syscalls.py complete it;
where the kernel offers none, limits and `kill_strays` (pitchpipe/processes/descendants.py) remain.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that forked it ends; exits at once if that has happened already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


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
