"""The heartbeat of a CPU: timings (beats) of a fixed program that uses all cores, the reference workload.

It is compiled once, in a process that is then forked, and timed in the forks. tuner/measure/drift.py decides what a beat
says about the timings beside it.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.measure.build import compile_module, cpu_target_of_host
from tuner.measure.placement import spread_threads
from tuner.tvm_compat import IRModule, Schedule, te, tvm

SAMPLES = 11
CALLS = 3
_SIZE = 192


class HeartbeatProgram:
    """The reference workload: a product of two matrices on all cores of the host, which takes about half a millisecond.

    The constructor compiles it and does not run it, so that the process may still be forked.
    """

    def __init__(self) -> None:
        n = _SIZE
        a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
        k = te.reduce_axis((0, n), name="k")
        product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        schedule = Schedule(IRModule({"main": te.create_prim_func([a, b, product])}))
        block = schedule.get_sblock("c")
        i, j, reduced = schedule.get_loops(block)
        outer, inner = schedule.split(j, [None, 16])
        schedule.reorder(i, outer, reduced, inner)
        schedule.parallel(i)
        schedule.vectorize(inner)
        schedule.decompose_reduction(block, reduced)
        self._module = compile_module(schedule.mod, cpu_target_of_host())
        self._main = self._module.get_function("main", query_imports=True)
        self._arguments: list[Any] = []

    def beat(self) -> float:
        """A beat: the median over SAMPLES of the mean seconds of CALLS runs. Starts TVM's threads: only in a fork."""
        if not self._arguments:
            spread_threads()
            self._arguments = [tvm.runtime.empty((_SIZE, _SIZE), "float32") for _ in range(3)]
            for tensor in self._arguments:
                tensor.copyfrom(tensor.numpy() * 0 + 1)
        self._main(*self._arguments)
        samples = []
        for _ in range(SAMPLES):
            start = time.perf_counter()
            for _ in range(CALLS):
                self._main(*self._arguments)
            samples.append((time.perf_counter() - start) / CALLS)
        return statistics.median(samples)


def load_average() -> float:
    """The host's load average over one minute."""
    return os.getloadavg()[0]


def clock_hz() -> float | None:
    """The present clock rate of the first core that this process may use; None where the kernel does not tell it."""
    core = min(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        return float(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").read_text()) * 1e3
    with suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2]) * 1e6
    return None
