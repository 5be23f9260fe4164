"""The task process of one workload: holds its inputs and reference outputs, and forks a child for every candidate.

Forked by the zygote (workers/sandbox/zygote.py), so TVM is imported already. Single-threaded. Foreign code runs only in its
children, not in itself, but it does parse the workload's IR. It communicates with the worker over a channel, in the
messages of workers/sandbox/messages.py.

What it does with a batch is in workers/sandbox/cpu/search.py and confirm.py.
"""

from __future__ import annotations

import mmap
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Self

from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig, Measurement
from pitchpipe.wire.target import Target
from tuner.measure import eviction, quiet
from tuner.measure.build import warm_up
from tuner.measure.candidate import Bench
from tuner.measure.check import SETS
from tuner.measure.heartbeat import HeartbeatProgram
from tuner.measure.input_sets import RANGES
from tuner.tvm_compat import import_object_loader
from workers.sandbox.builders import BuiltCandidate, Parts
from workers.sandbox.channel import Channel, Closed
from workers.sandbox.cpu.child import builder_body
from workers.sandbox.cpu.confirm import ConfirmRun
from workers.sandbox.cpu.search import SearchRun
from workers.sandbox.messages import (
    Alive,
    Batch,
    Beat,
    Cancel,
    End,
    FromChild,
    Holds,
    Measured,
    MeasureRoofline,
    Open,
    Phase,
    PhaseName,
    ReferenceComputed,
    Repeated,
    RooflineMeasured,
    Sample,
    ToTask,
)
from workers.sandbox.nursery import Child, Ended, Limits, Line, Nursery
from workers.sandbox.report import failed, last_line

_ALIVE_SECS = 1.0
_MOST_CODE_BYTES = 1 << 26
"""Of a program that a builder makes. A kernel has tens of kilobytes; what is unrolled without measure has megabytes."""


class Cancelled(Exception):
    """The worker wants no more results of this batch."""


