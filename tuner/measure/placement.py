"""Binding threads to cores, so that each thread of the process that is timed has a core of its own.

TVM binds every thread of its pool to a core, except the calling one, which also computes and may run on any core. When that
one wakes while its usual core is busy for a moment, the kernel may put it on a core that has a bound thread: the two take
turns, and the program takes exactly twice as long for tens of samples, which says nothing about the schedule.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tuner.measure.build import threads


def spread_threads() -> None:
    """Keeps the calling thread off the cores that the pool's threads are bound to, unless that leaves it none.

    Starts TVM's thread pool: call it only in a fork that will compute. New threads inherit the restriction.
    """
    threads()
    with suppress(OSError):
        allowed = os.sched_getaffinity(0)
        others = [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
        free = allowed - bound_cores([cores for thread in others if (cores := _cores_of(thread)) is not None])
        if free and free != allowed:
            os.sched_setaffinity(0, free)


def bound_cores(affinities: list[set[int]]) -> set[int]:
    """The cores that a thread is bound to, given the set of allowed cores of each thread."""
    return {core for cores in affinities if len(cores) == 1 for core in cores}


def _cores_of(thread: int) -> set[int] | None:
    """The cores that a thread may run on; None for a thread that has ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return None
