"""What a CPU can do at most, measured: the roofs that every program stays under.

    peak     float32 multiply-adds on values that stay in registers
    memory   per level: bytes read, or read and written in place, whichever is more, of an array that lies in that level:
             several times what the levels nearer to the cores hold together

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures" (2009),
with one roof per level of the memory. The nearest level has none: it holds a few thousand numbers, and what works on
those is over before its threads have started. What follows for the time of a task is in tuner/workload/bound.py.

Three kernels, on all threads t: with c in registers, c[t, i] = c[t, i] * 0.5 + 1, `repeats` times, multiplies and adds; the
same over an array reads and writes; and s[t, i] += a[t, j, i] reads. Every roof is the fastest of several runs: what
disturbs a run makes it slower, and a roof that is too low would be taken for a bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.target import Target
from tuner.measure import quiet
from tuner.measure.build import compile_module, threads
from tuner.measure.placement import spread_threads
from tuner.space.processor import VectorUnit
from tuner.tvm_compat import IRModule, Schedule, te, tirx, to_tvm_target, tvm

_BITS = 32
_RUNS = 8
"""In a row that are no faster than the fastest before them, then a kernel has shown what it can."""
_MOST_SECS = 0.15
"""Of one kernel; it takes this only where its runs are long or disturbed."""
_RUN_SECS = 4e-3
"""About the length of a run: a thousand times what starting the threads takes."""
_GUESSED_FLOPS_PER_SEC = 150e9
_GUESSED_BYTES_PER_SEC = 75e9
"""Of one thread; they only decide how often a kernel repeats itself in a run."""
_TIMES_INSIDE = 4
"""An array is so many times larger than all levels nearer to the cores, if its level holds twice that."""
_TIMES_CACHES = 2
"""The same of the array that no cache holds: its pages cost more than its timing."""
_MEMORY_SHARE = 0.125
"""Of the device's memory, at most, for that array."""
_ROW = 8
"""Vectors of a row of the arrays: as many independent sums, in registers, when they are read."""


def measure(target: Target, caches: Sequence[tuple[str, int]], memory_bytes: int) -> Roofline:
    """Takes about a second, half of it alone on the host. `caches`: (name, bytes that all cores hold together).

    Starts the runtime's threads: only in a fork that ends afterwards.
    """
    with quiet.computing():
        spread_threads()
        compiler = _Compiler(target)
        peak = compiler.peak()
        arrays = _arrays(caches, memory_bytes)
        memory = [compiler.memory(array_bytes) for _, _, array_bytes in arrays]
    with quiet.timing():
        flops_per_sec = peak.rate()
        rates = [max(kernel.rate() for kernel in kernels) for kernels in memory]
    return Roofline(
        threads=threads(),
        flops_per_sec=flops_per_sec,
        levels=tuple(
            # What comes from a level comes through those nearer to the cores: they are no slower.
            MemoryLevel(name=name, inside_bytes=inside, bytes_per_sec=max(rates[i:]))
            for i, (name, inside, _) in enumerate(arrays)
        ),
    )


def _arrays(caches: Sequence[tuple[str, int]], memory_bytes: int) -> list[tuple[str, int, int]]:
    """(level, bytes that the levels nearer to the cores hold, bytes of an array that lies in that level).

    Without a level that holds little more than those nearer to the cores: no array would lie in it alone.
    """
    found, inside = [], 0
    for name, size in caches:
        if inside and 2 * _TIMES_INSIDE * inside <= size:
            found.append((name, inside, _TIMES_INSIDE * inside))
        inside += size
    if inside and _TIMES_CACHES * inside <= memory_bytes * _MEMORY_SHARE:
        found.append(("memory", inside, _TIMES_CACHES * inside))
    return found


@dataclass(kw_only=True)
class _Kernel:
    main: Any
    arguments: list[Any]
    work: float
    """FLOPs or bytes of one run."""

    def rate(self) -> float:
        """Work per second of the fastest run."""
        end = time.perf_counter() + _MOST_SECS
        fastest, since = self._run(), 0
        while since < _RUNS and time.perf_counter() < end:
            secs = self._run()
            since = 0 if secs < fastest else since + 1
            fastest = min(fastest, secs)
        return self.work / fastest

    def _run(self) -> float:
        start = time.perf_counter()
        self.main(*self.arguments)
        return time.perf_counter() - start