class Unusable(Exception):
    """No candidate of the workload can be measured, and why."""

    def __init__(self, *, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


def prepare(target: Target) -> Callable[[Channel[ToTask]], None]:
    """Prepares the zygote for the target: warms up TVM and compiles the heartbeat program and what evicts. Returns the
    function that its forks run."""
    warm_up(target)
    import_object_loader()
    eviction.prepared()
    heartbeat = HeartbeatProgram()
    return lambda channel: run_forked(channel, lambda opened: TaskProcess(channel, opened, heartbeat))


class TaskProcess:
    """The task process of a CPU workload. A context manager; leaving it ends every child."""

    def __init__(self, channel: Channel[ToTask], opened: Open, heartbeat: HeartbeatProgram | None) -> None:
        self._channel, self._opened, self._heartbeat = channel, opened, heartbeat
        self._nursery = Nursery()
        self.programs: dict[str, BuiltCandidate] = {}
        self._bench: Bench | None = None
        self._unusable: Unusable | None = None
        self._told = 0.0
        self._parts = Parts()
        self._waits_since = 0.0
        quiet.tell_waits(self._waits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

    def serve(self) -> None:
        """Measures one batch after another; raises Closed when the other end closes."""
        while True:
            message = self._channel.receive(self.rest_after_secs)
            if message is None:
                self.rest()
            elif isinstance(message, Batch):
                self.measure(message)

    rest_after_secs: float | None = None
    """Seconds without a batch after which `rest` is called."""

    def rest(self) -> None:
        """Frees resources that a process without work should not hold."""

    def measure(self, batch: Batch) -> None:
        """Sends one Measured per candidate, unless the batch is cancelled, then End."""
        try:
            bench = self._prepared()
            run = ConfirmRun if batch.purpose is Purpose.CONFIRM else SearchRun
            run(self, bench, batch).run()
        except (Cancelled, quiet.Abandoned):
            pass
        except Unusable as unusable:
            for candidate in batch.candidates:
                self.send(failed(candidate, unusable.kind, unusable.detail))
        self._channel.send(End())
        self._nursery.close()  # While the worker hands the results on.

    # -- the workload

    def _prepared(self) -> Bench:
        if self._unusable is not None:
            raise self._unusable
        if self._bench is None:
            try:
                with self.phase("prepare"):
                    self._bench = self._open()
            except Unusable as unusable:
                self._unusable = unusable
                raise
        return self._bench

    def _open(self) -> Bench:
        opened = self._opened
        try:
            bench = Bench(opened.ir, opened.target, opened.config.seed)
        except Exception as error:
            raise Unusable(
                kind=FailureKind.BUILD_ERROR, detail=f"the workload cannot be read: {last_line(error)}"
            ) from error
        size = max(1, bench.reference_bytes())
        buffers = {name: mmap.mmap(-1, size) for name in SETS}
        with quiet.computing(self.abandoned):
            silent: Sequence[str] = SETS
            for within in RANGES:
                for name in silent:
                    bench.fill(name, within)
                silent = self._compute_reference_outputs(bench, buffers, silent)
        if len(silent) == len(SETS):
            raise Unusable(kind=FailureKind.RUN_ERROR, detail="the reference program gives no finite output")
        for name in SETS:
            if name not in silent:
                bench.set_reference_outputs(name, memoryview(buffers[name]))
        self._channel.send(Holds(held_bytes=bench.held_bytes()))
        return bench

    def _compute_reference_outputs(
        self, bench: Bench, buffers: dict[str, mmap.mmap], names: Sequence[str]
    ) -> list[str]:
        """Runs the reference program on these sets, in a child, which writes its outputs into each set's buffer.

        Returns the sets on which most outputs are not finite. Raises Unusable when the child fails.
        """

        def body(line: Line) -> None:
            program = bench.reference_program()
            for name in names:
                buffer = memoryview(buffers[name])
                line.send(ReferenceComputed(finite=bench.compute_reference_outputs(program, name, buffer)))

        if not names:
            return []
        config, finite = self._opened.config, list[bool]()
        deadline_secs = config.build_timeout_secs + len(names) * config.run_timeout_secs
        started = self._nursery.spawn(body, self.limits(config), deadline_secs=deadline_secs)
        while True:
            for child, event in self.events():
                if child is started and isinstance(event, ReferenceComputed):
                    finite.append(event.finite)
                elif child is started and isinstance(event, Ended):
                    if len(finite) != len(names):
                        kind = FailureKind.RUN_TIMEOUT if event.timed_out else FailureKind.RUN_ERROR
                        raise Unusable(kind=kind, detail=f"the reference program {event}")
                    return [name for name, enough in zip(names, finite, strict=True) if not enough]

    # -- what a batch needs of its host

    @property
    def nursery(self) -> Nursery:
        return self._nursery

    @property
    def parallel_builds(self) -> int:
        return self._opened.parallel_builds

    @cached_property
    def slots(self) -> Sequence[mmap.mmap]:
        return [mmap.mmap(-1, _MOST_CODE_BYTES) for _ in range(self.parallel_builds)]

    def builder_body(self, candidate: Candidate, slot: mmap.mmap) -> Callable[[Line], None]:
        return builder_body(self._prepared(), candidate, slot)

    def before_building(self, candidate: Candidate) -> None:
        """Nothing: builders for a CPU start nothing."""

    def builder_limits(self, config: MeasureConfig) -> Limits:
        return replace(self.limits(config), file_bytes=_MOST_CODE_BYTES)

    def send(self, result: Measurement) -> None:
        self._channel.send(Measured(result=result))

    def heartbeat_body(self, line: Line) -> None:
        assert self._heartbeat is not None
        while True:
            line.wait()
            line.send(Sample(secs=self._heartbeat.beat()))

    def report_beat(self, secs: float) -> None:
        self._channel.send(Beat(secs=secs))

    def repeated(self) -> None:
        self._channel.send(Repeated())

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[Parts]:
        self._parts = parts = Parts()
        began = time.time()
        yield parts
        self._channel.send(
            Phase(
                name=name,
                began=began,
                ended=max(began, time.time()),
                wait_secs=parts.wait_secs,
                check_secs=parts.check_secs,
            )
        )

    def _waits(self, begins: bool) -> None:
        if begins:
            self._waits_since = time.monotonic()
        else:
            self._parts.wait_secs += time.monotonic() - self._waits_since

    # -- the loop

    def events(self) -> list[tuple[Child, FromChild | Ended]]:
        if self.abandoned():
            raise Cancelled
        return self._nursery.events(_ALIVE_SECS / 2, self._channel.fileno())

    def abandoned(self) -> bool:
        """Whether the batch was cancelled. Sends Alive to the worker from time to time. Raises Closed."""
        now = time.monotonic()
        if now - self._told >= _ALIVE_SECS:
            self._told = now
            self._channel.send(Alive())
        return isinstance(self._channel.receive(0.0), Cancel)

    def limits(self, config: MeasureConfig) -> Limits:
        # A GPU's target names no cores, and the outputs to compare with are computed on all of the host's.
        cores = self._opened.target.num_cores or usable_cores()
        return Limits(
            memory_bytes=config.memory_limit_bytes,
            cpu_secs=config.build_timeout_secs + (config.run_timeout_secs + 1) * cores * 2,
            confined=self._opened.confined,
        )


def run_forked(channel: Channel[ToTask], make: Callable[[Open], TaskProcess]) -> None:
    """Runs in a new fork of the zygote: serves until the other end closes, then exits. Never returns."""
    code = 1
    try:
        first = channel.receive(None)
        if isinstance(first, MeasureRoofline):
            channel.send(RooflineMeasured(roofline=kind_of(first.target).roofline(first.target)))
        elif isinstance(first, Open):
            with make(first) as task:
                task.serve()
    except Closed:
        code = 0
    except BaseException:  # noqa: BLE001 - nothing above to tell; the worker's log shares this stream
        traceback.print_exc()
    finally:
        os._exit(code)
