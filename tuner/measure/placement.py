"""Binding threads to cores, so that each thread of the process that is timed has a core of its own.

Left to the kernel, the thread that calls may be woken on a core that has another thread of the kernel's: the two take turns,
and the program takes exactly twice as long for tens of samples, which says nothing about the schedule. TVM's own binding
is to the first cores of the machine, whichever the process may use, and leaves out the thread that calls.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pitchpipe.processes.cores import allowed_cores
from tuner.measure.build import threads


def spread_threads() -> None:
    """Gives the calling thread and each of TVM's pool a core of its own, where the process may use as many as there are
    threads; otherwise all of them may run on all of its cores.

    Starts TVM's thread pool: call it only in a fork that will compute. New threads inherit the restriction.
    """
    cores, before = sorted(allowed_cores()), _threads()
    threads()
    pool = sorted(_threads() - before)
    alone = len(cores) == len(pool) + 1
    for place, thread in enumerate([0, *pool]):  # 0 is the calling thread
        with suppress(OSError):
            os.sched_setaffinity(thread, cores[place : place + 1] if alone else cores)


def _threads() -> set[int]:
    """The kernel's numbers of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}