class _Compiler:
    """Makes kernels for the vectors and threads of this machine; all buffers begin with an axis of threads."""

    def __init__(self, target: Target) -> None:
        self._target = to_tvm_target(target)
        self._unit = VectorUnit.of(target, _BITS)
        self._threads = threads()

    def peak(self) -> _Kernel:
        """Keeps as many results in registers as leave some for the constants: multiply-adds that wait for no other."""
        width = (self._unit.registers - 4) * self._unit.lanes
        flops = 2.0 * self._threads * width
        repeats = int(_RUN_SECS * _GUESSED_FLOPS_PER_SEC * self._threads / flops)
        schedule = _recurrence((self._threads, 1, width), repeats)
        block = schedule.get_sblock("c")
        thread, row, column, repeat = schedule.get_loops(block)
        schedule.reorder(thread, row, repeat, column)
        self._in_registers(schedule, block, thread, column, repeat)
        return self._kernel(schedule, [_empty((self._threads, 1, width))], flops * repeats)

    def memory(self, array_bytes: int) -> list[_Kernel]:
        """Updates, and reads, an array of about that size."""
        width = _ROW * self._unit.lanes
        rows = array_bytes * 8 // _BITS // self._threads // width
        size = self._threads * rows * width * _BITS / 8
        repeats = max(1, int(_RUN_SECS * _GUESSED_BYTES_PER_SEC * self._threads / size))
        array = _empty((self._threads, rows, width))

        update = _recurrence((self._threads, rows, width), repeats)
        thread, row, column, repeat = update.get_loops(block := update.get_sblock("c"))
        update.reorder(thread, repeat, row, column)
        update.parallel(thread)
        self._vectorize(update, column)
        update.decompose_reduction(block, repeat)
        # The recurrence begins with one pass that only writes.
        updating = self._kernel(update, [array], size * (2 * repeats + 1))

        read = _sum((self._threads, rows, width), repeats)
        thread, column, repeat, row = read.get_loops(block := read.get_sblock("s"))
        read.reorder(thread, repeat, row, column)
        self._in_registers(read, block, thread, column, repeat)
        return [updating, self._kernel(read, [array, _empty((self._threads, width))], size * repeats)]

    def _in_registers(self, schedule: Any, block: Any, thread: Any, column: Any, repeat: Any) -> None:
        result = schedule.cache_write(block, 0, "global")
        schedule.reverse_compute_at(result, thread)
        schedule.parallel(thread)
        self._vectorize(schedule, column)
        self._vectorize(schedule, schedule.get_loops(result)[-1])
        schedule.decompose_reduction(block, repeat)

    def _vectorize(self, schedule: Any, column: Any) -> None:
        vectors, lane = schedule.split(column, [None, self._unit.lanes])
        schedule.unroll(vectors)
        schedule.vectorize(lane)

    def _kernel(self, schedule: Any, arguments: list[Any], work: float) -> _Kernel:
        """Compiled, and run once: the pages are there, the threads have started."""
        main = compile_module(schedule.mod, self._target).get_function("main", query_imports=True)
        main(*arguments)
        return _Kernel(main=main, arguments=arguments, work=work)


def _recurrence(shape: tuple[int, ...], repeats: int) -> Any:
    """c[...] = c[...] * 0.5 + 1, `repeats` times: it tends to 2, and no compiler knows."""
    zero, half, one = (tirx.const(value, "float32") for value in (0.0, 0.5, 1.0))
    step = te.comm_reducer(lambda c, addend: c * half + addend, lambda _: zero, name="step")
    repeat = te.reduce_axis((0, repeats), name="repeat")
    c = te.compute(shape, lambda *_: step(one, axis=repeat), name="c")
    return Schedule(IRModule({"main": te.create_prim_func([c])}))


def _sum(shape: tuple[int, int, int], repeats: int) -> Any:
    """s[t, i] = sum over j of a[t, j, i], `repeats` times."""
    a = te.placeholder(shape, name="a")
    repeat, row = te.reduce_axis((0, repeats), name="repeat"), te.reduce_axis((0, shape[1]), name="row")
    s = te.compute((shape[0], shape[2]), lambda t, i: te.sum(a[t, row, i], axis=[repeat, row]), name="s")
    return Schedule(IRModule({"main": te.create_prim_func([a, s])}))


def _empty(shape: tuple[int, ...]) -> Any:
    return tvm.runtime.empty(shape, "float32")
