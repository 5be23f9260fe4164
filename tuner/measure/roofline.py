"""The roofline of a CPU, measured: the rates that no program exceeds.

    peak     float32 multiply-adds on values that stay in registers
    memory   per level: bytes read, or read and written in place, whichever is faster, of an array that lies in that level:
             it is several times as large as all levels nearer to the cores together

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures" (2009),
with one roof per level of the memory. The level nearest to the cores has none: it holds a few thousand numbers, and a
program that fits in it ends before its threads have started. The lower bound of a task's time that follows is in
tuner/workload/bound.py.

Three kernels, on all threads t: c[t, i] = c[t, i] * 0.5 + 1, `repeats` times, with c in registers, gives the peak; the same
over an array reads and writes memory; s[t, i] += a[t, j, i] reads it. Every roof is the fastest of several runs: whatever
disturbs a run makes it slower, and with a roof that is too low the bound of a task would exceed its possible time.
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
"""A kernel is run until so many runs in a row are no faster than the fastest before them."""
_MOST_SECS = 0.15
"""Seconds of one kernel's runs together, at most; only long or disturbed runs take as much."""
_RUN_SECS = 4e-3
"""Seconds of one run, approximately: a thousand times as long as starting the threads."""
_GUESSED_FLOPS_PER_SEC = 150e9
_GUESSED_BYTES_PER_SEC = 75e9
"""Rates of one thread; they only decide `repeats`, so that a run takes about _RUN_SECS."""
_TIMES_INSIDE = 4
"""Size of a level's array, in sizes of all levels nearer to the cores together; a level that holds less than twice that has
no array."""
_TIMES_CACHES = 2
"""The same for the array that no cache holds. Allocating its pages takes longer than timing it, so it is no larger."""
_MEMORY_SHARE = 0.125
"""Share of the device's memory that this array takes at most."""
_ROW = 8
"""Vectors in a row of an array: reading it accumulates as many independent sums, in registers."""


def measure(target: Target, caches: Sequence[tuple[str, int]], memory_bytes: int) -> Roofline:
    """Measures the roofline in about a second, half of it alone on the host (tuner/measure/quiet.py).

    caches: (name, bytes over all cores together) of each level, the nearest first. memory_bytes: the device's memory. Starts
    TVM's threads: call it only in a fork that ends afterwards.
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
            # Data of a level passes through those nearer to the cores, so these are at least as fast.
            MemoryLevel(name=name, inside_bytes=inside, bytes_per_sec=max(rates[i:]))
            for i, (name, inside, _) in enumerate(arrays)
        ),
    )


def _arrays(caches: Sequence[tuple[str, int]], memory_bytes: int) -> list[tuple[str, int, int]]:
    """(name of a level, bytes of all levels nearer to the cores, bytes of an array that lies in that level).

    A level that is little larger than those nearer to the cores is left out: no array would lie in it alone.
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
        """`work` per second of the fastest run."""
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
    """Compiles the kernels for this machine's vectors and threads; the first axis of all buffers is the thread."""

    def __init__(self, target: Target) -> None:
        self._target = to_tvm_target(target)
        self._unit = VectorUnit.of(target, _BITS)
        self._threads = threads()

    def peak(self) -> _Kernel:
        """The kernel of the peak rate: independent multiply-adds, one for every register but four, which hold constants."""
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
        """The kernels that update and that read an array of about `array_bytes`."""
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
        """Compiles the schedule and runs it once, so that pages are allocated and threads have started."""
        main = compile_module(schedule.mod, self._target).get_function("main", query_imports=True)
        main(*arguments)
        return _Kernel(main=main, arguments=arguments, work=work)


def _recurrence(shape: tuple[int, ...], repeats: int) -> Any:
    """c[...] = c[...] * 0.5 + 1, `repeats` times: it converges to 2, which no compiler derives, so none removes the loop."""
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
