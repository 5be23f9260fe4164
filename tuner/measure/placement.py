"""Which core a thread runs on: one for each thread of the process that is timed.

TVM binds every thread of its pool to a core of its own, except the calling one, which also computes: that one may run on
any core. Woken while something else holds its usual core for a moment, it lands beside a bound thread, both wait for
each other, and the program takes exactly twice as long for tens of samples. That is chance, not a schedule.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tuner.measure.build import threads


def spread_threads() -> None:
    """Keeps the calling thread off the cores that the pool's threads are bound to; nothing if that leaves none.

    Starts the pool: only in a fork that will compute. New threads inherit the restriction.
    """
    threads()
    with suppress(OSError):
        allowed = os.sched_getaffinity(0)
        others = [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
        free = allowed - bound_cores([cores for thread in others if (cores := _cores_of(thread)) is not None])
        if free and free != allowed:
            os.sched_setaffinity(0, free)


def bound_cores(affinities: list[set[int]]) -> set[int]:
    """The cores that belong to one thread each, of threads with these sets of allowed cores."""
    return {core for cores in affinities if len(cores) == 1 for core in cores}


def _cores_of(thread: int) -> set[int] | None:
    """None for a thread that has ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return None
