"""Sets the limits of this process for the length of one step."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pitchpipe.wire.limits import StepLimits


@contextmanager
def limited(limits: StepLimits) -> Iterator[None]:
    """So much processor time and private memory beyond what this process has used and holds now.

    Past the first the kernel ends the process with SIGXCPU; past the second an allocation fails, in Python as
    MemoryError. Where the system does not tell what the process holds, its memory is not limited.
    """
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _soft(resource.RLIMIT_CPU, math.ceil(spent.ru_utime + spent.ru_stime) + limits.cpu_secs)
    if (held := _private_bytes()) is not None:
        _soft(resource.RLIMIT_DATA, held + (limits.memory_bytes or _host_bytes()))
    try:
        yield
    finally:
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
            _soft(kind, resource.RLIM_INFINITY)  # What comes next, the answer, has no share in what was used up.


def _soft(kind: int, value: int) -> None:
    """Sets the soft limit, as far as the hard one lets it."""
    _, hard = resource.getrlimit(kind)
    bounds = [bound for bound in (value, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(bounds, default=resource.RLIM_INFINITY), hard))


def _private_bytes() -> int | None:
    """Private writable memory, which is what RLIMIT_DATA counts: not what is only reserved, as by a GPU's driver."""
    with suppress(OSError):
        for text in Path("/proc/self/status").read_text().splitlines():
            if text.startswith("VmData:"):
                return int(text.split()[1]) * 1024
    return None


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
